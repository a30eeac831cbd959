"""Read the text that a page shows before scrolling, on a laptop and without JavaScript."""

from __future__ import annotations

from pathlib import Path

from chromium import Browser

WIDTH, HEIGHT = 1280, 720  # CSS pixels
# Of every word in sight: wholly inside the window, drawn, and not covered or cut off by anything else.
_WORDS = """(() => {
  const seen = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  let block = null;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const holder = node.parentElement;
    if (!holder.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
    if (holder.tagName === 'DETAILS' && !holder.open) continue;
    for (const word of node.data.matchAll(/\\S+/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const box = range.getBoundingClientRect();
      if (box.width === 0 || box.left < 0 || box.top < 0) continue;
      if (box.right > innerWidth || box.bottom > innerHeight) continue;
      const first = range.getClientRects()[0];
      const top = document.elementFromPoint(first.left + first.width / 2, first.top + first.height / 2);
      if (!top || !(top === holder || top.contains(holder) || holder.contains(top))) continue;
      const own = holder.closest('td, th, dd, dt, p, li, figcaption, summary, h1, h2, h3, text') ?? holder;
      seen.push(block === null ? '' : block === own ? ' ' : '\\n', word[0]);
      block = own;
    }
  }
  return seen.join('');
})()"""


def first_screen(
    browser: Browser, page: Path, *, scheme: str = "light", width: int = WIDTH, height: int = HEIGHT
) -> str:
    """Return the text inside the window for a page opened without JavaScript; one line for each cell or paragraph.

    Words of one line are separated by single blanks, so that a test can search it for a phrase that is visible without
    a line break between cells.
    """
    browser.events.clear()
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", media="screen", features=features)
    browser.call("Page.navigate", url=page.resolve().as_uri())
    browser.wait_for("Page.loadEventFired")
    return str(browser.evaluate(_WORDS))
