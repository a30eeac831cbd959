"""The one protocol of a comparison: the shared checks in one order, around a judge's own figure.

`captured`; the judge notes what it measured. `begin` (finite, equal start and work); the judge's own
figure. `end` (trained, finite and equal ends); its own last checks. `held` (recorded) says PASS.
What the kind's row leaves out (`harness.kinds.checks`) is not asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from harness.contract.claims import AnyPart
from harness.contract.kinds.training import Guarding
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judge.context import Context, require_captured
from harness.judge.end_state import (
    require_equal_ends,
    require_equal_start_state,
    require_finite_end,
    require_recorded,
)
from harness.judge.guards import control_of, require_frozen, require_guards, require_moving, require_trained
from harness.judge.series import (
    LOSS,
    require_equal_start,
    require_finite,
    require_same_code,
    require_same_parameters,
    require_same_work,
)
from harness.judge.sheet import Sheet
from harness.judge.verdict import Judgement
from harness.kinds import kind_of
from harness.kinds.checks import names_of

Executions = Mapping[str, ArmEvidence]  # by the name that sentences give them


@dataclass(frozen=True)
class Group:
    """Executions that are compared with the first one of them.

    roles: by name, of the executions that have one of `ROLES`.
    apart: parts of them, such as halves of a training. They leave frozen tensors alone and end finite.
    own: shared checks that the judge asks by a figure of its own.
    same_system: one system trains all of them.
    same_formats: they store frozen tensors and other state alike.
    rounded: trainable parameters are compared in the coarser of two data types.
    more_in: the name of the one that may start with tensors that the others lack.
    bits: their ends must be equal.
    run: where the control of the guards is.
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
    """The shared checks of one claim. A group that was begun is ended before the claim is held."""

    def __init__(self, part: AnyPart, context: Context, sheet: Sheet) -> None:
        self._part, self._context, self._sheet = part, context, sheet
        self._leaves_out = kind_of(part.kind).leaves_out
        self._begun = 0
        self._ended: list[Executions] = []

    def captured(
        self,
        *executions: ArmEvidence,
        role: str = "",
        watched: bool = True,
        throughout: bool = True,
        of_replays: bool = False,
    ) -> None:
        """Settle unless each of them that must replay a capture does (`require_captured`)."""
        for execution in executions:
            excuses = names_of("watched", role) | names_of("watched", _age(execution))
            require_captured(
                self._context,
                self._part,
                execution.start.arm,
                execution,
                self._sheet,
                watched=watched and not excuses & self._leaves_out.keys(),
                throughout=throughout,
                of_replays=of_replays,
            )

    def named_alike(self, group: Group) -> None:
        """Settle where parameters have different names, before a figure that reads them by name."""
        require_same_parameters(group.executions)

    def finite_ends(self, executions: Executions) -> None:
        """Settle where one ended NaN or infinite, before a figure that reads ends."""
        require_finite_end(executions, self._sheet)

    def begin(self, group: Group) -> None:
        """Settle unless losses are finite, and all start equal and did the same work."""
        self._begun += 1
        require_finite(self._asked("finite", group), self._sheet, group.metric)
        self._require_equal_start(group)
        work = self._asked("comparable", group)
        if work:
            require_same_work(work, self._sheet)
        require_same_code(group.executions)

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
        """Settle unless guards hold, all trained, and ends are finite and, by `bits`, equal."""
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
            require_equal_ends(equal, self._sheet, same_system=group.same_system)
        self._ended.append({**group.apart, **self._asked("recorded", group), **control})

    def held(self, message: str) -> Judgement:
        """Return PASS; settles INCONCLUSIVE where states were not recorded."""
        if not self._ended or len(self._ended) != self._begun:
            raise ValueError(f"{self._begun} groups began, and {len(self._ended)} ended")
        for executions in self._ended:
            require_recorded(executions)
        return self._sheet.held(message)

    def _asked(self, check: str, group: Group) -> Executions:
        """Return the executions of which the check is asked; none if it is the judge's own."""
        if check in group.own:
            return {}
        return {
            name: execution
            for name, execution in group.executions.items()
            if not names_of(check, group.roles.get(name, "")) & self._leaves_out.keys()
        }


def require_control(name: str, execution: ArmEvidence, theirs: str, baseline: ArmEvidence, sheet: Sheet) -> None:
    """Settle unless a control that a figure reads did the baseline's work, to a recorded, finite end."""
    control = {name: execution}
    require_finite(control, sheet)
    require_same_work({theirs: baseline, **control}, sheet)
    require_finite_end(control, sheet)
    require_recorded(control)


def require_equal_but_for(noisy: Collection[str], executions: Executions, sheet: Sheet, *, same_system: bool) -> None:
    """Settle where two end apart in a tensor that noise may not change (`require_equal_ends`)."""
    require_equal_ends(executions, sheet, same_system=same_system, noisy=noisy)


def _age(execution: ArmEvidence) -> str:
    """Return the role of an execution that was recorded before its probe watched steps, or ""."""
    capture = execution.capture
    return "older" if capture is not None and capture.every_step is None and capture.device_work is None else ""


def _first(executions: Executions) -> tuple[str, ArmEvidence]:
    return next(iter(executions.items()))


def _candidate_first(part: AnyPart, executions: Executions) -> Executions:
    """Return the candidate first: the guards' batches and effect are those of the first one."""
    candidate = part.arms()[part.candidate_path]
    return dict(sorted(executions.items(), key=lambda entry: entry[1].start.arm != candidate))
