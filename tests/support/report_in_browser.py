"""Open reports in a headless Chromium and check what only a browser shows.

Each report is opened in light, dark and print mode, wide and at 390 px, and without JavaScript. Checked: no console
message or violation of the page's content policy, no request except for the file itself, no horizontal scrolling, every
image drawn, every id unique and present if something refers to it, folded parts printed, one script, and without
JavaScript the same words except for the script's own controls. With axe-core: no serious violation.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chromium import Browser

TOOLS = ".tool"  # what the page's script makes
WORDS = f"""(() => {{
  const tools = [...document.querySelectorAll('{TOOLS}')], places = tools.map(() => document.createComment(''));
  tools.forEach((tool, place) => tool.replaceWith(places[place]));
  const words = document.body.innerText;
  places.forEach((place, at) => place.replaceWith(tools[at]));
  return words;
}})()"""
COMPLAINTS = {"Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"}


@dataclass(frozen=True)
class Variant:
    """How a report is opened; `width` in CSS pixels."""

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
  // Paper has the first screen and what did not hold: what it leaves out is neither missing nor folded.
  const there = e => !e || (getComputedStyle(e).display !== 'none' && there(e.parentElement));
  const missing = [...document.images].filter(image => !image.complete || image.naturalWidth === 0).length
    + [...document.querySelectorAll('svg')]
      .filter(image => there(image) && image.getBBox().width === 0).length;
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id), known = new Set(ids);
  const naming = [...document.querySelectorAll('a[href^="#"], [for], [aria-labelledby], [aria-describedby]')];
  const named = naming.flatMap(e => [e.hash?.slice(1), e.htmlFor, e.getAttribute('aria-labelledby'),
    e.getAttribute('aria-describedby')]).filter(id => id).flatMap(id => id.split(' '));
  const parts = [...document.querySelectorAll('details:not(.tool) > :not(summary)')];
  const folded = parts.filter(e => there(e.parentElement));
  return {
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    wide: [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, pre, .hidden, .skip')
      && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).slice(0, 5)
      .map(e => e.tagName + '.' + e.className),
    twice: ids.filter((id, place) => ids.indexOf(id) !== place).slice(0, 5),
    astray: named.filter(id => !known.has(id)).slice(0, 5),
    missing, images: document.querySelectorAll('img, svg').length, scripts: document.scripts.length,
    hidden: folded.filter(e => !e.checkVisibility()).length, folded: folded.length,
    height: document.documentElement.scrollHeight,
    background: getComputedStyle(document.body).backgroundColor,
  };
})()"""
# Without `noHtml` axe keeps the markup of each element that it looks at, and that of all below it.
AXE = """axe.configure({noHtml: true}), axe.run({resultTypes: ['violations']}).then(result => result.violations
  .filter(item => ['serious', 'critical'].includes(item.impact))
  .map(item => item.id + ': ' + item.help + ' (' + item.nodes.slice(0, 3)
    .map(n => n.target.join(' ')).join('; ') + ')'))"""

# The page stays as it is while axe looks at it, and axe asks for the measures of an element once for each below it:
# kept, they save two fifths of its time.
MEASURED_ONCE = """(() => {
  const kept = (measure, known = new WeakMap()) => function () {
    if (!known.has(this)) known.set(this, measure.call(this));
    return known.get(this);
  };
  const element = Element.prototype;
  for (const name of ['scrollWidth', 'scrollHeight', 'clientWidth', 'clientHeight']) {
    const get = kept(Object.getOwnPropertyDescriptor(element, name).get);
    Object.defineProperty(element, name, {get});
  }
  for (const name of ['getBoundingClientRect', 'getClientRects']) element[name] = kept(element[name]);
  const computed = window.getComputedStyle, style = kept(function () { return computed(this); });
  window.getComputedStyle = (one, pseudo) => pseudo ? computed(one, pseudo) : style.call(one);
})()"""
ONE_OF_EACH = """(() => {
  const shapes = new Set();
  for (const element of document.querySelectorAll('tbody tr, table, article, li, details')) {
    const markup = element.outerHTML.replace(/>[^<]*[^<\\s][^<]*</g, '>words<');
    const shape = markup.replace(/ (href|id|for|title|datetime|aria-[a-z]+)="[^"]*"/g, '');
    if (shapes.has(shape)) element.remove();
    shapes.add(shape);
  }
})()"""


def check(
    browser: Browser,
    report: Path,
    variants: Sequence[Variant] = VARIANTS,
    axe: str | None = None,
    *,
    axe_in: Container[str] | None = None,
    one_of_each: Container[str] = (),
    then: Callable[[Browser], None] | None = None,
) -> list[str]:
    """Return what is wrong with a report, one sentence for each problem.

    axe: the source of axe-core, for variants on a screen. axe_in: names of the variants that axe checks; None: all.
    one_of_each: names of variants in which axe sees only one row, table and card of each shape, because a large page
    takes seconds. then: what is done on the page before it is checked. The page is loaded separately for each variant
    that axe checks and for one without JavaScript, and once for the others together.
    """
    seen_by_axe = {
        each.name
        for each in variants
        if axe and each.media == "screen" and each.javascript and (axe_in is None or each.name in axe_in)
    }
    compared = {_unnamed(each) for each in variants if not each.javascript}
    wrong, words, untouched = [], dict[Variant, str](), False
    for variant in sorted(variants, key=lambda each: each.name in seen_by_axe):
        if untouched and variant.javascript and variant.name not in seen_by_axe:
            turn(browser, variant)
        else:
            show(browser, report, variant)
        if then is not None:
            then(browser)
        found = _findings(browser, report, variant)
        if _unnamed(variant, javascript=False) in compared:
            words[_unnamed(variant)] = _words(browser)
        if axe and variant.name in seen_by_axe:
            found += _of_axe(browser, axe, one_of_each=variant.name in one_of_each)
        untouched = variant.javascript and variant.name not in seen_by_axe and then is None
        wrong += [f"{report.name} {variant.name}: {text}" for text in found]
    for variant in variants:
        found = [] if variant.javascript else _missing_words(browser, report, variant, words)
        wrong += [f"{report.name} {variant.name}: {text}" for text in found]
    return wrong


def _unnamed(variant: Variant, *, javascript: bool | None = None) -> Variant:
    return replace(variant, name="", javascript=variant.javascript if javascript is None else javascript)


def show(browser: Browser, report: Path, variant: Variant) -> None:
    """Load a report as `variant` says; events from then on are kept."""
    turn(browser, variant)
    browser.call("Page.navigate", url=report.resolve().as_uri())
    browser.wait_for("Page.loadEventFired")


def turn(browser: Browser, variant: Variant) -> None:
    """Show the open page as `variant` says, except for its scripts; events from then on are kept."""
    browser.events.clear()
    width = variant.width
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    browser.call("Emulation.setScriptExecutionDisabled", value=not variant.javascript)
    features = [{"name": "prefers-color-scheme", "value": variant.scheme}]
    browser.call("Emulation.setEmulatedMedia", media=variant.media, features=features)


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
    found += [f"ids that stand there twice: {', '.join(seen['twice'])}"] if seen["twice"] else []
    found += [f"ids that are named and not there: {', '.join(seen['astray'])}"] if seen["astray"] else []
    found += [f"{seen['scripts']} scripts"] if seen["scripts"] != 1 else []
    if variant.media == "print" and seen["hidden"]:
        found.append(f"{seen['hidden']} of {seen['folded']} folded parts are not printed")
    channels = [int(value) for value in seen["background"].removeprefix("rgb(").rstrip(")").split(",")[:3]]
    if (sum(channels) < 384) is not (variant.scheme == "dark"):
        found.append(f"background {seen['background']} is not what the colour scheme asks for")
    return found


def _of_axe(browser: Browser, axe: str, *, one_of_each: bool) -> list[str]:
    """Return what axe finds on the page, which cannot be used for other checks afterwards."""
    if one_of_each:
        browser.evaluate(ONE_OF_EACH)
    browser.evaluate(MEASURED_ONCE)
    browser.evaluate(axe)
    return [f"axe: {text}" for text in browser.evaluate(AXE)]


def _missing_words(browser: Browser, report: Path, variant: Variant, words: Mapping[Variant, str]) -> list[str]:
    """Return the words that the page has only with JavaScript. words: by variant checked so far."""
    without, same = words[_unnamed(variant)], _unnamed(variant, javascript=True)
    if not without:
        return ["nothing to read without JavaScript"]
    if same not in words:
        show(browser, report, same)
    return [] if without == (words.get(same) or _words(browser)) else ["other words without JavaScript than with it"]


def _words(browser: Browser) -> str:
    """Return the visible text, without the controls of the page's script."""
    words: Any = browser.evaluate(WORDS)
    return str(words).strip()
