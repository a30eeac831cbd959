"""Measure for which shapes a captured step is faster. The result is the ratio of uncaptured to captured time.

    python -m benchmarks.crossover --out reports/<date>-<gpu>-crossover
    python -m benchmarks.crossover --out /tmp/rehearsal --tiny     # tiny shapes, to rehearse the run without a GPU

One trainer runs all shapes ("cells": a batch size and a sequence length). In each cell the arms take turns: half of the
captured steps, all uncaptured steps, the other half of the captured steps. Every step ends with a device sync. The time
of a cell is the median of a few steps. This is enough for an overview. To decide a claim about a shape, use a contract,
which times several processes. If a cell does not fit in memory, it is skipped, and the report names it. The script
writes crossover.json, crossover.md and crossover.svg. The exit code is 1 if the step of a cell could not be captured.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import environment, synchronize
from reference_impl.config import TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.trainer import Trainer

BATCH_SIZES = (1, 2, 4, 8, 16)
SEQ_LENS = (64, 128, 256, 512, 1024, 2048)
WARMUP_STEPS = 2
MOST_STEPS = 10
FEWEST_STEPS = 4
# Seconds in which each arm is timed in a cell. Long steps hardly vary, because they keep the GPU busy, so a few of them
# suffice.
SECONDS_AN_ARM = 1.5


@dataclass(frozen=True)
class Cell:
    """One shape. Times are medians in milliseconds. They are None if the cell was ``skipped``."""

    batch_size: int
    seq_len: int
    graphed_ms: float | None = None
    ungraphed_ms: float | None = None
    steps: int = 0
    skipped: str | None = None
    failed: bool = False

    @property
    def ratio(self) -> float | None:
        """Return the uncaptured time divided by the captured time."""
        if self.graphed_ms is None or self.ungraphed_ms is None:
            return None
        return self.ungraphed_ms / self.graphed_ms


def single_steps_ms(arm: CapturingTrainer, first: int, count: int) -> list[float]:
    """Return the wall time of each step in milliseconds. The device is idle before each step and after each step."""
    times = []
    for index in range(first, first + count):
        synchronize(arm.trainer.device)
        began = time.perf_counter()
        arm.step(index)
        synchronize(arm.trainer.device)
        times.append((time.perf_counter() - began) * 1e3)
    return times


def measure_cell(trainer: Trainer, batch_size: int, seq_len: int) -> Cell:
    """Measure both arms at one shape. A cell with a CUDA out-of-memory error is returned as skipped."""
    trainer.set_shape(seq_len, batch_size)
    plain, captured = CapturingTrainer(trainer, "none"), CapturingTrainer(trainer, "step")
    try:
        slowest = max(single_steps_ms(plain, 0, WARMUP_STEPS)[-1], 1e-3)
        single_steps_ms(captured, 0, WARMUP_STEPS)
        failure = captured.record().failure
        if failure is not None:
            return Cell(batch_size, seq_len, skipped=failure, failed="out of memory" not in failure)
        half = round(min(MOST_STEPS, max(FEWEST_STEPS, SECONDS_AN_ARM * 1e3 / slowest)) / 2)
        graphed = single_steps_ms(captured, WARMUP_STEPS, half)
        ungraphed = single_steps_ms(plain, WARMUP_STEPS, 2 * half)
        graphed += single_steps_ms(captured, WARMUP_STEPS + 2 * half, half)
        return Cell(batch_size, seq_len, float(np.median(graphed)), float(np.median(ungraphed)), 2 * half)
    except torch.cuda.OutOfMemoryError:
        return Cell(batch_size, seq_len, skipped="does not fit in device memory")
    finally:
        captured.close()
        del captured
        _release(trainer)


def _release(trainer: Trainer) -> None:
    """Free the graph pool and the activations of the last cell, so that the next cell can use all memory."""
    synchronize(trainer.device)
    gc.collect()
    if trainer.device.type == "cuda":
        torch.cuda.empty_cache()


def as_json(cells: list[Cell], model: str, seconds: float) -> dict[str, Any]:
    """Return the content of crossover.json."""
    rows = [{**asdict(cell), "ratio": cell.ratio} for cell in cells]
    return {"model": model, "seconds": seconds, "environment": environment(), "cells": rows}


def table(cells: list[Cell], model: str, seconds: float) -> str:
    """Return the content of crossover.md: ratio and times of each cell (uncaptured / captured, ms), skipped cells."""
    batch_sizes, seq_lens = sorted({c.batch_size for c in cells}), sorted({c.seq_len for c in cells})
    by_shape = {(cell.batch_size, cell.seq_len): cell for cell in cells}
    lines = [
        f"# Where capture pays: {model}",
        "",
        f"{environment()['device']}; {seconds:.0f} s. Uncaptured / captured (milliseconds of each).",
        "",
        "| batch | " + " | ".join(f"seq {seq_len}" for seq_len in seq_lens) + " |",
        "| --- |" + " --- |" * len(seq_lens),
    ]
    for batch_size in batch_sizes:
        shown = (_shown(by_shape[batch_size, seq_len]) for seq_len in seq_lens)
        lines.append(f"| {batch_size} | " + " | ".join(shown) + " |")
    lines += [f"\n- batch {c.batch_size}, seq {c.seq_len} skipped: {c.skipped}" for c in cells if c.skipped]
    return "\n".join(lines) + "\n"


def _shown(cell: Cell) -> str:
    if cell.ratio is None:
        return "skipped"
    return f"{cell.ratio:.2f} ({cell.ungraphed_ms:.1f} / {cell.graphed_ms:.1f})"


def plot(cells: list[Cell], model: str, path: Path) -> None:
    """Draw the ratios as a heat map, in which skipped cells are white. Write it to ``path``."""
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure

    batch_sizes, seq_lens = sorted({c.batch_size for c in cells}), sorted({c.seq_len for c in cells})
    ratios = np.full((len(batch_sizes), len(seq_lens)), np.nan)
    for cell in cells:
        if cell.ratio is not None:
            ratios[batch_sizes.index(cell.batch_size), seq_lens.index(cell.seq_len)] = cell.ratio
    # White means no gain. Gains and losses have separate color scales, so that a loss of a few percent is visible next
    # to a gain of tens of percent.
    scale = TwoSlopeNorm(1.0, float(np.nanmin(ratios, initial=0.8)), float(np.nanmax(ratios, initial=1.2)))
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(ratios, cmap="RdBu", norm=scale, aspect="auto")
    for (row, column), ratio in np.ndenumerate(ratios):
        if np.isfinite(ratio):
            dark = abs(scale(ratio) - 0.5) > 0.35
            axes.text(column, row, f"{ratio:.2f}", ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(seq_lens)), [str(value) for value in seq_lens])
    axes.set_yticks(range(len(batch_sizes)), [str(value) for value in batch_sizes])
    axes.set_xlabel("sequence length")
    axes.set_ylabel("batch size")
    axes.set_title(f"{model}: uncaptured / captured step time")
    figure.colorbar(image, ax=axes)
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument(
        "--tiny", action="store_true", help="use tiny shapes, to rehearse the run; the figures are useless"
    )
    arguments = parser.parse_args()
    model = "tiny" if arguments.tiny else "qwen2-1.5b"
    batch_sizes, seq_lens = ((1, 2), (16, 32)) if arguments.tiny else (BATCH_SIZES, SEQ_LENS)
    began = time.monotonic()
    trainer = Trainer(TrainConfig.preset(model, batch_size=batch_sizes[0], seq_len=seq_lens[0]))
    cells = []
    for seq_len in seq_lens:
        for batch_size in batch_sizes:
            cells.append(measure_cell(trainer, batch_size, seq_len))
            print(
                f"{time.monotonic() - began:6.1f} s  batch {batch_size} seq {seq_len}: {_shown(cells[-1])}", flush=True
            )
    seconds = time.monotonic() - began
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "crossover.json").write_text(json.dumps(as_json(cells, model, seconds), indent=2) + "\n")
    (arguments.out / "crossover.md").write_text(table(cells, model, seconds))
    plot(cells, model, arguments.out / "crossover.svg")
    print(table(cells, model, seconds))
    return 1 if any(cell.failed for cell in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
