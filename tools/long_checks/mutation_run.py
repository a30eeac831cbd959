"""Run mutmut on the judges, in a copy of the last commit, and write the result to reports/mutation.

    pip install mutmut==3.8.1
    python tools/long_checks/mutation_run.py

mutmut makes copies of the code with one small change each (mutants), and runs the tests on each copy. This takes hours
on two cores. `[tool.mutmut]` in pyproject.toml names the modules to change and the tests to run.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "reports" / "mutation" / "judge.json"
CONFIGURED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
COPIED = ("pyproject.toml", "tests", *CONFIGURED["source_paths"], *CONFIGURED["also_copy"])
PROCESSES = "2"


def copy_of_the_commit(folder: Path) -> str:
    """Copy the files that a run needs from the last commit into the folder. Return the commit's id."""
    archive = subprocess.run(["git", "archive", "HEAD", *COPIED], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return head.stdout.strip()


def mutmut(folder: Path, *arguments: str) -> str:
    """Return the output of a mutmut command. Raises CalledProcessError if it fails."""
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def statuses(results: str) -> dict[str, str]:
    """Return the status of each mutant, from the output of `mutmut results --all true`, which has lines such as
    `harness.judging.sheet.x_a__mutmut_1: killed`."""
    return dict(re.findall(r"^\s*(\S+__mutmut_\d+): (.+?)\s*$", results, re.MULTILINE))


def function_of(mutant: str) -> str:
    """Return the name of the function that a mutant changes: `sheet.Sheet.held` for
    `harness.judging.sheet.xǁSheetǁheld__mutmut_3`."""
    module, _, name = mutant.rpartition("__mutmut_")[0].rpartition(".")
    return f"{module.rpartition('.')[2]}.{name.removeprefix('x_').removeprefix('xǁ').replace('ǁ', '.')}"


def change(shown: str) -> tuple[str, str]:
    """Return the removed and the added lines of a mutant, from the output of `mutmut show`."""
    lines = [line for line in shown.splitlines() if not line.startswith(("---", "+++", "#"))]
    was, becomes = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
    return was, becomes


def record(folder: Path, seconds: float, commit: str) -> dict[str, Any]:
    """Return the result of the run: counts by function, and each mutant that was not killed, with its change."""
    found = statuses(mutmut(folder, "results", "--all", "true"))
    functions: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for mutant, status in found.items():
        functions[function_of(mutant)][status] += 1
    alive = []
    for mutant, status in found.items():
        if status != "killed":
            was, becomes = change(mutmut(folder, "show", mutant))
            alive.append(
                {"mutant": mutant, "function": function_of(mutant), "status": status, "was": was, "becomes": becomes}
            )
    return {
        "tool": f"mutmut {importlib.metadata.version('mutmut')}",
        "python": platform.python_version(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit,
        "minutes": round(seconds / 60, 1),
        "functions": {name: dict(counts) for name, counts in functions.items()},
        "alive": alive,
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commit = copy_of_the_commit(folder)
        began = time.monotonic()
        mutmut(folder, "run", "--max-children", PROCESSES)
        found = record(folder, time.monotonic() - began, commit)
    text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False)
    RESULT.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
