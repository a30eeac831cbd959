"""Measure the accuracy of FP8 relative to bfloat16: loss curves over several seeds, and errors of gradients.

    python -m benchmarks.fp8_accuracy --out reports/<date>-<gpu>-fp8 [--model qwen2-1.5b] [--seq-len 512]

For the loss curves, each arm trains independently from the same start, on the same batches. A second bfloat16 arm
rounds at different places. It shows how much two trainings with the same precision differ at the end. For the
gradients, arms in FP8, bfloat16 and float32 compute clipped gradients at the same parameters, which are from the FP8
training, and on the same batch. The error of a tensor is the L2 norm of its difference from the float32 gradient,
divided by the norm of the float32 gradient. The reported error is the root mean square over seeds and steps
(docs/step-accuracy.md). The script writes accuracy.json after every seed, and curves.csv and curves.svg at the end.
`complete` in accuracy.json is true when all seeds are done.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import environment
from reference_impl.config import MODEL_PRESETS, TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.trainer import Trainer

LAST = 20  # the result of a training is the mean loss of its last 20 steps, as in the claim FP8-NOT-WORSE-001
GRADIENT_STEPS = (1, 10, 49)  # the steps that the claim REF-STEP-GPU-001 compares
GRADIENT_SEEDS = 3
ARMS = ("fp8", "bfloat16")
# An arm in bfloat16 that computes the loss in chunks of half the size, so that only its rounding differs.
OTHER = "bfloat16_other"


@dataclass
class Found:
    """The results so far: losses by arm and seed, and squared errors of gradients by arm and tensor."""

    losses: dict[str, dict[int, list[float]]] = field(default_factory=lambda: defaultdict(dict))
    squares: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def summary(self) -> dict[str, Any]:
        ends = {
            arm: {seed: statistics.fmean(each[-LAST:]) for seed, each in seeds.items()}
            for arm, seeds in self.losses.items()
        }
        plain = ends["bfloat16"]
        gaps = {seed: end - plain[seed] for seed, end in ends["fp8"].items()}
        return {
            "end_losses": ends,
            "fp8_minus_bfloat16": gaps,
            "other_minus_bfloat16": {seed: end - plain[seed] for seed, end in ends[OTHER].items()},
            "mean_gap": statistics.fmean(gaps.values()),
            "largest_gap": max(gaps.values()),
            "gradient_errors": self._errors(),
        }

    def _errors(self) -> dict[str, Any]:
        errors = {
            arm: {name: math.sqrt(statistics.fmean(each)) for name, each in tensors.items()}
            for arm, tensors in self.squares.items()
        }
        if not errors:
            return {}
        plain = errors["bfloat16"]
        # On a CPU the bfloat16 arm computes in float32 and has no error. Leave out ratios to an error of 0.
        ratios = {name: error / plain[name] for name, error in errors["fp8"].items() if plain[name] > 0}
        medians = {f"median_{arm}": statistics.median(each.values()) for arm, each in errors.items()}
        largest = {f"largest_{arm}": max(each.values()) for arm, each in errors.items()}
        if not ratios:
            return {**medians, **largest}
        worst = max(ratios, key=lambda name: ratios[name])
        ratio = {"median_ratio": statistics.median(ratios.values()), "largest_ratio": ratios[worst]}
        return {**medians, **largest, **ratio, "largest_ratio_of": worst}


def clipped_gradients(trainer: Trainer, parameters: Tensor, index: int) -> dict[str, Tensor]:
    """Return the trainer's gradients at `parameters`, on batch `index`, after clipping."""
    trainer.trainable.flat.copy_(parameters)
    trainer.prepare(index)
    trainer.gradients_body()
    trainer.clip.apply_(trainer.trainable.gradient)
    return {name: value.clone() for name, value in trainer.gradients().items()}


def compare_gradients(config: TrainConfig, points: dict[int, Tensor], found: Found) -> None:
    """Add to `found` the gradient errors of FP8 and bfloat16 relative to float32. points: step -> parameters."""
    exact = Trainer(replace(config, dtype="float32", precision="dtype"))
    references = {index: clipped_gradients(exact, point, index) for index, point in points.items()}
    del exact
    for arm in ARMS:
        trainer = Trainer(of_arm(config, arm))
        for index, point in points.items():
            for name, gradient in clipped_gradients(trainer, point, index).items():
                reference = references[index][name]
                found.squares[arm][name].append(float((gradient - reference).norm() / reference.norm()) ** 2)


def of_arm(config: TrainConfig, arm: str) -> TrainConfig:
    if arm == OTHER:
        return replace(config, loss_chunk=config.chunk_tokens // 2)
    return replace(config, precision="fp8" if arm == "fp8" else "dtype")


def train(config: TrainConfig, arm: str, found: Found) -> dict[int, Tensor]:
    """Train one arm (captured on a GPU), and add its losses to `found`. Return the parameters before each of
    `GRADIENT_STEPS`, by step."""
    trainer = Trainer(of_arm(config, arm))
    capturing = CapturingTrainer(trainer, "step" if trainer.device.type == "cuda" else "none")
    points, losses = {}, []
    for index in range(config.steps):
        if index in GRADIENT_STEPS:
            points[index] = trainer.trainable.flat.clone()
        losses.append(capturing.step(index))
    failure = capturing.record().failure
    if failure is not None:
        raise RuntimeError(f"the step was not captured: {failure}")
    found.losses[arm][config.seed] = torch.stack(losses).tolist()
    capturing.close()
    return points


def write_curves(found: Found, out: Path) -> None:
    """Write curves.csv with a row for each step and a column for each arm and seed, and curves.svg with lines."""
    columns = {f"{arm}.{seed}": losses for arm, seeds in found.losses.items() for seed, losses in seeds.items()}
    with (out / "curves.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", *columns])
        writer.writerows([index, *row] for index, row in enumerate(zip(*columns.values(), strict=True)))
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for arm, color in zip(ARMS, ("#c44e52", "#4c72b0"), strict=True):
        for position, losses in enumerate(found.losses[arm].values()):
            label = arm if position == 0 else None
            axes.plot(losses, color=color, alpha=0.35, linewidth=0.8, label=label)
    axes.set(xlabel="step", ylabel="loss, nats", title="Products in FP8 and in bfloat16, one line per seed")
    axes.legend()
    figure.tight_layout()
    figure.savefig(out / "curves.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--model", choices=sorted(MODEL_PRESETS), default="qwen2-1.5b")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    found = Found()
    base = TrainConfig.preset(arguments.model, seq_len=arguments.seq_len, steps=arguments.steps)
    told = {"model": arguments.model, "seq_len": arguments.seq_len, "batch_size": base.batch_size, "steps": base.steps}
    for seed in range(arguments.seeds):
        config = replace(base, seed=seed)
        points = train(config, "fp8", found)
        train(config, "bfloat16", found)
        train(config, OTHER, found)
        if seed < GRADIENT_SEEDS:
            compare_gradients(config, points, found)
        complete = seed + 1 == arguments.seeds
        content = {"environment": environment(), **told, **found.summary(), "complete": complete}
        (arguments.out / "accuracy.json").write_text(json.dumps(content, indent=1) + "\n")
        print(f"seed {seed}: fp8 - bfloat16 {content['fp8_minus_bfloat16'][seed]:+.4f}", flush=True)
    write_curves(found, arguments.out)


if __name__ == "__main__":
    main()
