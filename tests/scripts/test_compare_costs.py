"""Two costs side by side: what the table says, and that only the same units are compared."""

from __future__ import annotations

from pathlib import Path

import compare_costs
import pytest

from harness.costs.account import Costs
from harness.costs.kinds import Kind

GATES = Path(__file__).parents[2] / "reports" / "gates"


def test_a_row_a_kind_that_either_spent_something_on() -> None:
    before = Costs(gpu_by_kind={Kind.OPENING: 3.0, Kind.WARM_UP: 14.66}, gpu_seconds=17.66, wall_seconds=20.0)
    after = Costs(gpu_by_kind={Kind.OPENING: 1.0, Kind.END: 0.5}, gpu_seconds=1.5, wall_seconds=2.0)
    assert compare_costs.rows(before, after) == [
        "| opening | 3.0 | 1.0 |",
        "| warm-up | 14.7 | 0.0 |",
        "| digests and end | 0.0 | 0.5 |",
        "| **GPU in use** | 17.7 | 1.5 |",
        "| **by the clock** | 20.0 | 2.0 |",
    ]


def test_other_units_are_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (str(GATES / name) for name in ("2026-11-23-h200-gate-one", "2026-11-26-h100-gate-training"))
    assert compare_costs.main([one, other]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("not the same units: ")
    assert "F-GRAPH-BWD-003 on qwen2-1.5b-128" in said.err


def test_a_published_run_is_read_from_its_archive(capsys: pytest.CaptureFixture[str]) -> None:
    run = str(GATES / "2026-11-23-h200-gate-one")
    assert compare_costs.main([run, run]) == 0
    assert "| timed blocks | 100.1 | 100.1 |" in capsys.readouterr().out
