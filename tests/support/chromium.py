"""A headless Chromium with one page, driven by the DevTools protocol over a pipe: it needs only Chromium and Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_S = 60.0
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
]


def installed() -> str | None:
    """Return the path of this machine's Chromium, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass
class Browser:
    """A Chromium with one page, controlled through file descriptors 3 and 4."""

    process: subprocess.Popen[bytes]
    write: int
    read: int
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    _next: int = 0
    _rest: bytes = b""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer; keep events that arrive before it."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        wanted = self._next
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            answer = self._message()
            if answer.get("id") == wanted:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self.events.append(answer)
        raise TimeoutError(method)

    def wait_for(self, method: str) -> None:
        """Wait until an event with this name has arrived."""
        deadline = time.monotonic() + TIMEOUT_S
        while not any(event.get("method") == method for event in self.events):
            if time.monotonic() > deadline:
                raise TimeoutError(method)
            self.events.append(self._message())

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression computed in the page; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self.read, 1 << 16)
            if not piece:
                raise RuntimeError("the browser ended")
            self._rest += piece
        head, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(head))


@contextmanager
def chromium(executable: str) -> Iterator[Browser]:
    """Yield a browser that ends with the context."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = _start(executable, profile)
        try:
            yield browser
        finally:
            browser.process.terminate()
            browser.process.wait(60)
            os.close(browser.read)
            os.close(browser.write)


def _start(executable: str, profile: str) -> Browser:
    """Start a browser whose ends of the pipe are descriptors 3 and 4, as `--remote-debugging-pipe` requires."""
    their_read, our_write = os.pipe()
    our_read, their_write = os.pipe()
    command = [executable, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
    shell = f'exec "$@" 3<&{their_read} 4>&{their_write}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", *command],
        pass_fds=(their_read, their_write),
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": profile},  # what it leaves there goes with the profile
    )
    os.close(their_read)
    os.close(their_write)
    browser = Browser(process, our_write, our_read)
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.call(f"{domain}.enable")
    return browser
