"""Open reports in a headless Chromium and check what only a browser knows.

    python scripts/check_report_in_browser.py [--axe axe.min.js] [--pictures FOLDER [--top ID] [--height 900]] REPORT

Each report is opened in light, dark and print, wide and at 390 px, and with JavaScript off. Checked: no console message
or violation of the page's own content policy, no request beside the file itself, no horizontal scroll of the page,
every image drawn, folded parts printed, one script, and without JavaScript the same words but for the tools that it
makes; with `--axe`, no serious violation. Exit
code 0 when all is well, 1 otherwise. `tests/browser` runs the same checks.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chromium import Browser, chromium, installed

TOOLS = ".tool"  # what the page's script makes
SEEN = "document.body.innerText"
COMPLAINTS = {"Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"}


@dataclass(frozen=True)
class Variant:
    """How a report is looked at; `width` in CSS pixels."""

    name: str
    media: str = "screen"
    scheme: str = "light"
    width: int = 1200
    javascript: bool = True


VARIANTS = (
    Variant("light"),
    Variant("dark", scheme="dark"),
    Variant("phone-light", width=390),
    Variant("phone-dark", scheme="dark", width=390),
    Variant("print", media="print", width=800),
    Variant("no-javascript", javascript=False),
)
PROBE = """(() => {
  const missing = [...document.images].filter(image => !image.complete || image.naturalWidth === 0).length
    + [...document.querySelectorAll('svg')]
      .filter(image => !image.closest('[hidden]') && image.getBBox().width === 0).length;
  const folded = [...document.querySelectorAll('details:not(.tool) > :not(summary)')];
  return {
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    wide: [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, pre, .hidden, .skip')
      && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).slice(0, 5)
      .map(e => e.tagName + '.' + e.className),
    missing, images: document.querySelectorAll('img, svg').length, scripts: document.scripts.length,
    hidden: folded.filter(e => !e.checkVisibility()).length, folded: folded.length,
    height: document.documentElement.scrollHeight,
    background: getComputedStyle(document.body).backgroundColor,
  };
})()"""
AXE = """axe.run({resultTypes: ['violations']}).then(result => result.violations
  .filter(item => ['serious', 'critical'].includes(item.impact))
  .map(item => item.id + ': ' + item.help + ' (' + item.nodes.slice(0, 3)
    .map(n => n.target.join(' ')).join('; ') + ')'))"""

ONE_OF_EACH = """(() => {
  const shapes = new Set();
  for (const element of document.querySelectorAll('tbody tr, table, article, li, details')) {
    const markup = element.outerHTML.replace(/>[^<]+</g, '><');
    const shape = markup.replace(/ (href|id|for|title|datetime|aria-[a-z]+)="[^"]*"/g, '');
    if (shapes.has(shape)) element.remove();
    shapes.add(shape);
  }
})()"""


@dataclass(frozen=True)
class Part:
    """What a screenshot shows: from a heading's id, None: the top, at most so many pixels."""

    top: str | None
    height: int


def check(
    browser: Browser,
    report: Path,
    variants: Sequence[Variant] = VARIANTS,
    axe: str | None = None,
    *,
    one_of_each: bool = False,
    then: Callable[[Browser], None] | None = None,
) -> list[str]:
    """What is wrong with one report, a sentence each; axe: the source of axe-core, for the variants on a screen.

    one_of_each: axe sees one row, table and card of each shape, whatever its words; of a large page it takes 20 s.
    then: what is done on the page before it is looked at.
    """
    wrong = []
    for variant in variants:
        show(browser, report, variant)
        if then is not None:
            then(browser)
        found = _findings(browser, report, variant)
        if axe and variant.media == "screen" and variant.javascript:
            if one_of_each:
                browser.evaluate(ONE_OF_EACH)
            browser.evaluate(axe)
            found += [f"axe: {text}" for text in browser.evaluate(AXE)]
        if not variant.javascript:
            found += _missing_words(browser, report, variant)
        wrong += [f"{report.name} {variant.name}: {text}" for text in found]
    return wrong


def show(browser: Browser, report: Path, variant: Variant) -> None:
    """Load a report as `variant` says; the events since then are kept."""
    browser.events.clear()
    width = variant.width
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    browser.call("Emulation.setScriptExecutionDisabled", value=not variant.javascript)
    features = [{"name": "prefers-color-scheme", "value": variant.scheme}]
    browser.call("Emulation.setEmulatedMedia", media=variant.media, features=features)
    browser.call("Page.navigate", url=report.resolve().as_uri())
    browser.wait_for("Page.loadEventFired")


def _findings(browser: Browser, report: Path, variant: Variant) -> list[str]:
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
    found += [f"{seen['scripts']} scripts"] if seen["scripts"] != 1 else []
    if variant.media == "print" and seen["hidden"]:
        found.append(f"{seen['hidden']} of {seen['folded']} folded parts are not printed")
    channels = [int(value) for value in seen["background"].removeprefix("rgb(").rstrip(")").split(",")[:3]]
    if (sum(channels) < 384) is not (variant.scheme == "dark"):
        found.append(f"background {seen['background']} is not what the colour scheme asks for")
    return found


def _missing_words(browser: Browser, report: Path, variant: Variant) -> list[str]:
    """Whether the page, which is open without JavaScript, says more with it."""
    without = _words(browser)
    show(browser, report, Variant(variant.name, variant.media, variant.scheme, variant.width))
    with_javascript = _words(browser)
    if not without:
        return ["nothing to read without JavaScript"]
    return [] if without == with_javascript else ["other words without JavaScript than with it"]


def _words(browser: Browser) -> str:
    words: Any = browser.evaluate(f"document.querySelectorAll('{TOOLS}').forEach(tool => tool.remove()), {SEEN}")
    return str(words).strip()


def picture(browser: Browser, path: Path, variant: Variant, part: Part) -> None:
    """A screenshot of the open page."""
    height = int(browser.evaluate("document.documentElement.scrollHeight"))
    find = f"document.getElementById({json.dumps(part.top)}).getBoundingClientRect().top + scrollY"
    top = int(browser.evaluate(find)) if part.top else 0
    clip = {"x": 0, "y": top, "width": variant.width, "height": min(part.height, height - top), "scale": 1}
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
    executable = installed()
    if executable is None:
        print("no Chromium on this machine", file=sys.stderr)
        return 2
    part = Part(options.top, options.height)
    axe = options.axe.read_text(encoding="utf-8") if options.axe else None
    wrong: list[str] = []
    with chromium(executable) as browser:
        for report in options.reports:
            wrong += check(browser, report, VARIANTS, axe)
            for variant in VARIANTS if options.pictures else ():
                show(browser, report, variant)
                picture(browser, options.pictures / f"{report.stem}-{variant.name}.png", variant, part)
    for text in wrong:
        print(text)
    print(f"{len(options.reports)} reports in {len(VARIANTS)} variants: {len(wrong)} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
