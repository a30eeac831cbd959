"""Add up the time that the runs of a run directory took, by run, phase and kind of cost. No judge uses these times."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain, pairwise
from math import isfinite
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import Field

from harness.contract.schema import Contract, parts_of
from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.plan_records import SPENT
from harness.evidence.read_run import ProcessTimes, WorkerTimes, read_times
from harness.numbers import Amount
from harness.run_directory.bundle import Bundle, read_bundle
from harness.run_directory.places import recorded_before
from harness.run_directory.verdict_file import read_verdicts


class Kind(StrEnum):
    """The kinds of cost, such as imports or waiting, in the order in which they first occur in a run."""

    IMPORTS = "imports"
    OPENING = "opening"
    WARM_UP = "warm_up"
    TIMED_BLOCKS = "timed_blocks"
    JUDGED_TRAINING = "judged_training"
    UNTRAINED_CONTROL = "untrained_control"
    DETECTORS = "profiler_and_detectors"
    CAPTURE_EVIDENCE = "capture_evidence"
    KERNEL_COMPARISONS = "kernel_comparisons"
    KERNEL_COMPILATION = "kernel_compilation"
    MEMORY_MEASUREMENT = "memory_measurement"
    LOCATING = "first_difference"
    END = "digests_and_end"
    WAITING = "waiting"
    OTHER = "other"

    @property
    def words(self) -> str:
        """Return a short name of the kind for reports."""
        return _WORDS.get(self, self.replace("_", " "))


_WORDS = {
    Kind.IMPORTS: "interpreter start and imports",
    Kind.WARM_UP: "warm-up",
    Kind.CAPTURE_EVIDENCE: "census and capture evidence",
    Kind.MEMORY_MEASUREMENT: "measuring memory",
    Kind.LOCATING: "locating first differences",
}
# A phase of an arm is named `ARM: …` or `ARM.REPLICA: …`. The keys below are the texts after the colon. A key that ends
# in a space matches every text that begins with the key.
_OF_AN_ARM = {
    "open": Kind.OPENING,
    "warm-up": Kind.WARM_UP,
    "start": Kind.END,  # in this phase, the digests of the state at the start are computed
    "steps": Kind.JUDGED_TRAINING,
    "end": Kind.END,
    "re-capture": Kind.JUDGED_TRAINING,
    "turns with a fresh run": Kind.TIMED_BLOCKS,
    "start a process for a part": Kind.IMPORTS,
    "steps before the load": Kind.JUDGED_TRAINING,
    "save": Kind.END,
    "save earlier": Kind.END,
    "steps after the save": Kind.JUDGED_TRAINING,
    "threads after the save": Kind.END,
    "load": Kind.OPENING,
    "gradients": Kind.JUDGED_TRAINING,  # in this phase, gradients are computed at the parameters of another arm
    "watch replays": Kind.DETECTORS,
    "host syncs": Kind.DETECTORS,
    "census": Kind.CAPTURE_EVIDENCE,
    "kernels": Kind.KERNEL_COMPARISONS,
    "compiled kernels": Kind.KERNEL_COMPILATION,
    "kernels for ": Kind.KERNEL_COMPILATION,
    "inventory": Kind.KERNEL_COMPILATION,
    "inventory after ": Kind.KERNEL_COMPILATION,
    "measure a step's memory in another process": Kind.MEMORY_MEASUREMENT,
    "locate": Kind.LOCATING,
    "wait to be ": Kind.WAITING,
}
_OF_THE_WORKER = {
    "start": Kind.IMPORTS,
    "import ": Kind.IMPORTS,
    "start the ranks": Kind.IMPORTS,
    "timed": Kind.TIMED_BLOCKS,
    "watch launches": Kind.DETECTORS,
    "wait to be ": Kind.WAITING,
    "set up the profiler": Kind.DETECTORS,
    "write the checkpoint": Kind.OPENING,
    "compare gradients": Kind.END,
    "end": Kind.END,
    "census": Kind.CAPTURE_EVIDENCE,
}
_ARM = re.compile(r"(?P<arm>[^:.]+)(\.\d+)?: (?P<what>.*)", re.DOTALL)


def kind_of(phase: str, controls: Collection[str] = ()) -> Kind:
    """Return the kind of cost of a worker's phase. controls: names of arms that are used only as untrained controls."""
    found = _ARM.fullmatch(phase)
    if found is None:
        return _look_up(_OF_THE_WORKER, phase)
    kind = _look_up(_OF_AN_ARM, found["what"])
    return Kind.UNTRAINED_CONTROL if kind is Kind.JUDGED_TRAINING and found["arm"] in controls else kind


def _look_up(table: dict[str, Kind], name: str) -> Kind:
    begins = (kind for begin, kind in table.items() if begin.endswith(" ") and name.startswith(begin))
    return table.get(name) or next(begins, Kind.OTHER)


_UNTRAINED = ("training_effect.control", "floor.control")


def control_arms(contract: Contract) -> set[str]:
    """Return the names of the arms that a contract uses only as untrained controls."""
    named = [named for claim in contract.claims for part in parts_of(claim) for named in part.arms().items()]
    controls = {arm for field, arm in named if field.endswith(_UNTRAINED)}
    return controls - {arm for field, arm in named if not field.endswith(_UNTRAINED)}


class Span(NamedTuple):
    """A phase of a worker's time, from `began` to `ended`, in seconds."""

    phase: str
    kind: Kind
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def spans(worker: WorkerTimes, controls: Collection[str] = ()) -> list[Span]:
    """Return the worker's time as consecutive spans. Each phase ends when the next phase begins.

    If the worker died without a record of its process, its last phase has no span. Times in damaged evidence are left
    out if they are not finite or not in order.
    """
    if not worker.clocked or worker.process is None:
        marks = [(phase.name, kind_of(phase.name, controls), phase.seconds) for phase in worker.phases]
        if worker.complete is not None:
            marks.append(("", Kind.END, worker.complete.seconds))
        return list(_until_the_next(marks))
    marks = list(_before_the_run(worker.process))
    spent = worker.run.settings.get(SPENT)
    # `spent` are the seconds of earlier executions of the run, whose evidence was not kept.
    if marks and isinstance(spent, int | float) and spent > 0:
        marks.insert(0, ("earlier executions", Kind.LOCATING, marks[0][2] - spent))
    marks += [(phase.name, kind_of(phase.name, controls), phase.began or 0.0) for phase in worker.phases]
    if worker.complete is not None and worker.phases:
        first = worker.phases[0]
        recorder_began = (first.began or 0.0) - first.seconds
        marks.append(("end of the process", Kind.END, recorder_began + worker.complete.seconds))
    marks.append(("", Kind.END, worker.process.ended))
    return list(_with_stops(_until_the_next(marks), worker.process.stopped))


def on_gpu(worker: WorkerTimes, spent: Iterable[Span]) -> list[Span]:
    """Return the spans among `spent` in which the worker held a GPU and did not wait. Return an empty list if the
    worker held no GPU, or if the times of its process were not recorded."""
    process = worker.process
    if process is None or process.gpu is None:
        return []
    held_from = process.started if process.given_run is None else process.given_run
    return [span for span in spent if span.kind is not Kind.WAITING and span.began >= held_from]


def _before_the_run(process: ProcessTimes) -> Iterator[tuple[str, Kind, float]]:
    if process.asked_for_gpu is not None and process.asked_for_gpu < process.started:
        yield "wait for the GPU", Kind.WAITING, process.asked_for_gpu
    yield "start of the interpreter", Kind.IMPORTS, process.started
    if process.ready is not None:
        yield "wait for a run", Kind.WAITING, process.ready
    if process.given_run is not None:
        yield "start", Kind.IMPORTS, process.given_run


def _until_the_next(marks: Iterable[tuple[str, Kind, float]]) -> Iterator[Span]:
    for (phase, kind, began), (_, _, ended) in pairwise(marks):
        if isfinite(began) and isfinite(ended) and began < ended:
            yield Span(phase, kind, began, ended)


def _with_stops(spent: Iterable[Span], stopped: Iterable[tuple[float, float]]) -> Iterator[Span]:
    """Yield the spans, split wherever the process was stopped. Each stop becomes a span of the kind `Kind.WAITING`."""
    stops = sorted((began, ended) for began, ended in stopped if began < ended)
    for span in spent:
        at = span.began
        for began, ended in stops:
            stop, go_on = max(began, at), min(ended, span.ended)
            if stop < go_on:
                yield from [span._replace(began=at, ended=stop)] if at < stop else []
                yield Span("stopped", Kind.WAITING, stop, go_on)
                at = go_on
        yield from [span._replace(began=at)] if at < span.ended else []


Key = TypeVar("Key", bound=Hashable)


class PhaseSeconds(Record):
    """The total time of a run in all phases with the same name."""

    phase: str
    kind: Kind
    seconds: Amount


class Costs(Record):
    """The cost of all runs, in seconds. `by_kind` and `by_run` count each run in full, even if runs overlap in time.

    clocked: True if the start and the end of processes were recorded. `wall_seconds` is then the time from the start of
    the first process to the end of the last process. False for older evidence. Each run then lasts from its first to
    its last record, and `wall_seconds` is the sum over all runs.
    """

    clocked: bool = True
    wall_seconds: Amount = 0.0  # for several directories: the sum over the directories
    gpu_seconds: Amount = 0.0  # time in which a run held a GPU and neither waited nor was stopped
    processor_seconds: Amount | None = None  # processor time of the workers that completed; None: not recorded
    by_kind: dict[Kind, Amount] = Field(default_factory=dict)
    # kind of cost -> GPU seconds; if several runs hold the GPU at the same time, this time is divided among the runs
    gpu_by_kind: dict[Kind, Amount] = Field(default_factory=dict)
    by_run: dict[str, list[PhaseSeconds]] = Field(default_factory=dict)

    @property
    def run_seconds(self) -> float:
        """Return the sum of the seconds of all runs."""
        return sum(self.by_kind.values())


def costs(
    runs: Mapping[str, Sequence[WorkerTimes]], controls: Mapping[str, Collection[str]], *, has_gpu: bool
) -> Costs:
    """Return the cost of the runs of one directory.

    runs: the workers of each run, by run id. controls: the untrained control arms, by contract id.
    has_gpu: True if the machine has a GPU. A run whose process was not recorded is then assumed to hold the GPU.
    """
    spent = {
        name: [(worker, spans(worker, controls.get(worker.run.contract, ()))) for worker in workers]
        for name, workers in runs.items()
    }
    workers = [pair for pairs in spent.values() for pair in pairs]
    clocked = all(worker.clocked for worker, seen in workers if seen)
    everything = [span for _, seen in workers for span in seen]
    if clocked:
        gpu = divided([(worker.process.gpu, on_gpu(worker, seen)) for worker, seen in workers if worker.process])
        wall = max((span.ended for span in everything), default=0.0) - min(
            (span.began for span in everything), default=0.0
        )
    else:
        held = [seen for worker, seen in workers if (worker.process.gpu if worker.process else has_gpu)]
        gpu = _by_kind(span for seen in held for span in seen)
        wall = sum(span.seconds for span in everything)
    known = [worker.complete.processor_seconds for worker, _ in workers if worker.complete is not None]
    processor = [seconds for seconds in known if seconds is not None]
    return Costs(
        clocked=clocked,
        wall_seconds=_rounded(wall),
        gpu_seconds=_rounded(sum(gpu.values())),
        processor_seconds=_rounded(sum(processor)) if processor else None,
        by_kind=_in_order(_by_kind(everything)),
        gpu_by_kind=_in_order(gpu),
        by_run={name: _phases(span for _, seen in pairs for span in seen) for name, pairs in spent.items()},
    )


def divided(held: Iterable[tuple[str | None, Sequence[Span]]]) -> dict[Kind, float]:
    """Return GPU seconds by kind of cost. Time in which several workers hold the same GPU is divided among them.

    held: pairs of a GPU's UUID and the spans in which a worker held this GPU.
    """
    changes: defaultdict[str | None, list[tuple[float, int, Kind]]] = defaultdict(list)
    for gpu, seen in held:
        for span in seen:
            changes[gpu] += [(span.began, 1, span.kind), (span.ended, -1, span.kind)]
    total: defaultdict[Kind, float] = defaultdict(float)
    for of_one in changes.values():
        holding: Counter[Kind] = Counter()
        before = 0.0
        for moment, change, kind in sorted(of_one):
            several = holding.total()
            for holder, count in holding.items():
                if count:
                    total[holder] += (moment - before) * count / several
            holding[kind] += change
            before = moment
    return total


def joined(parts: Sequence[tuple[str, Costs]]) -> Costs:
    """Return the total cost of several directories. parts: for each directory, a prefix for the names of its runs, and
    its cost."""
    each = [part for _, part in parts]
    processor = [part.processor_seconds for part in each if part.processor_seconds is not None]
    by_run: defaultdict[str, list[PhaseSeconds]] = defaultdict(list)
    for name, part in parts:
        for run, phases in part.by_run.items():
            # Two folders in different places may have the same name. Their runs then have equal names, so add up their
            # phases.
            by_run[f"{name}/{run}" if name else run] += phases
    return Costs(
        clocked=all(part.clocked for part in each),
        wall_seconds=_rounded(sum(part.wall_seconds for part in each)),
        gpu_seconds=_rounded(sum(part.gpu_seconds for part in each)),
        processor_seconds=_rounded(sum(processor)) if processor else None,
        by_kind=_in_order(_sums(item for part in each for item in part.by_kind.items())),
        gpu_by_kind=_in_order(_sums(item for part in each for item in part.gpu_by_kind.items())),
        by_run=by_run,
    )


def _phases(seen: Iterable[Span]) -> list[PhaseSeconds]:
    seconds = _sums(((span.phase, span.kind), span.seconds) for span in seen)
    return [PhaseSeconds(phase=phase, kind=kind, seconds=_rounded(took)) for (phase, kind), took in seconds.items()]


def _by_kind(seen: Iterable[Span]) -> dict[Kind, float]:
    return _sums((span.kind, span.seconds) for span in seen)


def _sums(amounts: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    sums: defaultdict[Key, float] = defaultdict(float)
    for key, seconds in amounts:
        sums[key] += seconds
    return sums


def _in_order(seconds: Mapping[Kind, float]) -> dict[Kind, float]:
    return {kind: took for kind in Kind if (took := _rounded(seconds.get(kind, 0.0)))}


def _rounded(seconds: float) -> float:
    """Round to a millisecond, because the clocks are not more precise than this."""
    return round(seconds, 3)


def costs_of(bundle: Bundle, contracts: Sequence[Contract]) -> Costs:
    """Return the cost of all runs of one directory. Runs without a verdict and runs that locate differences are
    included.

    For a directory that was resumed, the costs before and after each resumption are computed separately and added,
    because the clock may have been reset in between.
    """
    controls = {contract.id: control_arms(contract) for contract in contracts}
    has_gpu = bundle.header.environment.gpu.uuid is not None
    times = _times(bundle)
    part_of = {run: 0 if run in bundle.header.runs else len(bundle.header.resumed) for run in times}
    for number, resumption in enumerate(bundle.header.resumed, start=1):
        part_of |= {run: number for run in resumption.executed if run in times}
    numbers = sorted(set(part_of.values())) or [0]
    parts = [
        costs({run: times[run] for run in times if part_of[run] == number}, controls, has_gpu=has_gpu)
        for number in numbers
    ]
    return joined([("", part) for part in parts]) if len(parts) > 1 else parts[0]


def _times(bundle: Bundle) -> Mapping[str, list[WorkerTimes]]:
    """Return the workers of every run that has recorded workers, by run id. Runs that located differences are included.

    A run id that is a path out of the directory is ignored.
    """
    evidence = bundle.root / layout.EVIDENCE
    seen = {name: read_times(evidence / name) for name in bundle.header.runs if Path(name).name == name}
    located = sorted((bundle.root / layout.WHERE).glob("*/*"))
    seen |= {f"{layout.WHERE}/{each.parent.name}/{each.name}": read_times(each) for each in located}
    return {name: workers for name, workers in seen.items() if workers}


Name = tuple[str, str, str]  # names of the unit's contract, claim and workload


class Busy(NamedTuple):
    """A time in which a worker did not wait, in seconds of the clock of the machine that wrote the directory."""

    directory: str
    began: float
    ended: float


def busy_times(wanted: Collection[Name], folders: Sequence[Path]) -> dict[Name, Sequence[Busy]]:
    """Return the times in which workers executed the runs of each wanted unit. A unit without such records has no
    entry.

    Run directories and published archives are searched folder by folder, from the newest name to the oldest. A run is
    read only if it has a verdict of a wanted unit for which no times were found yet.
    """
    found: dict[Name, Sequence[Busy]] = {}
    for folder in folders:
        for path in recorded_before(folder):
            try:
                judged = {(one.contract, one.claim, one.workload) for one in read_verdicts(path).claims}
                if missing := (judged & set(wanted)) - found.keys():
                    found |= _busy_in(read_bundle(path), missing)
            except (EvidenceError, OSError):
                continue
    return found


def busy_seconds(times: Iterable[Busy]) -> float:
    """Return the seconds in which at least one worker was busy. Overlapping times are counted once."""
    total, until = 0.0, ("", 0.0)
    for directory, began, ended in sorted(times):
        since = max(began, until[1]) if directory == until[0] else began
        if ended > since:
            total, until = total + ended - since, (directory, ended)
    return total


def _busy_in(bundle: Bundle, wanted: Collection[Name]) -> dict[Name, Sequence[Busy]]:
    runs = {
        name: unit.runs
        for unit in bundle.header.units
        if (name := (unit.contract, unit.claim, unit.workload)) in wanted
    }
    times = {
        run: [
            Busy(bundle.path.name, span.began, span.ended)
            for worker in read_times(bundle.root / layout.EVIDENCE / run)
            for span in spans(worker)
            if span.kind is not Kind.WAITING
        ]
        for run in set(chain.from_iterable(runs.values()))
    }
    of_units = {name: [time for run in ids for time in times[run]] for name, ids in runs.items()}
    return {name: busy for name, busy in of_units.items() if busy}
