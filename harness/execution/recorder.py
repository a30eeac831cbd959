"""Write what a probe records: phases, records, series and heartbeats, in the worker's own directory.

Everything is flushed as it is written, so that a worker that dies leaves what it saw. The heartbeat is touched
by the thread that does the work and by nothing else: a background thread would go on ticking while it hangs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

# bound here, before a system is imported: it could replace them in their modules
from os import times, utime
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import NamedTuple, Self

from harness.devices.telemetry import wait_for_quiet_device
from harness.evidence.base import Record
from harness.evidence.files import DigestedFile, Written
from harness.evidence.layout import METRIC_NAME, RECORDS, SERIES_COLUMNS, series_name
from harness.evidence.run_records import Complete, Phase
from harness.execution.rank_seat import note_phase
from harness.numbers import dump_json, encode
from harness.processes.child import ALONE, TOGETHER, WRITTEN, Line

HEARTBEAT = "heartbeat"
WAIT_ALONE, WAIT_TOGETHER = "wait to be alone", "wait to be together"
WAITS = (WAIT_ALONE, WAIT_TOGETHER)  # for the supervisor, while other ranks wait for this one
_DIGEST = re.compile(r"[0-9A-Za-z_.:-]*")


def _loss(value: float) -> str:
    encoded = encode(float(value))
    return encoded if isinstance(encoded, str) else repr(encoded)


def _within(phase: str, name: str) -> str:
    """Return the phase `name` of the same arm as `phase`: what the arm enqueued may kill the worker as it waits."""
    arm, of_an_arm, _ = phase.partition(": ")
    return f"{arm}{of_an_arm}{name}" if of_an_arm else name


class StepRows(NamedTuple):
    """A block of steps of one series: sequences of one length, whose steps increase within a series.

    clip_active_groups: -1 where the system does not report norms. metrics: by name, the same ones in every block.
    """

    steps: Sequence[int]
    losses: Sequence[float]
    batch_digests: Sequence[str]
    clip_active_groups: Sequence[int]
    tokens: Sequence[int]
    metrics: Mapping[str, Sequence[float]] = MappingProxyType({})


class SeriesWriter:
    """One arm's series as CSV. Losses and metrics keep every bit; non-finite ones are written as tags."""

    def __init__(self, path: Path, heartbeat: Callable[[], None]) -> None:
        self._heartbeat = heartbeat
        self.file = DigestedFile(path, "xb")
        self._metrics: list[str] = []
        self._rows = 0
        self._write_header()

    def _write_header(self) -> None:
        self.file.restart()
        self.file.write(",".join((*SERIES_COLUMNS, *self._metrics)) + "\n")

    def rows(self, block: StepRows) -> None:
        """Append a block of steps.

        Raises ValueError on unequal lengths, on other metrics than before, or on a digest with characters that do not
        belong in a CSV field.
        """
        self._require_metrics(block.metrics)
        lines = []
        for step, loss, digest, active, count, *others in zip(*block[:5], *block.metrics.values(), strict=True):
            if not _DIGEST.fullmatch(digest):
                raise ValueError(f"batch digest {digest!r} has characters other than letters, digits and _.:-")
            fields = (f"{int(step)},{_loss(loss)},{digest},{int(active)},{int(count)}", *map(_loss, others))
            lines.append(",".join(fields) + "\n")
        self._rows += len(lines)
        self.file.write("".join(lines))
        self._heartbeat()

    def _require_metrics(self, metrics: Mapping[str, Sequence[float]]) -> None:
        if list(metrics) == self._metrics:
            return
        wrong = [name for name in metrics if not METRIC_NAME.fullmatch(name) or name in SERIES_COLUMNS]
        if self._rows or wrong:
            raise ValueError(f"metrics {list(metrics)} do not fit a series with {self._metrics}")
        self._metrics = list(metrics)
        self._write_header()  # what a series has besides its own columns is known with its first step

    def close(self) -> None:
        self.file.close()


class Recorder:
    """Writes one run's evidence into `directory`; a context manager that closes its files."""

    def __init__(self, directory: Path, line: Line | None = None, exchange: Path | None = None) -> None:
        self.directory = directory
        self.exchange = exchange  # None: all arms of the run are of one commit
        self._line = line  # None: no other process has runs here
        self._started = monotonic()
        self._records = DigestedFile(directory / RECORDS, "ab")
        self._heartbeat = directory / HEARTBEAT
        self._series: dict[tuple[str, int], SeriesWriter] = {}
        self._heartbeat.touch()
        self.current_phase = ""
        self.failed_after: int | None = None  # steps, of the last arm that failed

    def seconds(self) -> float:
        """Return the seconds since the worker began to record."""
        return monotonic() - self._started

    def complete(self) -> None:
        """Write the last record: the run did all that it was asked. Send the digests of what this process wrote."""
        self.write(Complete(seconds=self.seconds(), processor_seconds=sum(times()[:4])))
        if self._line is not None:
            files = [self._records, *(series.file for series in self._series.values())]
            written = Written(segments=[each for file in files for each in file.segments()])
            self._line.send(WRITTEN + written.model_dump_json())

    def phase(self, name: str) -> None:
        """Record where the run is. The last phase names the place of a death."""
        self.current_phase = name
        note_phase(waits=name.endswith(WAITS))
        # the supervisor reads the phase from this small file while the run is under way; what is there is written over,
        # not emptied first: on a full disk the phase before stays
        with self._heartbeat.open("r+b") as file:
            file.write(name.encode("utf-8", "replace") + b"\n")
        began = monotonic()
        self.write(Phase(name=name, seconds=began - self._started, began=began))

    def write(self, record: Record) -> None:
        """Append one record and flush it."""
        self._records.write(dump_json(record.model_dump()) + "\n")
        self.heartbeat()

    def series(self, arm: str, replica: int) -> SeriesWriter:
        """Return the series of one execution of one arm. It is the same writer at every call."""
        key = (arm, replica)
        if key not in self._series:
            self._series[key] = SeriesWriter(self.directory / series_name(arm, replica), self.heartbeat)
        return self._series[key]

    def heartbeat(self) -> None:
        """Show that the run makes progress; every write does it too."""
        utime(self._heartbeat)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep all other runs of this session off the GPU and, on any machine, off the processors within the block."""
        if self._line is None:
            yield
            return
        before = self.current_phase
        self.phase(_within(before, WAIT_ALONE))
        self.ask(ALONE)
        wait_for_quiet_device()
        self.phase(before)
        try:
            yield
        finally:
            before = self.current_phase
            self.phase(_within(before, WAIT_TOGETHER))
            self.ask(TOGETHER)
            self.phase(before)

    def ask(self, what: str) -> None:
        """Send a request to the supervisor, if there is one, and wait for its answer."""
        if self._line is not None:
            self._line.send(what)
            self._line.receive(None)

    def close(self) -> None:
        self._records.close()
        for series in self._series.values():
            series.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()
