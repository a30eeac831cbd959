"""Run the checks that all judges of comparisons share, in one order, before and after a judge's own check.

A judge first calls `captured` and records its measurements. Before its own check, the judge calls `begin`, which checks
that losses are finite and that the executions start equally and do equal work. After its own check, it calls `end`,
which checks that the executions trained, and that their ends are finite and equal. Last, it calls `held`, which checks
that states were recorded, and returns PASS. For each kind of claim, a table row names the checks that are left out
(`harness.kinds.checks`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from harness.contract.guards import Guarding
from harness.contract.schema import AnyPart
from harness.evidence.arm_records import CaptureEvidence
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.context import Context, capture_of
from harness.judging.end_state import ExcusedEnds, require_equal_ends, require_finite_end, require_recorded
from harness.judging.equal_start import require_equal_start, require_equal_start_state
from harness.judging.guards import control_of, require_frozen, require_guards, require_moving, require_trained
from harness.judging.launched import JudgedSteps, uncounted, unreplayed, untraced
from harness.judging.series import (
    LOSS,
    require_finite,
    require_same_code,
    require_same_parameters,
    require_same_work,
)
from harness.judging.sheet import Settled, Sheet, settle, some
from harness.judging.unread_ends import unread_apart
from harness.judging.verdict import Judgement, Status
from harness.kinds import kind_of
from harness.kinds.checks import names_of
from harness.numbers import counted

# message about a baseline whose repetition differs; a repetition runs with another hash seed, process id and start time
UNREPEATED = (
    "the baseline differs when it runs again, so the comparison shows nothing about the candidate; seed the "
    "numbers that the baseline draws with constants, and not with the time, `hash()` or the process id"
)
Executions = Mapping[str, ArmEvidence]  # name of an execution of an arm in messages -> its evidence


@dataclass(frozen=True)
class Group:
    """Executions of arms that are compared. Each execution is compared with the first execution.

    roles: the role (see `harness.kinds.checks.ROLES`) of each execution that has one, by the name of the execution.
    apart: executions that are only a part of a training, such as one half. Of these executions, only frozen tensors and
    finite ends are checked.
    own: names of shared checks that are left out here, because the judge makes them.
    same_system: True if one system trains all executions.
    same_formats: True if all executions store frozen tensors and other state in the same format.
    rounded: True if trainable parameters are compared after rounding to the less precise of two data types.
    more_in: the name of an execution that may start with additional tensors.
    bits: True if the end states must have equal bits.
    run: the run with the control arm that the guards name.
    """

    executions: Executions
    roles: Mapping[str, str] = field(default_factory=dict)
    apart: Executions = field(default_factory=dict)
    own: Collection[str] = ()
    metric: str = LOSS
    same_system: bool = True
    same_formats: bool = True
    rounded: bool = False
    more_in: str | None = None
    bits: bool = True
    run: RunEvidence | None = None


class Comparison:
    """Runs the shared checks of one claim. The judge passes each group of executions to `begin` and `end`, then calls
    `held`."""

    def __init__(self, part: AnyPart, context: Context, sheet: Sheet) -> None:
        self._part, self._context, self._sheet = part, context, sheet
        self._leaves_out = kind_of(part.kind).leaves_out
        self._begun = 0
        self._ended: list[Executions] = []
        # some claims, such as claims about speed, have a field `trajectory` with the id of a claim that compares
        # losses; the entries under `may_end_apart` of that claim then also apply to the claim with the field
        timed_by = getattr(part, "trajectory", None)
        others = (name for each in context.contract.claims if each.id == timed_by for name in each.may_end_apart)
        self._excused = ExcusedEnds(context.claim.may_end_apart, others, context.contract.host_values)
        self._unread = ""  # the part of the message about tensors that no step reads and that differ at the end
        self._warm: dict[str, int] = {}  # name of an arm -> number of plain steps before its capture

    def captured(
        self,
        *executions: ArmEvidence,
        role: str = "",
        watched: bool = True,
        throughout: bool = True,
        of_replays: bool = False,
    ) -> None:
        """Raise INCONCLUSIVE if an arm that must replay a capture did not replay one in every step.

        An arm must replay a capture if the contract declares a capture for it. The candidate of a claim that names a
        mechanism (a kind of replay) must also replay one.

        watched: True if the device's work in replays is compared with the nodes of the captured graphs.
        throughout: False if the judge itself checks whether steps ran outside the capture.
        of_replays: True if the judge's own check is about replays. If it is False, work outside of the graphs does not
        end the judgement: the judge continues, and the claim is undecided if its own check finds no violation.
        """
        demanded = self._context.mechanism(self._part)
        for execution in executions:
            arm = execution.start.arm
            must = demanded and getattr(self._part, "candidate", None) == arm
            if self._context.contract.arms[arm].capture == "none" and not must:
                continue
            capture = capture_of(arm, execution, demanded, self._sheet)
            if not capture.captured or capture.replays == 0:
                why = f": {capture.failure}" if capture.failure else ""
                settle(
                    reasons.CANDIDATE_NOT_CAPTURED,
                    f"arm {arm} never replayed a capture, so nothing about a captured step was measured{why}",
                )
            steps = self._context.judged_steps(execution)
            self.note_warm(arm, steps)
            if throughout:
                _require_throughout(arm, capture, steps)
            self._require_explained(arm, capture)
            excuses = names_of("watched", role) | names_of("watched", _age(capture))
            if watched and not excuses & self._leaves_out.keys():
                self._require_watched(arm, capture, steps, of_replays)

    def note_warm(self, arm: str, steps: JudgedSteps) -> None:
        """Store how many plain steps the arm made before its capture. The message of a PASS states this number."""
        if steps.warm:
            self._warm[arm] = steps.warm
            self._sheet.figure("warm_steps", max(self._warm.values()), "steps")

    def _require_explained(self, arm: str, capture: CaptureEvidence) -> None:
        """Leave the claim undecided if a step reads a Python number that no replay changes, and the contract does not
        explain this number under `host_values`."""
        numbers = capture.host_numbers or ()
        self._excused.counted |= {each.name for each in numbers if each.read is None}
        explained = self._context.contract.host_values
        read = [f"`{each.name}` ({each.read})" for each in numbers if each.read and each.name not in explained]
        if read:
            self._sheet.figure("host_values", len(read), "numbers")
            self._sheet.leave_open(
                reasons.HOST_VALUE_UNEXPLAINED,
                f"no replay of arm {arm} changes the host values {some(read)}, but the step of this arm reads them",
            )

    def _require_watched(self, arm: str, capture: CaptureEvidence, steps: JudgedSteps, of_replays: bool) -> None:
        if capture.mechanism == "traced":
            # If a replay does too much or too little work, the training changes, and other checks find this. Only a
            # claim of kind `capture` judges the amount of work.
            found = untraced(arm, capture, steps) or unreplayed(arm, capture, self._context.outside_bounds(arm), steps)
        else:
            found = uncounted(arm, capture, self._context.outside_bounds(arm), steps)
        if found is not None:
            known = reasons.REASONS[found.reason].status is Status.INCONCLUSIVE
            # If one of these reasons is found, an earlier check has shown that each graph launch did the work of a
            # captured graph whose nodes were counted.
            counted_ones_ran = found.reason in (reasons.WORK_OUTSIDE_GRAPHS, reasons.STEPS_UNWATCHED)
            last = (reasons.OUTPUT_NOT_FROM_REPLAY, reasons.REPLAY_UNPROVEN, reasons.WORK_AFTER_STEP)
            stays_open = found.reason in last or (counted_ones_ran and not of_replays)
            say = self._sheet.leave_open if stays_open else settle
            say(found.reason if known else reasons.CANDIDATE_NOT_CAPTURED, found.message)

    def named_alike(self, group: Group) -> None:
        """Raise FAIL if executions name their parameters differently. Call this before parameters are compared."""
        require_same_parameters(group.executions)

    def finite_ends(self, executions: Executions) -> None:
        """Raise FAIL if an end state contains NaN or infinity. Call this before end states are compared."""
        require_finite_end(executions, self._sheet)

    def begin(self, group: Group) -> None:
        """Check a group of executions before they are compared. If a check fails, raise `Settled`, which ends the
        judgement with the verdict of this check.

        The losses must be finite, and the executions must start from equal states and do equal work. If only a
        repetition of the baseline has another start or work, raise INCONCLUSIVE: the baseline does not repeat itself.
        """
        self._begun += 1
        require_finite(self._asked("finite", group), self._sheet, group.metric)
        self._require_comparable(replace(group, executions=_but_repetitions(group)))
        try:
            self._require_comparable(group)
        except Settled as settled:
            settle(reasons.BASELINE_NOT_REPEATABLE, f"{settled.message}: {UNREPEATED}")
        require_same_code(group.executions)

    def _require_comparable(self, group: Group) -> None:
        self._require_equal_start(group)
        work = self._asked("comparable", group)
        if work:
            require_same_work(work, self._sheet)

    def _require_equal_start(self, group: Group) -> None:
        start, frozen, state = (self._asked(check, group) for check in ("equal_start", "equal_frozen", "equal_state"))
        if start:
            require_same_parameters(start)
        for name, execution in list(group.executions.items())[1:]:
            if name in start:
                require_equal_start("rounded" if group.rounded else "trainable", name, execution, *_first(start))
            if name in frozen and group.same_formats:
                require_equal_start("frozen", name, execution, *_first(frozen))
            if name in state and group.same_formats:
                require_equal_start_state(name, execution, *_first(state), group.more_in)

    def end(self, group: Group, skipped_at_most: int = 0) -> None:
        """Check a group of executions after their last step. If a check fails, raise `Settled`, which ends the
        judgement with the verdict of this check.

        The guards must hold, the executions must have trained, and their end states must be finite. If `group.bits` is
        True, the end states must also be equal in every bit. skipped_at_most: the largest number of steps without an
        update that an execution may have and still count as trained; used only for claims without guards.
        """
        trained, part, control = self._asked("trained", group), self._part, dict[str, ArmEvidence]()
        if isinstance(part, Guarding) and group.run is not None:
            trained = _candidate_first(part, trained)
            require_guards(part, trained, group.run, self._sheet)
            require_moving(trained, group.metric)
            control = control_of(part.guards, group.run)
        else:
            for name, execution in trained.items():
                require_trained(name, execution, skipped_at_most)
        for name, execution in group.apart.items():
            require_frozen(name, execution)
        require_finite_end({**group.apart, **self._asked("finite_end", group), **control}, self._sheet)
        equal = self._asked("equal_ends", group)
        if group.bits and equal:
            require_equal_ends(equal, self._sheet, same_system=group.same_system, excused=self._excused)
        if equal and group.same_system:
            self._unread += unread_apart(equal, self._sheet, kind=self._part.kind, bits=group.bits)
        self._ended.append({**group.apart, **self._asked("recorded", group), **control})

    def held(self, message: str) -> Judgement:
        """Return PASS with this message. Raise INCONCLUSIVE if the states of the arms were not recorded."""
        if not self._ended or len(self._ended) != self._begun:
            raise ValueError(
                f"the judge called `begin` for {self._begun} groups and `end` for {len(self._ended)} groups; call both "
                "for each group before `held`"
            )
        for executions in self._ended:
            require_recorded(executions)
        warm = "".join(f"; arm {arm} is captured after {counted(n, 'plain step')}" for arm, n in self._warm.items())
        return self._sheet.held(f"{message}{warm}{self._excused.sentence(self._sheet)}{self._unread}")

    def equal_but_for(self, noisy: Collection[str], executions: Executions, *, same_system: bool) -> None:
        """Raise FAIL if a tensor's value at the end differs between the executions. Two kinds of value may differ:
        those whose names (`category name`) are in `noisy`, and Python counters that the contract excuses."""
        require_equal_ends(executions, self._sheet, same_system=same_system, noisy=noisy, excused=self._excused)

    def _asked(self, check: str, group: Group) -> Executions:
        """Return the executions in the group for which this shared check must be made. Return an empty mapping if the
        judge makes the check itself."""
        if check in group.own:
            return {}
        return {
            name: execution
            for name, execution in group.executions.items()
            if not names_of(check, group.roles.get(name, "")) & self._leaves_out.keys()
        }


def _but_repetitions(group: Group) -> Executions:
    return {name: each for name, each in group.executions.items() if group.roles.get(name) != "repetition"}


def require_control(name: str, execution: ArmEvidence, theirs: str, baseline: ArmEvidence, sheet: Sheet) -> None:
    """End the judgement (by raising `Settled`) unless the control did the same work as the baseline, and the control's
    end state is recorded and finite. name, theirs: how messages call the control and the baseline."""
    control = {name: execution}
    require_finite(control, sheet)
    require_same_work({theirs: baseline, **control}, sheet)
    require_finite_end(control, sheet)
    require_recorded(control)


def _require_throughout(arm: str, capture: CaptureEvidence, steps: JudgedSteps) -> None:
    """Raise INCONCLUSIVE if judged steps ran outside of the capture, or if fewer steps were replayed than must be."""
    if steps.uncaptured or capture.replays < steps.called - steps.unseen:
        settle(
            reasons.CANDIDATE_NOT_CAPTURED,
            f"arm {arm} replayed a capture {counted(capture.replays, 'time')} in {steps.called} steps and ran "
            f"{steps.uncaptured} steps outside the capture, so not every measured step was a captured one",
        )


def _age(capture: CaptureEvidence) -> str:
    """Return "older" if an older version, which did not observe single steps, wrote the evidence. Else return ""."""
    return "older" if capture.every_step is None and capture.device_work is None else ""


def _first(executions: Executions) -> tuple[str, ArmEvidence]:
    return next(iter(executions.items()))


def _candidate_first(part: AnyPart, executions: Executions) -> Executions:
    """Return the executions, the candidate's first, because guards check batches and training of the first one."""
    candidate = part.arms()[part.candidate_path]
    return dict(sorted(executions.items(), key=lambda entry: entry[1].start.arm != candidate))
