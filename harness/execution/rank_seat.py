"""Let one rank of a run join torch's process group when an arm opens, and leave the group after the arm.

A `Seat` object describes this process as one of the ranks. In a run with one rank there is no such object, and arms
have no process group. The parent process of the ranks creates the store (torch's `TCPStore`) through which the ranks
find each other. Each rank gets the environment variables that `torchrun` would set, so that process groups which user
code creates use this store, too.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.errors import UsageError
from harness.evidence.plan_records import Run
from harness.system.ranks import hold_together

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

MARKS = "marks"
# The layout of the memory-mapped file of `Marks`: first _WORK, then _COLLECTIVES. Different threads write these two, so
# they are separate.
_WORK, _COLLECTIVES = Struct("=4q"), Struct("=q")


class Position(NamedTuple):
    """The progress of one rank. All ranks execute the same program, so ranks with a larger position wait for the rank
    with the smallest position.

    joined: how many arms with several ranks the rank has entered. phases, steps, collectives: how many phases, steps
    and collectives the rank has begun in the current arm. Only collectives of torch's process groups count.
    """

    joined: int = 0
    phases: int = 0
    steps: int = 0
    collectives: int = 0


class Marks:
    """One rank's position (`Position`), in a small memory-mapped file. The rank writes its position into the file
    without waiting. The parent process of the ranks creates the file (`new_marks`) and reads the position from it."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _WORK.size + _COLLECTIVES.size)
        self._joined = self._phases = self._steps = 0

    def enter(self) -> None:
        """Record that an arm of several ranks begins."""
        self._joined, self._phases, self._steps = self._joined + 1, 0, 0
        self.collectives(0)
        self._write(accountable=True)

    def leave(self) -> None:
        """Record that the arm has ended. From now on no other rank waits for this rank."""
        self._write(accountable=False)

    def phase(self, *, waits: bool) -> None:
        """Record that a phase of the arm begins. waits: True if this is a phase in which the rank waits for the process
        that supervises the run."""
        self._phases += self.read()[1] and not waits
        self._write(accountable=not waits)

    def step(self) -> None:
        """Record that a step of the arm begins."""
        self._steps += 1
        self._write(accountable=True)

    def collectives(self, number: int) -> None:
        """Record how many collectives this rank has begun in this arm."""
        _COLLECTIVES.pack_into(self._memory, _WORK.size, number)

    def read(self) -> tuple[Position, bool]:
        """Return the rank's last recorded position, and a flag. The flag is False if other ranks may wait for this rank
        without a time limit."""
        joined, phases, steps, accountable = _WORK.unpack_from(self._memory)
        (collectives,) = _COLLECTIVES.unpack_from(self._memory, _WORK.size)
        return Position(joined, phases, steps, collectives), bool(accountable)

    def close(self) -> None:
        self._memory.close()

    def _write(self, *, accountable: bool) -> None:
        _WORK.pack_into(self._memory, 0, self._joined, self._phases, self._steps, int(accountable))


def new_marks(path: Path) -> Marks:
    """Create the file for a rank's position, and return its `Marks`. All numbers in the file are 0, because the rank
    has not begun yet."""
    path.write_bytes(bytes(_WORK.size + _COLLECTIVES.size))
    return Marks(path)


ADDRESS = "127.0.0.1"
LOOK_S = 0.25  # seconds after which the number of begun collectives is read again
MEETING_S = 0.01  # seconds after which a waiting rank checks again whether all ranks have arrived


@dataclass
class Seat:
    """The description and state of this process as one of the ranks of a run.

    failed: a function that reports an arm's error and ends the process. Without this end, the other ranks would wait
    for this rank in a collective.
    """

    rank: int
    port: int
    marks: Marks
    failed: Callable[[BaseException], None]
    store: Any = None
    # name of an arm -> how often this process has joined the arm's process group
    times: dict[str, int] = field(default_factory=dict)
    ranks: int = 1  # number of ranks of the arm that is open
    model_parallel: int = 1  # size of the model-parallel group of the arm that is open
    opened: int = 0  # number of arms that are open now; it is 2 in a timing, which opens both arms
    agreements: int = 0  # how often this process has called `agreed` in an open arm


_seat: Seat | None = None


def take(seat: Seat) -> None:
    """Make this process the rank that `seat` describes (a `Seat`), and begin to count its collectives."""
    global _seat  # noqa: PLW0603 - a process is one rank
    _seat = seat
    threading.Thread(target=_watch_collectives, args=(seat,), name="collectives begun", daemon=True).start()


def is_here(ranks: int) -> bool:
    """Return True if this process takes part in an arm with `ranks` ranks, or is not a rank at all. If the arm has
    several ranks and this process is not a rank, `together` raises an error when the arm is opened."""
    return _seat is None or _seat.rank < ranks


def number() -> int | None:
    """Return this process's rank, even if no arm is open; None if the process is not a rank."""
    return None if _seat is None else _seat.rank


def ranks() -> int:
    """Return the number of ranks of the open arms; 1 if no arm is open or this process is not a rank."""
    return 1 if _seat is None or not _seat.opened else _seat.ranks


@contextmanager
def together(run: Run, arm: str) -> Iterator[None]:
    """Join the process group of all ranks of `arm` for the duration of the `with` block. Do nothing if the arm has only
    one rank.

    Raises UsageError in a process that is not a rank. If the `with` block raises an error, the error is reported to the
    parent process, and this process ends.
    """
    planned = run.arms[arm].arm
    ranks = planned.ranks
    if ranks == 1:
        yield
        return
    if _seat is None:
        one_process_per_rank = "an arm with several ranks must be executed by as many processes as it has ranks"
        raise UsageError(
            one_process_per_rank, where=arm, got="one process", remedy="execute the arm with `harness verify`"
        )
    seat = _seat
    try:
        _join(seat, arm, ranks, planned.model_parallel, on_cuda=run.workload.needs.device != "cpu")
        yield
        _leave(seat)
    except BaseException as error:  # user code may raise anything, also SystemExit
        seat.failed(error)
        raise


def agreed(found: bool) -> bool:
    """Return True on every rank if `found` is true on at least one rank. Wait until all ranks have called this
    function. All ranks get the same result. If the ranks use the result to decide whether to make more steps, all ranks
    make the same number of steps."""
    seat = _seat
    if seat is None or not seat.opened:
        return found
    seat.agreements += 1
    key = f"agreement {seat.agreements}"
    seat.store.add(f"{key} found", int(found))
    _meet(seat, key)
    return bool(seat.store.add(f"{key} found", 0))


def note_phase(*, waits: bool) -> None:
    """Record that a phase of the run begins in this process. waits: True if this is a phase in which the process waits
    for the process that supervises the run."""
    if _seat is not None and _seat.opened:
        _seat.marks.phase(waits=waits)


def note_step() -> None:
    """Record that a step of an arm begins in this process."""
    if _seat is not None and _seat.opened:
        _seat.marks.step()


def collectives_begun() -> int:
    """Return how many collectives this process has begun, in all process groups of torch, or 0 if there is no group."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return 0
    groups: list[Any] = list(dist.distributed_c10d._world.pg_map)
    return sum(group._get_sequence_number_for_group() for group in groups)


def _join(seat: Seat, arm: str, ranks: int, model_parallel: int, *, on_cuda: bool) -> None:
    seat.opened += 1
    if seat.opened > 1:  # both arms of a timing are open at the same time, and use the same process group
        if (seat.ranks, seat.model_parallel) != (ranks, model_parallel):
            got = f"{ranks} and {seat.ranks} ranks, `model_parallel` {model_parallel} and {seat.model_parallel}"
            rule = "arms that are open at the same time must have equal numbers of ranks and equal `model_parallel`"
            raise UsageError(rule, where=arm, got=got)
        return
    seat.ranks, seat.model_parallel = ranks, model_parallel
    hold_together(model_parallel)
    seat.times[arm] = seat.times.get(arm, 0) + 1
    os.environ.update(_environment(seat, ranks))
    seat.marks.enter()
    seat.store = _store(seat, f"{arm} {seat.times[arm]}")
    _initialize(seat, ranks, on_cuda=on_cuda)


def _environment(seat: Seat, ranks: int) -> dict[str, str]:
    """Return those environment variables that `torchrun` sets for a rank and that a training may read."""
    number, count = str(seat.rank), str(ranks)
    return {
        "RANK": number,
        "LOCAL_RANK": number,
        "ROLE_RANK": number,
        "GROUP_RANK": "0",
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "ROLE_WORLD_SIZE": count,
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(seat.port),
        "TORCHELASTIC_RUN_ID": "harness",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def _store(seat: Seat, name: str) -> Store:
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    return PrefixStore(name, TCPStore(ADDRESS, seat.port, is_master=False, wait_for_workers=False))


def _initialize(seat: Seat, ranks: int, *, on_cuda: bool) -> None:
    import torch.distributed as dist

    from harness.devices.device import select

    device = select(seat.rank) if on_cuda else None
    backend = "gloo" if device is None else "nccl"
    dist.init_process_group(backend, store=seat.store, rank=seat.rank, world_size=ranks, device_id=device)


def _leave(seat: Seat) -> None:
    seat.opened -= 1
    if seat.opened:
        return
    import torch.distributed as dist

    # Wait here until all ranks have finished. Otherwise a rank that leaves would close a connection from which another
    # rank still receives data.
    _meet(seat, "end")
    dist.destroy_process_group()
    seat.marks.leave()
    for name in _environment(seat, seat.ranks):
        os.environ.pop(name, None)


def _meet(seat: Seat, key: str) -> None:
    """Wait until every rank has called this function with the same `key`."""
    seat.store.add(key, 1)
    while seat.store.add(key, 0) < seat.ranks:
        time.sleep(MEETING_S)


def _watch_collectives(seat: Seat) -> None:
    while True:
        time.sleep(LOOK_S)
        if seat.opened:
            # ignore errors, because the process group may be created or destroyed at this moment
            with suppress(Exception):
                seat.marks.collectives(collectives_begun())
