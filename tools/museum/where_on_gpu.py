"""Check on a GPU what `harness where` sees inside captured graphs: its tests, the planted faults, and 28 layers.

    python tools/museum/where_on_gpu.py FOLDER

Writes FOLDER/summary.txt, the log of the tests, and a CSV of the planted faults at `tiny` and at 28 layers.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOL = str(Path(__file__).with_name("where_reference_faults.py"))
LARGE = ("frozen_learning_rate", "attention_without_scale")  # asked for at 28 layers
TESTS = ("tests/gpu/test_where.py", "tests/gpu/test_replay_captured_step.py", "-m", "gpu", "-p", "no:randomly", "-q")


def main(folder: Path, jobs: int = 8) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [executed("tests", folder, [sys.executable, "-m", "pytest", *TESTS, f"--basetemp={folder / 'tmp'}"], 300)]
    tool = [sys.executable, TOOL, "--device", "cuda", "--out"]
    large = [str(folder / "layers28"), "--model", "qwen2-1.5b", "--seq-len", "32", *LARGE]
    lines.append(executed("layers28", folder, [*tool, *large], 200))
    lines.append(executed("tiny", folder, [*tool, str(folder / "tiny"), "--jobs", str(jobs)], 420))
    for name in ("layers28", "tiny"):
        lines += ["", *rows(folder / name / "faults.csv")]
    text = "\n".join(lines)
    (folder / "summary.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def executed(name: str, folder: Path, command: Sequence[str], limit_s: float) -> str:
    """Execute a part with its output in a file, and return a line on how it ended with its last lines of output."""
    began, log = time.monotonic(), folder / f"{name}.log"
    with log.open("w", encoding="utf-8") as file:
        try:
            code = str(
                subprocess.run(command, stdout=file, stderr=file, timeout=limit_s, check=False, cwd=ROOT).returncode
            )
        except subprocess.TimeoutExpired:
            code = f"none within {limit_s:g} s"
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-12:]
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
    sys.exit(main(Path(sys.argv[1]).resolve(), *map(int, sys.argv[2:3])))
