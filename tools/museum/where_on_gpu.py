"""Check on a GPU what `harness where` sees inside captured graphs: its tests, the planted faults, and 28 layers.

    python tools/museum/where_on_gpu.py FOLDER [tests] [layers28] [tiny]

Writes FOLDER/summary.txt, a log for each part, and a CSV of the planted faults at `tiny` and at 28 layers. Without a
part it executes all of them.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOL = str(Path(__file__).with_name("where_reference_faults.py"))
LARGE = ("frozen_learning_rate", "attention_without_scale")  # asked for at 28 layers
TESTS = ("tests/gpu/test_where.py", "tests/gpu/test_replay_captured_step.py", "-m", "gpu", "-q", "-n", "4")
TOOL_ON_GPU = (sys.executable, TOOL, "--device", "cuda", "--out")


def main(folder: Path, parts: Sequence[str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    commands: dict[str, tuple[list[str], float]] = {
        "tests": ([sys.executable, "-m", "pytest", *TESTS], 400.0),
        "layers28": (
            [*TOOL_ON_GPU, str(folder / "layers28"), "--model", "qwen2-1.5b", "--seq-len", "32", "--jobs", "2", *LARGE],
            350.0,
        ),
        "tiny": ([*TOOL_ON_GPU, str(folder / "tiny"), "--jobs", "12"], 540.0),
    }
    lines = []
    for name in parts or commands:
        command, limit_s = commands[name]
        lines.append(executed(name, folder, command, limit_s))
        lines += [] if name == "tests" else [*rows(folder / name / "faults.csv"), ""]
        (folder / "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write((folder / "summary.txt").read_text(encoding="utf-8"))
    return 0


def executed(name: str, folder: Path, command: Sequence[str], limit_s: float) -> str:
    """Execute a part with its output in a file, and return a line on how it ended with its last lines of output."""
    began, log = time.monotonic(), folder / f"{name}.log"
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT, start_new_session=True)
        try:
            code = str(process.wait(limit_s))
        except subprocess.TimeoutExpired:
            code = f"none within {limit_s:g} s"
            os.killpg(process.pid, signal.SIGKILL)  # with the processes of all faults
            process.wait()
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-40:]
    return "\n".join([f"{name}: exit code {code}, {time.monotonic() - began:.0f} s", *(f"    {each}" for each in last)])


def rows(file: Path) -> list[str]:
    """Return a line for each fault that was asked for."""
    if not file.is_file():
        return [f"{file.parent.name}: no answers"]
    with file.open(encoding="utf-8", newline="") as opened:
        found = [*csv.DictReader(opened)]
    return [
        f"{each['fault']}: {each['answer']}, named {each['named']}, unseen {each['unseen']}, {each['seconds']} s, "
        f"{each['bytes']} bytes, process {each['wall_s']} s: {each['sentence']}"
        for each in found
    ]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
