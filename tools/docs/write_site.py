"""Write the documentation as a site: `make site`, to site/.

    python tools/docs/write_site.py

The site has the pages in docs/ and `OUTSIDE`. The functions in `FILLED` write tables that git does not store. mkdocs
builds the site from a copy of the pages with the same paths, so links stay valid. Linked files are copied, too. Each
published run gets a page from its archive. A link to the folder or the summary of a run becomes a link to this page. A
link to any other folder is replaced by its label. mkdocs fails if a link or its anchor has no target.
"""

from __future__ import annotations

import importlib
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import page_tables

from harness.cli.report import render_together
from harness.errors import HarnessError
from harness.evidence import layout

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build" / "site-pages"  # this folder is the `docs_dir` of mkdocs.yml
SITE = ROOT / "site"
OUTSIDE = (
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("contracts/README.md", "examples/README.md", "examples/field_bugs/README.md", "examples/ranks/fsdp2/README.md"),
    *("AGENTS.md", "HISTORY.md"),
    "reports/README.md",
)
FILLED = {
    "docs/faults.md": ("write_faults_doc", "text"),
    "docs/field-bugs.md": ("field_bugs_page", "text"),
    "docs/mutation.md": ("mutation_page", "text"),
    "docs/reference/capabilities.md": ("reference_tables", "capabilities"),
    "docs/reference/claim-kinds.md": ("reference_of_kinds", "text"),
    "docs/reference/commands.md": ("reference_tables", "commands"),
    "docs/reference/glossary.md": ("reference_tables", "glossary"),
    "docs/reference/reason-codes.md": ("reference_tables", "reason_codes"),
    "docs/reference/shared-checks.md": ("reference_tables", "shared_checks"),
    "docs/statistics.md": ("power_of_claims", "text"),
    "docs/upstream-claims.md": ("write_upstream_table", "text"),
}
DRAWN_AT_ONCE = max(1, min(4, os.cpu_count() or 1))
LINK = re.compile(r"\[(?P<label>[^\]]*)\]\((?![a-z]+:|#|/)(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
LOADED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\s(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


def sources(root: Path) -> list[str]:
    """Return the paths below `root` of the Markdown files that become pages."""
    below = [*(root / "docs").glob("*.md"), *(root / "docs" / "reference").glob("*.md")]
    return [*OUTSIDE, *sorted(path.relative_to(root).as_posix() for path in below)]


def published(root: Path) -> dict[str, str]:
    """Return the path of each published run's page, by the path of the run's folder or of its archive."""
    archives = sorted(path.relative_to(root).as_posix() for path in (root / "reports").rglob("*.tar.xz"))
    folders = [posixpath.dirname(path) if posixpath.basename(path) == layout.ARCHIVE else path for path in archives]
    return {path: f"{path.removesuffix('.tar.xz')}/report.html" for path in folders}


def links(page: str, text: str, runs: Mapping[str, str]) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each link in a page to a file of the repository, and the target below `root`. If the target is a published
    run, the run's page is yielded."""
    for found in LINK.finditer(text):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), found["path"]))
        yield found, runs.get(target.removesuffix("/summary.md"), target)


def staged(root: Path, page: str, text: str, runs: Mapping[str, str]) -> str:
    """Return a page's text with links to the runs' pages, and with labels instead of links to other folders."""
    for found, target in links(page, text, runs):
        path = posixpath.relpath(target, posixpath.dirname(page))
        if target in runs.values():
            text = text.replace(found[0], f"[{found['label']}]({path}{found['anchor'] or ''})")
        elif (root / target).is_dir():
            text = text.replace(found[0], found["label"])
    return text


def filled(root: Path, page: str) -> str:
    """Return the text of a page, with the tables that git does not store."""
    text = (root / page).read_text(encoding="utf-8")
    if page not in FILLED:
        return text
    module, function = FILLED[page]
    return page_tables.filled(text, getattr(importlib.import_module(module), function)())


def stage(root: Path, folder: Path, runs: Mapping[str, str]) -> None:
    """Write the pages and the files that they link to into `folder`, each at its path below `root`."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = sources(root)
    for page in pages:
        text = filled(root, page)
        for _, target in links(page, text, runs):
            if (root / target).is_file() and target not in pages:
                (folder / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / target, folder / target)
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(staged(root, page, text, runs), encoding="utf-8")


def draw(root: Path, folder: Path, runs: Mapping[str, str]) -> list[str]:
    """Write the page of each run into `folder`. Return a text for each run that has errors or warnings.

    A process draws many pages, so that the harness is not imported for each page.
    """
    with ProcessPoolExecutor(DRAWN_AT_ONCE) as pool:
        said = pool.map(draw_one, [root / run for run in runs], [folder / page for page in runs.values()])
        return [f"{run}: {text}" for run, text in zip(runs, said, strict=True) if text]


def draw_one(run: Path, page: Path) -> str:
    """Write the page of one run. Return its error or its warnings, or "" if it has none."""
    with tempfile.TemporaryDirectory() as place:
        try:
            warnings = render_together([run], Path(place) / "drawn")
        except HarnessError as error:
            return str(error)
        page.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(place) / "drawn" / "report.html", page)
        return "\n".join(warnings)


def loaded_from_elsewhere(site: Path) -> list[str]:
    """Return the addresses on other servers that pages load, each with its page, such as `docs/ci.html: https://…`."""
    pages = sorted(path for path in site.rglob("*.html") if path.name != "report.html")
    found = [(page.relative_to(site).as_posix(), LOADED.findall(page.read_text(encoding="utf-8"))) for page in pages]
    return [f"{page}: {address}" for page, addresses in found for address in addresses]


def main() -> int:
    runs = published(ROOT)
    stage(ROOT, PAGES, runs)
    if problems := draw(ROOT, PAGES, runs):
        print("\n".join(problems))
        return 1
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--site-dir", str(SITE)]
    done = subprocess.run(build, cwd=ROOT, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    if done.returncode != 0:
        return done.returncode
    found = loaded_from_elsewhere(SITE)
    wrote = f"wrote {SITE}, with the pages of {len(runs)} published runs"
    print("\n".join(["pages must not load files from other servers, but these do:", *found] if found else [wrote]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
