"""Find out if a process that shows no progress compiles: then it does not hang, however long that takes.

Processor time alone proves nothing, since a deadlock in NCCL spins. The proof is a compiler among its children
that uses the processor, or a frame of dynamo, inductor or Triton's compiler on one of its threads' stacks.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from harness.evidence.files import Damaged, read_bytes
from harness.execution.stacks import SHOW, THREADS
from harness.processes.kept import KEEPER

PROCESSES = Path("/proc")
USES_S = 0.5  # in which a compiler shows that it uses the processor: 50 ticks of the kernel's clock
SHOWS_S = 2.0  # in which a process has written its stacks, on a busy machine too
STACK_LIMIT = 2**22  # bytes
_COMPILER = re.compile(
    r"ptxas|nvcc|cicc|cudafe\+\+|nvlink|fatbinary|cc1(plus)?|lto1|collect2|"
    r"([\w.-]+-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|ld|lld|as)(-[\d.]+)?|ld\.\w+"
)
_POOL = b"_inductor/compile_worker"  # the processes in which inductor compiles
_FRAME = re.compile(r'^ *File "(?P<file>.*)", line \S+ in (?P<function>.*)$', re.MULTILINE)
_COMPILES = re.compile(
    r"(^|/)(torch/_(dynamo|inductor)/|triton/(compiler/|backends/\w+/compiler\.py|runtime/build\.py))"
)
# What stands on the stack of compiled code while it runs, and threads that wait for something to compile.
_RUNS = re.compile(
    r"torch/(_dynamo/(eval_frame|external_utils|compiled_autograd)"
    r"|_inductor/(output_code|utils|cudagraph_\w+|runtime/(triton_heuristics|static_\w+)|compile_worker/\w+))\.py:"
    r"|_inductor/compile_fx\.py:run$"
)


def is_compiling(process: int, directory: Path) -> bool:
    """Return True if a process, or one that came of it, compiles now. directory: where they leave their stacks."""
    below = _below(process)
    before = _compilers(below)
    if any(shows_compiler(stack) for stack in _stacks(below, directory)):
        return True
    time.sleep(USES_S)
    now = _compilers(_below(process))
    return any(ticks > before.get(number, -1) for number, ticks in now.items())


def shows_compiler(stacks: str) -> bool:
    """Return True if a frame of a compiler is on one of the stacks that faulthandler wrote."""
    frames = (f"{frame['file']}:{frame['function']}" for frame in _FRAME.finditer(stacks))
    return any(_COMPILES.search(frame) and not _RUNS.search(frame) for frame in frames)


def _stacks(processes: set[int], directory: Path) -> Iterator[str]:
    """Yield the stacks of the threads of each process that can be asked for them."""
    for path in directory.glob(f"**/{THREADS}.*"):
        number = path.suffix[1:]
        if SHOW is not None and number.isdecimal() and int(number) in processes:
            with suppress(OSError, Damaged):
                yield _shown(int(number), path, SHOW)


def _shown(process: int, path: Path, number: int) -> str:
    known = size = len(read_bytes(path, STACK_LIMIT))
    os.kill(process, number)
    until = time.monotonic() + SHOWS_S
    while time.monotonic() < until:
        time.sleep(0.05)
        before, size = size, path.lstat().st_size
        if known < before == size:  # it has grown, and grows no more
            break
    return read_bytes(path, STACK_LIMIT)[known:].decode("utf-8", "replace")


def _below(process: int) -> set[int]:
    """Return a process and all that came of it. Under a keeper, add what the keeper inherited."""
    seen = {int(entry.name): _status(int(entry.name)) for entry in _entries()}
    parents = {number: status[0] for number, status in seen.items() if status is not None}
    keeper = parents.get(process, process)
    found = {process, keeper} if os.fsencode(KEEPER) in _command(keeper) else {process}
    grows = True
    while grows:
        more = {number for number, parent in parents.items() if parent in found} - found
        found, grows = found | more, bool(more)
    return found


def _compilers(processes: set[int]) -> dict[int, int]:
    """Return the compilers among these processes, each with the processor time that it used, in kernel ticks."""
    found = {}
    for process in processes:
        seen = _status(process)
        if seen is not None and (_COMPILER.fullmatch(seen[1]) or _is_called_compiler(process)):
            found[process] = seen[2]
    return found


def _is_called_compiler(process: int) -> bool:
    command = _command(process)
    names = (Path(os.fsdecode(word)).name for word in command[:2])  # a script stands behind its shell
    return any(_POOL in word for word in command) or any(map(_COMPILER.fullmatch, names))


def _command(process: int) -> list[bytes]:
    try:
        return (PROCESSES / str(process) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _status(process: int) -> tuple[int, str, int] | None:
    """Return a process's parent, name and processor time (kernel ticks); None if it is gone, or there is no /proc."""
    try:
        text = (PROCESSES / str(process) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")  # a name may hold parentheses
    fields = rest.split()
    return int(fields[1]), name, int(fields[11]) + int(fields[12])


def _entries() -> Iterator[Path]:
    if PROCESSES.is_dir():
        yield from (entry for entry in PROCESSES.iterdir() if entry.name.isdecimal())
