"""Run the long checks, which take too long for every change: `.ci/long`.

    PYTHONPATH=tools/docs python tools/long_checks/long_checks.py [PART ...]

Each part (check) is a process. The last line that the process prints has the part's figures, which are written to
docs/long-checks.md. If a part fails, its figures are not written, the other parts still run, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from page_tables import filled, table

from harness.devices.environment import git_commit

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "long-checks.md"
# Folders from which the parts import, because the reference trainer and the tests' systems are not installed.
PATH = (ROOT, ROOT / "tests" / "support", ROOT / "tools" / "docs")
HEAD = ("part", "date", "commit", "machine", "seconds", "figures")
PARTS: dict[str, tuple[str, ...]] = {
    "floors": (".ci/floors",),
    "fuzz": (sys.executable, "tools/fuzz/fuzz.py"),
    "readers": (sys.executable, "tools/fuzz/fuzz_readers.py", "--jobs", "2"),
    "errors": (sys.executable, "tools/statistics/check_error_rates.py"),
    "soak": (sys.executable, "tools/long_checks/soak.py"),
    "deaths": (sys.executable, "tools/long_checks/deaths.py"),
    "kills": (sys.executable, "tools/long_checks/random_kills.py"),
    "machines": (sys.executable, "tools/long_checks/strange_machines.py"),
    "examples": (sys.executable, "tools/long_checks/verify_examples.py"),
    "mutation": (sys.executable, "tools/long_checks/mutation_run.py"),
}
WITHOUT_ARGUMENTS = tuple(part for part in PARTS if part != "mutation")


@dataclass(frozen=True)
class Result:
    """The result of a part: its exit code, its duration in seconds, and the last line that it printed."""

    part: str
    code: int
    seconds: float
    figures: str


def execute(part: str, command: Sequence[str]) -> Result:
    """Run a part's command in the repository, print its output, and return its result."""
    print(f"== {part}", flush=True)
    if not (ROOT / command[0]).exists():
        return Result(part, 127, 0.0, f"{command[0]} does not exist")
    began, last = time.monotonic(), ""
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PATH))}
    with subprocess.Popen(command, cwd=ROOT, env=here, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
    return Result(part, process.returncode, time.monotonic() - began, last)


def row(result: Result) -> list[str]:
    """Return the row of a part in the page's table, with this machine and the current commit."""
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    whole = git_commit() or ""
    commit = f"`{whole[:12]}{whole[40:]}`"  # `git_commit` adds a mark after the 40 digits if sources were changed
    return [result.part, f"{datetime.now(UTC):%Y-%m-%d}", commit, machine, f"{result.seconds:.0f}", result.figures]


def published(page: str, rows: dict[str, list[str]]) -> str:
    """Return the page's text with new rows in its table. rows: the new rows, by part. Other parts keep their rows."""
    old = {line[2:-2].split(" | ")[0]: line[2:-2].split(" | ") for line in page.splitlines() if line.startswith("| ")}
    every = old | rows
    return filled(page, table(HEAD, (every[part] for part in PARTS if part in every)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    chosen: list[str] = parser.parse_args().parts or list(WITHOUT_ARGUMENTS)
    results = [execute(part, PARTS[part]) for part in chosen]
    rows = {result.part: row(result) for result in results if result.code == 0}
    PAGE.write_text(published(PAGE.read_text(), rows))
    for result in results:
        ended = "held" if result.code == 0 else f"FAILED with exit code {result.code}"
        print(f"{result.part:10} {ended:8} {result.seconds:6.0f} s  {result.figures}")
    return 0 if len(rows) == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
