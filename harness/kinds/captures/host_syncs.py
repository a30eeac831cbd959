"""Judge `host_syncs`: the candidate waits for the device as often as allowed. A control shows that waits are detected.

Two independent detectors count the waits, and the largest number is judged. If all numbers are within the bound, but
the detectors disagree, the verdict is INCONCLUSIVE.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from harness.evidence.arm_records import DetectorReading
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, executed
from harness.judging.launched import JudgedSteps, unwatched
from harness.judging.sheet import Sheet, settle, some
from harness.judging.verdict import Judgement
from harness.kinds.captures.model import HostSyncs, SyncCount

# These two detectors watch Python calls. They see no host sync in the replay of a CUDA graph, which executes no Python.
_BLIND_TO_REPLAY = {"dispatch_mode", "fake_pass"}
DETECTORS = {
    "dispatch_mode": "the watch on operators",
    "fake_pass": "the pass on fake tensors",
    "profiler": "the profiler",
    "sync_debug_mode": "torch's sync warnings",
    "waiting_calls": "the watch on calls that wait",
}


@dataclass(frozen=True)
class Counted:
    """The host syncs that each detector counted in one arm, and the number that the claim allows. Each of the
    `readings` has the number of syncs that one detector counted, and the number of steps that this detector watched."""

    demand: SyncCount
    bound: int  # allowed number of host syncs in one step
    readings: list[DetectorReading]

    def per_step(self) -> float:
        """Return the mean number of host syncs in a step, according to the detector with the largest mean number."""
        return max(reading.count / reading.steps for reading in self.readings)

    @property
    def relation(self) -> Literal["exactly", "at most"]:
        return "exactly" if self.demand.exactly is not None else "at most"

    def meets(self, figure: str, sheet: Sheet, *, beside: bool = False) -> bool:
        """Return True if a step's host syncs are allowed. Add their number and bound to the verdict (`sheet`) under the
        name `figure`."""
        return sheet.meets(figure, self.per_step(), self.relation, self.bound, "syncs", beside=beside)

    def sentence(self) -> str:
        """Return the end of a sentence with each number of host syncs, the detectors that counted it, and the bound."""
        asked = "required" if self.relation == "exactly" else "allowed"
        by_count: dict[tuple[int, int], list[str]] = {}
        for each in self.readings:
            by_count.setdefault((each.count, each.steps), []).append(DETECTORS[each.detector])
        seen = [
            f"{count} host syncs in {steps} steps, counted by {' and '.join(dict.fromkeys(names))}"
            for (count, steps), names in by_count.items()
        ]
        return f"arm {self.demand.arm} has {', and '.join(seen)}; {self.relation} {self.bound} in each step are {asked}"


def judge(part: HostSyncs, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: a replayed capture, the candidate's count,
    the control's count, that each detector sees a planted sync, the start and end states, that the detectors agree."""
    run = context.only_run("paired")
    executions = {name: executed(run, name) for name in (part.candidate.arm, part.control.arm)}
    groups = [Group({name: each}, {part.control.arm: "control"}) for name, each in executions.items()]
    comparison = Comparison(part, context, sheet)  # this object checks each arm; it does not compare the arms
    comparison.captured(executions[part.control.arm])
    reported = _reported(part, run, sheet)
    mechanism = _require_replayed(context, part, executions[part.candidate.arm], comparison, sheet)
    candidate = _counted(part.candidate, executions[part.candidate.arm], mechanism)
    control = _counted(part.control, executions[part.control.arm], mechanism)
    for role, counted in (("candidate", candidate), ("control", control)):
        sheet.count(f"{role}_steps", min(reading.steps for reading in counted.readings))
        sheet.count(f"{role}_detectors", len({reading.detector for reading in counted.readings}))
        sheet.figure(f"{role}_syncs_per_step", counted.per_step(), "syncs")
    _require_seeing_profiler(candidate)
    if not candidate.meets("candidate_syncs_per_step", sheet):
        settle(reasons.SYNC_COUNT, f"{candidate.sentence()}{_places(candidate)}")
    replayed = executions[part.candidate.arm]
    _require_every_step(candidate, replayed, context.judged_steps(replayed), mechanism, sheet)
    _require_seeing_profiler(control)
    if not control.meets("control_syncs_per_step", sheet, beside=True):
        if control.per_step() == 0:
            settle(reasons.VACUOUS_CONTROL_NO_SYNC, f"control {control.sentence()}")
        settle(reasons.CONTROL_SYNC_COUNT, f"control {control.sentence()}")
    _require_eyesight(candidate, control)
    for group in groups:
        comparison.begin(group)
    for group in groups:
        comparison.end(group, context.skipped_steps_at_most(part.candidate.arm))
    _require_agreement(candidate, executions[part.candidate.arm])
    _require_agreement(control, executions[part.control.arm])
    return comparison.held(f"{candidate.sentence()}; control {control.sentence()}{reported}")


def _reported(part: HostSyncs, run: RunEvidence, sheet: Sheet) -> str:
    """Return a clause with the number of waits for the device in each step of the arm `part.reported`, and the code
    lines of these waits. Return "" if the arm never waits, or if the claim sets no `reported`."""
    if part.reported is None:
        return ""
    syncs = executed(run, part.reported).syncs
    readings = [each for each in (syncs.readings if syncs is not None else []) if each.steps > 0]
    if not readings:
        settle(reasons.EVIDENCE_MISSING, f"host syncs of {part.reported} were not recorded")
    waits = max(each.count / each.steps for each in readings)
    places = sorted({f"{place.file}:{place.line}" for each in readings for place in each.places})
    sheet.figure("reported_syncs_per_step", waits, "syncs")
    if not waits:
        return ""
    where = f", at {some(places)}" if places else ""
    times = "time" if waits == 1 else "times"
    return (
        f"; arm {part.reported} waits for the device {waits:g} {times} in each step{where}, and a replay executes "
        "none of these waits"
    )


def _require_replayed(
    context: Context, part: HostSyncs, execution: ArmEvidence, comparison: Comparison, sheet: Sheet
) -> str | None:
    """Return the capture mechanism whose replays were observed; None if the contract declares the arm uncaptured."""
    arm = part.candidate.arm
    if context.contract.arms[arm].capture == "none":
        return None
    comparison.captured(execution, of_replays=True)
    if execution.syncs is not None and not execution.syncs.replayed:
        settle(reasons.CANDIDATE_NOT_CAPTURED, f"the observed steps of {arm} were not replays")
    return sheet.mechanism


def _counted(demand: SyncCount, execution: ArmEvidence, mechanism: str | None) -> Counted:
    evidence = execution.syncs
    if evidence is None:
        settle(reasons.EVIDENCE_MISSING, f"host syncs of {demand.arm} were not recorded")
    blind = _BLIND_TO_REPLAY if evidence.replayed and mechanism == "cuda_graph" else set()
    readings = [reading for reading in evidence.readings if reading.detector not in blind]
    if not readings:
        settle(reasons.ONE_DETECTOR, f"no usable sync detector watched {demand.arm}")
    if any(reading.steps <= 0 for reading in readings):
        settle(reasons.VACUOUS_STEPS, f"a sync detector watched no step of {demand.arm}")
    bound = demand.exactly if demand.exactly is not None else demand.at_most or 0
    if demand.per_layer:
        if evidence.layers < 1:
            settle(reasons.EVIDENCE_MISSING, f"the system of {demand.arm} does not state its number of layers")
        bound *= evidence.layers
    return Counted(demand, bound, readings)


def _require_every_step(
    candidate: Counted, execution: ArmEvidence, steps: JudgedSteps, mechanism: str | None, sheet: Sheet
) -> None:
    """End the judgement unless the number of host syncs is allowed in every judged step. The detectors in `candidate`
    may have watched only a few steps. But the evidence's readings `every_step` were taken in all judged steps."""
    every_step = execution.syncs.every_step if execution.syncs is not None else []
    watched = min((reading.steps for reading in every_step), default=0)
    # If an uncaptured arm has no readings of every step, a detector watched the steps of a second execution.
    if mechanism is None and not every_step:
        watched = max(reading.steps for reading in candidate.readings)
    sheet.count("every_step", watched)
    judged = replace(candidate, readings=every_step)
    if every_step and not judged.meets("syncs_per_watched_step", sheet, beside=True):
        first = min((reading.first_step for reading in every_step if reading.first_step is not None), default=None)
        sheet.figure("first_sync_step", first)
        began = "" if first is None else f", first in step {first}"
        settle(reasons.SYNC_COUNT, f"{judged.sentence()}{began}{_places(judged)}")
    _require_busiest_step(judged, sheet)
    if (found := unwatched(f"host syncs of {candidate.demand.arm}", watched, steps)) is not None:
        sheet.leave_open(found.reason, found.message)
    blind = [DETECTORS[reading.detector] for reading in every_step if not reading.sees_planted]
    if blind:
        settle(
            reasons.VACUOUS_DETECTOR_BLIND,
            f"{some(list(blind))} did not see the sync that the harness planted to test the detectors of "
            f"{candidate.demand.arm}",
        )


def _require_seeing_profiler(counted: Counted) -> None:
    """End the judgement with INCONCLUSIVE if the profiler missed the planted sync. If a detector nevertheless counted
    more syncs than the bound allows, continue, because the claim then fails anyway."""
    blind = any(reading.detector == "profiler" and not reading.sees_planted for reading in counted.readings)
    if blind and not any(reading.count > counted.bound * reading.steps for reading in counted.readings):
        settle(
            reasons.PROFILER_BLIND,
            f"the profiler that watched {counted.demand.arm} did not see a sync planted after the watched steps",
        )


def _places(counted: Counted) -> str:
    places = [
        f"{place.file}:{place.line} {place.operation} ({place.count})"
        for reading in counted.readings
        for place in reading.places
    ]
    return f"; at {some(sorted(set(places)))}" if places else ""


def _require_busiest_step(judged: Counted, sheet: Sheet) -> None:
    """End the judgement if a step has too many host syncs, or if this is unknown because no maximum was recorded."""
    for reading in judged.readings:
        if reading.count <= judged.bound:
            continue
        if reading.most is None:
            settle(
                reasons.STEPS_UNWATCHED,
                f"{judged.sentence()}, and the largest number in a single step was not recorded",
            )
        if not sheet.meets("most_syncs_in_a_step", reading.most, "at most", judged.bound, "syncs", beside=True):
            settle(
                reasons.SYNC_COUNT,
                f"{judged.sentence()}, but step {reading.busiest_step} has {reading.most}{_places(judged)}",
            )


def _require_eyesight(candidate: Counted, control: Counted) -> None:
    for counted in (candidate, control):
        blind = [DETECTORS[reading.detector] for reading in counted.readings if not reading.sees_planted]
        if blind:
            settle(
                reasons.VACUOUS_DETECTOR_BLIND,
                f"{some(list(blind))} did not see the sync that the harness planted to test the detectors of "
                f"{counted.demand.arm}",
            )


def _require_agreement(counted: Counted, execution: ArmEvidence) -> None:
    detectors = {DETECTORS[reading.detector] for reading in counted.readings}
    if len(detectors) < 2:
        failed = execution.syncs.fake_tensors_error if execution.syncs is not None else None
        why = f"; the pass on fake tensors failed: {failed}" if failed is not None else ""
        settle(
            reasons.ONE_DETECTOR,
            f"only {some(sorted(detectors))} watched {counted.demand.arm}, but two detectors are required{why}",
        )
    for reading in counted.readings:
        placed = sum(place.count for place in reading.places)
        if placed != reading.count:
            settle(
                reasons.DETECTORS_DISAGREE,
                f"the counts are within the bound, but two measurements of {counted.demand.arm} by "
                f"{DETECTORS[reading.detector]} disagree: one counted {reading.count} syncs, and the other, which "
                f"records the line of each sync, counted {placed}",
            )
    first = counted.readings[0]
    if any(each.count * first.steps != first.count * each.steps for each in counted.readings[1:]):
        settle(
            reasons.DETECTORS_DISAGREE,
            f"the counts are within the bound, but the detectors disagree: {counted.sentence()}",
        )
