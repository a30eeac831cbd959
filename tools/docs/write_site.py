"""Write the documentation as a site: `make site`, to site/.

    python tools/docs/write_site.py

Its pages are those of docs/ and the ones of `OUTSIDE`. Git holds the words of some alone: the modules of `FILLED` write
their tables. mkdocs makes the site of a copy that keeps their paths, and with them every link; files that a page links
to are copied beside. A link to the folder of a published run becomes one to its report, and one to any other folder its
label. Where a link or its anchor leads nowhere, mkdocs ends with an error.
"""

from __future__ import annotations

import importlib
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build" / "site-pages"  # `docs_dir` of mkdocs.yml
SITE = ROOT / "site"
OUTSIDE = (
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("contracts/README.md", "examples/README.md", "examples/field_bugs/README.md", "examples/ranks/fsdp2/README.md"),
    "AGENTS.md",
    "reports/README.md",
)
FILLED = {
    "docs/faults.md": "write_faults_doc",
    "docs/mutation.md": "mutation_page",
    "docs/reference/claim-kinds.md": "reference_of_kinds",
    "docs/upstream-claims.md": "write_upstream_table",
}
LINK = re.compile(r"\[(?P<label>[^\]]*)\]\((?![a-z]+:|#|/)(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
LOADED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\s(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


def sources(root: Path) -> list[str]:
    """Paths below `root` of the Markdown files that become pages."""
    below = [*(root / "docs").glob("*.md"), *(root / "docs" / "reference").glob("*.md")]
    return [*OUTSIDE, *sorted(path.relative_to(root).as_posix() for path in below)]


def links(root: Path, page: str, text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each link of a page to the repository, and its target below `root`; of a published run its report."""
    for found in LINK.finditer(text):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), found["path"]))
        yield found, f"{target}/report.html" if (root / target / "report.html").is_file() else target


def staged(root: Path, page: str, text: str) -> str:
    """Return a page's text with links to folders replaced: by one to the folder's report, else by the link's label."""
    for found, target in links(root, page, text):
        if (root / posixpath.dirname(page) / found["path"]).is_dir():
            report = posixpath.relpath(target, posixpath.dirname(page))
            there = f"[{found['label']}]({report})" if target.endswith("/report.html") else found["label"]
            text = text.replace(found[0], there)
    return text


def filled(root: Path, page: str) -> str:
    """Return the text of a page, with the tables that git does not hold."""
    text = (root / page).read_text(encoding="utf-8")
    if page not in FILLED:
        return text
    made: str = importlib.import_module(FILLED[page]).filled(text)
    return made


def stage(root: Path, folder: Path) -> None:
    """Write the pages and the files that they link to into `folder`, each at its path below `root`."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = sources(root)
    for page in pages:
        text = filled(root, page)
        for _, target in links(root, page, text):
            if (root / target).is_file() and target not in pages:
                (folder / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / target, folder / target)
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(staged(root, page, text), encoding="utf-8")


def loaded_from_elsewhere(site: Path) -> list[str]:
    """Return what pages make the reader's browser ask other servers for, with the page: `docs/ci.html: https://…`."""
    pages = sorted(path for path in site.rglob("*.html") if path.name != "report.html")
    found = [(page.relative_to(site).as_posix(), LOADED.findall(page.read_text(encoding="utf-8"))) for page in pages]
    return [f"{page}: {address}" for page, addresses in found for address in addresses]


def main() -> int:
    stage(ROOT, PAGES)
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--site-dir", str(SITE)]
    done = subprocess.run(build, cwd=ROOT, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    if done.returncode != 0:
        return done.returncode
    found = loaded_from_elsewhere(SITE)
    print("\n".join(["a page loads what is not part of the site:", *found] if found else [f"wrote {SITE}"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
