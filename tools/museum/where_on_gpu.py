"""Check on a GPU what `harness where` sees inside captured graphs: its tests, the planted faults, and 28 layers.

    python tools/museum/where_on_gpu.py FOLDER [--limit SECONDS] [layers28] [tests] [tiny]

Writes FOLDER/summary.txt, a log for each part, the answers for planted faults at `tiny` and at 28 layers, and what was
recorded where a test failed or an answer does not name the fault. Without a part it executes all of them: 28 layers
alone, for their seconds, and then the others at the same time. What has not ended after SECONDS (400) is ended, and the
summary has what came before.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOL = str(Path(__file__).with_name("where_reference_faults.py"))
LARGE = ("frozen_learning_rate",)  # asked for at 28 layers
AT_ONCE = ("tests", "tiny")
TESTS = (
    "tests/gpu/test_where.py",
    "-m",
    "gpu",
    "-q",
    "-n",
    "5",
    "-o",
    "tmp_path_retention_policy=failed",
    "--tb=short",
    "-rA",
)
# Where the package is not installed, pytest does not find its plugin.
PLUGIN = () if [*entry_points(group="pytest11", name="contract_harness")] else ("-p", "harness.pytest_plugin")
TOOL_ON_GPU = (sys.executable, TOOL, "--device", "cuda", "--out")


def main(folder: Path, limit_s: float, parts: Sequence[str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + limit_s
    commands: dict[str, list[str]] = {
        "layers28": [*TOOL_ON_GPU, str(folder / "layers28"), "--model", "qwen2-1.5b", "--seq-len", "32", *LARGE],
        "tests": [sys.executable, "-m", "pytest", *TESTS, *PLUGIN, "--basetemp", str(folder / "evidence")],
        "tiny": [*TOOL_ON_GPU, str(folder / "tiny"), "--jobs", "10"],
    }
    asked = [name for name in commands if not parts or name in parts]
    ended: dict[str, str] = {}
    for together in ([name for name in asked if name not in AT_ONCE], [name for name in asked if name in AT_ONCE]):
        with ThreadPoolExecutor() as pool:
            for name, line in pool.map(lambda name: (name, executed(name, folder, commands[name], until)), together):
                ended[name] = "\n".join([line, *rows(folder / name / "faults.csv")])
        (folder / "summary.txt").write_text("\n".join(ended.values()) + "\n", encoding="utf-8")
    sys.stdout.write((folder / "summary.txt").read_text(encoding="utf-8"))
    return 0


def executed(name: str, folder: Path, command: Sequence[str], until: float) -> str:
    """Execute a part with its output in a file, and return a line on how it ended with its last lines of output."""
    began, log = time.monotonic(), folder / f"{name}.log"
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT, start_new_session=True)
        try:
            code = str(process.wait(until - began))
        except subprocess.TimeoutExpired:
            code = "none in time"
            os.killpg(process.pid, signal.SIGKILL)  # with all processes of its own
            process.wait()
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-40:]
    return "\n".join([f"{name}: exit code {code}, {time.monotonic() - began:.0f} s", *(f"    {each}" for each in last)])


def rows(file: Path) -> list[str]:
    """Return a line for each fault that was asked for, and how often each answer was given."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as opened:
        found = [*csv.DictReader(opened)]
    counts = Counter(f"{each['answer']}, named: {each['named']}" for each in found)
    return [
        *(
            f"{each['fault']}: {each['answer']}, named {each['named']}, unseen {each['unseen']}, {each['seconds']} s, "
            f"{each['bytes']} bytes, {each['wall_s']} s in all: {each['sentence']}"
            for each in found
        ),
        *(f"{count:4d} {answer}" for answer, count in sorted(counts.items())),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", help="layers28, tests, tiny")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds for all of it")
    options = parser.parse_intermixed_args()
    sys.exit(main(options.folder.resolve(), options.limit, options.parts))
