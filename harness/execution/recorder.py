"""Write the evidence of one run into the run's directory: phases, records, series and heartbeats.

Every write is flushed, so that the evidence on disk can be read even if the worker dies. The heartbeat is written by
the thread that executes the run, and not by a background thread, which would continue to write it even if the run
hangs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

# Import these functions before any user code is imported, because user code could replace the functions in their
# modules.
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
# Names of phases in which this process waits for the process that supervises it. Meanwhile the other ranks of the run
# may wait for this process without a time limit.
WAITS = (WAIT_ALONE, WAIT_TOGETHER)
_DIGEST = re.compile(r"[0-9A-Za-z_.:-]*")


def _loss(value: float) -> str:
    encoded = encode(float(value))
    return encoded if isinstance(encoded, str) else repr(encoded)


def _within(phase: str, name: str) -> str:
    """Return `name`, the name of a phase in which this process waits. If `phase`, the phase before the wait, belongs to
    an arm, return the arm's name and then `name`.

    A kernel of the arm may still be running during the wait and fail. If the worker then dies, the phase names the arm.
    """
    arm, of_an_arm, _ = phase.partition(": ")
    return f"{arm}{of_an_arm}{name}" if of_an_arm else name


class StepRows(NamedTuple):
    """The rows of one series (a table of steps) for a block of steps. Each sequence contains one value for each step.

    Step numbers increase from row to row and from block to block. clip_active_groups: number of parameter groups whose
    gradients the clip made smaller; -1 if the system reports no norms. metrics: the values of each metric, by its name;
    all blocks of a series have the same names.
    """

    steps: Sequence[int]
    losses: Sequence[float]
    batch_digests: Sequence[str]
    clip_active_groups: Sequence[int]
    tokens: Sequence[int]
    metrics: Mapping[str, Sequence[float]] = MappingProxyType({})


class SeriesWriter:
    """Writes the series of one execution of an arm as a CSV file. Losses and metrics keep all their bits. NaN and
    infinity are written as words."""

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
        """Append a block of steps. Raises ValueError if the columns have different lengths, or if the metrics have
        other names than in earlier blocks. Also raises ValueError if a batch digest contains a character that a CSV
        field may not contain."""
        self._require_metrics(block.metrics)
        lines = []
        for step, loss, digest, active, count, *others in zip(*block[:5], *block.metrics.values(), strict=True):
            if not _DIGEST.fullmatch(digest):
                raise ValueError(f"batch digest {digest!r} must contain only letters, digits and the characters _.:-")
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
            raise ValueError(
                f"a step reported the metrics {list(metrics)}, but the series has the metrics {self._metrics}; report "
                "the same metrics in each step, with names of letters, digits, `_`, `.` and `-` that are not columns "
                "of the series"
            )
        self._metrics = list(metrics)
        # write the header again: until the first block, the names of the metrics were unknown
        self._write_header()

    def close(self) -> None:
        self.file.close()


class Recorder:
    """Writes one run's evidence into `directory`; a context manager that closes its files."""

    def __init__(self, directory: Path, line: Line | None = None, exchange: Path | None = None) -> None:
        self.directory = directory
        # the folder through which processes of two commits exchange tensors; None: the run has only one commit
        self.exchange = exchange
        self._line = line  # the connection to the process that supervises this process; None: no process supervises it
        self._started = monotonic()
        self._records = DigestedFile(directory / RECORDS, "ab")
        self._heartbeat = directory / HEARTBEAT
        self._series: dict[tuple[str, int], SeriesWriter] = {}
        self._heartbeat.touch()
        self.current_phase = ""
        self.failed_after: int | None = None  # number of steps that the last arm made, if it failed

    def seconds(self) -> float:
        """Return the seconds since this recorder was created."""
        return monotonic() - self._started

    def complete(self) -> None:
        """Write the last record, which marks the evidence as complete. Send the digests of all files to the supervising
        process."""
        self.write(Complete(seconds=self.seconds(), processor_seconds=sum(times()[:4])))
        if self._line is not None:
            files = [self._records, *(series.file for series in self._series.values())]
            written = Written(segments=[each for file in files for each in file.segments()])
            self._line.send(WRITTEN + written.model_dump_json())

    def phase(self, name: str) -> None:
        """Record that a phase of the run begins. If the worker dies, the last recorded phase shows where it died."""
        self.current_phase = name
        note_phase(waits=name.endswith(WAITS))
        # The supervising process reads the phase from this small file. Overwrite the file without emptying it first. If
        # the disk is full and the write fails, the file then still contains the previous phase.
        with self._heartbeat.open("r+b") as file:
            file.write(name.encode("utf-8", "replace") + b"\n")
        began = monotonic()
        self.write(Phase(name=name, seconds=began - self._started, began=began))

    def write(self, record: Record) -> None:
        """Append one record to the records file and flush the file."""
        self._records.write(dump_json(record.model_dump()) + "\n")
        self.heartbeat()

    def series(self, arm: str, replica: int) -> SeriesWriter:
        """Return the writer of the series of execution number `replica` of the arm. The first call creates the writer;
        later calls return the same writer."""
        key = (arm, replica)
        if key not in self._series:
            self._series[key] = SeriesWriter(self.directory / series_name(arm, replica), self.heartbeat)
        return self._series[key]

    def heartbeat(self) -> None:
        """Show the supervising process that the run makes progress, by updating the time of the heartbeat file. Every
        write of evidence does this too."""
        utime(self._heartbeat)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Stop all other runs of this command for the duration of the `with` block, so that only this run uses the GPU
        and the processors. Without a supervising process, no run is stopped."""
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
        """Send a request to the supervising process and wait for its answer. Do nothing if there is no such process."""
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
