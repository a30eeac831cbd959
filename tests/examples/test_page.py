"""The tables of examples/README.md are those of the published runs; each example is on the page and has a run."""

from __future__ import annotations

import write_examples_page as page
from page_tables import filled


def test_the_tables_of_the_examples_page_come_from_the_published_runs() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert filled(text, page.tables()) == text


def test_every_example_has_a_published_run_on_a_cpu() -> None:
    assert [name for name in page.names() if not page.verdicts(name, "cpu")] == []


def test_every_example_is_on_the_page() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert [name for name in page.names() if f"| `{name}` |" not in text] == []
