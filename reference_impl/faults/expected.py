"""Verdicts that several faults must cause: dictionaries from claim id or claim kind to the expected verdict.

`first_differing_step` is the first step, from 0, whose loss can differ. A wrong update in step k changes loss k + 1.
"""

from __future__ import annotations

from harness.system.protocol import Expectation


def trajectory(reason: str, step: int) -> dict[str, Expectation]:
    """Return the verdict of a `trajectory_match` claim: `reason`, and the first step whose loss differs."""
    return {"trajectory_match": Expectation("FAIL", reason, {"first_differing_step": step})}


def single_steps(quantity: str, step: int) -> dict[str, Expectation]:
    """Return the verdict of a `step_match` claim, which compares single steps with those of the transformers library.

    quantity: the first quantity that exceeds its bound. step: the first step in which the quantity exceeds the bound.
    """
    figures: dict[str, int | str] = {
        "first_exceeding_quantity": quantity,
        "first_exceeding_step": step,
        "exceeded": "max_evaluation_error" if quantity in ("loss", "norms", "gradients") else "max_update_error",
    }
    return {"step_match": Expectation("FAIL", "exceeds_tolerance", figures)}


def single_evaluations(step: int) -> dict[str, Expectation]:
    """Return the verdict of `single_steps` without the quantity.

    For a small fault, rounding decides which quantity exceeds its bound first.
    """
    figures: dict[str, int | str] = {"first_exceeding_step": step, "exceeded": "max_evaluation_error"}
    return {"step_match": Expectation("FAIL", "exceeds_tolerance", figures)}


def transformers_twin(**figures: int) -> dict[str, Expectation]:
    """Return the expected verdict of a fault in older published drills, whose claim REF-STEP-001 did not yet judge
    single steps.

    figures: the expected figures, by name; `__` in a name stands for a dot.
    """
    named = {name.replace("__", "."): value for name, value in figures.items()}
    return {"REF-STEP-001": Expectation("FAIL", "exceeds_tolerance", named)}


def errs(bound: str) -> dict[str, Expectation]:
    """Return the verdict of a `step_accuracy` claim, which compares errors with the errors of another implementation.

    bound: the name of the ratio of errors that exceeds its limit.
    """
    return {"step_accuracy": Expectation("FAIL", "exceeds_tolerance", {"exceeded_bound": f"{bound}_at_most"})}
