"""Variants of the step in FP8 and of its kernels, timed side by side: python -m scripts.fp8_variants --out FOLDER."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
WARPS = (1, 2, 4, 8, 16)


class OverlappedArm(Arm):
    """Uses the second stream at any length."""

    def prepare(self, seq_len: int) -> dict[str, Any]:
        own, cuda_graph.MOST_TOKENS_OVERLAPPED = cuda_graph.MOST_TOKENS_OVERLAPPED, 10**9
        try:
            return super().prepare(seq_len)
        finally:
            cuda_graph.MOST_TOKENS_OVERLAPPED = own


def by_warps(call: Callable[[], object]) -> dict[str, float]:
    """Microseconds of `call` with its kernel compiled for other numbers of warps."""

    def with_warps(count: int) -> float:
        def launched(spec: registry.KernelSpec, arguments: tuple[Tensor, ...]) -> None:
            registry.jit_launch(replace(spec, num_warps=count), arguments)

        with registry.launching_by(launched):
            return time_us(call, CUDA)

    return {f"w{count}": with_warps(count) for count in WARPS}


@contextmanager
def constants(module: Any, **values: int) -> Iterator[None]:
    """Other module constants, and specs made anew."""
    specs = (norm.backward_spec, rms._reduce_gain_spec, nf4.rows_spec, nf4.transposed_spec)
    own = {name: getattr(module, name) for name in values}
    for changed in (values, own):
        for name, value in changed.items():
            setattr(module, name, value)
        for spec in specs:
            spec.cache_clear()
        if changed is values:
            yield


def norms(tokens: int) -> dict[str, Any]:
    x, grad, residual = (torch.randn(tokens, 1536, device=CUDA).bfloat16() for _ in range(3))
    gain, rstd, sums = (torch.ones(size, device=CUDA) for size in (1536, tokens, 1536))
    found: dict[str, Any] = {}
    for keep in (True, False):
        found[f"forward keep={keep}"] = by_warps(partial(norm.add_forward, x, residual, gain, 1e-6, keep=keep))
    for most in (512, 1024, 2048, 4096):
        with constants(rms, _MAX_PARTIALS=most):
            partials = rms.gain_partials(x, 1)
            call = partial(norm.backward_to_partials, grad, x, gain, rstd, partials[0], residual)
            found[f"backward partials {most}"] = by_warps(call)
            found[f"reduce partials {most}"] = time_us(partial(rms.reduce_gains, partials, sums), CUDA)
    return found


def weights(rows: int, cols: int) -> dict[str, Any]:
    codes, absmax = quantize(torch.randn(rows, cols, device=CUDA) * 0.02)
    row, column = torch.ones(rows, device=CUDA), torch.ones(cols, device=CUDA)
    found: dict[str, Any] = {}
    for tile in (32, 64, 128, 256):
        with constants(nf4, _TILE_ROWS=tile):
            found[f"transposed tile {tile}"] = by_warps(partial(nf4.transposed, codes, absmax, column, rows))
    for words in (128, 256, 512, 1024):
        with constants(nf4, _WORDS=words):
            found[f"rows words {words}"] = by_warps(partial(nf4.rows, codes, absmax, row, cols))
    return found


def swiglus(tokens: int) -> dict[str, Any]:
    gate_up = torch.randn(tokens, 17920, device=CUDA).bfloat16()
    grad_act = torch.randn(tokens, 8960, device=CUDA).bfloat16()
    forward, backward = partial(swiglu.forward, gate_up), partial(swiglu.backward, grad_act, gate_up)
    return {"forward": by_warps(forward), "backward": by_warps(backward)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    results = Results(parser.parse_args().out, CUDA)
    shape = MODEL_PRESETS["qwen2-1.5b"]
    config = TrainConfig.preset("qwen2-1.5b", batch_size=4, seq_len=512, max_norm=0.1, precision="fp8")
    arms = {
        "fp8": Arm(config),
        "overlap": OverlappedArm(config),
        "chunk1024": Arm(replace(config, loss_chunk=1024)),
        "chunk2048": Arm(replace(config, loss_chunk=2048)),
    }
    results.section("steps", partial(steps, arms, shape, [2048, 512], results))
    for tokens in (8192, 2048):
        results.section(f"products {tokens}", partial(products, shape, tokens))
        results.section(f"norms {tokens}", partial(norms, tokens))
        results.section(f"swiglu {tokens}", partial(swiglus, tokens))
    for rows, cols in ((17920, 1536), (1536, 8960), (2048, 1536)):
        results.section(f"weights {rows}x{cols}", partial(weights, rows, cols))
    results.finish()


if __name__ == "__main__":
    main()
