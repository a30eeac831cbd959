"""The FP8 benchmarks at tiny shapes: what they write, and that what they cannot measure here is absent and not zero."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import fp8_accuracy, fp8_step


def test_accuracy_writes_curves_gaps_and_gradient_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ["--model", "tiny", "--seq-len", "16", "--seeds", "1", "--steps", "3"]
    monkeypatch.setattr("sys.argv", ["fp8_accuracy", "--out", str(tmp_path), *sizes])
    fp8_accuracy.main()
    content = json.loads((tmp_path / "accuracy.json").read_text())
    assert content["complete"] is True
    gap = content["end_losses"]["fp8"]["0"] - content["end_losses"]["bfloat16"]["0"]
    assert content["fp8_minus_bfloat16"] == {"0": gap}
    # On a CPU the other arm is float32, which does not err: there is no ratio.
    assert 0.02 < content["gradient_errors"]["median_fp8"] < 0.3
    assert "median_ratio" not in content["gradient_errors"]
    rows = (tmp_path / "curves.csv").read_text().splitlines()
    assert rows[0] == "step,fp8.0,bfloat16.0,bfloat16_other.0"
    assert len(rows) == 1 + 3
    assert (tmp_path / "curves.svg").is_file()


def test_a_failing_benchmark_section_is_recorded_and_the_next_section_runs(tmp_path: Path) -> None:
    results = fp8_step.Results(tmp_path, torch.device("cpu"))
    results.section("broken", lambda: 1 / 0)
    results.section("whole", lambda: 7)
    content = json.loads((tmp_path / "fp8.json").read_text())
    assert "ZeroDivisionError" in content["broken"]["failed"]
    assert (content["whole"], content["complete"]) == (7, False)


def test_the_fp8_benchmark_table_has_one_row_per_arm(tmp_path: Path) -> None:
    results = fp8_step.Results(tmp_path, torch.device("cpu"))
    entry = {
        "median_ms": {"fp8": 3.0, "floor": 4.0},
        "ratio_to_floor": {"fp8": 0.75, "floor": 1.0},
        "fp8": {"peak_gib": 1.5},
    }
    results.section("steps", lambda: {"512": entry})
    assert results.table().splitlines()[2:] == [
        "| 512 | fp8 | 3.00 | 0.750 | 1.50 |",
        "| 512 | floor | 4.00 | 1.000 |  |",
    ]
