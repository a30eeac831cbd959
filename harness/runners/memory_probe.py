"""The worker's side of `harness.runners.step_memory`: a process that measures what an arm's steps reserve.

It is started at once and opens the arm while the worker opens its own. Only what comes then is sensitive to
neighbours on the device: it trains and measures when it is told to, and is gone before the worker goes on.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, NoReturn, Self, cast

from pydantic import ValidationError

from harness.evidence.plan_records import Run
from harness.python_path import child_command
from harness.runners.step_memory import READY, StepMemory

LIMIT_S = 600.0  # for opening, and again for measuring; the time until it is told to measure does not count
_EXCERPT = 2000  # characters of its output in a message


class MemoryProbe:
    """Measures what torch's allocator reserves for the steps of an arm, in a process of its own, without a fault.

    A context manager: the process ends with the block at the latest. Each wait raises RuntimeError, with the end of
    what the process printed, where it dies, prints something else, or takes longer than LIMIT_S.
    """

    def __init__(self, run: Run, arm: str) -> None:
        """Start the process."""
        alone = run.model_copy(update={"arms": {arm: run.arms[arm]}, "fault": None, "fault_arms": []})
        self._errors: IO[bytes] = TemporaryFile()  # noqa: SIM115 - a file: a pipe that nobody reads would fill up
        self._last = ""
        self._process = subprocess.Popen(
            child_command("harness.runners.step_memory"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            errors="replace",
        )
        self._input = cast("IO[str]", self._process.stdin)
        self._output = cast("IO[str]", self._process.stdout)
        self._send(alone.model_dump_json())

    def wait_until_ready(self) -> None:
        """Until it has opened the arm; it makes no step before it is told to."""
        with self._limited():
            for line in self._lines():
                if line == READY:
                    return
            self._fail()

    def measure(self) -> StepMemory:
        """Let it train and measure; what it measured, once it has ended and given its memory back."""
        with self._limited():
            self._send("measure")
            for _ in self._lines():
                pass
            if self._process.wait() != 0:
                self._fail()
        try:
            return StepMemory.model_validate_json(self._last)
        except ValidationError as error:
            raise RuntimeError(f"measuring a step's memory gave no result: {self._last[-_EXCERPT:]!r}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):  # what it never read
            self._input.close()
        self._output.close()
        self._errors.close()

    def _send(self, line: str) -> None:
        with suppress(BrokenPipeError):  # it has ended: whoever waits for it next says how
            self._input.write(line + "\n")
            self._input.flush()

    def _lines(self) -> Iterator[str]:
        """What it prints until it closes its output; the last line that is not empty is kept."""
        while line := self._output.readline():
            line = line.rstrip("\n")
            self._last = line or self._last
            yield line

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Kill the process where the block takes too long: its output ends, and so does whoever reads it."""
        late = threading.Event()

        def kill() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(LIMIT_S, kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        except RuntimeError as error:
            if late.is_set():
                raise RuntimeError(f"measuring a step's memory took more than {LIMIT_S:g} s: {error}") from error
            raise
        finally:
            timer.cancel()

    def _fail(self) -> NoReturn:
        """Raise what ended it: it closed its output, so that it ends now if it has not."""
        code = self._process.wait()
        self._errors.seek(0)
        printed = self._errors.read().decode("utf-8", "replace") or self._last
        raise RuntimeError(f"measuring a step's memory ended with {code}: {printed[-_EXCERPT:]}")
