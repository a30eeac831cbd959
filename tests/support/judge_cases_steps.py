"""Cases of step_match: evidence that passes, with one thing changed."""

from __future__ import annotations

import math
from typing import Any

from evidence_builders import STEPS, arm, cuda_graph, verdict_of
from judge_cases import Case

from harness.evidence.arm_records import ComparedStep, StepReading
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging.verdict import Verdict

STEP_MATCH: dict[str, Any] = {
    "kind": "step_match",
    "candidate": "ungraphed",
    "reference": "other_system",
    "yardstick": "same_system",
    "steps": STEPS,
    "max_evaluation_error": 1e-5,
    "times_yardstick": 4.0,
    "max_update_error": 1e-6,
}
EVALUATED, UPDATED = ("loss", "norms", "gradients"), ("exp_avg", "exp_avg_sq", "parameters")
Changes = dict[tuple[int, str], dict[str, Any]]


def reading(quantity: str, **changes: Any) -> StepReading:
    """Return a reading at a tenth of its bound, or at four times the yardstick's error."""
    values = {"quantity": quantity, "tensors": 1 if quantity == "loss" else 2, "error": 1e-7, "tensor": "p0"}
    values |= {"error": 1e-6, "yardstick": 1e-6} if quantity in EVALUATED else {}
    return StepReading.model_validate(values | changes)


def steps(changes: Changes | None = None, **of_all: Any) -> list[ComparedStep]:
    """Return every compared step, with single readings changed by step and quantity."""
    changed = changes or {}
    return [
        ComparedStep(
            **{"arm": "ungraphed", "replica": 0, "reference": "other_system", "yardstick": "same_system", **of_all},
            step=index,
            readings=[reading(name, **changed.get((index, name), {})) for name in (*EVALUATED, *UPDATED)],
        )
        for index in range(STEPS)
    ]


def compared(
    changes: Changes | None = None,
    *,
    taken: list[ComparedStep] | None = None,
    yardstick: ArmEvidence | None = None,
    **candidate: Any,
) -> Verdict:
    """Return the verdict if this execution of the candidate, or this comparison, replaces the passing one."""
    ours = arm("ungraphed", **candidate)
    ours.compared_steps.extend(steps(changes) if taken is None else taken)
    arms = {each.start.arm: [each] for each in (ours, yardstick or arm("same_system"), arm("other_system"))}
    return verdict_of(STEP_MATCH, RunEvidence("run", "step_match", arms))


def one(quantity: str, step: int = 3, **changes: Any) -> Changes:
    return {(step, quantity): changes}


def four_steps() -> Verdict:
    losses = [3.0, 2.5, 2.0, 1.9]
    return compared(taken=steps()[:4], losses=losses, yardstick=arm("same_system", losses=losses))


def without_parameters() -> list[ComparedStep]:
    return [step.model_copy(update={"readings": step.readings[:-1]}) for step in steps()]


def at_all_steps(*quantities: str, **changes: Any) -> Changes:
    return {(step, quantity): changes for step in range(STEPS) for quantity in quantities}


def captured(**changes: Any) -> Verdict:
    """Return the verdict on a candidate that requests a capture, of which the probe watches no replay."""
    capture = cuda_graph(**{"device_work": None, "every_step": None, "observed_graph_launches": None, **changes})
    ours = arm("graphed", capture=capture)
    ours.compared_steps.extend(steps(arm="graphed"))
    arms = {each.start.arm: [each] for each in (ours, arm("same_system"), arm("other_system"))}
    return verdict_of(STEP_MATCH | {"candidate": "graphed"}, RunEvidence("run", "step_match", arms))


STEP_CASES = [
    Case("captured", "held", captured),
    Case(
        "asked for a capture",
        "candidate_not_captured",
        lambda: captured(captured=False, replays=0, failure="a sync at clip.py:7"),
    ),
    Case("captured for some steps", "candidate_not_captured", lambda: captured(uncaptured_steps=4, replays=6)),
    Case("agrees", "held", compared),
    Case("at its bound", "held", lambda: compared(one("gradients", error=1e-5))),
    Case("within the yardstick", "held", lambda: compared(one("gradients", error=3e-5, yardstick=1e-5))),
    Case(
        "within an earlier yardstick",
        "held",
        lambda: compared(one("gradients", 3, yardstick=1e-5) | one("gradients", 6, error=3e-5)),
    ),
    Case(
        "a later yardstick does not excuse",
        "exceeds_tolerance",
        lambda: compared(one("gradients", 3, error=3e-5) | one("gradients", 6, yardstick=1e-5)),
    ),
    Case(
        "the yardstick of another quantity does not excuse",
        "exceeds_tolerance",
        lambda: compared(one("loss", 3, yardstick=1e-5) | one("gradients", 3, error=3e-5)),
    ),
    *(
        Case(f"{name} is beyond", "exceeds_tolerance", lambda name=name: compared(one(name, error=1e-4)))  # type: ignore[misc]
        for name in (*EVALUATED, *UPDATED)
    ),
    Case(
        "the first is named, and the worst",
        "exceeds_tolerance",
        lambda: compared(one("parameters", 2, error=3e-6) | one("norms", 5, error=1.0)),
    ),
    Case("nothing to compare with", "exceeds_tolerance", lambda: compared(one("norms", error=math.inf))),
    Case("NaN error", "exceeds_tolerance", lambda: compared(one("exp_avg", error=math.nan))),
    Case("fewer steps", "vacuous_steps", four_steps),
    Case("a step uncompared", "evidence_missing", lambda: compared(taken=steps()[:-1])),
    Case("a quantity uncompared", "evidence_missing", lambda: compared(taken=without_parameters())),
    Case("one gradient of two", "tensors_missing", lambda: compared(at_all_steps("gradients", tensors=1))),
    Case("no tensor in one step", "tensors_missing", lambda: compared(one("parameters", tensors=0, error=0.0))),
    Case(
        "updates of no tensor",
        "tensors_missing",
        lambda: compared(at_all_steps(*UPDATED, tensors=0, error=0.0, tensor="")),
    ),
    Case("one moment of two", "tensors_missing", lambda: compared(at_all_steps("exp_avg_sq", tensors=1))),
    Case("more tensors than train", "evidence_inconsistent", lambda: compared(one("gradients", tensors=3))),
    Case("no norm", "vacuous_nothing_compared", lambda: compared(at_all_steps("norms", tensors=0))),
    Case("another reference", "evidence_missing", lambda: compared(taken=steps(reference="untrained"))),
    Case("no yardstick", "evidence_missing", lambda: compared(one("norms", yardstick=None))),
    Case("a yardstick that is NaN", "evidence_missing", lambda: compared(one("loss", yardstick=math.nan))),
]  # fmt: skip
