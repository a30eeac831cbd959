"""Run the mutation tests of mutmut on the judges, in a copy of the last commit. Write the result to reports/mutation.

    pip install mutmut==3.8.1
    python tools/long_checks/mutation_run.py --functions 100 --seed 46

mutmut makes copies of the code with one small change each (mutants), and runs the tests on each copy. `[tool.mutmut]`
in pyproject.toml names the modules to change and the tests to run. All mutants take hours on two cores, so only the
mutants of functions that the seed draws are tried.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import lzma
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "reports" / "mutation" / "judge.json.xz"
CONFIGURED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
COPIED = ("pyproject.toml", "tests", *CONFIGURED["source_paths"], *CONFIGURED["also_copy"])
PROCESSES = "2"
ONE_MUTANT = "harness.judging.verdict.*__mutmut_1"  # mutmut makes all mutants before it tries the named ones


def copy_of_the_commit(folder: Path) -> str:
    """Copy the files that a run needs from the last commit into the folder. Return the commit's id."""
    archive = subprocess.run(["git", "archive", "HEAD", *COPIED], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return head.stdout.strip()


def mutmut(folder: Path, *arguments: str) -> str:
    """Run a mutmut command in the folder and return its output. Raises CalledProcessError if the command fails."""
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


def drawn(mutants: Iterable[str], number: int, seed: int) -> list[str]:
    """Return the names, without the mutants' numbers, of `number` functions that the seed draws from all functions.

    Each function has a rank of its own, so a new function can replace at most one drawn function.
    """
    functions = {mutant.rpartition("__mutmut_")[0] for mutant in mutants}
    return sorted(sorted(functions, key=lambda name: sha256(f"{seed} {name}".encode()).digest())[:number])


def change(shown: str) -> tuple[str, str]:
    """Return the removed and the added lines of a mutant, from the output of `mutmut show`."""
    lines = [line for line in shown.splitlines() if not line.startswith(("---", "+++", "#"))]
    was, becomes = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
    return was, becomes


def record(folder: Path, chosen: Collection[str], seed: int, seconds: float, commit: str) -> dict[str, Any]:
    """Return the numbers of mutants of the chosen functions by function and status, and each mutant that was not
    killed, with its change."""
    every = statuses(mutmut(folder, "results", "--all", "true"))
    found = {mutant: status for mutant, status in every.items() if mutant.rpartition("__mutmut_")[0] in chosen}
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
        "drawn": {"seed": seed, "mutants": len(found), "of": len(every)},
        "functions": {name: dict(counts) for name, counts in functions.items()},
        "alive": alive,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="try mutants of the judges")
    parser.add_argument("--functions", type=int, required=True, help="number of functions whose mutants are tried")
    parser.add_argument("--seed", type=int, required=True, help="draws the functions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commit = copy_of_the_commit(folder)
        began = time.monotonic()
        mutmut(folder, "run", "--max-children", PROCESSES, ONE_MUTANT)
        chosen = drawn(statuses(mutmut(folder, "results", "--all", "true")), options.functions, options.seed)
        mutmut(folder, "run", "--max-children", PROCESSES, *(f"{function}__mutmut_*" for function in chosen))
        found = record(folder, chosen, options.seed, time.monotonic() - began, commit)
    text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False)
    RESULT.write_bytes(lzma.compress(text.encode()))


if __name__ == "__main__":
    main()
