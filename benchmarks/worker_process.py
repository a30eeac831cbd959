"""Talking to a `benchmarks.peer_worker`: start it, ask it, and learn how it died."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

REPOSITORY = Path(__file__).resolve().parents[1]
LAST_LINES = 25


class WorkerFailedError(Exception):
    """The worker answered with an error, died, or did not answer in time; the message says which."""


class WorkerProcess:
    """A worker with a folder of its own: libraries that write caches into the current directory write there.

    A context manager; leaving it ends the worker and everything that it started.
    """

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.name = name
        self._log = folder / "output.txt"
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.peer_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": path,
                    "HF_HUB_OFFLINE": "1",
                    "TOKENIZERS_PARALLELISM": "false",
                    "UNSLOTH_COMPILE_LOCATION": str(folder / "unsloth_compiled"),
                },
                start_new_session=True,
            )
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("Popen made no pipes")
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._stdout:
            self._answers.put(line)
        self._answers.put(None)

    def send(self, request: dict[str, Any]) -> None:
        """Raises `WorkerFailedError` if the worker is gone."""
        try:
            self._stdin.write(json.dumps(request) + "\n")
            self._stdin.flush()
        except OSError:
            raise WorkerFailedError(self._how_it_died()) from None

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The next answer. Raises `WorkerFailedError` on an error, a death, or silence for ``timeout_s``."""
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise WorkerFailedError(f"no answer within {timeout_s:.0f} s") from None
        if line is None:
            raise WorkerFailedError(self._how_it_died())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerFailedError(str(answer["error"]))
        return answer

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send, and wait for the answer."""
        self.send(request)
        return self.receive(timeout_s)

    @contextlib.contextmanager
    def alone(self, others: Iterable[WorkerProcess]) -> Iterator[None]:
        """Nothing of the others runs in the body of a `with`: their threads and children are stopped meanwhile."""
        stopped = [other for other in others if other is not self and other._signal(signal.SIGSTOP)]
        try:
            yield
        finally:
            for other in stopped:
                other._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> bool:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _how_it_died(self) -> str:
        code = self._process.wait(timeout=10)
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def last_output(self) -> str:
        """The last lines that the worker printed."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LAST_LINES:])

    def close(self) -> None:
        """End the worker and its children; waits until it is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self._stdout.close()
        with contextlib.suppress(BrokenPipeError):  # a request that it did not live to read
            self._stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
