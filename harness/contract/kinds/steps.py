"""The kind of judgement about single steps against a reference."""

from __future__ import annotations

from typing import ClassVar, Literal

from harness.contract.base import Count, Demand, Judged, Name, Positive


class StepMatch(Judged):
    """Every step of the candidate is, within rounding, the reference's step from the state that it had before."""

    kind: Literal["step_match"]
    """Judges loss, gradients, Adam's moments and parameters of every step against a reference."""
    candidate: Name
    """The arm whose steps are judged."""
    reference: Name
    """The arm that makes the same steps one by one, in higher precision."""
    yardstick: Name
    """The reference in the candidate's precision: how far rounding leads from it."""
    steps: Count
    """Steps that must have been compared."""
    max_evaluation_error: Positive
    """Largest relative error of the loss, of a norm before the clip, and of a gradient after it, in the L2 norm."""
    times_yardstick: Positive
    """Or this multiple of the yardstick's own largest error of that quantity up to the step, where that is more."""
    max_update_error: Positive
    """Largest error of an element of a moment or parameter, relative to the absolute values it is computed from."""

    # Nothing is planted in the reference: a fault of both arms is one of every arm that the trainer itself runs.
    baseline_path: ClassVar[str] = "candidate"
    broken_by: ClassVar = {
        "steps": Demand(("vacuous_steps",)),
        "max_evaluation_error": Demand(("exceeds_tolerance",), {"exceeded": "max_evaluation_error"}),
        "times_yardstick": Demand(("exceeds_tolerance",), {"exceeded": "max_evaluation_error"}),
        "max_update_error": Demand(("exceeds_tolerance",), {"exceeded": "max_update_error"}),
    }
    no_demand: ClassVar = {
        "candidate": "names an arm",
        "reference": "names an arm",
        "yardstick": "names an arm",
    }

    def arms(self) -> dict[str, str]:
        return super().arms() | {"reference": self.reference, "yardstick": self.yardstick}

    def step_counts(self) -> dict[str, int | None]:
        return {"steps": self.steps}

    def candidate_capabilities(self) -> frozenset[str]:
        return frozenset({"moments"})

    def process_count(self) -> int:
        return 1
