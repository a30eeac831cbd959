"""Verdicts that several faults must cause: claim id or kind -> status, reason code and figures.

`first_differing_step` counts from 0 and is the first step whose loss can differ: a wrong update of step k shows in the
loss of step k + 1.
"""

from __future__ import annotations

from harness.system.protocol import Expectation


def trajectory(reason: str, step: int) -> dict[str, Expectation]:
    """Return the verdict of a trajectory claim: the reason, and the first step whose loss differs."""
    return {"trajectory_match": Expectation("FAIL", reason, {"first_differing_step": step})}


def single_steps(quantity: str, step: int) -> dict[str, Expectation]:
    """Return the verdict of the comparison with transformers: the first quantity beyond its bound, and its step."""
    figures: dict[str, int | str] = {
        "first_exceeding_quantity": quantity,
        "first_exceeding_step": step,
        "exceeded": "max_evaluation_error" if quantity in ("loss", "norms", "gradients") else "max_update_error",
    }
    return {"step_match": Expectation("FAIL", "exceeds_tolerance", figures)}


def single_evaluations(step: int) -> dict[str, Expectation]:
    """Return the same for a small fault, where the library's rounding decides whether the loss is first."""
    figures: dict[str, int | str] = {"first_exceeding_step": step, "exceeded": "max_evaluation_error"}
    return {"step_match": Expectation("FAIL", "exceeds_tolerance", figures)}


def transformers_twin(**figures: int) -> dict[str, Expectation]:
    """Return REF-STEP-001's verdict from before it judged single steps, for published drills; figures name the part."""
    named = {name.replace("__", "."): value for name, value in figures.items()}
    return {"REF-STEP-001": Expectation("FAIL", "exceeds_tolerance", named)}


def errs(bound: str) -> dict[str, Expectation]:
    """Return the verdict of the comparison with another implementation's errors: which ratio exceeds its bound."""
    return {"step_accuracy": Expectation("FAIL", "exceeds_tolerance", {"exceeded_bound": f"{bound}_at_most"})}
