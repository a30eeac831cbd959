"""Fuzz every reader of a stranger's file, and lint, plan and explain: typed errors only, and each within its limits.

    python scripts/fuzz_readers.py [--inputs N | --seconds S] [TARGET ...]

Hypothesis draws the inputs. Each may take 1 s of processor time and 200 MB of memory. One that raises another error, or
takes more, is written into `tests/fuzz_cases/TARGET/`, where the tests try it for ever, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fuzz_targets import ROOT, Target, targets
from hypothesis import HealthCheck, Phase, given, seed, settings

CASES = ROOT / "tests" / "fuzz_cases"
SECONDS, BYTES = 1.0, 200 * 2**20
ENDLESS = 5.0  # seconds after which an input is given up
BATCH = 500  # hypothesis remembers what it has drawn: with many more, drawing is what takes the time


class Broken(AssertionError):  # noqa: N818 - what it says of an input, not of the program
    """An input that a reader does not answer as it should."""


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Within the block the process gets `BYTES` more than it has, and no more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class _Endless(BaseException):
    """The input's time is over; no reader may take it for an error of its own."""


@contextmanager
def _limited_time() -> Iterator[None]:
    def end(*_: object) -> None:
        raise _Endless

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, ENDLESS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def attempt(target: Target, case: bytes) -> bool:
    """Try one input; whether it was read. Raises `Broken`."""
    began = time.process_time()
    read = False
    try:
        with _limited_memory(), _limited_time():
            target.attempt(case)
        read = True
    except target.typed:
        pass
    except _Endless:
        raise Broken(f"more than {ENDLESS:g} s of processor time") from None
    except (Exception, SystemExit) as error:
        raise Broken(f"{type(error).__name__}: {str(error)[:200]}") from error
    if (spent := time.process_time() - began) > SECONDS:
        raise Broken(f"{spent:.1f} s of processor time")
    return read


def warm(target: Target) -> None:
    """What is imported and compiled once counts for no input."""

    def one(case: bytes) -> None:
        with suppress(*target.typed):
            target.attempt(case)

    seed(0)(_settings(2)(given(target.cases)(one)))()


def _settings(inputs: int) -> settings:
    return settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def fuzz(name: str, target: Target, inputs: int, until: float, number: int) -> tuple[int, int, Broken | None]:
    """Try so many inputs, or those until that moment; how many were tried and read, and what broke."""
    tried = read = 0
    last = b""

    def one(case: bytes) -> None:
        nonlocal tried, read, last
        tried, last = tried + 1, case
        read += attempt(target, case)

    while tried < inputs and time.monotonic() < until:
        try:
            seed(number)(_settings(min(BATCH, inputs - tried))(given(target.cases)(one)))()
        except Broken as broken:
            keep(name, last)
            return tried, read, broken
        number += 1
        gc.collect()
    return tried, read, None


def keep(name: str, case: bytes) -> Path:
    """Write an input where the tests find it."""
    folder = CASES / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(case).hexdigest()[:12]
    path.write_bytes(case)
    return path


def main(words: list[str] | None = None) -> int:
    known = targets()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*known, []], metavar="TARGET", help=", ".join(known))
    parser.add_argument("--inputs", type=int, help="of each target; by default a million contracts, else 100,000")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for all targets together")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="by default the time; it is printed")
    chosen = parser.parse_args(words)
    names: list[str] = chosen.names or list(known)
    broke, total, left = 0, 0, float(chosen.seconds)
    for at, name in enumerate(names):
        target = known[name]
        warm(target)
        began = time.monotonic()
        until = began + left / (len(names) - at)
        tried, read, broken = fuzz(name, target, chosen.inputs or target.inputs, until, chosen.seed)
        spent = time.monotonic() - began
        total, left = total + tried, left - spent
        print(f"{name:12} {tried:9,} inputs, {read:9,} read, {spent:6.0f} s, seed {chosen.seed}", flush=True)
        if broken is not None:
            broke += 1
            print(f"{name:12} BROKEN: {broken}; the input is in {CASES.relative_to(ROOT) / name}", flush=True)
    print(f"{total:,} inputs of {len(names)} readers, {broke} found something", flush=True)
    return 1 if broke else 0


if __name__ == "__main__":
    sys.exit(main())
