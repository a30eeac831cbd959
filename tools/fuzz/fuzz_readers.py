"""Fuzz every reader of untrusted files, and the functions that lint, plan and explain a contract.

    python tools/fuzz/fuzz_readers.py [--inputs N | --seconds S] [TARGET ...]

Hypothesis draws the inputs, a hundred in each draw. A target may raise only errors of the types that it declares. Each
input may use 1 s of processor time and 200 MB of memory. If an input raises another error, exceeds a limit or ends its
process, it is written to `tests/fuzz_cases/TARGET/`, and the exit code is 1. The tests try the inputs in this folder.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from fuzz_child import Child, Tried
from fuzz_mutations import ROW
from fuzz_targets import NAMES, ROOT, Target, targets
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

CASES = ROOT / "tests" / "fuzz_cases"
DRAW = 100  # number of inputs in a draw; a draw by hypothesis takes about 1 ms, and 1 µs for each of its bytes
BATCH = 5_000  # number of inputs that one process reads
PROGRESS = 50_000  # number of inputs between two lines of progress
MOST_FINDINGS = 20  # number of failing inputs after which the fuzzing of a target ends


def warm(target: Target) -> None:
    """Try a few inputs first, so that imports and compilation are not included in the time of later inputs."""
    for number in range(4):
        with suppress(*target.typed):
            target.attempt(target.case(bytes([number] * ROW)))


def drawn(target: Target, inputs: int, number: int, until: float, give: Callable[[bytes], None]) -> None:
    """Pass `inputs` different inputs to `give`, or fewer if the time `until` is reached first."""
    seen: set[int] = set()

    def draw(block: bytes) -> None:
        for at in range(0, len(block), ROW):
            case = target.case(block[at : at + ROW])
            if len(seen) < inputs and hash(case) not in seen and time.monotonic() < until:
                seen.add(hash(case))
                give(case)

    blocks = st.binary(min_size=DRAW * ROW, max_size=DRAW * ROW)
    one_more = 2  # draws beyond those needed, because the first draw of hypothesis has only zeros
    generating = settings(
        max_examples=inputs // DRAW + one_more,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(generating(given(blocks)(draw)))()


def fuzz(name: str, each: Sequence[Target], inputs: int, until: float, number: int) -> Tried:
    """Try `inputs` inputs, or fewer if the time `until` is reached. The result's `broken` has a line for each failing
    input. each: copies of the target with separate folders, one for each process that may run at the same time."""
    tried = read = pending = 0
    broken: list[str] = []
    running: deque[tuple[Target, int, Child]] = deque()
    free = list(each)
    while True:
        wanted = min(BATCH, inputs - tried - pending)
        if free and wanted > 0 and time.monotonic() < until and len(broken) < MOST_FINDINGS:
            target = free.pop()
            running.append((target, wanted, Child(target, partial(drawn, target, wanted, number, until))))
            pending, number = pending + wanted, number + 1
        elif running:
            target, wanted, child = running.popleft()
            done = child.end()
            free.append(target)
            if (tried + done.tried) // PROGRESS > tried // PROGRESS:
                print(f"{name:12} {tried + done.tried:9,} inputs so far", flush=True)
            tried, read, pending = tried + done.tried, read + done.read, pending - wanted
            if done.broken is not None:
                broken.append(f"{done.broken}; the input is {keep(name, done.last)}")
        else:
            return Tried(tried, read, "\n".join(broken) or None, b"")


def keep(name: str, case: bytes) -> Path:
    """Write an input to the folder in which the tests look for inputs, and return its path."""
    folder = CASES / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(case).hexdigest()[:12]
    path.write_bytes(case)
    return path


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="TARGET", help=", ".join(NAMES))
    parser.add_argument(
        "--inputs",
        type=int,
        help="number of inputs for each target; default: a million for contracts, otherwise 100,000",
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="seconds for all targets together")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed; default: the current time, which is printed"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel processes")
    chosen = parser.parse_args(words)
    memory = Path("/dev/shm")  # noqa: S108 - memory, so that no disk is worn; the script makes its own folder there
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory if memory.is_dir() else None) as scratch:
        return _fuzz_all(chosen, [targets(Path(scratch) / str(job)) for job in range(chosen.jobs)])


def _fuzz_all(chosen: argparse.Namespace, jobs: list[dict[str, Target]]) -> int:
    names: list[str] = chosen.names or list(NAMES)
    broke, total, left = 0, 0, float(chosen.seconds)
    for at, name in enumerate(names):
        each = [known[name] for known in jobs]
        warm(each[0])
        began = time.monotonic()
        until = began + left / (len(names) - at)
        done = fuzz(name, each, chosen.inputs or each[0].inputs, until, chosen.seed)
        spent = time.monotonic() - began
        total, left = total + done.tried, left - spent
        print(f"{name:12} {done.tried:9,} inputs, {done.read:9,} read, {spent:6.0f} s, seed {chosen.seed}", flush=True)
        for line in (done.broken or "").splitlines():
            broke += 1
            print(f"{name:12} BROKEN: {line}", flush=True)
    print(f"{total:,} inputs of {len(names)} readers, broken inputs: {broke}", flush=True)
    return 1 if broke else 0


if __name__ == "__main__":
    sys.exit(main())
