"""Judge `capture_fallback`: a capture that fails is reported, not tried again, and leaves the training unharmed."""

from __future__ import annotations

from harness.evidence.arm_records import CaptureEvidence
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.compared_series import of_two_arms
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, capture_of, end_of, executed
from harness.judging.end_state import note_watched
from harness.judging.launched import JudgedSteps
from harness.judging.series import Bounds, note_difference, require_equal
from harness.judging.sheet import Sheet, require_steps, settle
from harness.judging.verdict import Judgement
from harness.kinds.captures.model import CaptureFallback


def judge(part: CaptureFallback, context: Context, sheet: Sheet) -> Judgement:
    """Judge in this order: steps, what the record says, what the harness saw begin, then the training, in bits."""
    run = context.only_run("paired")
    candidate, baseline = executed(run, part.candidate), executed(run, part.baseline)
    require_steps(len(candidate.series.loss), part.steps, sheet)
    capture = capture_of(part.candidate, candidate, context.mechanism(part), sheet)
    _require_reported(part.candidate, capture, context.judged_steps(candidate))
    _require_attempts(part, candidate, baseline, sheet)
    named = {part.baseline: baseline, part.candidate: candidate}
    note_watched(named, sheet)
    comparison, group = Comparison(part, context, sheet), Group(named)
    comparison.begin(group)
    exact = Bounds(0.0)
    [pair] = of_two_arms(part, run)
    found = pair.difference(exact)
    note_difference(sheet, found, "bitwise", exact)
    require_equal(found, "bitwise", exact, f"{part.candidate}, whose capture failed, and {part.baseline}", sheet)
    comparison.end(group)
    return comparison.held(
        f"the capture of {part.candidate} failed and said why ({capture.failure}); captures "
        f"begun: {part.attempts}; all {found.steps} steps are those of {part.baseline} in bits"
    )


def _require_reported(arm: str, capture: CaptureEvidence, steps: JudgedSteps) -> None:
    """Settle FAIL unless the record says that nothing was captured, why, and that every step ran uncaptured."""
    if capture.captured or capture.replays:
        settle(
            reasons.VACUOUS_CAPTURED,
            f"{arm} was captured and replayed {capture.replays} times, so nothing shows what a failed capture does",
        )
    if not capture.failure or not capture.failure.strip():
        settle(reasons.FALLBACK_UNSAID, f"arm {arm} was not captured, and its record gives no reason")
    if steps.uncaptured != steps.called:
        settle(
            reasons.FALLBACK_UNSAID,
            f"arm {arm} was not captured, and its record has {steps.uncaptured} uncaptured steps of {steps.called}",
        )


def _require_attempts(part: CaptureFallback, candidate: ArmEvidence, baseline: ArmEvidence, sheet: Sheet) -> None:
    """Settle FAIL unless the harness itself saw as many captures begin as the claim demands."""
    ours, theirs = end_of(candidate).capture_attempts, end_of(baseline).capture_attempts
    if ours is None or theirs is None:
        settle(reasons.EVIDENCE_MISSING, "how often a capture began was not watched; run it again")
    sheet.figure("capture_attempts", ours, "captures")
    sheet.figure("unasked_captures", theirs, "captures")
    if not sheet.meets("unasked_captures", theirs, "at most", part.unasked_at_most, "captures", beside=True):
        settle(
            reasons.CAPTURED_UNASKED,
            f"{part.baseline} asks for no capture and began {theirs}, at most {part.unasked_at_most} may be",
        )
    if not sheet.meets("capture_attempts", ours, "exactly", part.attempts, "captures"):
        settle(reasons.CAPTURE_ATTEMPTS, f"{part.candidate} began {ours} captures, {part.attempts} are demanded")
