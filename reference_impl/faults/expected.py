"""Verdicts that several faults must cause: a dictionary from claim id or kind to status, reason code and figures.

`first_differing_step` counts from 0 and is the first step whose loss can differ. A wrong update in step k changes the
loss of step k + 1.
"""

from __future__ import annotations

from harness.system.protocol import Expectation


def trajectory(reason: str, step: int) -> dict[str, Expectation]:
    """Return the verdict of a `trajectory_match` claim: `reason`, and the first step whose loss differs."""
    return {"trajectory_match": Expectation("FAIL", reason, {"first_differing_step": step})}


def single_steps(quantity: str, step: int) -> dict[str, Expectation]:
    """Return the verdict of a `step_match` claim, which compares single steps with transformers.

    quantity, step: the first quantity that exceeds its bound, and the step in which it does.
    """
    figures: dict[str, int | str] = {
        "first_exceeding_quantity": quantity,
        "first_exceeding_step": step,
        "exceeded": "max_evaluation_error" if quantity in ("loss", "norms", "gradients") else "max_update_error",
    }
    return {"step_match": Expectation("FAIL", "exceeds_tolerance", figures)}


def single_evaluations(step: int) -> dict[str, Expectation]:
    """Return the verdict of `single_steps` without the quantity, because for a small fault rounding decides which
    quantity exceeds its bound first."""
    figures: dict[str, int | str] = {"first_exceeding_step": step, "exceeded": "max_evaluation_error"}
    return {"step_match": Expectation("FAIL", "exceeds_tolerance", figures)}


def transformers_twin(**figures: int) -> dict[str, Expectation]:
    """Return the verdict that REF-STEP-001 gave before it judged single steps, for published drills.

    figures: the expected figures, by name; `__` in a name stands for the dot after the part of the claim.
    """
    named = {name.replace("__", "."): value for name, value in figures.items()}
    return {"REF-STEP-001": Expectation("FAIL", "exceeds_tolerance", named)}


def errs(bound: str) -> dict[str, Expectation]:
    """Return the verdict of a `step_accuracy` claim, which compares with another implementation's errors.

    bound: the ratio of errors that exceeds its limit.
    """
    return {"step_accuracy": Expectation("FAIL", "exceeds_tolerance", {"exceeded_bound": f"{bound}_at_most"})}
