"""Variants of the step in FP8, timed side by side: python -m scripts.fp8_variants --out FOLDER."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.fp8_kernels import products, time_us
from benchmarks.fp8_step import Arm, Results, steps
from reference_impl import cuda_graph
from reference_impl.config import MODEL_PRESETS, TrainConfig
from reference_impl.kernels import registry
from reference_impl.kernels.fp8_nf4 import kernel as nf4
from reference_impl.kernels.fp8_norm import kernel as norm
from reference_impl.kernels.fp8_swiglu import kernel as swiglu
from reference_impl.kernels.rms_norm import kernel as rms
from reference_impl.nf4 import quantize

CUDA = torch.device("cuda")


class OverlappedArm(Arm):
    def prepare(self, seq_len: int) -> dict[str, Any]:
        own, cuda_graph.MOST_TOKENS_OVERLAPPED = cuda_graph.MOST_TOKENS_OVERLAPPED, 10**9
        try:
            return super().prepare(seq_len)
        finally:
            cuda_graph.MOST_TOKENS_OVERLAPPED = own


def kernels(tokens: int) -> dict[str, float]:
    found = {}
    x, grad, residual = (torch.randn(tokens, 1536, device=CUDA).bfloat16() for _ in range(3))
    gain = torch.ones(1536, device=CUDA)
    rstd = torch.ones(tokens, device=CUDA)
    for most in (512, 1024, 2048, 4096):
        rms._MAX_PARTIALS = most
        norm.backward_spec.cache_clear()
        rms._reduce_gain_spec.cache_clear()
        for warps in (1, 2, 4, 8):
            partials = rms.gain_partials(x, 1)
            sums = torch.empty(1536, device=CUDA)

            def launched(spec: registry.KernelSpec, arguments: Any, warps: int = warps) -> None:
                registry.jit_launch(replace(spec, num_warps=warps), arguments)

            def call(partials: torch.Tensor = partials) -> None:
                with registry.launching_by(launched):
                    norm.backward_to_partials(grad, x, gain, rstd, partials[0], residual)

            found[f"norm.backward partials {most} w{warps}"] = time_us(call, CUDA)
        found[f"reduce partials {most}"] = time_us(partial(rms.reduce_gains, partials, sums), CUDA)
    rms._MAX_PARTIALS = 512
    norm.backward_spec.cache_clear()
    for warps in (1, 2, 4, 8):

        def launched(spec: registry.KernelSpec, arguments: Any, warps: int = warps) -> None:
            registry.jit_launch(replace(spec, num_warps=warps), arguments)

        def forward(keep: bool) -> None:
            with registry.launching_by(launched):
                norm.add_forward(x, residual, gain, 1e-6, keep=keep)

        for keep in (True, False):
            found[f"norm.forward keep={keep} w{warps}"] = time_us(partial(forward, keep), CUDA)
    for rows, cols in ((17920, 1536), (1536, 8960), (2048, 1536)):
        codes, absmax = quantize(torch.randn(rows, cols, device=CUDA) * 0.02)
        row, column = torch.ones(rows, device=CUDA), torch.ones(cols, device=CUDA)
        for tile in (32, 64, 128, 256):
            for warps in (2, 4, 8):
                nf4._TILE_ROWS, nf4._NUM_WARPS = tile, warps
                nf4.transposed_spec.cache_clear()
                call = partial(nf4.transposed, codes, absmax, column, rows)
                found[f"transposed {rows}x{cols} tile {tile} w{warps}"] = time_us(call, CUDA)
        nf4._NUM_WARPS, nf4._TILE_ROWS = 4, 128
        for words in (128, 256, 512, 1024):
            nf4._WORDS = words
            nf4.rows_spec.cache_clear()
            found[f"rows {rows}x{cols} words {words}"] = time_us(partial(nf4.rows, codes, absmax, row, cols), CUDA)
        nf4._WORDS = 512
        nf4.rows_spec.cache_clear()
        nf4.transposed_spec.cache_clear()
    gate_up = torch.randn(tokens, 17920, device=CUDA).bfloat16()
    grad_act = torch.randn(tokens, 8960, device=CUDA).bfloat16()
    for warps in (4, 8, 16):

        def launched(spec: registry.KernelSpec, arguments: Any, warps: int = warps) -> None:
            registry.jit_launch(replace(spec, num_warps=warps), arguments)

        def both() -> None:
            with registry.launching_by(launched):
                swiglu.backward(grad_act, gate_up)

        found[f"swiglu.backward w{warps}"] = time_us(both, CUDA)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    results = Results(out, CUDA)
    shape = MODEL_PRESETS["qwen2-1.5b"]
    results.section("kernels 8192", partial(kernels, 8192))
    results.section("kernels 2048", partial(kernels, 2048))
    for tokens in (2048, 8192):
        results.section(f"products {tokens}", partial(products, shape, tokens))
    config = TrainConfig.preset("qwen2-1.5b", batch_size=4, seq_len=512, max_norm=0.1, precision="fp8")
    arms = {
        "fp8": Arm(config),
        "overlap": OverlappedArm(config),
        "chunk1024": Arm(replace(config, loss_chunk=1024)),
        "chunk2048": Arm(replace(config, loss_chunk=2048)),
    }
    results.section("steps", partial(steps, arms, shape, [2048, 512], results))
    results.finish()
    print(json.dumps({}))


if __name__ == "__main__":
    main()
