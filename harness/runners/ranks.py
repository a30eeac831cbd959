"""A run whose arms have several ranks: this process starts them, watches them, and ends all when one fails.

It executes nothing itself. The first rank writes into the run's directory and speaks for the run: its heartbeat and
its phases are the run's. All ranks are children of this process, in its process group: what stops or ends it stops or
ends them.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from harness.evidence.base import Cause
from harness.evidence.environment import usable_cores
from harness.evidence.plan_records import Run
from harness.evidence.run_records import Raised
from harness.python_path import child_command
from harness.runners.compiling import is_compiling
from harness.runners.folders import without_folders
from harness.runners.line import ALONE, GO, TOGETHER, NoMessage, pair
from harness.runners.rank import IMPORTED, RankAnswer, RankJob, folder_of
from harness.runners.rank_marks import MARKS, Marks, Position, new_marks
from harness.runners.rank_seat import ADDRESS
from harness.runners.recorder import Recorder
from harness.runners.stacks import STACKS
from harness.system.protocol import NotAvailable

POLL_S = 0.1
LAG_S = 20.0  # that others may wait for a rank which stands still
STOPPED_S = 5.0  # that a rank may be stopped while this process, of its group, is not
LONGEST_LOOK_S = 1.0  # counted between two looks: in longer ones this process was stopped, and the ranks with it
OTHERS_S = 0.3  # for other ranks to end of what ended the first, so that the first is told from them
GRACE_S = 1.0  # for a rank to leave its stack
STACK_EXCERPT = 8000  # characters
_OF_RANKS = {
    "TORCH_FR_BUFFER_SIZE": "20000",  # torch's flight recorder: which collectives there were
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # its watchdog queries events, which no capture allows
    "NCCL_NVLS_ENABLE": "0",  # multicast needs a fabric manager, which machines that lend GPUs may lack
}


class RankEnded(Exception):  # noqa: N818 - it says how a rank ended
    """One rank came to a bad end, and all were ended."""

    def __init__(self, cause: Cause, message: str, stack: str) -> None:
        super().__init__(message)
        self.cause, self.stack = cause, stack

    def record(self) -> Raised:
        """As the end of the run that it is."""
        return Raised(error=str(self), stack=self.stack, cause=self.cause)


class _Rank:
    """One rank's process, as this one sees it."""

    def __init__(self, number: int, directory: Path) -> None:
        self.number, self.folder = number, folder_of(directory, number)
        self.folder.mkdir(exist_ok=True)
        self.marks: Marks = new_marks(directory / f"{MARKS}.{number}")
        self.line, theirs = pair()
        with theirs:
            environment = {**os.environ, **_OF_RANKS}
            command = child_command("harness.runners.rank")
            self.process = subprocess.Popen(command, stdin=theirs.fileno(), env=environment)
        self.answer: RankAnswer | None = None
        self._garbled = False  # whether it said what is no message
        self.awaited = self.is_stopped = 0.0  # seconds in which it stood still and others waited; was stopped
        self.position = Position()

    @property
    def complete(self) -> bool:
        return self.answer is not None and self.answer.failed is None

    @property
    def ended_badly(self) -> bool:
        return not self.complete and (self._garbled or self.answer is not None or self.process.poll() is not None)

    def listen(self, recorder: Recorder) -> None:
        """Take what it says; what it asks of the supervisor is asked for it."""
        try:
            while self.answer is None and not self._garbled and (said := self.line.receive(0.0)):
                if said in (ALONE, TOGETHER):
                    recorder.ask(said)
                    self.line.send(GO)
                elif said != IMPORTED:
                    self.answer = RankAnswer.model_validate_json(said)
        except (NoMessage, ValidationError):
            self._garbled = True

    def look(self, seconds: float, farthest: Position) -> None:
        """Note how long others have waited for it, and how long it has been stopped."""
        position, accountable = self.marks.read()
        behind = accountable and position < farthest and not self.complete
        self.awaited = self.awaited + seconds if behind and position == self.position else 0.0
        if self.awaited > LAG_S and is_compiling(self.process.pid, self.folder):
            self.awaited = 0.0
        self.position = position
        self.is_stopped = self.is_stopped + seconds if _state(self.process.pid) == "T" else 0.0

    def ending(self) -> tuple[Cause, str]:
        """How its process ended, in a word and in a sentence's tail."""
        if self._garbled:
            return "exception", "it wrote on the harness's own line what is no message"
        if self.answer is not None and self.answer.failed is not None:
            return "exception", self.answer.failed
        code = self.process.wait()
        if code >= 0:
            return "exit_code", f"ended with exit status {code} before its part was done"
        name = f"signal {-code}"
        with suppress(ValueError):
            name = signal.Signals(-code).name
        return "signal", f"was ended by {name}"

    def stack(self) -> str:
        """What its exception, or faulthandler, left."""
        if self.answer is not None and self.answer.stack:
            return self.answer.stack
        with suppress(OSError):
            return without_folders((self.folder / STACKS).read_text("utf-8", "replace"))[-STACK_EXCERPT:]
        return ""

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.line.close()
        self.marks.close()


def execute(run: Run, recorder: Recorder, threads: int | None) -> None:
    """Let the ranks execute the run. Raises `RankEnded` for the first that comes to a bad end, and NotAvailable where
    a system said what is missing here. None of them is left when this returns or raises.
    """
    faulthandler.unregister(signal.SIGTERM)  # the ranks' stacks are of interest, not this one's
    signal.signal(signal.SIGTERM, _leave)
    recorder.phase("start the ranks")
    ranks = [_Rank(number, recorder.directory) for number in range(run.ranks)]
    try:
        _seat(ranks, recorder, threads)
        _watch(ranks, recorder)
    except BaseException:
        _end(ranks)
        raise
    finally:
        for rank in ranks:
            rank.close()


def _leave(*_: object) -> NoReturn:
    raise SystemExit(1)


def _seat(ranks: Sequence[_Rank], recorder: Recorder, threads: int | None) -> None:
    """Give each its job, once all are there to take it."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
    folder = os.fsencode(recorder.directory.resolve()).hex()
    for rank in ranks:
        if rank.line.receive(None) != IMPORTED:
            cause, how = rank.ending()
            raise RankEnded(cause, f"rank {rank.number} of {len(ranks)} {how}", rank.stack())
        job = RankJob(folder=folder, rank=rank.number, port=store.port, threads=_threads(threads, len(ranks)))
        rank.line.send(job.model_dump_json())
    _keep.append(store)


def _threads(threads: int | None, ranks: int) -> int | None:
    """Of the host for each rank: equal parts of what this process was given; a user's own number stands."""
    if threads is None and "OMP_NUM_THREADS" in os.environ:
        return None
    return max(1, (threads or usable_cores()) // ranks)


_keep: list[object] = []  # the store lives as long as this process


def _watch(ranks: Sequence[_Rank], recorder: Recorder) -> None:
    """Wait until all are complete."""
    looked = time.monotonic()
    while not all(rank.complete for rank in ranks):
        time.sleep(POLL_S)
        for rank in ranks:
            rank.listen(recorder)
        now, farthest = time.monotonic(), max(rank.marks.read()[0] for rank in ranks)
        for rank in ranks:
            rank.look(min(now - looked, LONGEST_LOOK_S), farthest)
        looked = now
        if any(rank.ended_badly for rank in ranks):
            _raise_first(ranks, recorder)
        _require_moving(ranks)


def _raise_first(ranks: Sequence[_Rank], recorder: Recorder) -> NoReturn:
    """Raise for the rank that failed first: one that a signal ended, else the earliest exception."""
    time.sleep(OTHERS_S)
    for rank in ranks:
        rank.listen(recorder)
    bad = [rank for rank in ranks if rank.ended_badly]
    first = min(bad, key=lambda rank: (rank.answer is not None, rank.answer.at if rank.answer else 0.0, rank.number))
    obstacle = first.answer.obstacle if first.answer is not None else None
    if obstacle is not None:
        raise NotAvailable(obstacle.message)
    cause, how = first.ending()
    colon = ":" if cause == "exception" else ""
    raise RankEnded(cause, f"rank {first.number} of {len(ranks)}{colon} {how}", first.stack())


def _require_moving(ranks: Sequence[_Rank]) -> None:
    """Raise `RankEnded` for a rank that is stopped, or that others wait for."""
    farthest = max(ranks, key=lambda rank: rank.position)
    for rank in ranks:
        name = f"rank {rank.number} of {len(ranks)}"
        if rank.is_stopped > STOPPED_S:
            rank.process.send_signal(signal.SIGCONT)
            raise RankEnded("heartbeat", f"{name} was stopped (SIGSTOP), and the others were not", _stack_of(rank))
        if rank.awaited > LAG_S:
            where = f"it stands at {_said(rank.position)}, rank {farthest.number} at {_said(farthest.position)}"
            raise RankEnded("heartbeat", f"others wait for {name} since {LAG_S:g} s: {where}", _stack_of(rank))


def _said(position: Position) -> str:
    return f"step {max(0, position.steps - 1)} and collective {position.collectives}"


def _stack_of(rank: _Rank) -> str:
    """End a rank that hangs, so that it leaves its stack."""
    rank.process.terminate()
    with suppress(subprocess.TimeoutExpired):
        rank.process.wait(GRACE_S)
    return rank.stack()


def _end(ranks: Sequence[_Rank]) -> None:
    """Let those that are left leave their stacks."""
    for rank in ranks:
        rank.process.terminate()
    until = time.monotonic() + GRACE_S
    for rank in ranks:
        with suppress(subprocess.TimeoutExpired):
            rank.process.wait(max(0.0, until - time.monotonic()))


def _state(process: int) -> str:
    """The process's state as /proc has it, such as `T` for one that is stopped; "" where there is no /proc."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    return ""
