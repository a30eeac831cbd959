"""Compare what two commits of this project answer, to show that a change moved code and no verdict.

    python scripts/compare_commits.py BASE [HEAD] [--only SECTION ...] [--out FOLDER]

HEAD is the working tree, uncommitted changes too, unless it is named. Both answer on this machine, by this Python:

    judge      status, reason, figures in order and denominators of every case in the tests' tables
    published  the same of every published run judged again, and the rows of published drills

An entry that the base has must be equal in the head. An entry that only the head has is listed as new. Exit code 0:
all that was asked for was compared and is equal; 1: it is not, and each differing value is printed with both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snapshot import SECTIONS

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).with_name("snapshot.py")
ABSENT = "(absent)"
MOST_SHOWN = 40  # differences of a section that are printed
LONGEST = 300  # characters of a value that are printed


@dataclass
class Comparison:
    """One section of both commits. `failed`: why it could not be compared."""

    section: str
    equal: int = 0
    different: list[tuple[str, Any, Any]] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    failed: str = ""

    @property
    def holds(self) -> bool:
        """True if the base has entries, and the head has the same."""
        return not self.failed and not self.different and self.equal > 0

    def lines(self) -> list[str]:
        """Return what is printed."""
        if self.failed:
            return [f"{self.section}: not comparable: {self.failed}"]
        counts = f"{self.equal} equal, {len(self.different)} different, {len(self.new)} new"
        shown = [
            f"  {place}\n    base: {_shown(base)}\n    head: {_shown(head)}"
            for place, base, head in self.different[:MOST_SHOWN]
        ]
        hidden = len(self.different) - len(shown)
        more = [f"  … and {hidden} more"] if hidden else []
        return [
            f"{self.section}: {counts}",
            *shown,
            *more,
            *(f"  new: {name}" for name in self.new),
        ]


def _shown(value: Any) -> str:
    text = value if value is ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def compare(section: str, base: dict[str, Any], head: dict[str, Any]) -> Comparison:
    """Compare the entries of one section."""
    result = Comparison(section, new=sorted(head.keys() - base.keys()))
    for name, value in base.items():
        found = list(differences(name, value, head.get(name, ABSENT)))
        result.different += found
        result.equal += not found
    return result


def differences(place: str, base: Any, head: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each place at which two values differ, with what stands there."""
    if isinstance(base, dict) and isinstance(head, dict):
        for key in [*base, *(key for key in head if key not in base)]:
            yield from differences(f"{place} › {key}", base.get(key, ABSENT), head.get(key, ABSENT))
    elif json.dumps(base) != json.dumps(head):  # 1, 1.0 and true are three values
        yield place, base, head


@contextmanager
def tree_of(commit: str | None, folder: Path) -> Iterator[Path]:
    """Give the files of a commit in a worktree that goes with the block; of None the working tree."""
    if commit is None:
        yield ROOT
        return
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", "--quiet", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def take(section: str, tree: Path, scratch: Path) -> dict[str, Any] | str:
    """Return a section of the commit in `tree`, or why it has none."""
    scratch.mkdir()
    out = scratch / "snapshot.json"
    command = [sys.executable, "-P", str(PROGRAM), section, str(out), str(scratch)]
    environment = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "100"}
    done = subprocess.run(
        command,
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    taken: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return taken


def compared(section: str, base: dict[str, Any] | str, head: dict[str, Any] | str) -> Comparison:
    """Compare a section, unless one of the commits has none."""
    failed = "; ".join(f"{which}: {each}" for which, each in (("base", base), ("head", head)) if isinstance(each, str))
    if isinstance(base, str) or isinstance(head, str):
        return Comparison(section, failed=failed)
    return compare(section, base, head)


def main(arguments: Sequence[str]) -> int:
    """Compare, print and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="a commit")
    parser.add_argument("head", nargs="?", help="a commit; the working tree if it is left out")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--out", type=Path, help="write base.json and head.json there")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compare-commits-"))).resolve()
        trees = [
            stack.enter_context(tree_of(commit, folder / which))
            for which, commit in (("base", given.base), ("head", given.head))
        ]
        # one process of each commit at a time
        jobs = [
            (section, tree, folder / f"{section}-{number}")
            for section in given.only
            for number, tree in enumerate(trees)
        ]
        with ThreadPoolExecutor(2) as pool:
            taken = list(pool.map(lambda job: take(*job), jobs))
    snapshots = [dict(zip(given.only, taken[number::2], strict=True)) for number in (0, 1)]
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        for name, each in zip(("base", "head"), snapshots, strict=True):
            (given.out / f"{name}.json").write_text(json.dumps(each, indent=1, ensure_ascii=False) + "\n")
    results = [compared(section, snapshots[0][section], snapshots[1][section]) for section in given.only]
    for result in results:
        print("\n".join(result.lines()))
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
