"""Open reports in a headless Chromium and check what only a browser knows.

    python scripts/check_report_in_browser.py [--axe axe.min.js] [--pictures FOLDER [--top ID] [--height 900]] REPORT

Each report is opened in light, dark and print, wide and at 390 px. Checked: no console message or violation of the
page's own content policy, no request beside the file itself, no horizontal scroll of the page, every image drawn,
folded parts printed; with `--axe`, no serious violation. Speaks the DevTools protocol over a pipe, so it needs only
Chromium and Python. Exit code 0 when all is well, 1 otherwise.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIMEOUT_S = 30.0
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
]
COMPLAINTS = {"Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"}
VARIANTS = [
    ("light", "screen", "light", 1200),
    ("dark", "screen", "dark", 1200),
    ("phone-light", "screen", "light", 390),
    ("phone-dark", "screen", "dark", 390),
    ("print", "print", "light", 800),
]
PROBE = """(() => {
  const missing = [...document.images].filter(image => !image.complete || image.naturalWidth === 0).length;
  const folded = [...document.querySelectorAll('details > :not(summary)')];
  return {
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    wide: [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, pre, .hidden, .skip')
      && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).slice(0, 5)
      .map(e => e.tagName + '.' + e.className),
    missing, images: document.images.length, scripts: document.scripts.length,
    hidden: folded.filter(e => e.getBoundingClientRect().height === 0).length, folded: folded.length,
    height: document.documentElement.scrollHeight,
    background: getComputedStyle(document.body).backgroundColor,
  };
})()"""
AXE = """axe.run({resultTypes: ['violations']}).then(result => result.violations
  .filter(item => ['serious', 'critical'].includes(item.impact))
  .map(item => item.id + ': ' + item.help + ' (' + item.nodes.slice(0, 3)
    .map(n => n.target.join(' ')).join('; ') + ')'))"""


@dataclass(frozen=True)
class Part:
    """What a screenshot shows: from a heading's id, None: the top, at most so many pixels."""

    top: str | None
    height: int


@dataclass
class Browser:
    """A Chromium with one page, spoken to over file descriptors 3 and 4."""

    process: subprocess.Popen[bytes]
    write: int
    read: int
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    _next: int = 0
    _rest: bytes = b""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events that come meanwhile are kept."""
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
        """Until an event of this name has come."""
        deadline = time.monotonic() + TIMEOUT_S
        while not any(event.get("method") == method for event in self.events):
            if time.monotonic() > deadline:
                raise TimeoutError(method)
            self.events.append(self._message())

    def evaluate(self, expression: str) -> Any:
        """A value computed in the page, promises awaited."""
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


def start(executable: str, profile: str) -> Browser:
    """A browser whose pipe ends are descriptors 3 and 4, as `--remote-debugging-pipe` asks."""
    their_read, our_write = os.pipe()
    our_read, their_write = os.pipe()
    command = [executable, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
    shell = f'exec "$@" 3<&{their_read} 4>&{their_write}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", *command], pass_fds=(their_read, their_write), stderr=subprocess.DEVNULL
    )
    os.close(their_read)
    os.close(their_write)
    browser = Browser(process, our_write, our_read)
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.call(f"{domain}.enable")
    return browser


def check(browser: Browser, report: Path, axe: str | None, pictures: Path | None, part: Part) -> list[str]:
    """What is wrong with one report, a sentence each."""
    wrong = []
    for name, media, scheme, width in VARIANTS:
        browser.events.clear()
        browser.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.call("Emulation.setEmulatedMedia", media=media, features=features)
        browser.call("Page.navigate", url=report.resolve().as_uri())
        browser.wait_for("Page.loadEventFired")
        wrong += [f"{report.name} {name}: {text}" for text in _findings(browser, report, name)]
        if axe and media == "screen":
            browser.evaluate(axe)
            wrong += [f"{report.name} {name}: axe: {text}" for text in browser.evaluate(AXE)]
        if pictures:
            _picture(browser, pictures / f"{report.stem}-{name}.png", width, part)
    return wrong


def _findings(browser: Browser, report: Path, variant: str) -> list[str]:
    seen = browser.evaluate(PROBE)
    found = [f"console: {event['params']}" for event in browser.events if event.get("method") in COMPLAINTS]
    urls = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event.get("method") == "Network.requestWillBeSent"
    ]
    found += [
        f"request: {url[:100]}" for url in urls if not url.startswith("data:") and url != report.resolve().as_uri()
    ]
    found += [f"the page scrolls sideways by {seen['overflow']} px: {seen['wide']}"] if seen["overflow"] > 0 else []
    found += [f"{seen['missing']} of {seen['images']} images are not drawn"] if seen["missing"] else []
    found += [f"{seen['scripts']} scripts"] if seen["scripts"] else []
    if variant == "print" and seen["hidden"]:
        found.append(f"{seen['hidden']} of {seen['folded']} folded parts are not printed")
    dark = "dark" in variant
    channels = [int(value) for value in seen["background"].removeprefix("rgb(").rstrip(")").split(",")[:3]]
    if (sum(channels) < 384) is not dark:
        found.append(f"background {seen['background']} is not what the colour scheme asks for")
    return found


def _picture(browser: Browser, path: Path, width: int, part: Part) -> None:
    height = int(browser.evaluate("document.documentElement.scrollHeight"))
    find = f"document.getElementById({json.dumps(part.top)}).getBoundingClientRect().top + scrollY"
    top = int(browser.evaluate(find)) if part.top else 0
    height = min(part.height, height - top)
    clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
    data = browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(data))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--axe", type=Path, help="axe-core's axe.min.js")
    parser.add_argument("--pictures", type=Path, help="where to put screenshots")
    parser.add_argument("--top", help="a heading's id: where a screenshot begins, if not at the page's top")
    parser.add_argument("--height", type=int, default=16_000, help="of a screenshot, at most, in pixels")
    options = parser.parse_args()
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        print("no Chromium on this machine", file=sys.stderr)
        return 2
    part = Part(options.top, options.height)
    axe = options.axe.read_text(encoding="utf-8") if options.axe else None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = start(executable, profile)
        try:
            wrong = [text for report in options.reports for text in check(browser, report, axe, options.pictures, part)]
        finally:
            browser.process.terminate()
            browser.process.wait(10)
    for text in wrong:
        print(text)
    print(f"{len(options.reports)} reports in {len(VARIANTS)} variants: {len(wrong)} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
