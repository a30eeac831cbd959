"""Pages of the documentation: how they begin, how much of them people wrote, and what is written for the site alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import write_site
from prose_rules import house_words, too_wide

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "reference").glob("*.md"))]
MOST_BYTES = 160_000  # of all of these together
RUNS = write_site.published(ROOT)
FIRST = re.compile(r"# [^\n]+\n\n(?P<paragraph>(?:[^\n]+\n)+)")
CELLS = re.compile(r"^\|", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_documentation_page_begins_with_what_its_reader_will_do(page: Path) -> None:
    begins = FIRST.match(page.read_text())
    assert begins is not None
    assert re.search(r"\b[Yy]ou\b", begins["paragraph"]), begins["paragraph"]


def test_the_documentation_is_short_enough_to_be_read_whole() -> None:
    assert len(PAGES) > 15
    assert sum(page.stat().st_size for page in PAGES) <= MOST_BYTES


def test_the_contributing_page_fits_one_screen() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 45


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write all pages as `make site` does."""
    folder = tmp_path_factory.mktemp("pages")
    write_site.stage(ROOT, folder, RUNS)
    return folder


@pytest.mark.parametrize("page", write_site.FILLED)
def test_generated_tables_are_on_the_site_and_not_in_git(page: str, staged: Path) -> None:
    words = (ROOT / page).read_text().partition("<!-- table")[2]
    assert words
    assert not CELLS.search(words)
    made = (staged / page).read_text().partition("<!-- table")[2]
    assert len(CELLS.findall(made)) > 10
    assert "make site" not in made


@pytest.mark.parametrize("page", write_site.sources(ROOT))
def test_a_page_of_the_site_follows_the_prose_rules(page: str, staged: Path) -> None:
    assert too_wide((ROOT / page).read_text()) + house_words((staged / page).read_text()) == []


def test_every_link_of_the_site_to_a_file_has_an_existing_target(staged: Path) -> None:
    """Links to headings within a page are checked by mkdocs, in `make site`."""
    dead = [
        f"{page}: {link[0]}"
        for page in write_site.sources(ROOT)
        for link, target in write_site.links(page, (staged / page).read_text(encoding="utf-8"), RUNS)
        if target not in RUNS.values() and not (staged / target).exists()
    ]
    assert dead == []
