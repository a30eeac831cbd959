"""What runs took that were executed before: from the run directories in one folder, the newest by name first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from harness.costs.account import costs
from harness.costs.kinds import Kind
from harness.costs.spans import Span, spans
from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.environment_records import Environment
from harness.evidence.files import Damaged, read_model
from harness.evidence.plan_records import Run
from harness.evidence.worker_times import WorkerTimes, read_times
from harness.run_directory.bundle import Bundle, read_bundle


@dataclass(frozen=True)
class RecordedRun:
    """A run that came to its end. spent: the spans of all its processes, but for those in which they waited."""

    run: Run
    directory: str
    environment: Environment
    spent: Sequence[Span]

    @property
    def seconds(self) -> float:
        """Of all its processes, one after another."""
        return sum(span.seconds for span in self.spent)

    @cached_property
    def by_arm(self) -> Mapping[str | None, float]:
        """Seconds by arm; under None those that no arm's phase has: imports, start and end."""
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
    """Every run directory that can be read, published ones too; whoever has seen enough reads no further."""
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
        if (run := _run(bundle.root / layout.EVIDENCE / name)) is not None
    ]
    account = costs(ended, {}, has_gpu=False)
    known = ended and account.clocked and not bundle.header.resumed  # an interruption is no time that runs took
    return RecordedDirectory(bundle.path.name, runs, account.wall_seconds if known else None)


def _whole(worker: WorkerTimes) -> bool:
    return worker.complete is not None and not worker.run.without


def _spent(workers: Sequence[WorkerTimes]) -> list[Span]:
    return [span for worker in workers for span in spans(worker) if span.kind is not Kind.WAITING]


def _run(directory: Path) -> Run | None:
    try:
        return read_model(directory / layout.RUN, Run)
    except Damaged:
        return None
