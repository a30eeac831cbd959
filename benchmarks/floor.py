"""Time the "floor" of a training step: only its large matrix products, captured, on random bf16 matrices.

python -m benchmarks.floor [--model qwen2-1.5b] [--batch-size 4] [--seq-lens 128 512 2048] [--out FILE]

The floor consists of the products of every projection and of the head, in the forward pass and for input gradients,
without dequantization, LoRA, attention or elementwise work. It is the time that a step would take if all its other work
took no time. Every layer has its own weights, so that weights are read from memory and not from the cache. There are
two floors. The first has separate products for q, k, v, o, gate, up and down, as in transformers. The second has one
product for q, k and v, and one for gate and up, as in the reference step. All steps are compared with the first floor.
A step with fused products may be faster than the first floor, so the second floor is reported, too.

The captured step, both floors and the captured step in FP8 are timed in one process. They take turns in each round,
because a GPU at its power limit runs the same kernels at changing speeds. The multiprocessors' clock is reported with
each time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import (
    clock_mhz,
    environment,
    peak_memory_gib,
    reset_peak_memory,
    steps_of_a_round,
    synchronize,
    time_steps,
)
from reference_impl.config import MODEL_PRESETS, ModelConfig, TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.trainer import Trainer

WARMUP_STEPS = 3
ROUNDS = 5
FP8_CAPABILITY = (9, 0)  # lowest compute capability for which torch multiplies FP8 matrices with one scale for each row


@dataclass(frozen=True)
class Product:
    """One projection: the weight [outputs, inputs], and the matrices that its products read and write."""

    weight: Tensor
    value: Tensor  # [T, inputs]
    output: Tensor  # [T, outputs]; also used as the incoming gradient of the backward pass
    grad_value: Tensor  # [T, inputs]


def projection_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """Return (outputs, inputs) of the projections of one layer, in the order of the forward pass."""
    hidden, wide = config.hidden_size, config.intermediate_size
    return [
        (config.query_dim, hidden),
        (config.kv_dim, hidden),
        (config.kv_dim, hidden),
        (hidden, config.query_dim),
        (wide, hidden),
        (wide, hidden),
        (hidden, wide),
    ]


def fused_projection_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """Return (outputs, inputs) as `projection_shapes` does, with one matrix for q, k and v, and one for gate and up."""
    hidden, wide = config.hidden_size, config.intermediate_size
    return [(config.qkv_dim, hidden), (hidden, config.query_dim), (2 * wide, hidden), (hidden, wide)]


def floating_point_operations(config: ModelConfig, tokens: int) -> int:
    """Return the number of floating-point operations of a step, for T = tokens.

    Each product of the forward and the backward pass has 2 * T * outputs * inputs operations.
    """
    layer = sum(outputs * inputs for outputs, inputs in projection_shapes(config))
    return 4 * tokens * (config.num_layers * layer + config.vocab_size * config.hidden_size)


class GemmFloor:
    """The products of one step. `step` replays them from a CUDA graph, or runs them one by one on a CPU."""

    def __init__(self, config: ModelConfig, tokens: int, device: torch.device, *, fused: bool = False) -> None:
        shapes = (fused_projection_shapes if fused else projection_shapes)(config) * config.num_layers
        shapes.append((config.vocab_size, config.hidden_size))
        self._products = self._make(shapes, tokens, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._capture()

    @staticmethod
    def _make(shapes: list[tuple[int, int]], tokens: int, device: torch.device, dtype: torch.dtype) -> list[Product]:
        buffers: dict[tuple[str, int], Tensor] = {}

        def buffer(role: str, width: int) -> Tensor:
            """Return random activations. With zeros, a GPU would need less power and run faster than in a real step."""
            if (role, width) not in buffers:
                buffers[role, width] = torch.randn(tokens, width, device=device, dtype=dtype)
            return buffers[role, width]

        return [
            Product(
                torch.randn(outputs, inputs, device=device, dtype=dtype).mul_(0.02),
                buffer("value", inputs),
                buffer("output", outputs),
                buffer("grad", inputs),
            )
            for outputs, inputs in shapes
        ]

    @property
    def captured(self) -> bool:
        return self._graph is not None

    def _run(self) -> None:
        for product in self._products:
            torch.mm(product.value, product.weight.t(), out=product.output)
        for product in reversed(self._products):
            torch.mm(product.output, product.weight, out=product.grad_value)

    def _capture(self) -> None:
        for _ in range(WARMUP_STEPS):
            self._run()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._run()

    def step(self, _index: int) -> None:
        """Enqueue every product of the step once."""
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()


@dataclass(frozen=True)
class Interleaved:
    """The measurements of one arm: times of single steps, and the multiprocessors' clock after each round."""

    milliseconds: tuple[float, ...]
    clocks_mhz: tuple[int, ...]  # empty if no clock can be read

    @property
    def median_ms(self) -> float:
        return float(median(self.milliseconds))

    def described(self) -> dict[str, float | None]:
        """Return the median step in ms, the median clock in MHz and the number of steps, for JSON."""
        return {
            "median_ms": self.median_ms,
            "clock_mhz": float(median(self.clocks_mhz)) if self.clocks_mhz else None,
            "single_steps": len(self.milliseconds),
        }


def interleaved(arms: Mapping[str, Callable[[int], object]], device: torch.device) -> dict[str, Interleaved]:
    """Time the arms in turns, in `ROUNDS` rounds. Before each turn, two untimed steps let the GPU's clocks rise.

    All arms run the same number of steps in a round, the number that the slowest arm can run in a round's time.
    """
    times: dict[str, list[float]] = {name: [] for name in arms}
    clocks: dict[str, list[int]] = {name: [] for name in arms}
    slowest = max(time_steps(step, 0, 1, device).median_ms for step in arms.values())
    steps = steps_of_a_round(slowest)
    index = 2
    for _ in range(ROUNDS):
        for name, step in arms.items():
            for _ in range(2):
                step(index)
            times[name] += time_steps(step, index, steps, device).milliseconds
            index += 2 * steps
            step(index)  # call the step once more, so that it is still running while the clock is read
            if (clock := clock_mhz(device)) is not None:
                clocks[name].append(clock)
    return {name: Interleaved(tuple(times[name]), tuple(clocks[name])) for name in arms}


@dataclass(frozen=True)
class StepAndFloors:
    """Times of the captured step and both floors, and the peak memory of capture and replay (None on a CPU).

    ``fp8_step`` is the captured step with FP8 products, or None on a GPU without such products.
    """

    step: Interleaved
    floor: Interleaved
    fused_floor: Interleaved
    peak_gib: float | None
    fp8_step: Interleaved | None = None

    def described(self) -> dict[str, Any]:
        """Return the figures for JSON, by name. A figure with ``times_`` in its name is the step's time divided by a
        floor's."""
        arms = {name: getattr(self, name) for name in ("step", "floor", "fused_floor", "fp8_step")}
        ratios = {f"times_{name}": self.step.median_ms / arms[name].median_ms for name in ("floor", "fused_floor")}
        if self.fp8_step is not None:
            ratios["fp8_times_floor"] = self.fp8_step.median_ms / self.floor.median_ms
        described = {name: None if arm is None else arm.described() for name, arm in arms.items()}
        return described | ratios | {"peak_gib": self.peak_gib}


def step_and_floors(config: TrainConfig) -> StepAndFloors:
    """Measure the captured step of ``config``, both floors, and the captured step in FP8. They are timed in turns.

    Raises RuntimeError if a step was not captured.
    """
    with ExitStack() as stack:
        capturing, peak = _captured(config, stack)
        trainer = capturing.trainer
        tokens = config.batch_size * config.seq_len
        floors = [GemmFloor(trainer.model_config, tokens, trainer.device, fused=fused) for fused in (False, True)]
        arms: dict[str, Callable[[int], object]] = {
            "step": capturing.step,
            "floor": floors[0].step,
            "fused_floor": floors[1].step,
        }
        if trainer.device.type != "cuda" or torch.cuda.get_device_capability(trainer.device) >= FP8_CAPABILITY:
            arms["fp8_step"] = _captured(replace(config, precision="fp8"), stack)[0].step
        return StepAndFloors(**interleaved(arms, trainer.device), peak_gib=peak)


def _captured(config: TrainConfig, stack: ExitStack) -> tuple[CapturingTrainer, float | None]:
    """Return a trainer after its capture and one replay, and its peak memory in GiB. ``stack`` closes it."""
    trainer = Trainer(config)
    capturing = CapturingTrainer(trainer, "step")
    stack.callback(capturing.close)
    reset_peak_memory(trainer.device)
    capturing.step(0)
    if (failure := capturing.record().failure) is not None:
        raise RuntimeError(f"the step was not captured: {failure}")
    capturing.step(1)
    synchronize(trainer.device)
    return capturing, peak_memory_gib(trainer.device)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODEL_PRESETS), default="qwen2-1.5b")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seq-lens", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--out", type=Path, help="also write the figures to this file, as JSON")
    arguments = parser.parse_args()
    found = []
    for seq_len in arguments.seq_lens:
        config = TrainConfig.preset(arguments.model, batch_size=arguments.batch_size, seq_len=seq_len)
        figures = step_and_floors(config)
        found.append({"batch_size": config.batch_size, "seq_len": seq_len, **figures.described()})
        operations = floating_point_operations(MODEL_PRESETS[arguments.model], config.batch_size * seq_len)
        print(_lines(f"batch {config.batch_size} seq {seq_len}", figures, operations), flush=True)
        if arguments.out:
            arguments.out.write_text(json.dumps({"environment": environment(), "figures": found}, indent=2) + "\n")


def _lines(title: str, figures: StepAndFloors, operations: int) -> str:
    described = figures.described()
    peak = "" if figures.peak_gib is None else f", peak {figures.peak_gib:.2f} GiB"
    fp8 = f", FP8 {described['fp8_times_floor']:.3f}" if figures.fp8_step else ""
    lines = [
        f"{title}: {described['times_floor']:.3f} of the floor, {described['times_fused_floor']:.3f} of the fused{fp8}"
    ]
    for name in ("step", "floor", "fused_floor", "fp8_step"):
        arm = described[name]
        if arm is None:
            continue
        clock = "" if arm["clock_mhz"] is None else f" at {arm['clock_mhz']:.0f} MHz"
        rate = peak if name == "step" else f", {operations / arm['median_ms'] / 1e9:.1f} TFLOP/s"
        lines.append(f"  {name:<12}{arm['median_ms']:9.2f} ms{clock}{rate}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
