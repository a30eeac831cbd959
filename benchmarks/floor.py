"""The floor of a training step: its large GEMMs alone, captured, on random bf16 matrices.

    python -m benchmarks.floor [--model qwen2-1.5b] [--batch-size 4] [--seq-lens 128 512]

Forward products and input-gradient products of every projection, one by one as transformers runs them (q, k, v, o,
gate, up, down), and of the head. No dequantization, no LoRA, no attention, nothing elementwise: what remains when all
else is free. Every layer has weights of its own, so that they come from memory and not from the cache.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.measure import time_steps
from reference_impl.config import MODEL_PRESETS, ModelConfig

WARMUP_STEPS = 3
TIMED_STEPS = 50


@dataclass(frozen=True)
class Product:
    """One projection: its weight [outputs, inputs] and the matrices that it reads and writes."""

    weight: Tensor
    value: Tensor  # [T, inputs]
    output: Tensor  # [T, outputs], also the incoming gradient of the backward
    grad_value: Tensor  # [T, inputs]


def projection_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """(outputs, inputs) of the projections of one layer, in the order of the forward."""
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


def floating_point_operations(config: ModelConfig, tokens: int) -> int:
    """Multiplications and additions of the step: 2 * T * outputs * inputs a product, forward and backward."""
    layer = sum(outputs * inputs for outputs, inputs in projection_shapes(config))
    return 4 * tokens * (config.num_layers * layer + config.vocab_size * config.hidden_size)


class GemmFloor:
    """The products of one step; `step` replays them from a CUDA graph, or runs them one by one without CUDA."""

    def __init__(self, config: ModelConfig, tokens: int, device: torch.device) -> None:
        self._products = self._make(config, tokens, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._capture()

    @staticmethod
    def _make(config: ModelConfig, tokens: int, device: torch.device, dtype: torch.dtype) -> list[Product]:
        buffers: dict[tuple[str, int], Tensor] = {}

        def buffer(role: str, width: int) -> Tensor:
            """Random activations: zeros would let the GPU draw less power and run faster than in a real step."""
            if (role, width) not in buffers:
                buffers[role, width] = torch.randn(tokens, width, device=device, dtype=dtype)
            return buffers[role, width]

        shapes = projection_shapes(config) * config.num_layers + [(config.vocab_size, config.hidden_size)]
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
        """Enqueue every product once."""
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODEL_PRESETS), default="qwen2-1.5b")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seq-lens", type=int, nargs="+", default=[128, 512])
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = MODEL_PRESETS[arguments.model]
    for seq_len in arguments.seq_lens:
        tokens = arguments.batch_size * seq_len
        floor = GemmFloor(config, tokens, device)
        times = time_steps(floor.step, 0, TIMED_STEPS, device)
        rate = floating_point_operations(config, tokens) / times.median_ms / 1e9
        how = "captured" if floor.captured else "not captured: no CUDA device"
        print(
            f"batch {arguments.batch_size} seq {seq_len}: median {times.median_ms:.2f} ms, "
            f"in a block {times.block_ms:.2f} ms, {rate:.1f} TFLOP/s ({how})"
        )


if __name__ == "__main__":
    main()
