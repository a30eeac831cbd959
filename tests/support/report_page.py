"""Read a report's page as a browser would."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

from report_views import arm, small_view

from harness.evidence import run_evidence
from harness.report.view import ReportView

VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """The parsed page: tags in order, attributes, text, and whether every tag closes in its place."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.plots = re.findall(r'<svg class="plot".*?</svg>', html, re.DOTALL)
        self.feed(html.replace("<wbr>", ""))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def images(page: Page) -> list[str]:
    return page.plots


def parsed(svg: str) -> ET.Element:
    """Return the root element of an SVG; raise an error if it is not well-formed XML."""
    return ET.fromstring(svg)  # noqa: S314 - our own output


def with_losses(**losses: Any) -> ReportView:
    """Return a run of arms with these losses."""
    run = run_evidence.RunEvidence("tiny-paired", "paired", {name: [arm(name, loss)] for name, loss in losses.items()})
    return small_view(evidence={run.run_id: run})
