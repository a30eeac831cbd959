"""Implement `--plan`. Compute and print what `verify` and `drill` would execute, without executing it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.api import session
from harness.api.drill import DrillOptions, plan_drill_here
from harness.contract.accepted_baselines import find_signed
from harness.contract.load import load_contracts
from harness.contract.waivers import FilesRead
from harness.devices import environment
from harness.devices.environment import Machine, cpu_model, usable_cores
from harness.drill.plan import DrillPlan, runs_of
from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.base import Obstacle, ProbeName, Record
from harness.evidence.environment_records import Environment
from harness.evidence.files import readable
from harness.evidence.plan_records import PlannedArm, Run, Unit
from harness.evidence.read_run import WorkerTimes, read_times
from harness.evidence.serving import IGNORED, SAME, SHARED, serves, trained_on
from harness.execution.sharing import Hosted, hosted, lanes
from harness.kinds import probe_named
from harness.lint import refuse_lint_errors
from harness.numbers import Amount, counted
from harness.planning.obstacles import needs_gpu
from harness.report.text import line
from harness.run_directory.bundle import Bundle, read_bundle
from harness.run_directory.costs import Kind, Span, costs, spans

# The models below describe what a gate or a drill would execute on this machine. `--plan` prints this description.


class Estimate(Record):
    """An estimated number of seconds. source: the name of the earlier measurement on which the estimate is based."""

    seconds: Amount
    source: str


class PlannedUnit(Record):
    """A unit of the plan, or a planted fault. runs: ids of the runs that are executed for its verdict. The list is
    empty if this machine cannot decide the unit."""

    contract: str
    claim: str
    workload: str
    fault: str | None = None  # in a drill: the name of the planted fault
    runs: list[str] = Field(default_factory=list)
    obstacle: Obstacle | None = None  # the reason why this unit will be NOT_RUN or an ERROR on this machine

    def named(self) -> str:
        planted = f" with the fault {self.fault}" if self.fault is not None else ""
        return f"{self.claim} on {self.workload}{planted}"


class PlannedRun(Record):
    """A run that will be executed. processes: the number of its processes, which work at the same time.

    stands_for: other planned runs that use the evidence of this run. estimate: seconds of all processes together,
    without the time in which they wait; None if no similar run was recorded.
    """

    id: str
    contract: str
    workload: str
    probe: ProbeName
    device: Literal["gpu", "processor"]
    device_name: str
    processes: int
    stands_for: list[str] = Field(default_factory=list)
    serves: list[str] = Field(default_factory=list)  # the units whose verdicts need this run, as text
    estimate: Estimate | None = None


class Forecast(Record):
    """The output of `--plan --json`.

    seconds: the estimates of all runs, added up. unknown: the number of runs without an estimate. together: seconds
    that an earlier command took for exactly these runs, or None if there is no record of such a command.
    """

    format_version: Literal[1] = 1
    units: list[PlannedUnit]
    runs: list[PlannedRun]
    seconds: Amount
    unknown: int
    together: Estimate | None = None

    @property
    def decidable(self) -> int:
        return sum(unit.obstacle is None for unit in self.units)

    @property
    def broken(self) -> bool:
        """Return True if a unit will certainly get the verdict ERROR, because its system cannot be described."""
        return any(unit.obstacle is not None and unit.obstacle.reason == "system_not_described" for unit in self.units)


# The seconds of a planned run are estimated from recorded runs on a machine of the same kind.

# A recorded run that is equal to the planned run is the best source. If only the number of steps or the other arms of
# the run differ, the estimate uses the seconds per step of each arm, and the seconds for imports, start and end.

# Rules that compare a recorded run with the planned run. If a field that is not ignored differs, a step of an arm may
# take another time, so the recorded run is not used for the estimate.
AS_LONG = {
    **dict.fromkeys(SHARED, IGNORED),
    **{name: SHARED[name] for name in ("probe", "arms", "arm", "system", "commit", "nudged")},
    "workload": replace(SHARED["workload"], seen=lambda workload: {**trained_on(workload), "steps": None}),
    "observe_syncs": SAME["observe_syncs"],
}


@dataclass
class Estimates:
    """Estimates planned runs from run directories in `folder`, and reads as few of these directories as possible."""

    machine: Machine
    folder: Path
    _seen: list[RecordedDirectory] = field(default_factory=list)

    def of(self, runs: Sequence[Run]) -> tuple[dict[str, Estimate], Estimate | None]:
        """Return an estimate for each run, by run id, and one estimate for all runs together. The estimate for
        all runs together comes from a directory that contains exactly these runs; None without such a directory."""
        equal: dict[str, Estimate] = {}
        together = None
        for directory in recorded(self.folder):
            self._seen.append(directory)
            here = {run.id: found for run in runs if (found := self._equal(run, directory)) is not None}
            for name, found in here.items():
                equal.setdefault(name, Estimate(seconds=_rounded(found.seconds), source=f"run {_place(found)}"))
            if len(here) == len(runs) and directory.wall_seconds is not None:
                if len(directory.runs) == len(runs):
                    together = Estimate(seconds=_rounded(directory.wall_seconds), source=directory.name)
                break
        others = {run.id: self._by_arms(run) for run in runs if run.id not in equal}
        return equal | {name: found for name, found in others.items() if found is not None}, together

    def _equal(self, run: Run, directory: RecordedDirectory) -> RecordedRun | None:
        same = (one for one in directory.runs if serves(one.run, run, SAME))
        return next((one for one in same if self._on_such_a_machine(one.environment, run)), None)

    def _by_arms(self, run: Run) -> Estimate | None:
        """Return an estimate from the newest recorded execution of each of the run's arms, scaled to the planned steps.

        Return None if one of the arms has no recorded execution. Also return None if the run's probe (its way of
        executing arms) does not execute one arm after the other.
        """
        if not probe_named(run.probe).arm_by_arm:
            return None
        sources: list[RecordedRun] = []
        seconds = 0.0
        for arm, planned in run.arms.items():
            found = next(self._with_the_arm(run, arm), None)
            if found is None:
                return None
            there, name = found
            sources.append(there)
            per_step = there.by_arm[name] / _steps(there.run, there.run.arms[name])
            seconds += per_step * _steps(run, planned)
        seconds += max(source.by_arm[None] for source in sources)
        places = ", ".join(dict.fromkeys(_place(source) for source in sources))
        return Estimate(seconds=_rounded(seconds), source=f"steps of the same arms in {places}")

    def _with_the_arm(self, run: Run, arm: str) -> Iterator[tuple[RecordedRun, str]]:
        for directory in self._seen:
            for one in directory.runs:
                if not self._on_such_a_machine(one.environment, run):
                    continue
                for name in one.run.arms:
                    if one.by_arm[name] and serves(one.run, run, AS_LONG, {arm: name}):
                        yield one, name

    def _on_such_a_machine(self, there: Environment, run: Run) -> bool:
        if self.machine.gpus and needs_gpu(run):
            return there.gpu.name == self.machine.gpus[0].name
        return (there.cpu.model, there.cpu.usable_cores) == (cpu_model(), usable_cores())


def _steps(run: Run, arm: PlannedArm) -> int:
    return run.workload.steps * arm.replicas


def _place(found: RecordedRun) -> str:
    return f"{found.run.id} of {found.directory}"


def _rounded(seconds: float) -> float:
    """Round to a tenth of a second, because two executions of the same run differ by more than this."""
    return round(seconds, 1)


@dataclass(frozen=True)
class RecordedRun:
    """A completed run. spent: the phases of all its processes with their seconds, except phases of waiting."""

    run: Run
    directory: str
    environment: Environment
    spent: Sequence[Span]

    @property
    def seconds(self) -> float:
        """Return the seconds of all processes of the run, added up."""
        return sum(span.seconds for span in self.spent)

    @cached_property
    def by_arm(self) -> Mapping[str | None, float]:
        """Return the seconds of each arm, by the arm's name. The seconds of imports, start and end have the key
        None."""
        seconds: defaultdict[str | None, float] = defaultdict(float)
        for span in self.spent:
            named, colon, _ = span.phase.partition(": ")
            arm = named.partition(".")[0]  # the name of an arm's phase begins with `ARM: ` or `ARM.REPLICA: `
            seconds[arm if colon and arm in self.run.arms else None] += span.seconds
        return seconds


@dataclass(frozen=True)
class RecordedDirectory:
    """The completed runs in one run directory. wall_seconds: seconds from the start of the first run to the end of the
    last run, or None if these times are unknown."""

    name: str
    runs: Sequence[RecordedRun]
    wall_seconds: float | None


def recorded(folder: Path) -> Iterator[RecordedDirectory]:
    """Yield the readable run directories in a folder, also published ones, in the reverse order of their names. A
    directory is read only when the caller requests the next one, so that the caller can stop early."""
    for path in sorted(folder.glob("*/"), reverse=True):
        if any((path / name).is_file() for name in (layout.HEADER, layout.ARCHIVE)):
            try:
                bundle = read_bundle(path)
            except EvidenceError:
                continue
            yield _of(bundle)


def _of(bundle: Bundle) -> RecordedDirectory:
    names = [name for name in bundle.header.runs if Path(name).name == name]
    workers = {name: read_times(bundle.root / layout.EVIDENCE / name) for name in names}
    ended = {name: seen for name, seen in workers.items() if seen and all(map(_whole, seen))}
    runs = [
        RecordedRun(run, bundle.path.name, bundle.header.environment, _spent(ended[name]))
        for name in ended
        if (run := readable(bundle.root / layout.EVIDENCE / name / layout.RUN, Run)) is not None
    ]
    account = costs(ended, {}, has_gpu=False)
    # In a resumed directory, `wall_seconds` would include the time between the interruption and the resumption.
    known = ended and account.clocked and not bundle.header.resumed
    return RecordedDirectory(bundle.path.name, runs, account.wall_seconds if known else None)


def _whole(worker: WorkerTimes) -> bool:
    return worker.complete is not None and not worker.run.without


def _spent(workers: Sequence[WorkerTimes]) -> list[Span]:
    return [span for worker in workers for span in spans(worker) if span.kind is not Kind.WAITING]


# The functions below compute what `verify` and `drill` would do on this machine. Nothing is executed or written.


def forecast_verify(paths: Sequence[Path], options: session.VerifyOptions) -> Forecast:
    """Return the forecast of `session.verify` with the same arguments. Raises the same ContractError or UsageError.

    The baseline's commit is checked out for a moment, because its systems must be described.
    """
    session.refuse_fault_of_gate(options)
    contracts = load_contracts(paths)
    options = session.of_tags(contracts, options)
    read = FilesRead.of(paths, options.waivers, contracts)
    signed = find_signed(paths, options.waivers)
    refuse_lint_errors(contracts, signed, paths, options.wall_limit_s)
    with session.baselines(contracts, options, signed, datetime.now(tz=UTC).date()) as checkout:
        planned = session.plan_something(contracts, options, checkout)
    read.require_unchanged()
    units = [_unit(unit) for unit in planned.units]
    return _forecast(units, planned.runs, options.reports)


def forecast_drill(paths: Sequence[Path], options: DrillOptions) -> Forecast:
    """Return the forecast of `drill` with the same arguments. Raises the same ContractError or UsageError."""
    _, _, planned, _ = plan_drill_here(paths, options, refuse_lint_errors)
    return _forecast(_drilled(planned), runs_of(planned), options.reports)


def _unit(unit: Unit) -> PlannedUnit:
    return PlannedUnit(
        contract=unit.contract, claim=unit.claim, workload=unit.workload, runs=unit.runs, obstacle=unit.obstacle
    )


def _drilled(planned: DrillPlan) -> list[PlannedUnit]:
    """Return the units of a drill: the controls, the planted faults with the runs that decide them, and the faults that
    cannot be planted."""
    units = [_unit(unit) for unit in planned.controls.units]
    for case in planned.cases:
        faulted = [planned.faulted[run] for run in case.unit.runs]
        runs = [one.executed.id for one in faulted if one.executed is not None]
        runs += [one.donor for one in faulted if one.donor is not None]
        units.append(_unit(case.unit).model_copy(update={"fault": case.fault, "runs": runs}))
    units += [
        PlannedUnit(
            contract=one.contract,
            claim=one.claim,
            workload="",
            fault=one.fault,
            obstacle=Obstacle(reason=one.reason, message=one.message),
        )
        for one in planned.not_run
    ]
    return units


def _forecast(units: Sequence[PlannedUnit], runs: Sequence[Run], reports: Path) -> Forecast:
    """Return the forecast for planned units and runs. reports: the folder of earlier runs, for the estimates. If a run
    of a unit is not executed because another run's evidence is used for it, the unit lists the id of that other run."""
    machine = environment.machine()
    hosts = hosted(runs)
    executed = {run.id: host.run.id for host in hosts for run in host.runs}
    decided = [
        unit.model_copy(update={"runs": list(dict.fromkeys(executed[run] for run in unit.runs))}) for unit in units
    ]
    estimates, together = Estimates(machine, reports).of([host.run for host in hosts])
    planned = [
        _run(host, machine, decided).model_copy(update={"estimate": estimates.get(host.run.id)}) for host in hosts
    ]
    known = [run.estimate.seconds for run in planned if run.estimate is not None]
    return Forecast(
        units=decided,
        runs=planned,
        seconds=round(sum(known), 1),
        unknown=len(planned) - len(known),
        together=together,
    )


def _run(host: Hosted, machine: Machine, units: Iterable[PlannedUnit]) -> PlannedRun:
    on_gpu = bool(machine.gpus) and needs_gpu(host.run)
    name = machine.gpus[0].name if on_gpu else environment.cpu_model()
    return PlannedRun(
        id=host.run.id,
        contract=host.run.contract,
        workload=host.run.workload_name,
        probe=host.run.probe,
        device="gpu" if on_gpu else "processor",
        device_name=name,
        processes=len(lanes(host.run)),
        stands_for=[guest.run.id for guest in host.guests],
        serves=[unit.named() for unit in units if host.run.id in unit.runs],
    )


# The functions below format a forecast as `--plan` prints it: counts, units, runs and seconds.


def shown(forecast: Forecast) -> list[str]:
    """Return the forecast as lines of text. Control characters in names from contracts are escaped."""
    here, planned = forecast.decidable, len(forecast.units)
    return [
        f"{planned} planned · {here} can be decided here · {planned - here} cannot",
        *(
            f"  can run   {_name(unit)}: {line(', '.join(unit.runs) or 'evidence of other runs', 400)}"
            for unit in forecast.units
            if unit.obstacle is None
        ),
        *_not_here([unit for unit in forecast.units if unit.obstacle is not None]),
        f"{counted(len(forecast.runs), 'run')} to execute; nothing has been executed",
        *(text for run in forecast.runs for text in _run_text(run)),
        *_seconds(forecast),
    ]


def _name(unit: PlannedUnit) -> str:
    name = line(f"{unit.claim} on {unit.workload}" if unit.workload else unit.claim, 140)
    return f"{name} with the fault {line(unit.fault, 80)}" if unit.fault is not None else name


def _not_here(units: Sequence[PlannedUnit]) -> Iterator[str]:
    """Yield lines about the units that cannot be decided on this machine, one line for each obstacle. Without a GPU,
    many units have the same obstacle."""
    together: dict[Obstacle, list[PlannedUnit]] = {}
    for unit in units:
        if unit.obstacle is not None:
            together.setdefault(unit.obstacle, []).append(unit)
    for obstacle, kept in together.items():
        yield f"  not here  {counted(len(kept), 'unit')}, {line(obstacle.reason, 60)}: {line(obstacle.message, 400)}"
        yield from (f"            {_name(unit)}" for unit in kept)


def _run_text(run: PlannedRun) -> Iterator[str]:
    where = "GPU" if run.device == "gpu" else "processors"
    processes = f", {run.processes} processes side by side" if run.processes > 1 else ""
    took = "unknown, because no similar run is recorded"
    if run.estimate is not None:
        took = f"about {run.estimate.seconds:,.1f} s, by {line(run.estimate.source, 300)}"
    yield f"  {line(run.id, 120)} ({run.probe}, {where}: {line(run.device_name, 80)}{processes}): {took}"
    yield f"            for {line('; '.join(run.serves), 600)}"
    if run.stands_for:
        yield f"            its evidence is also used for {line(', '.join(run.stands_for), 400)}"


def _seconds(forecast: Forecast) -> Iterator[str]:
    known = len(forecast.runs) - forecast.unknown
    if known:
        yield f"About {forecast.seconds:,.1f} s for {counted(known, 'run')}, if one process followed another."
    if forecast.unknown:
        unknown = counted(forecast.unknown, "run")
        yield f"Unknown for {unknown}: no similar run is recorded in the folder of --reports."
    if forecast.together is not None:
        together = forecast.together
        yield f"Executed together, these runs took {together.seconds:,.1f} s in {line(together.source, 200)}."
