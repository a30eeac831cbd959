"""Start a `benchmarks.peer_worker`, send it requests, and report how it ended."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from harness.processes.child import Ending, start_child

LAST_LINES = 25


class WorkerFailedError(Exception):
    """The worker answered with an error, died, or did not answer in time. The message names the cause."""


class WorkerProcess:
    """A worker process with its own folder. Libraries write caches there, not to the current directory.

    A worker is a context manager. The end of the `with` ends the worker and every process that the worker started.
    """

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.name, self._log = name, folder / "output.txt"
        variables = {
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "UNSLOTH_COMPILE_LOCATION": str(folder / "unsloth_compiled"),
        }
        self._child = start_child("benchmarks.peer_worker", str(folder), kept=True, variables=variables)

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, request: dict[str, Any]) -> None:
        """Send a request. If the worker dies before it reads the request, the request is lost."""
        self._child.line.send(json.dumps(request))

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Return the next answer. Raises `WorkerFailedError` if the worker reports an error, dies, or sends nothing for
        ``timeout_s``."""
        answer: dict[str, Any] | Ending | None = self._child.receive(json.loads, timeout_s)
        if answer is None:
            raise WorkerFailedError(f"the worker did not answer within {timeout_s:.0f} s")
        if isinstance(answer, Ending):
            raise WorkerFailedError(str(answer))
        if "error" in answer:
            raise WorkerFailedError(str(answer["error"]))
        return answer

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and return its answer."""
        self.send(request)
        return self.receive(timeout_s)

    @contextlib.contextmanager
    def alone(self, others: Iterable[WorkerProcess]) -> Iterator[None]:
        """Inside the `with`, pause the workers `others` and their child processes, so that only this worker runs."""
        stopped = [other._child for other in others if other is not self]
        for child in stopped:
            child.stop()
        try:
            yield
        finally:
            for child in stopped:
                child.resume()

    def last_output(self) -> str:
        """Return the last lines that the worker printed. If the worker never started, return Python's output."""
        if self._log.exists():
            printed = self._log.read_bytes()
        else:
            printed = b"" if self._child.poll() is None else self._child.output.read()
        return "\n".join(printed.decode(errors="replace").splitlines()[-LAST_LINES:])

    def close(self) -> None:
        """End the worker and its child processes, and wait until they have ended."""
        self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
