"""Account for each second of a directory's runs: by run, phase and kind of cost. Judges do not read it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from harness.contract.schema import Contract
from harness.costs.kinds import Kind, control_arms
from harness.costs.spans import Span, on_gpu, spans
from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.worker_times import WorkerTimes, read_times
from harness.numbers import Amount
from harness.run_directory.bundle import Bundle

Key = TypeVar("Key", bound=Hashable)


class PhaseSeconds(Record):
    """All the time that a run spent in the phases of one name."""

    phase: str
    kind: Kind
    seconds: Amount


class Costs(Record):
    """What runs cost, in seconds. Runs may go side by side: `by_kind` and `by_run` count each run's seconds in full.

    With `clocked` the moments were recorded, from the start of the first process to the end of the last. Without it
    (older evidence) the runs are taken for one after the other, each from its first record to its last.
    """

    clocked: bool = True
    wall_seconds: Amount = 0.0  # of several directories: added up
    gpu_seconds: Amount = 0.0  # in which some run held a GPU and neither waited nor was stopped
    processor_seconds: Amount | None = None  # of workers that came to their end; None: not recorded
    by_kind: dict[Kind, Amount] = Field(default_factory=dict)
    gpu_by_kind: dict[Kind, Amount] = Field(default_factory=dict)  # a moment that several runs share is divided
    by_run: dict[str, list[PhaseSeconds]] = Field(default_factory=dict)

    @property
    def run_seconds(self) -> float:
        """Return the seconds of all runs, each counted in full."""
        return sum(self.by_kind.values())


def costs(
    runs: Mapping[str, Sequence[WorkerTimes]], controls: Mapping[str, Collection[str]], *, has_gpu: bool
) -> Costs:
    """Return what the runs of one directory cost.

    runs: the workers of each run, by its id; controls: arms by contract that train only to be compared with; has_gpu:
    the machine has a GPU. A run whose process was not recorded counts as holding that GPU.
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
    """Return seconds of GPUs by kind of cost. If several spans hold a GPU at one moment, divide that moment among them.

    held: the spans of each GPU, by its UUID.
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
    """Return what several run directories cost together; a run's name begins with its directory's, if that has one."""
    each = [part for _, part in parts]
    processor = [part.processor_seconds for part in each if part.processor_seconds is not None]
    by_run: defaultdict[str, list[PhaseSeconds]] = defaultdict(list)
    for name, part in parts:
        for run, phases in part.by_run.items():
            by_run[f"{name}/{run}" if name else run] += phases  # folders in different places may have one name
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
    """Round to a millisecond: no clock here is better."""
    return round(seconds, 3)


def costs_of(bundle: Bundle, contracts: Sequence[Contract]) -> Costs:
    """Return the cost of all runs of one directory, whether a verdict rests on them or not, and of located differences.

    The parts of an interrupted run have clocks of their own, since the machine's clock may have begun anew.
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
    """Return the workers of every run that left any; an id that leads out of the directory is skipped."""
    evidence = bundle.root / layout.EVIDENCE
    seen = {name: read_times(evidence / name) for name in bundle.header.runs if Path(name).name == name}
    located = sorted((bundle.root / layout.WHERE).glob("*/*"))
    seen |= {f"{layout.WHERE}/{each.parent.name}/{each.name}": read_times(each) for each in located}
    return {name: workers for name, workers in seen.items() if workers}
