"""Provide all data that a judge may read: the contract, the claim, and the evidence of the unit's runs. The functions
raise `Settled`, which ends the judgement, if evidence is missing. A judge can therefore rely on each returned value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, NoReturn

from harness.contract.conditions import Situation, capability_of
from harness.contract.schema import AnyClaim, AnyPart, Contract, parts_of
from harness.evidence.arm_records import ArmEnd, CaptureEvidence
from harness.evidence.base import Obstacle, ProbeName
from harness.evidence.environment_records import GpuFacts
from harness.evidence.run_evidence import ArmEvidence, OfPackage, RunEvidence, tag
from harness.evidence.run_records import ArmFailed, PartFailed
from harness.judging import reasons
from harness.judging.launched import DEFAULT, Bounds, JudgedSteps
from harness.judging.sheet import Sheet, settle
from harness.judging.verdict import Status
from harness.kinds import probe_named
from harness.kinds.captures.model import Capture
from harness.numbers import counted

# Number of an execution's last losses that are compared with each other. If these losses are all equal, it is unknown
# whether a step reads its batch. The test that `unreplayed` judges repeats some of these last steps.
LAST_LOSSES = 5


@dataclass(frozen=True)
class Context:
    """All data about one unit (contract, claim, workload). runs: the evidence of the unit's runs, in the planned order.

    gpu: the facts about the machine's GPU from the header of the run directory.
    """

    contract: Contract
    claim: AnyClaim
    runs: Sequence[RunEvidence]
    workload: str
    gpu: GpuFacts

    def at_rank(self, rank: int) -> Context:
        """Return the same context with the evidence of one rank only, from all runs that have this rank."""
        return replace(self, runs=[run.ranks[rank - 1] for run in self.runs if rank <= len(run.ranks)])

    def resolved(self, part: AnyPart) -> AnyPart:
        """Return the part of a claim with a plain number for each bound that depends on workload, GPU or data type."""
        return part.resolved(self.situation(part))

    def situation(self, part: AnyPart) -> Situation:
        """Return the facts (workload, GPU, data type) on which bounds of this part of a claim may depend."""
        return situation_of(part, self.workload, self.gpu, self.runs)

    def outside_bounds(self, arm: str) -> Bounds:
        """Return bounds on the work that a step of the arm may do outside of its graphs: the strictest bounds in the
        contract's `capture` claims about the arm or, without such a claim, the default bounds."""
        found = self._captures_of(arm)
        if not found:
            return DEFAULT
        shares = [each.outside_share_at_most for each in found]
        return Bounds(min(shares), min(each.outside_operations_at_most for each in found))

    def skipped_steps_at_most(self, arm: str) -> int:
        """Return how many updates the arm may skip, for example because of a dynamic loss scale. The number is the
        strictest bound in the contract's claims of kind `capture` about the arm; 0 if there is no such claim."""
        return min((each.skipped_steps_at_most for each in self._captures_of(arm)), default=0)

    def plain_arms(self, part: AnyPart) -> set[str]:
        """Return the arms of the part that must not capture: arms without a declared capture that are compared with a
        captured arm.

        The comparison may be in any claim of the contract. A claim may also name an arm that must not capture
        (`plain_path`). If the part judges an arm alone, this arm counts as compared with any captured arm whose
        settings differ only in `capture` and `warm_steps`. All other arms may capture without a declaration, as
        compiled code does. The candidate of a claim that names a mechanism may also capture.
        """
        arms, named = self.contract.arms, {*part.arms().values()}
        # Do not use `model_dump` here. Judges run in threads, and building a model in a thread crashed Python 3.13.0.
        settings = {name: {**dict(arm), "capture": None, "warm_steps": None} for name, arm in arms.items()}
        captured = {name for name, arm in arms.items() if arm.capture != "none"}
        twins = {name for name in named if any(settings[name] == settings[other] for other in captured)}
        parts = [(each, claim) for claim in self.contract.claims for each in parts_of(claim)]
        captured |= {each.arms()[each.candidate_path] for each, claim in parts if each.mechanism or claim.mechanism}
        held_against = [each.arms().values() for each, _ in parts if each.arms()[each.candidate_path] in captured]
        alone = part.arms()[part.candidate_path] in twins and part.baseline_path not in part.arms()
        plain = set(chain.from_iterable(held_against)) | (named if alone else set())
        plain |= {arm for each, _ in parts for path, arm in each.arms().items() if path == each.plain_path}
        return named & plain - captured

    def _captures_of(self, arm: str) -> list[Capture]:
        parts = [each for claim in self.contract.claims for each in parts_of(claim) if isinstance(each, Capture)]
        judged = [self.resolved(each) for each in parts if each.candidate == arm]
        return [each for each in judged if isinstance(each, Capture)]

    def judged_steps(self, execution: ArmEvidence) -> JudgedSteps:
        """Return how many steps of an execution are judged, and how many of them cannot be observed."""
        capture = execution.capture
        captures, made = (0, 0) if capture is None else (capture.captures, capture.warm_steps)
        warm = min(made, self.contract.arms[execution.start.arm].warm_steps)
        uncaptured = 0 if capture is None else capture.uncaptured_steps + made - warm
        lengths = self.contract.workloads[self.workload].seq_len
        shapes = len(lengths) if isinstance(lengths, list) else 1
        last = execution.series.loss[-LAST_LOSSES:]
        still = len(last) > 1 and len(set(last)) == 1
        return JudgedSteps(end_of(execution).steps_called - warm, max(shapes, captures), uncaptured, warm, still)

    def executions(self, arm: str) -> list[ArmEvidence]:
        """Return all executions of an arm in all runs, including incomplete ones."""
        return [execution for run in self.runs for execution in run.arms.get(arm, [])]

    def mechanism(self, part: AnyPart) -> str | None:
        """Return the kind of replay (mechanism) that the part or its claim names. Return None if neither names one."""
        return part.mechanism or self.claim.mechanism

    def same_system(self, arm: str, other: str) -> bool:
        """Return True if the same system trains both arms. Two systems may store equal weights in different bits."""
        systems = {self.contract.arms[name].system or self.contract.system for name in (arm, other)}
        return len(systems) == 1

    def only_run(self, probe: ProbeName) -> RunEvidence:
        """Return the first run that a probe made. Raises `Settled`, which ends the judgement, if there is no run, if a
        worker died, or if this machine cannot execute a run."""
        runs = self.sound_runs(probe)
        if not runs:
            settle(reasons.EVIDENCE_MISSING, f"there is no evidence of a `{probe}` run")
        return runs[0]

    def run_of(self, probe: ProbeName, arm: str) -> RunEvidence:
        """Return the first run of a probe that executed the arm. Raises `Settled`, which ends the judgement, if there
        is no such run, if a worker died, or if this machine cannot execute a run."""
        runs = self.sound_runs(probe)
        found = next((run for run in runs if arm in run.arms or arm in run.failed), None)
        if found is None:
            settle(reasons.EVIDENCE_MISSING, f"there is no evidence of a `{probe}` run of arm {arm}")
        return found

    def sound_runs(self, probe: ProbeName) -> list[RunEvidence]:
        """Return all runs that a probe made. Raises ERROR if a worker died, and NOT_RUN if this machine cannot execute
        one of the runs."""
        runs = [run for run in self.runs if run.probe == probe]
        for run in runs:
            if run.death is not None:
                where = f" in phase {run.death.phase}" if run.death.phase else ""
                settle(f"worker_{run.death.cause}", f"the worker of run {run.run_id} died{where}: {run.death.detail}")
        for run in runs:
            if run.obstacle is not None:
                settle(obstacle_reason(run.obstacle), run.obstacle.message)
        return runs


def compared_arms(part: AnyPart) -> tuple[str, str] | None:
    """Return the names of the candidate and the baseline that the part compares, or None if it compares no two arms."""
    baseline, candidate = (part.arms().get(path) for path in (part.baseline_path, part.candidate_path))
    return None if candidate is None or baseline is None or candidate == baseline else (candidate, baseline)


def situation_of(part: AnyPart, workload: str, gpu: GpuFacts, runs: Sequence[RunEvidence]) -> Situation:
    """Return the facts on which bounds of the part may depend: workload, GPU, and the candidate's data type."""
    candidate = part.arms().get(part.candidate_path, "")
    facts = [execution.start.facts for run in runs for execution in run.arms.get(candidate, [])]
    stated = next((str(each["dtype"]) for each in facts if "dtype" in each), None)
    return Situation(workload, gpu.name, capability_of(gpu.architecture), stated)


def obstacle_reason(obstacle: Obstacle) -> str:
    """Return the verdict's reason code for a unit that an obstacle prevents from being run.

    The result is the obstacle's own code if a verdict with this code is NOT_RUN, or if the code is
    `system_not_described`. Otherwise the result is `not_available`.
    """
    known = reasons.reason_of(obstacle.reason)
    stands = known and (known.status is Status.NOT_RUN or known.code == reasons.SYSTEM_NOT_DESCRIBED)
    return obstacle.reason if stands else reasons.NOT_AVAILABLE


def replicas(run: RunEvidence, arm: str, number: int) -> list[ArmEvidence]:
    """Return the first `number` executions of an arm. Raises ERROR if one of these is missing, is not complete, or has
    records that contradict each other."""
    _require_alive(run, arm)
    executions = run.arms.get(arm, [])
    if not executions:  # an arm is not executed if an arm that it needs has failed
        for other in run.failed:
            _require_alive(run, other)
    if len(executions) < number:
        settle(
            reasons.EVIDENCE_MISSING,
            f"run {run.run_id} has evidence of {len(executions)} executions of arm {arm}, but {number} are needed",
        )
    for execution in executions:
        _require_sound(run, arm, execution)
    return [_Partial.of(run, execution) if execution.failed_parts else execution for execution in executions[:number]]


class _Partial(ArmEvidence):
    """An execution in which some parts of the evidence could not be recorded. Reading such a part raises `Settled`,
    which ends the judgement."""

    _run_id: str

    @classmethod
    def of(cls, run: RunEvidence, execution: ArmEvidence) -> _Partial:
        partial = cls(**{each.name: getattr(execution, each.name) for each in fields(execution)})
        object.__setattr__(partial, "_run_id", run.run_id)
        return partial

    def __getattribute__(self, name: str) -> Any:
        read = super().__getattribute__
        failure = read("failed_parts").get(name)
        if failure is not None:
            _settle_failed(f"{name} of arm {failure.arm}", read("_run_id"), failure)
        return read(name)

    def records(self, kind: type[OfPackage]) -> list[OfPackage]:
        getattr(self, tag(kind), None)  # raises `Settled` if this part could not be recorded
        return super().records(kind)


def _require_alive(run: RunEvidence, arm: str) -> None:
    """End the judgement (by raising `Settled`) with the reason of the failure if the arm failed before its end."""
    failure = run.failed.get(arm)
    if failure is not None:
        _settle_failed(f"arm {arm}", run.run_id, failure)


def _settle_failed(what: str, run_id: str, failure: ArmFailed | PartFailed) -> NoReturn:
    """Raise NOT_RUN if the system reported that this machine lacks something. Raise ERROR for any other failure."""
    if failure.obstacle is not None:
        settle(obstacle_reason(failure.obstacle), f"{what}: {failure.obstacle.message}")
    where = f" in phase {failure.phase}" if failure.phase else ""
    settle(f"worker_{failure.cause}", f"{what} of run {run_id} failed{where}: {failure.detail}")


def executed(run: RunEvidence, arm: str) -> ArmEvidence:
    """Return the first execution of an arm. Raises `Settled` (which ends the judgement) if it is missing, is not
    complete, or has records that contradict each other."""
    return replicas(run, arm, 1)[0]


def end_of(execution: ArmEvidence) -> ArmEnd:
    """Return the record of the end of an execution. Raises ERROR if there is no such record."""
    if execution.end is None:
        settle(reasons.EVIDENCE_MISSING, f"arm {execution.start.arm} has no record of its end")
    return execution.end


def _require_sound(run: RunEvidence, arm: str, execution: ArmEvidence) -> None:
    series, end = execution.series, end_of(execution)
    lengths = {len(series.loss), len(series.batch_digest), len(series.clip_active_groups), len(series.tokens)}
    lengths |= set(map(len, series.metrics.values()))
    if len(lengths) != 1:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"the columns of the series of arm {arm} have different lengths: {sorted(lengths)}",
        )
    untold = end.steps_called - len(series.loss)
    if untold < 0 or (untold > 0 and probe_named(run.probe).every_step_recorded):
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"arm {arm} recorded {len(series.loss)} steps but was called for {end.steps_called} steps",
        )
    if not execution.start.trainable_digest:
        settle(reasons.CAPABILITY_MISSING, f"the system of arm {arm} does not offer the capability `parameters`")
    if "" in series.batch_digest:
        settle(reasons.CAPABILITY_MISSING, f"the system of arm {arm} does not offer the capability `inputs`")


def capture_of(arm: str, execution: ArmEvidence, demanded: str | None, sheet: Sheet) -> CaptureEvidence:
    """Return the record about an arm's capture. Raises `Settled`, which ends the judgement, if the record is missing,
    if it contradicts the replays that the harness counted, or if it names another kind of replay than `demanded`."""
    capture = execution.capture
    if capture is None:
        settle(reasons.EVIDENCE_MISSING, f"there is no capture record of arm {arm}")
    # Without a capture, the record names no kind of replay. `Comparison.captured` reports a missing capture.
    if capture.mechanism is None and capture.captured:
        settle(
            reasons.MECHANISM_MISSING,
            f"the capture record of arm {arm} does not name the mechanism that replayed the arm",
        )
    if demanded is not None and capture.mechanism not in (None, demanded):
        settle(
            reasons.MECHANISM_MISSING,
            f"the claim is about {demanded}, but arm {arm} was replayed by {capture.mechanism}",
        )
    sheet.mechanism = capture.mechanism or demanded
    seen = execution.end.replays if execution.end is not None else None
    # The harness does not count replays that code starts by calling the driver directly, so a CUDA graph may have no
    # counted replay. A profile shows these launches.
    if seen is not None and capture.captured and seen < capture.replays and (seen or capture.mechanism == "traced"):
        settle(
            reasons.LAUNCHES_UNOBSERVED,
            f"arm {arm} reports that it replayed a capture {counted(capture.replays, 'time')}, but the harness "
            f"observed {counted(seen, 'replay')}",
        )
    return capture


def require_uncaptured(part: AnyPart, context: Context) -> None:
    """Raise FAIL if an arm that must not capture did capture. Otherwise the claim would compare two captured arms. The
    number of captures is read from the record of the arm's end. An older version may not have recorded this number;
    then the arm counts as uncaptured."""
    for arm in sorted(context.plain_arms(part)):
        executions = [each for run in context.runs for seen in (run, *run.ranks) for each in seen.arms.get(arm, [])]
        ends = [each.end for each in executions if each.end is not None]
        made = max(((end.capture_attempts or 0) - len(end.capture_errors or ()) for end in ends), default=0)
        if made > part.uncaptured_may_begin():
            settle(
                reasons.VACUOUS_BASELINE_CAPTURED,
                f"arm {arm} is declared uncaptured, but {counted(made, 'capture')} began in it and did not fail",
            )
