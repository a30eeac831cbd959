"""Find the part of a claim that failed, and what its captured steps changed on the host or asked of the capture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.contract.claims import AnyClaim, AnyPart, CompositeClaim, part_names, parts_of
from harness.evidence.arm_records import CaptureEvidence
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging.sheet import some
from harness.judging.verdict import Figure, Verdict

# the judge stops at the loss; the evidence has the end of both arms, too
ENDS_APART = ("differs", "exceeds_tolerance", "worse")
TRAINED_APART = (*ENDS_APART, "end_differs", "beyond_noise")


def failing_part(verdict: Verdict, claim: AnyClaim | None) -> tuple[str, AnyPart] | None:
    """Return the name and the part that gave a claim its status; a simple claim has the name "". None: unknown."""
    if claim is None:
        return None
    if not isinstance(claim, CompositeClaim):
        return "", parts_of(claim)[0]
    for name, part in zip(part_names(claim), claim.parts, strict=True):
        if verdict.figures.get(f"{name}.status", Figure(value=None)).value == str(verdict.status):
            return name, part
    return None


def left_to_the_host(verdict: Verdict, claim: AnyClaim | None, runs: Sequence[RunEvidence]) -> Iterator[str]:
    """Yield what the captured steps of a claim changed on the host, if its arms trained differently."""
    for name, capture in _captures(verdict, claim, runs):
        if capture.host_changes:
            changed = some(capture.host_changes, 5)
            yield f"while it was captured, the step of {name} changed {changed}; no replay does that again"


def asked_of_a_capture(verdict: Verdict, claim: AnyClaim | None, runs: Sequence[RunEvidence]) -> Iterator[str]:
    """Yield where the captured steps of a claim asked whether they are captured, if its arms trained differently."""
    for name, capture in _captures(verdict, claim, runs):
        if capture.asked_whether_captured:
            asked = some(capture.asked_whether_captured, 3)
            yield f"while it was captured, the step of {name} asked whether it is, and may do otherwise then: {asked}"


def _captures(
    verdict: Verdict, claim: AnyClaim | None, runs: Sequence[RunEvidence]
) -> Iterator[tuple[str, CaptureEvidence]]:
    found = failing_part(verdict, claim)
    if found is None or verdict.reason not in TRAINED_APART:
        return
    for name in dict.fromkeys(found[1].arms().values()):
        execution = first_execution(runs, name)
        if execution is not None and execution.capture is not None:
            yield name, execution.capture


def first_execution(runs: Sequence[RunEvidence], arm: str) -> ArmEvidence | None:
    return next((run.arms[arm][0] for run in runs if run.arms.get(arm)), None)
