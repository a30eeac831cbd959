"""Compare the results of two commits of this project, to show that a change of code changed no verdict.

    python tools/snapshot/compare_commits.py BASE [HEAD] [--only SECTION ...]

If HEAD is not given, BASE is compared with the working tree, including uncommitted changes. Both commits are executed
on this machine with this Python. The sections are:

    judge       status, reason, ordered figures and denominators of the verdict on every case in the tests' tables
    published   the same for the verdicts on every published run, judged again, and the rows of published drills
    records     the records of workers in a drill of a small trainer on a CPU, and the results of its faults
    schemas     the JSON Schema of contracts and of shared files
    help        the output of each command for --help
    exit-codes  the number of each exit code
    kills       the planned pairs of fault and claim, for a machine without GPUs and for a machine with two GPUs

Every entry of BASE must be equal in HEAD. Entries only in HEAD are listed as new. Messages are not compared.

The runs of BASE are executed twice. A value that differs between these two executions must exist in HEAD, but is not
compared. If it is a number, such as a time, its field is not compared in any run. Such values and fields are listed.

The exit code is 0 if all requested sections were compared and are equal. Otherwise it is 1, and each value that differs
is printed, as it is in BASE and as it is in HEAD.
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
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from snapshot import ERROR, SECTIONS, SEP, Entries, field_of

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("snapshot.py")
WHICH = ("base", "head", "base again")
ABSENT = "(absent)"
AGAIN = "records"  # the section that is executed twice for the base commit
MOST_SHOWN = 40  # largest number of differences, and of new entries, that are printed for a section
LONGEST = 300  # largest number of characters of a value that are printed


@dataclass
class Comparison:
    """The comparison of one section of both commits. left_out: fields and values that are not compared. different: for
    each difference, its place and both values. failed: the reason why nothing could be compared, or ""."""

    section: str
    equal: int = 0
    left_out: list[str] = field(default_factory=list)
    different: list[tuple[str, Any, Any]] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    failed: str = ""

    @property
    def holds(self) -> bool:
        """Return True if the base has entries and all of them are equal in the head."""
        return not self.failed and not self.different and self.equal > 0

    def lines(self) -> list[str]:
        """Return the lines to print for this section."""
        if self.failed:
            return [f"{self.section}: could not be compared: {self.failed}"]
        counts = f"{self.equal} equal, {len(self.different)} different, {len(self.new)} new"
        places = [
            f"  {place}\n    base: {_shown(base)}\n    head: {_shown(head)}" for place, base, head in self.different
        ]
        more = [("left out", self.left_out), ("new", self.new)]
        names = [line for word, named in more for line in _first([f"  {word}: {name}" for name in named])]
        return [f"{self.section}: {counts}", *_first(places), *names]


def _first(lines: Sequence[str]) -> list[str]:
    hidden = len(lines) - MOST_SHOWN
    return [*lines[:MOST_SHOWN], *([f"  … and {hidden} more"] if hidden > 0 else [])]


def _shown(value: Any) -> str:
    text = value if value is ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def compare(section: str, base: Entries, head: Entries, again: Entries) -> Comparison:
    """Compare the entries of one section. `again`: the entries of the base's second execution."""
    unsteady = [name for name, value in base.items() if value != again.get(name, ABSENT)]
    fields = {field_of(name) for name in unsteady if {type(base[name]), type(again.get(name))} & {int, float}}
    others = [name for name in unsteady if field_of(name) not in fields]
    result = Comparison(section, left_out=[*sorted(fields), *others])
    result.new = sorted(head.keys() - base.keys() - again.keys())
    for name, value in base.items():
        now, left_out = head.get(name, ABSENT), name in others or field_of(name) in fields
        if left_out and (now is not ABSENT or name not in again):
            continue
        unequal = [(name, value, now)] if left_out else [*differences(name, value, now)]
        # Report errors even if they are equal. Equal errors do not show that the verdicts would be equal.
        if isinstance(value, dict) and ERROR in value:
            unequal = [(name, value, now)]
        result.different += unequal
        result.equal += not unequal
    return result


def differences(place: str, base: Any, head: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each place at which two values differ, with both values. Lists and dictionaries are compared by item."""
    if isinstance(base, dict) and isinstance(head, dict):
        for key in [*base, *(key for key in head if key not in base)]:
            yield from differences(f"{place}{SEP}{key}", base.get(key, ABSENT), head.get(key, ABSENT))
    elif isinstance(base, list) and isinstance(head, list):
        matcher = SequenceMatcher(None, [*map(json.dumps, base)], [*map(json.dumps, head)], autojunk=False)
        for tag, first, last, first_of_head, last_of_head in matcher.get_opcodes():
            if tag != "equal":
                yield f"{place}{SEP}{first}", base[first:last], head[first_of_head:last_of_head]
    elif json.dumps(base) != json.dumps(head):
        # Compare JSON texts, because 1, 1.0 and True are equal in Python, but different in JSON.
        yield place, base, head


@contextmanager
def tree_of(commit: str | None, folder: Path) -> Iterator[Path]:
    """Check out the commit inside the `with`, and yield its folder. None means the working tree."""
    if commit is None:
        yield ROOT
        return
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", "--quiet", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def take(section: str, tree: Path, scratch: Path) -> Entries | str:
    """Return a section's entries for the commit in `tree`. If `snapshot.py` fails, return its last line of stderr."""
    scratch.mkdir()
    out = scratch / "snapshot.json"
    command = [sys.executable, "-P", str(PROGRAM), section, str(out), str(scratch)]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "COLUMNS": "100"}
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
    taken: Entries = json.loads(out.read_text(encoding="utf-8"))
    return taken


def compared(section: str, *taken: Entries | str) -> Comparison:
    """Compare a section. taken: the entries of base, head and base again, or texts that say why there are none."""
    failed = [f"{which}: {each}" for which, each in zip(WHICH, taken, strict=True) if isinstance(each, str)]
    if failed:
        return Comparison(section, failed="; ".join(failed))
    base, head, again = (each for each in taken if not isinstance(each, str))
    return compare(section, base, head, again)


def main(arguments: Sequence[str]) -> int:
    """Compare, print and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="a commit")
    parser.add_argument("head", nargs="?", help="a commit; default: the working tree")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compare-commits-"))).resolve()
        trees = [
            stack.enter_context(tree_of(commit, folder / which))
            for which, commit in (("base", given.base), ("head", given.head))
        ]
        # Start with the longest section: two processes run at the same time, and at the end one would wait for it.
        order = sorted(given.only, key=lambda section: section != AGAIN)
        asked = [(section, number) for section in order for number in range(3 if section == AGAIN else 2)]
        with ThreadPoolExecutor(2) as pool:
            futures = {
                (section, number): pool.submit(take, section, trees[number % 2], folder / f"{section}-{number}")
                for section, number in asked
            }
        taken = {key: future.result() for key, future in futures.items()}
    results = [
        compared(section, *(taken.get((section, number), taken[section, 0]) for number in range(3)))
        for section in given.only
    ]
    for result in results:
        print("\n".join(result.lines()))
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
