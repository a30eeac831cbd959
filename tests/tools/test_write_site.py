"""The documentation's copy for mkdocs keeps paths and links; a page that loads from elsewhere is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import write_site

PAGE = """\
A [page](../contracts/README.md#kinds), a [file](../run.py), a [run](../reports/run), a [folder](../reports),
[elsewhere](https://example.org/a.md) and [here](#here).
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of the pages that the site has from outside of docs/, one page of docs/, a run and a file."""
    root = tmp_path / "root"
    texts = dict.fromkeys(write_site.OUTSIDE, "No link.\n")
    texts |= {"docs/page.md": PAGE, "reports/run/report.html": "<p>", "run.py": "run()", "unlinked.py": ""}
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_links_stay_but_for_those_to_folders(tree: Path, tmp_path: Path) -> None:
    write_site.stage(tree, tmp_path / "copy")
    expected = PAGE.replace("(../reports/run)", "(../reports/run/report.html)").replace(
        "[folder](../reports)", "folder"
    )
    assert (tmp_path / "copy" / "docs" / "page.md").read_text() == expected


def test_what_a_page_links_to_is_copied_beside_the_pages_and_nothing_else(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "docs").mkdir(parents=True)
    (copy / "docs" / "of-an-earlier-copy.md").touch()
    write_site.stage(tree, copy)
    files = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert files == {*write_site.OUTSIDE, "docs/page.md", "reports/run/report.html", "run.py"}


@pytest.mark.parametrize(
    ("tag", "found"),
    [
        ('<script src="https://example.org/a.js">', ["https://example.org/a.js"]),
        ('<link rel="stylesheet" href="//example.org/a.css">', ["//example.org/a.css"]),
        ("<img alt='a' src='http://example.org/a.png'>", ["http://example.org/a.png"]),
        ('<script src="assets/a.js">', []),
        ('<a href="https://example.org">', []),
    ],
)
def test_what_a_page_loads_from_elsewhere_is_named(tmp_path: Path, tag: str, found: list[str]) -> None:
    (tmp_path / "page.html").write_text(f"<p>{tag}")
    assert write_site.loaded_from_elsewhere(tmp_path) == [f"page.html: {address}" for address in found]
