"""A picture of the documentation shows the words that its page has today; the walkthrough compares the tutorial's."""

from __future__ import annotations

import pytest
import write_pictures
from published_pages import PageOf


def test_the_picture_of_a_published_run_shows_its_page(published_page: PageOf) -> None:
    shown = (write_pictures.DOCS / "report-light.txt").read_text(encoding="utf-8")
    assert write_pictures.top_of(published_page(write_pictures.PUBLISHED)) == shown


@pytest.mark.parametrize("name", write_pictures.SIZES)
def test_a_committed_picture_has_the_stated_size_and_words(name: str) -> None:
    picture = (write_pictures.DOCS / f"{name}.png").read_bytes()
    size = tuple(int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert size == write_pictures.SIZES[name]
    assert len((write_pictures.DOCS / f"{name}.txt").read_text(encoding="utf-8").splitlines()) == 8


def test_picture_comparison_ignores_what_differs_between_runs() -> None:
    page = "<p>a</p><header><h1>b <a>c</a></h1><p>No commit has this harness. d</p>"
    page += "<dl><dd>e</dd></dl><details><p>f</p></details></header><p>g</p>"
    assert write_pictures.top_of(page) == "b c\nd\nf\n"
