"""Execute a run whose arms have several ranks: start the ranks, observe them, and end all of them if one fails.

This process executes no arm itself. Rank 0 writes into the run's directory, and its heartbeat and phases count as those
of the run. All ranks are children of this process, and all of them are in its process group of the operating system. A
signal that stops or ends this group therefore also stops or ends the ranks.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from harness.devices.environment import usable_cores
from harness.evidence.base import Cause
from harness.evidence.plan_records import Run
from harness.evidence.run_records import Raised
from harness.execution.job import LeftStacks, name_of
from harness.execution.rank import IMPORTED, RankAnswer, RankJob, folder_of
from harness.execution.rank_seat import ADDRESS, MARKS, Marks, Position, new_marks
from harness.execution.recorder import Recorder
from harness.execution.watched_worker import is_compiling
from harness.processes.child import ALONE, GO, TOGETHER, Ending, start_child
from harness.system.protocol import NotAvailable

POLL_S = 0.1
# Seconds that other ranks may wait for a rank without progress. This limit is larger if several ranks share a processor
# core.
LAG_S = 20.0
STOPPED_S = 5.0  # seconds for which a rank may be stopped while this process is not stopped
# Largest number of seconds that count between two checks of the ranks. If more time has passed, this process was
# stopped, too.
LONGEST_LOOK_S = 1.0
# Seconds to wait after the first reported failure of a rank. Another rank may have failed earlier and may report its
# failure a little later.
OTHERS_S = 0.3
GRACE_S = 1.0  # seconds that a rank gets to write its stack
_OF_RANKS = {
    # number of entries that torch's flight recorder keeps, one for each call of a collective
    "TORCH_FR_BUFFER_SIZE": "20000",
    # With another value the watchdog of NCCL queries events. Such queries are forbidden during a capture.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # Multicast over NVLink needs a service (the fabric manager) that rented machines may lack.
    "NCCL_NVLS_ENABLE": "0",
}
# words between a rank's name and the description of its end, for each cause of the end; together they form a sentence
_VERBS = {"signal": "was ", "exception": "it "}


class RankEnded(Exception):  # noqa: N818 - it describes how a rank ended
    """One rank failed, so the harness ended all ranks. cause: why the rank that failed first ended. stack: the Python
    stack of this rank."""

    def __init__(self, cause: Cause, message: str, stack: str) -> None:
        super().__init__(message)
        self.cause, self.stack = cause, stack

    def record(self) -> Raised:
        """Return the record of this error, which is the last record of the run."""
        return Raised(error=str(self), stack=self.stack, cause=self.cause)


class _Rank:
    """The process of one rank, and what the parent process has observed of it."""

    def __init__(self, number: int, directory: Path) -> None:
        self.number, self.folder = number, folder_of(directory, number)
        self.folder.mkdir(exist_ok=True)
        self.marks: Marks = new_marks(directory / f"{MARKS}.{number}")
        self._stacks = LeftStacks(self.folder)
        self.child = start_child("harness.execution.rank", variables=_OF_RANKS)
        self.answer: RankAnswer | None = None
        self._ending: Ending | None = None  # set if the process ended without an answer
        # seconds that other ranks have waited for this rank, and seconds that this rank has been stopped
        self.awaited = self.is_stopped = 0.0
        self.position = Position()

    @property
    def complete(self) -> bool:
        return self.answer is not None and self.answer.failed is None

    @property
    def ended_badly(self) -> bool:
        return not self.complete and (self.answer is not None or self._ending is not None)

    def has_imported(self) -> bool:
        """Wait until the rank has imported its modules and can receive its job. Return False if the rank ended."""
        said = self.child.receive(_message)
        self._ending = said if isinstance(said, Ending) else None
        return said == IMPORTED

    def listen(self, recorder: Recorder) -> None:
        """Receive the messages of the rank, and pass its requests on to the process that supervises the run."""
        while self.answer is None and self._ending is None and (said := self.child.receive(_message, 0.0)):
            if isinstance(said, RankAnswer):
                self.answer = said
            elif isinstance(said, Ending):
                self._ending = said
            elif said != IMPORTED:
                recorder.ask(said)
                self.child.line.send(GO)

    def look(self, seconds: float, farthest: Position, lag: float) -> None:
        """Update two numbers: the seconds for which other ranks have waited for this rank, and the seconds for which a
        signal has stopped this rank.

        seconds: time since the last call. farthest: the largest position of all ranks. lag: if other ranks have waited
        longer than `lag` seconds while this rank compiles, the wait is counted from 0 again.
        """
        position, accountable = self.marks.read()
        behind = accountable and position < farthest and not self.complete
        self.awaited = self.awaited + seconds if behind and position == self.position else 0.0
        if self.awaited > lag and is_compiling(self.child.pid, self.folder):
            self.awaited = 0.0
        self.position = position
        self.is_stopped = self.is_stopped + seconds if _state(self.child.pid) == "T" else 0.0

    def ending(self) -> tuple[Cause, str]:
        """Return the cause of the rank's end, and a description of the end that can follow the rank's name in a
        sentence."""
        if self.answer is not None and self.answer.failed is not None:
            return "exception", self.answer.failed
        ending = self._ending or self.child.ended()
        return ending.cause, f"{_VERBS.get(ending.cause, '')}{ending}"

    def stack(self) -> str:
        """Return the stack of the exception that ended the rank. Without an exception, return the stack that
        faulthandler wrote."""
        return (self.answer.stack if self.answer is not None else "") or self._stacks.read()

    def close(self) -> None:
        self.child.close()
        self.marks.close()


def _message(said: str) -> str | RankAnswer:
    """Parse a rank's message. Return the message itself if it is one of the words that ranks send, and otherwise the
    rank's answer."""
    return said if said in (IMPORTED, ALONE, TOGETHER) else RankAnswer.model_validate_json(said)


def execute(run: Run, recorder: Recorder, threads: int | None) -> None:
    """Let the ranks execute the run.

    threads: the number of host threads, divided among the ranks. None: the processor cores are divided among the ranks.
    If the user has set OMP_NUM_THREADS, each rank instead uses as many threads as this variable says.

    Raises `RankEnded` for the rank that failed first, or `NotAvailable` if user code in that rank raised it. All ranks
    have ended when this function returns or raises.
    """
    # only the stacks of the ranks are useful, and not the stacks of this process
    faulthandler.unregister(signal.SIGTERM)
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
    """Send each rank its job when the rank has imported torch. Raises `RankEnded` if a rank ends earlier."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
    folder = name_of(recorder.directory)
    for rank in ranks:
        if not rank.has_imported():
            raise _ended(rank, ranks)
        rank.child.send(
            RankJob(folder=folder, rank=rank.number, port=store.port, threads=_threads(threads, len(ranks)))
        )
    _keep.append(store)


def _threads(threads: int | None, ranks: int) -> int | None:
    """Return the number of host threads for each rank: an equal share of `threads`. If `threads` is None, return None
    if the user has set OMP_NUM_THREADS, and otherwise an equal share of the usable processor cores."""
    if threads is None and "OMP_NUM_THREADS" in os.environ:
        return None
    return max(1, (threads or usable_cores()) // ranks)


# A reference to the ranks' store (torch's `TCPStore`). Without it, Python would delete the store while ranks use it.
_keep: list[object] = []


def _watch(ranks: Sequence[_Rank], recorder: Recorder) -> None:
    """Wait until all ranks have executed the run. Raises `RankEnded` if a rank fails, is stopped, or lets other ranks
    wait too long. Raises `NotAvailable` if user code in a rank raised it."""
    looked = time.monotonic()
    while not all(rank.complete for rank in ranks):
        time.sleep(POLL_S)
        for rank in ranks:
            rank.listen(recorder)
        now, farthest = time.monotonic(), max(rank.marks.read()[0] for rank in ranks)
        for rank in ranks:
            rank.look(min(now - looked, LONGEST_LOOK_S), farthest, _lag(len(ranks)))
        looked = now
        if any(rank.ended_badly for rank in ranks):
            _raise_first(ranks, recorder)
        _require_moving(ranks)


def _raise_first(ranks: Sequence[_Rank], recorder: Recorder) -> NoReturn:
    """Raise the failure of the rank that failed first. A rank whose process died counts as earlier than any rank with
    an exception, because the death may have caused the exception in the other rank."""
    time.sleep(OTHERS_S)
    for rank in ranks:
        rank.listen(recorder)
    bad = [rank for rank in ranks if rank.ended_badly]
    first = min(bad, key=lambda rank: (rank.answer is not None, rank.answer.at if rank.answer else 0.0, rank.number))
    obstacle = first.answer.obstacle if first.answer is not None else None
    if obstacle is not None:
        raise NotAvailable(obstacle.message)
    raise _ended(first, ranks)


def _ended(rank: _Rank, ranks: Sequence[_Rank]) -> RankEnded:
    cause, how = rank.ending()
    colon = ":" if cause == "exception" else ""
    return RankEnded(cause, f"rank {rank.number} of {len(ranks)}{colon} {how}", rank.stack())


def _lag(ranks: int) -> float:
    """Return how many seconds other ranks may wait for a rank: more if several ranks share a processor core."""
    return LAG_S * max(1.0, ranks / usable_cores())


def _require_moving(ranks: Sequence[_Rank]) -> None:
    """Raise `RankEnded` if SIGSTOP has stopped a rank for too long, or if other ranks have waited for it too long."""
    farthest, lag = max(ranks, key=lambda rank: rank.position), _lag(len(ranks))
    for rank in ranks:
        rank_name = f"rank {rank.number} of {len(ranks)}"
        if rank.is_stopped > STOPPED_S:
            rank.child.resume()
            raise RankEnded(
                "heartbeat", f"{rank_name} was stopped (SIGSTOP), but the other ranks were not", _stack_of(rank)
            )
        if rank.awaited > lag:
            positions = (
                f"the rank is at {_said(rank.position)}, but rank {farthest.number} is at {_said(farthest.position)}"
            )
            raise RankEnded(
                "heartbeat", f"other ranks have waited for {rank_name} for {lag:g} s: {positions}", _stack_of(rank)
            )


def _said(position: Position) -> str:
    return f"step {max(0, position.steps - 1)} and collective {position.collectives}"


def _stack_of(rank: _Rank) -> str:
    """End a rank that hangs, and return the stack that faulthandler writes when the rank ends."""
    rank.child.terminate(GRACE_S)
    return rank.stack()


def _end(ranks: Sequence[_Rank]) -> None:
    """Terminate the ranks that still run, and wait a moment while they write their stacks."""
    for rank in ranks:
        rank.child.terminate()
    until = time.monotonic() + GRACE_S
    for rank in ranks:
        rank.child.wait(max(0.0, until - time.monotonic()))


def _state(process: int) -> str:
    """Return the process's state letter from /proc, such as `T` for a stopped process; "" without /proc."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    return ""
