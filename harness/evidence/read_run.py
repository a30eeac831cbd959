"""Read the files of one worker: its records, the cause of its death, and each arm's series (a CSV file that keeps every
bit of a loss). If files are damaged, the worker counts as dead with the cause `garbage`, and no exception is raised."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.arm_records import ArmStart
from harness.evidence.base import ArmRecord, Record, RunRecord
from harness.evidence.files import Damaged, first_error, read_bytes, read_model, readable
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import ArmEvidence, Death, RunEvidence, Series, execution_of, held, parsed, parts
from harness.evidence.run_records import Complete, PartFailed, Phase, Raised, Telemetry, Unavailable
from harness.evidence.serving import Lane, Shared, joined, lacks, lane_folders, missing, seen_by
from harness.numbers import Real, counted

_HEADER = ",".join(layout.SERIES_COLUMNS)


def read_series(path: Path) -> Series:
    """Return an arm's series from its CSV file, with every bit of its numbers. Raises `Damaged`. Reading a million rows
    takes half a second."""
    text = read_bytes(path)
    end = text.find(b"\n")
    metrics = _metrics(path.name, text[: end if end >= 0 else None])
    # the last line may be incomplete, because the worker died while it wrote the line
    text = text[: text.rfind(b"\n") + 1]
    rows = max(0, text.count(b"\n") - 1)
    read = _read_whole(path, text, rows, metrics) or _read_field_by_field(path.name, text[end + 1 :], rows, metrics)
    if np.any(read.steps[1:] <= read.steps[:-1]):
        raise Damaged(f"{path.name}: the step numbers do not increase from row to row")
    return read.series


def _metrics(name: str, header: bytes) -> list[str]:
    """Return the names of the metrics in the header of a series. The metrics' columns follow the columns that every
    series has."""
    columns = header.decode("ascii", "replace").split(",")
    own = len(layout.SERIES_COLUMNS)
    metrics = columns[own:]
    named = all(layout.METRIC_NAME.fullmatch(each) for each in metrics)
    if tuple(columns[:own]) != layout.SERIES_COLUMNS or not named or len(set(columns)) < len(columns):
        raise Damaged(f"{name}: the first row must hold the column names {_HEADER} and then the names of metrics")
    return metrics


class _Read(NamedTuple):
    steps: NDArray[np.int64]
    series: Series


def _read_whole(path: Path, text: bytes, rows: int, metrics: list[str]) -> _Read | None:
    """Return a series' rows, read with numpy, which rounds correctly. Return None for an unusual or damaged file."""
    # Leave such files to the slower reader: numpy would treat a carriage return as the end of a line, and would ignore
    # text after the last row.
    if rows == 0 or not text.isascii() or b"\0" in text or b"\r" in text:
        return None
    names = (*layout.SERIES_COLUMNS, *metrics)
    start = text.index(b"\n") + 1
    first = text[start : text.index(b"\n", start)].split(b",")
    # Allow one character more than the first digest has. Otherwise numpy would cut a longer digest in another row
    # without an error.
    width = len(first[2]) + 1 if len(first) == len(names) else 1
    kinds = (np.int64, np.float64, f"S{width}", np.int64, np.int64, *[np.float64] * len(metrics))
    columns = np.dtype(list(zip(names, kinds, strict=True)))
    try:
        with warnings.catch_warnings():
            # Numpy only warns if an integer is written as a float. Here this must be an error.
            warnings.simplefilter("error")
            table = np.loadtxt(str(path), columns, comments=None, delimiter=",", skiprows=1, max_rows=rows, ndmin=1)
    except (ValueError, Warning):
        return None
    digests = np.ascontiguousarray(table["batch_digest"])
    if len(table) != rows or digests.view(np.uint8).reshape(rows, width)[:, -1].any():
        return None
    loss, active, tokens = (np.ascontiguousarray(table[name]) for name in ("loss", "clip_active_groups", "tokens"))
    others = {name: np.ascontiguousarray(table[name]) for name in metrics}
    return _Read(table["step"], Series(loss, DigestColumn(digests), active, tokens, others))


def _read_field_by_field(name: str, body: bytes, rows: int, metrics: list[str]) -> _Read:
    """Return the rows of a series, each field read by Python's own conversions. Raises `Damaged` with the problem."""
    own = len(layout.SERIES_COLUMNS)
    width = own + len(metrics)
    # Replace newlines by commas. One split then returns all fields of all rows.
    fields = body[:-1].replace(b"\n", b",").decode("ascii", "replace").split(",") if rows else []
    if len(fields) != rows * width:
        raise Damaged(f"{name}: {len(fields)} fields in {counted(rows, 'row')}, but each row must hold {width} fields")
    try:
        steps = np.fromiter(map(int, fields[0::width]), np.int64, rows)
        loss = np.fromiter(map(float, fields[1::width]), np.float64, rows)
        active = np.fromiter(map(int, fields[3::width]), np.int64, rows)
        tokens = np.fromiter(map(int, fields[4::width]), np.int64, rows)
        others = {
            metric: np.fromiter(map(float, fields[place::width]), np.float64, rows)
            for place, metric in enumerate(metrics, start=own)
        }
    except (ValueError, OverflowError) as error:
        raise Damaged(f"{name}: {str(error)[:200]}") from error
    return _Read(steps, Series(loss, fields[2::width], active, tokens, others))


class DigestColumn(Sequence[str]):
    """A column of ASCII digests without NUL bytes. Comparing two columns of a million rows takes 10 ms, because the
    columns are compared as bytes."""

    def __init__(self, encoded: NDArray[np.bytes_]) -> None:
        self._encoded = encoded

    def __len__(self) -> int:
        return len(self._encoded)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> DigestColumn: ...
    def __getitem__(self, index: int | slice) -> str | DigestColumn:
        if isinstance(index, slice):
            return DigestColumn(self._encoded[index])
        return bytes(self._encoded[index]).decode("ascii")

    def __iter__(self) -> Iterator[str]:
        # Decoding all digests at once takes a tenth of the time that decoding one digest after the other takes.
        return iter(self._encoded.astype(np.str_).tolist())

    def __contains__(self, digest: object) -> bool:
        return isinstance(digest, str) and digest.isascii() and bool((self._encoded == digest.encode()).any())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DigestColumn):
            return np.array_equal(self._encoded, other._encoded)
        return isinstance(other, Sequence) and list(self) == list(other)

    def distinct(self) -> int:
        """Return the number of different digests, counted as bytes, because counting them as texts takes twice as
        long."""
        return len(set(self._encoded.tolist()))

    def __hash__(self) -> int:
        return hash(self._encoded.tobytes())


def distinct(digests: Sequence[str]) -> int:
    """Return the number of different digests in a column or a list."""
    return digests.distinct() if isinstance(digests, DigestColumn) else len(set(digests))


_EMPTY = Series(np.empty(0), [], np.empty(0, np.int64), np.empty(0, np.int64))


OPENED = ": open"  # suffix of the name of the first phase of each execution of an arm


def read_records(directory: Path) -> tuple[list[Record], str | None]:
    """Return the records before the first damage, and a description of the damage, or None if there is no damage.

    If the last line has no newline, the worker died while it wrote the line. The line is left out and does not count as
    damage.
    """
    path = directory / layout.RECORDS
    if not path.exists():
        return [], None
    try:
        lines = read_bytes(path).split(b"\n")
    except Damaged as damage:
        return [], str(damage)
    records: list[Record] = []
    for number, line in enumerate(lines[:-1], start=1):
        if records and isinstance(records[-1], Complete):
            return records, f"{path.name}:{number}: a record after `complete`"
        try:
            records.append(parsed(line))
        except (ValidationError, RecursionError, ValueError) as error:
            return records, f"{path.name}:{number}: {first_error(error)}"
    return records, None


def read_run(directory: Path) -> tuple[Run, RunEvidence]:
    """Return a run and its evidence, from the folder `evidence/<run id>/`. Raises EvidenceError if its `run.json`
    cannot be read."""
    try:
        run = read_model(directory / layout.RUN, Run)
    except Damaged as damage:
        raise EvidenceError(
            "every evidence directory must contain a readable `run.json`", where=directory.name, got=str(damage)
        ) from damage
    if (directory / layout.SHARED).exists():
        return run, _of_host(run, directory)
    folders = lane_folders(directory)
    if folders:
        return run, _of_lanes(run, directory, folders)
    first = _of_worker(run, directory)
    return run, replace(first, ranks=tuple(_of_rank(run, directory, first, rank) for rank in range(1, run.ranks)))


def read_so_far(directory: Path) -> tuple[Run, RunEvidence]:
    """Return a run and its evidence so far: the result of `read_run` if the run has ended, otherwise only those
    executions of arms that have ended.

    An execution has ended when the next one begins. Raises EvidenceError if the run's `run.json` cannot be read.
    """
    try:
        if has_ended(directory):
            return read_run(directory)
        run = read_model(directory / layout.RUN, Run)
        if (host := host_of(directory)) is not None:
            arms = read_model(directory / layout.SHARED, Shared).arms
            return run, seen_by(run, read_so_far(host)[1], arms)
        folders = lane_folders(directory)
        if not folders:
            return run, _ended_of_worker(run, directory)
        parts = [(folder, read_model(folder / layout.RUN, Run)) for folder in folders]
        lanes = [Lane(folder.name, part, _ended_of_worker(part, folder)) for folder, part in parts]
        failed = {arm: end for lane in lanes for arm, end in lane.evidence.failed.items()}
        return run, replace(joined(run, lanes, []), failed=failed)
    except Damaged as damage:
        raise EvidenceError(
            "the evidence that a running run has recorded so far must be readable",
            where=directory.name,
            got=str(damage),
        ) from damage


def _ended_of_worker(run: Run, directory: Path) -> RunEvidence:
    """Return one worker's evidence. While the worker is running, return only the executions of arms that have ended."""
    if has_ended(directory):
        return _of_worker(run, directory)
    records, _ = read_records(directory)
    phases = [(number, record.name) for number, record in enumerate(records) if isinstance(record, Phase)]
    opened = [number for number, name in phases if name.endswith(OPENED)]
    return assemble(run, records[: opened[-1]] if opened else [], directory)


def _of_rank(run: Run, directory: Path, first: RunEvidence, rank: int) -> RunEvidence:
    """Return the evidence of rank number `rank`, at least 1. For an arm without this rank, use rank 0's executions."""
    own = _of_worker(run, directory / layout.rank_name(rank))
    its = {arm for arm, planned in run.arms.items() if planned.arm.ranks > rank}
    seen = {arm: (own if arm in its else first).arms.get(arm) for arm in run.arms}
    arms = {arm: executions for arm, executions in seen.items() if executions is not None}
    return replace(own, arms=arms, failed=first.failed, telemetry=first.telemetry, obstacle=first.obstacle)


def host_of(directory: Path) -> Path | None:
    """Return the folder of the run whose process also executed this run. Return None if this run has its own evidence.
    Raises `Damaged` if `shared.json` cannot be read, or does not name a run in the same folder."""
    if not (directory / layout.SHARED).exists():
        return None
    shared = read_model(directory / layout.SHARED, Shared)
    host = directory.parent / shared.run
    if Path(shared.run).name != shared.run or shared.run in {".", ".."} or host.is_symlink() or not host.is_dir():
        raise Damaged(f"{layout.SHARED} names a run that this directory does not hold: {shared.run!r:.100}")
    return host


def has_ended(directory: Path) -> bool:
    """Return True if the records show, for every process of the run, that the process completed its work or died."""
    folders = lane_folders(directory)
    try:
        if (host := host_of(directory)) is not None:
            return host_of(host) is None and has_ended(host)
        if not folders:
            return (directory / layout.DEATH).exists() or read_run(directory)[1].death is None
        run, *lanes = (read_model(folder / layout.RUN, Run) for folder in (directory, *folders))
        return not missing(run, lanes) and all(map(has_ended, folders))
    except (EvidenceError, Damaged):
        return False


def _of_host(run: Run, directory: Path) -> RunEvidence:
    """Return this run's evidence from its host, the run whose process executed the arms of this run. If the host did
    not execute these arms, this run's worker counts as dead with the cause `garbage`."""
    try:
        host, shared = host_of(directory), read_model(directory / layout.SHARED, Shared)
        if host is None or (host / layout.SHARED).exists():
            return _garbage(run, f"{layout.SHARED} names a run that has no evidence of its own")
        executed, evidence = read_run(host)
    except EvidenceError as error:
        return _garbage(run, error.got)
    except Damaged as damage:
        return _garbage(run, str(damage))
    if {path.name for path in directory.iterdir()} != {layout.RUN, layout.SHARED}:
        return _garbage(run, f"there is other evidence next to {layout.SHARED}, so arms would count twice")
    difference = (
        lacks(executed, run, shared.arms) if executed.id == shared.run else f"the evidence is of run {executed.id}"
    )
    if difference is not None:
        return _garbage(run, f"run {shared.run} did not execute the arms of this run: {difference}")
    return seen_by(run, evidence, shared.arms)


def _of_lanes(run: Run, directory: Path, folders: list[Path]) -> RunEvidence:
    """Return the joined evidence of lanes (processes that each executed a part of the run). If the lanes do not fit
    together, or there are records outside of them, the whole run counts as damaged."""
    lanes: list[Lane] = []
    unreadable: list[str] = []
    for folder in folders:
        try:
            part = read_model(folder / layout.RUN, Run)
        except Damaged as damage:
            unreadable.append(f"{folder.name}/{damage}")
        else:
            lanes.append(Lane(folder.name, part, _of_worker(part, folder)))
    if (directory / layout.RECORDS).exists():
        return _garbage(run, f"there is a {layout.RECORDS} next to the lanes, so arms would count twice")
    try:
        return joined(run, lanes, unreadable)
    except Damaged as damage:
        return _garbage(run, str(damage))


def _garbage(run: Run, detail: str) -> RunEvidence:
    return RunEvidence(run.id, run.probe, {}, death=Death(cause="garbage", detail=detail, phase=None, stack=""))


def _of_worker(run: Run, directory: Path) -> RunEvidence:
    """Return the evidence that one worker wrote into the folder `directory`."""
    records, damage_found = read_records(directory)
    phases = [record.name for record in records if isinstance(record, Phase)]
    phase = phases[-1] if phases else None
    try:
        evidence = assemble(run, records, directory)
    except Damaged as damage:
        evidence, damage_found = RunEvidence(run.id, run.probe, {}), damage_found or str(damage)
    # Telemetry may be missing: a timing without telemetry never gets the verdict PASS.
    evidence = replace(evidence, telemetry=readable(directory / layout.TELEMETRY, Telemetry))
    return replace(evidence, death=_death(directory, records, damage_found, phase))


def _death(directory: Path, records: list[Record], damage: str | None, phase: str | None) -> Death | None:
    path = directory / layout.DEATH
    if path.exists():
        try:
            return read_model(path, Death)
        except Damaged as unreadable:
            return Death(cause="garbage", detail=str(unreadable), phase=phase, stack="")
    return death_from_records(records, damage, phase)


def death_from_records(records: list[Record], damage: str | None, phase: str | None) -> Death | None:
    """Return the death of the worker as its own records show it, or None if the records are complete and undamaged."""
    raised = next((record for record in records if isinstance(record, Raised)), None)
    if raised is not None:
        return Death(cause=raised.cause, detail=raised.error, phase=phase, stack=raised.stack)
    if damage is not None:
        return Death(cause="garbage", detail=damage, phase=phase, stack="")
    if not records or not isinstance(records[-1], Complete):
        return Death(cause="incomplete", detail="the `complete` record is missing", phase=phase, stack="")
    return None


def assemble(run: Run, records: list[Record], directory: Path) -> RunEvidence:
    """Return the evidence of a run: its records and series, by arm and number of the execution. Raises `Damaged` if the
    records do not fit together or do not fit the run."""
    executions: dict[tuple[str, int], list[RunRecord]] = {}
    of_run: list[RunRecord] = []
    seen: set[str] = set()
    for record in (record for record in records if isinstance(record, RunRecord)):
        whose = ", ".join(f"{name} {getattr(record, name)}" for name in record.key) or "the run"
        # A second record with the same key would replace the first record, or would count twice.
        if (named := f"`{record.record}` of {whose}") in seen:
            raise Damaged(f"{layout.RECORDS}: {named} was recorded twice")
        seen.add(named)
        if getattr(record, "arm", None) not in {None, *run.arms}:
            raise Damaged(f"{layout.RECORDS}: {whose} was recorded, but not planned")
        if not isinstance(record, ArmRecord):
            of_run.append(record)
        elif isinstance(record, ArmStart):
            executions[record.arm, record.replica] = [record]
        elif (record.arm, record.replica) not in executions:
            raise Damaged(f"{layout.RECORDS}: `{record.record}` of arm {record.arm} comes before the arm's start")
        elif isinstance(record, PartFailed) and record.part not in parts():
            raise Damaged(f"{layout.RECORDS}: an execution has the unknown part {record.part!r:.100}")
        else:
            executions[record.arm, record.replica].append(record)
    arms: dict[str, list[ArmEvidence]] = {}
    known: dict[Path, Series] = {}
    for arm, replica in sorted(executions):
        expected = run.arms[arm].first_replica + len(arms.setdefault(arm, []))
        if replica != expected:
            raise Damaged(f"{layout.RECORDS}: replica {expected} of arm {arm} is missing")
        path = directory / layout.series_name(arm, replica)
        series = _series(path, known) if path.exists() else _EMPTY
        arms[arm].append(execution_of(series, executions[arm, replica]))
    obstacles = [record.obstacle for record in records if isinstance(record, Unavailable)]
    obstacle = obstacles[-1] if obstacles else None
    return RunEvidence(run.id, run.probe, arms, obstacle=obstacle, **held(RunEvidence, of_run))


def _series(path: Path, known: dict[Path, Series]) -> Series:
    """Return a series. Files with equal bytes are parsed only once, because it takes half a second to parse a million
    steps."""
    size = path.stat().st_size
    for other, series in known.items():
        if other.stat().st_size == size and read_bytes(other) == read_bytes(path):
            return series
    known[path] = read_series(path)
    return known[path]


# The beginnings of the lines to parse, as `dump_json` writes them. Other lines are skipped to save time.
_OF_INTEREST = (b'"record":"phase"', b'"record":"complete"')


class ProcessTimes(Record):
    """`process.json`: times of a worker's process, recorded by the process that started it, in seconds of the machine's
    monotonic clock.

    A process that was started in advance gets its run later: it waits from `ready` to `given_run`. The run holds its
    GPU from `given_run` on.
    """

    started: Real
    ended: Real
    given_run: Real | None = None  # time at which the process got its run; None: when it was started
    ready: Real | None = None  # time at which the process began to wait for a run; None: it did not wait
    # time at which the process requested a GPU; None: it needed no GPU, or had one already
    asked_for_gpu: Real | None = None
    # commit of the checkout at the time `given_run`; None: there was no checkout, or the evidence is of an older
    # version
    commit: str | None = None
    # with --baseline: the commits whose source trees the arms of this process used
    trained: list[str] = Field(default_factory=list)
    gpu: str | None = None  # UUID of the GPU that the process held; None: it held no GPU
    gpu_alone: bool | None = None  # True: no other run could use the GPU at the same time
    # intervals in which the process was stopped, each from SIGSTOP to SIGCONT
    stopped: list[tuple[Real, Real]] = Field(default_factory=list)


@dataclass(frozen=True)
class WorkerTimes:
    """One worker of a run, with its times. process: None for evidence of an older version, which did not record it."""

    run: Run
    phases: Sequence[Phase]
    complete: Complete | None
    process: ProcessTimes | None

    @property
    def clocked(self) -> bool:
        """Return True if all times are times of the machine's clock, so that they can be compared with those of other
        runs in the directory."""
        return self.process is not None and all(phase.began is not None for phase in self.phases)


def read_times(directory: Path) -> list[WorkerTimes]:
    """Return the workers of one run in order, from the folder `evidence/<run id>/`. Workers without a readable run are
    left out. If the run was divided into lanes (processes for parts of it), return the workers of all lanes."""
    try:
        folders = lane_folders(directory)
        earlier = sorted(directory.glob(f"{layout.ATTEMPT}*"), key=lambda path: (len(path.name), path.name))
    except OSError:  # the folder may not be readable for this user; the code that reads the evidence reports this
        return []
    if folders:
        return [times for folder in folders for times in read_times(folder)]
    return [times for folder in [*earlier, directory] if (times := _of_one(folder)) is not None]


def _of_one(directory: Path) -> WorkerTimes | None:
    run = readable(directory / layout.RUN, Run)
    if run is None:
        return None
    records = _records(directory / layout.RECORDS)
    return WorkerTimes(
        run,
        [record for record in records if isinstance(record, Phase)],
        next((record for record in records if isinstance(record, Complete)), None),
        readable(directory / layout.PROCESS, ProcessTimes),
    )


def _records(path: Path) -> list[Record]:
    """Return the `phase` and `complete` records of the file. Other lines are not parsed. Damaged or incomplete lines
    are ignored."""
    try:
        lines = read_bytes(path).split(b"\n")
    except Damaged:
        return []
    records = []
    for line in lines:
        if any(mark in line for mark in _OF_INTEREST):
            with suppress(ValidationError, RecursionError, ValueError):
                records.append(parsed(line))
    return records
