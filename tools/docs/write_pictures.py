"""Make the screenshots of report pages in the documentation, with Chromium: `python tools/docs/write_pictures.py`.

Next to each picture is a text file with the words at the top of the page. A test compares this file with the page's
present words. If the words change, run the script again.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PUBLISHED = ROOT / "reports" / "gates" / "2026-12-01-h200-gate-backward"
SIZES = {"report-light": (1200, 900), "first-failure": (1200, 720)}  # width and height of each picture in CSS pixels
PARAGRAPH = re.compile(r"<(h1|p)\b[^>]*>(.*?)</\1>", re.DOTALL)
BLOCKS = re.compile(r"<!-- (file|change to): train\.py -->\n```\w+\n(.*?)```", re.DOTALL)


def top_of(html: str) -> str:
    """Return the headline, the first claim and the next step of a page, one line each, without machine facts."""
    header = html.partition("<header")[2].partition("</header>")[0]
    texts = [unescape(re.sub(r"<[^>]*>", "", text)) for _, text in PARAGRAPH.findall(header)]
    lines = "".join(f"{' '.join(text.split())}\n" for text in texts if text.strip())
    return re.sub(r"No commit has this [^.]*\. ", "", lines)


def first_failure(folder: Path) -> Path:
    """Write the tutorial's step with its bug into an empty folder, verify it, and return the report page's path."""
    (_, step), (_, change), *_ = BLOCKS.findall((DOCS / "tutorial.md").read_text(encoding="utf-8"))
    old, new = ("".join(f"{each[1:]}\n" for each in change.splitlines() if each[:1] != sign) for sign in "+-")
    (folder / "train.py").write_text(step, encoding="utf-8")
    harness = [sys.executable, "-m", "harness"]
    subprocess.run([*harness, "init", "train.py:make_step"], cwd=folder, check=True)
    (folder / "train.py").write_text(step.replace(old, new), encoding="utf-8")
    subprocess.run(
        [*harness, "verify", "contracts/", "--claim", "TRAIN-SAME", "--name", "run"], cwd=folder, check=False
    )
    return folder / "harness-reports" / "run" / "report.html"


def published(folder: Path) -> Path:
    """Write the report page of a published run from its archive, and return its path."""
    command = [sys.executable, "-m", "harness", "report", str(PUBLISHED), "--out", str(folder / "page")]
    subprocess.run(command, check=True)
    return folder / "page" / "report.html"


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("pictures need Chromium; install it from the system's packages")
    for name, made in {"report-light": published, "first-failure": first_failure}.items():
        with tempfile.TemporaryDirectory() as folder:
            page = made(Path(folder))
            size = ",".join(map(str, SIZES[name]))
            flags = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
            drawn = [f"--window-size={size}", f"--screenshot={DOCS / name}.png", page.as_uri()]
            subprocess.run([chromium, *flags, *drawn], check=True, stderr=subprocess.DEVNULL)
            (DOCS / f"{name}.txt").write_text(top_of(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
