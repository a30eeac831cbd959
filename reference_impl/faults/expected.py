"""Verdicts that several planted faults must cause: dictionaries from claim id or claim kind to the expected verdict.

`first_differing_step`, counted from 0, is the first whose loss can differ: a wrong update in step k changes loss k + 1.
"""

from __future__ import annotations

from harness.system.protocol import Expectation


def trajectory(reason: str, step: int) -> dict[str, Expectation]:
    """Return FAIL for `trajectory_match` claims. reason: the reason code. step: the first step whose loss differs."""
    return {"trajectory_match": Expectation("FAIL", reason, {"first_differing_step": step})}


def single_steps(quantity: str, step: int) -> dict[str, Expectation]:
    """Return FAIL for `step_match` claims, which compare single steps with those of the transformers library.

    quantity: the first quantity that exceeds its bound. step: the first step in which the quantity exceeds the bound.
    """
    figures: dict[str, int | str] = {
        "first_exceeding_quantity": quantity,
        "first_exceeding_step": step,
        "exceeded": "max_evaluation_error" if quantity in ("loss", "norms", "gradients") else "max_update_error",
    }
    return {"step_match": Expectation("FAIL", "exceeds_tolerance", figures)}


def single_evaluations(step: int) -> dict[str, Expectation]:
    """Return the same verdict as `single_steps`, without the quantity that exceeds its bound first.

    Use this for a small fault: rounding decides which quantity exceeds its bound first.
    """
    figures: dict[str, int | str] = {"first_exceeding_step": step, "exceeded": "max_evaluation_error"}
    return {"step_match": Expectation("FAIL", "exceeds_tolerance", figures)}


def transformers_twin(**figures: int) -> dict[str, Expectation]:
    """Return the verdict of the claim REF-STEP-001 for older published drills, in which this claim did not yet judge
    single steps.

    figures: the expected figures, by name; `__` in a name stands for a dot.
    """
    named = {name.replace("__", "."): value for name, value in figures.items()}
    return {"REF-STEP-001": Expectation("FAIL", "exceeds_tolerance", named)}


def errs(bound: str) -> dict[str, Expectation]:
    """Return FAIL for `step_accuracy` claims, which compare errors with the errors of another implementation.

    bound: the name of the ratio of these errors that exceeds its limit.
    """
    return {"step_accuracy": Expectation("FAIL", "exceeds_tolerance", {"exceeded_bound": f"{bound}_at_most"})}
