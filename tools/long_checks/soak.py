"""Verify the smoke contract repeatedly in one process. Check that nothing leaks and that all verdicts are equal.

python tools/long_checks/soak.py

After each verification the script counts the processes that it started and that still run (found by a variable in their
environment), files in the temporary folder, open file descriptors, and threads. No process may still run. The other
counts must not be larger than after the second verification, when all caches are filled.
"""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from marked_processes import marked

from harness.cli.application import application

ROOT = Path(__file__).parents[2]
MARK = "HARNESS_SOAK"
TIMES, CONTRACT = 20, "contracts/fused-gradient-clip-v1.yaml"


@dataclass(frozen=True)
class Left:
    """The numbers of processes, files, descriptors and threads that exist after a verification."""

    processes: int
    files: int
    descriptors: int
    threads: int

    def problems(self, settled: Left) -> list[str]:
        """Return a line for each leak. settled: the numbers after the second verification."""
        grown = [name for name in ("files", "descriptors", "threads") if getattr(self, name) > getattr(settled, name)]
        found = [f"{self.processes} processes left"] * (self.processes > 0)
        return found + [f"{name} grew from {getattr(settled, name)} to {getattr(self, name)}" for name in grown]


def left(mark: str, folder: Path) -> Left:
    """Count the processes with the mark, the files below the folder, the descriptors and the threads."""
    return Left(
        processes=len(marked(mark)),
        files=sum(1 for _ in folder.rglob("*")),
        descriptors=sum(1 for _ in Path("/proc/self/fd").iterdir()),
        threads=sum(1 for _ in Path("/proc/self/task").iterdir()),
    )


def verified(reports: Path, number: int) -> tuple[int, bytes]:
    """Return the exit code of `harness verify` and the bytes of its verdicts, which are empty if it wrote none."""
    arguments = ["verify", CONTRACT, "--reports", str(reports), "--name", f"soak-{number}"]
    code = application(arguments)(arguments, standalone_mode=False)
    verdicts = reports / f"soak-{number}" / "verdicts.json"
    return int(code), verdicts.read_bytes() if verdicts.exists() else b""


def main() -> int:
    os.chdir(ROOT)
    os.environ[MARK] = uuid.uuid4().hex
    mark = f"{MARK}={os.environ[MARK]}"
    counts: list[Left] = []
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as reports, tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        expected = b""
        for number in range(1, TIMES + 1):
            code, verdicts = verified(Path(reports), number)
            expected = expected or verdicts
            counts.append(left(mark, Path(folder)))
            seen = counts[-1].problems(counts[min(1, number - 1)])
            seen += [f"exit code {code}"] * (code != 0) + ["the verdicts differ from the first ones"] * (
                verdicts != expected
            )
            problems += [f"time {number}: {text}" for text in seen]
    print(*problems, sep="\n")
    first, last = counts[0], counts[-1]
    print(
        f"{len(counts)} verifications, {len(problems)} problems; after the first and the last: processes left "
        f"{first.processes}, {last.processes}; temporary files {first.files}, {last.files}; "
        f"descriptors {first.descriptors}, {last.descriptors}; threads {first.threads}, {last.threads}"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
