"""The table of CPU and GPU answers is what the files of answers say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_answers_that_are_there() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "write_cpu_and_gpu.py"))
    page = script["PAGE"].read_text()
    assert page == script["with_table"](page), "run scripts/write_cpu_and_gpu.py"


def test_every_difference_has_a_cause() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "write_cpu_and_gpu.py"))
    cpu, gpu = script["rows_of"]("cpu.csv"), script["rows_of"]("h100.csv")
    unknown = [name for name in cpu if "cause unknown" in script["agreement"](cpu[name], gpu.get(name))]
    assert unknown == []
