"""Estimate the seconds of a run from runs that were executed on a machine of the same kind; never guess.

An equal run is the best source. If only the number of steps or the other arms differ, each arm takes for a step what it
took before, and the rest (imports, start, end) what it took there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from harness.costs.account import costs
from harness.costs.kinds import Kind
from harness.costs.spans import Span, spans
from harness.devices.environment import Machine, cpu_model, usable_cores
from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.environment_records import Environment
from harness.evidence.files import readable
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.serving import IGNORED, SAME, SHARED, serves, trained_on
from harness.evidence.worker_times import WorkerTimes, read_times
from harness.forecast.records import Estimate
from harness.kinds import probe_named
from harness.planning.gpu_needs import needs_gpu
from harness.run_directory.bundle import Bundle, read_bundle

AS_LONG = {  # a step of an arm
    **dict.fromkeys(SHARED, IGNORED),
    **{name: SHARED[name] for name in ("probe", "arms", "arm", "system", "commit", "nudged")},
    "workload": replace(SHARED["workload"], seen=lambda workload: {**trained_on(workload), "steps": None}),
    "observe_syncs": SAME["observe_syncs"],
}


@dataclass
class Estimates:
    """Of the runs that are planned, from the run directories in `folder`, of which as few are read as are needed."""

    machine: Machine
    folder: Path
    _seen: list[RecordedDirectory] = field(default_factory=list)

    def of(self, runs: Sequence[Run]) -> tuple[dict[str, Estimate], Estimate | None]:
        """Return estimates by run id, and one of all runs together if one directory has exactly these runs."""
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
        """Estimate from the newest runs that had the arms, scaled to the planned steps, if arms go one by one."""
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
    """Round to a tenth: the next time it takes another time anyway."""
    return round(seconds, 1)


@dataclass(frozen=True)
class RecordedRun:
    """A run that came to its end. spent: the spans of all its processes, but for those in which they waited."""

    run: Run
    directory: str
    environment: Environment
    spent: Sequence[Span]

    @property
    def seconds(self) -> float:
        """Return the seconds of all its processes, one after another."""
        return sum(span.seconds for span in self.spent)

    @cached_property
    def by_arm(self) -> Mapping[str | None, float]:
        """Return seconds by arm; under None those outside of any arm's phase: imports, start and end."""
        seconds: defaultdict[str | None, float] = defaultdict(float)
        for span in self.spent:
            named, colon, _ = span.phase.partition(": ")
            arm = named.partition(".")[0]  # `ARM: …` or `ARM.REPLICA: …`
            seconds[arm if colon and arm in self.run.arms else None] += span.seconds
        return seconds


@dataclass(frozen=True)
class RecordedDirectory:
    """The runs of one directory that came to their end; wall_seconds: from the first one's start to the last one's
    end, None where that is not known.
    """

    name: str
    runs: Sequence[RecordedRun]
    wall_seconds: float | None


def recorded(folder: Path) -> Iterator[RecordedDirectory]:
    """Yield every run directory that can be read, published ones too; a caller that has enough reads no further."""
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
    known = ended and account.clocked and not bundle.header.resumed  # an interruption is not time that runs took
    return RecordedDirectory(bundle.path.name, runs, account.wall_seconds if known else None)


def _whole(worker: WorkerTimes) -> bool:
    return worker.complete is not None and not worker.run.without


def _spent(workers: Sequence[WorkerTimes]) -> list[Span]:
    return [span for worker in workers for span in spans(worker) if span.kind is not Kind.WAITING]
