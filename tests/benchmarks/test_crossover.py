"""The map of ratios: its table, its plot, and cells that could not be measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import crossover
from benchmarks.crossover import Cell, as_json, measure_cell, plot, table
from reference_impl.config import TrainConfig
from reference_impl.trainer import Trainer


def cells() -> list[Cell]:
    return [
        Cell(1, 64, graphed_ms=10.0, ungraphed_ms=25.0, steps=10),
        Cell(2, 64, graphed_ms=20.0, ungraphed_ms=19.0, steps=10),
        Cell(1, 128, skipped="does not fit in device memory"),
        Cell(2, 128, graphed_ms=40.0, ungraphed_ms=40.0, steps=10),
    ]


def test_the_table_shows_ratios_below_one_and_names_skipped_cells() -> None:
    text = table(cells(), "tiny", 1.0)
    assert "| 1 | 2.50 (25.0 / 10.0) | skipped |" in text
    assert "| 2 | 0.95 (19.0 / 20.0) | 1.00 (40.0 / 40.0) |" in text
    assert "- batch 1, seq 128 skipped: does not fit in device memory" in text


def test_the_json_output_contains_every_cell_of_the_crossover_map() -> None:
    rows = as_json(cells(), "tiny", 1.0)["cells"]
    assert [row["ratio"] for row in rows] == [2.5, 0.95, None, 1.0]


def test_the_plot_writes_each_ratio(tmp_path: Path) -> None:
    plot(cells(), "tiny", tmp_path / "map.svg")
    text = (tmp_path / "map.svg").read_text()
    assert all(f"<!-- {ratio} -->" in text for ratio in ("2.50", "0.95", "1.00"))


@pytest.fixture
def trainer() -> Trainer:
    return Trainer(TrainConfig.preset("tiny", seq_len=8, device="cpu"))


def test_a_cell_of_the_crossover_map_is_measured_at_its_own_shape(trainer: Trainer) -> None:
    cell = measure_cell(trainer, 2, 4)
    assert trainer.static.tokens.shape == (2, 4)
    assert cell.ratio is not None
    assert cell.ratio > 0
    assert crossover.FEWEST_STEPS <= cell.steps <= crossover.MOST_STEPS


def failing_body(error: Exception) -> Callable[[], torch.Tensor]:
    def body() -> torch.Tensor:
        raise error

    return body


def test_a_cell_that_does_not_fit_in_memory_is_skipped(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "body", failing_body(torch.cuda.OutOfMemoryError("no room")))
    cell = measure_cell(trainer, 2, 4)
    assert (cell.skipped, cell.failed, cell.ratio) == ("does not fit in device memory", False, None)


def test_a_step_that_cannot_be_captured_fails_the_map(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trainer.body

    def synchronizing() -> torch.Tensor:
        loss = plain()
        loss.item()
        return loss

    monkeypatch.setattr(trainer, "body", synchronizing)
    cell = measure_cell(trainer, 2, 4)
    assert cell.failed
    assert cell.skipped is not None
    assert "host sync" in cell.skipped
