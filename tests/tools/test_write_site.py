"""The documentation's copy for mkdocs keeps paths and links; a page that loads from elsewhere is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import write_site

ROOT = Path(__file__).parents[2]
PAGE = """\
A [page](../contracts/README.md#kinds), a [file](../run.py), a [run](../reports/run), a [folder](../reports),
its [summary](../reports/run/summary.md), a run that is an [archive](../reports/cpu.tar.xz),
[elsewhere](https://example.org/a.md) and [here](#here).
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of the pages that the site has from outside of docs/, one page of docs/, a run and a file."""
    root = tmp_path / "root"
    texts = dict.fromkeys(write_site.OUTSIDE, "No link.\n")
    texts |= {
        "docs/page.md": PAGE,
        "reports/run/run.tar.xz": "",
        "reports/run/summary.md": "",
        "reports/cpu.tar.xz": "",
    }
    texts |= {"run.py": "run()", "unlinked.py": "", "reports/logs.txz": ""}
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_the_site_keeps_links_except_links_to_folders(tree: Path, tmp_path: Path) -> None:
    runs = write_site.published(tree)
    assert runs == {"reports/run": "reports/run/report.html", "reports/cpu.tar.xz": "reports/cpu/report.html"}
    write_site.stage(tree, tmp_path / "copy", runs)
    expected = PAGE.replace("(../reports/run)", "(../reports/run/report.html)").replace(
        "[folder](../reports)", "folder"
    )
    expected = expected.replace("run/summary.md", "run/report.html").replace("cpu.tar.xz", "cpu/report.html")
    assert (tmp_path / "copy" / "docs" / "page.md").read_text() == expected


def test_only_files_linked_from_a_page_are_copied_next_to_the_pages(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "docs").mkdir(parents=True)
    (copy / "docs" / "of-an-earlier-copy.md").touch()
    write_site.stage(tree, copy, write_site.published(tree))
    files = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert files == {*write_site.OUTSIDE, "docs/page.md", "run.py"}


def test_each_published_run_gets_a_page_from_its_archive(tmp_path: Path) -> None:
    runs = write_site.published(ROOT)
    assert len(runs) == len([*(ROOT / "reports").rglob("*.tar.xz")]) > 30
    name = "reports/gates/2026-11-30-h200x2-ranks-memory"
    assert write_site.draw(ROOT, tmp_path, {name: runs[name]}) == []
    assert '<h2 id="claims">Claims</h2>' in (tmp_path / runs[name]).read_text(encoding="utf-8")


def test_a_published_run_that_cannot_be_rendered_is_named(tree: Path, tmp_path: Path) -> None:
    [said] = write_site.draw(tree, tmp_path, {"reports/run": "reports/run/report.html"})
    assert said.startswith("reports/run: ")


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
def test_a_resource_that_a_page_loads_from_elsewhere_is_named(tmp_path: Path, tag: str, found: list[str]) -> None:
    (tmp_path / "page.html").write_text(f"<p>{tag}")
    assert write_site.loaded_from_elsewhere(tmp_path) == [f"page.html: {address}" for address in found]
