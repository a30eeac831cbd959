"""Time FP8 kernels, their bfloat16 counterparts, and a decoder block's matrix products in each number format."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reference_impl import fp8
from reference_impl.config import ModelConfig
from reference_impl.kernels import registry
from reference_impl.kernels.fp8_loss import naive as loss_twin
from reference_impl.kernels.fp8_nf4 import naive as nf4_twin
from reference_impl.kernels.fp8_norm import naive as norm_twin
from reference_impl.kernels.fp8_rows import naive as rows_twin
from reference_impl.kernels.fp8_swiglu import naive as swiglu_twin
from reference_impl.nf4 import quantize

REPEATS = 20


def time_us(call: Callable[[], object], device: torch.device) -> float:
    """Return the time of one call in microseconds, as the median of three replays of a graph with `REPEATS` calls."""
    if device.type != "cuda":
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e6
    for _ in range(2):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            call()
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e6 / REPEATS)
    return statistics.median(times)


def differing(found: Any, twin: Any) -> list[int]:
    """Return the number of elements that differ between `found` and `twin`, for each tensor that a kernel returns."""
    pairs = zip(found, twin, strict=True)
    return [int((a.float() != b.float()).sum()) for a, b in pairs if a is not None]


def kernels(config: ModelConfig, tokens: int, device: torch.device) -> dict[str, Any]:
    """Return, by kernel, the comparison of each FP8 kernel with its naive twin, and times in microseconds.

    An entry has the number of different elements and the number of all elements of each result, the time of the kernel,
    and the time of the corresponding bfloat16 kernel (None if there is none).
    """
    load = registry.load
    hidden, wide, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    x, other, gain = draw(tokens, hidden), draw(tokens, hidden), torch.rand(hidden, device=device) + 0.5
    gate_up, grad_act = draw(tokens, 2 * wide), draw(tokens, wide)
    codes, absmax = quantize(torch.randn(2 * wide, hidden, device=device) * 0.02)
    row, column = (torch.full((size,), 2.0**12, device=device) for size in (2 * wide, hidden))
    logits = draw(512, config.vocab_size)
    targets = torch.randint(0, config.vocab_size, (512,), device=device)
    norm, rms = load("fp8_norm"), load("rms_norm")
    rstd = rms.forward(x, gain, eps)[1]
    partials = rms.gain_partials(x, 1)[0]
    own = torch.empty(1, hidden, device=device)
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any] | None]] = {
        "rows": (partial(load("fp8_rows").quantize, x), partial(rows_twin.quantize, x), None),
        "norm.forward": (
            partial(norm.add_forward, x, other, gain, eps, keep=True),
            partial(norm_twin.add_forward, x, other, gain, eps, keep=True),
            partial(rms.add_forward, x, other, gain, eps),
        ),
        "norm.backward": (
            partial(norm.backward_to_partials, other, x, gain, rstd, partials, x),
            partial(norm_twin.backward_to_partials, other, x, gain, rstd, own, x),
            partial(rms.backward_to_partials, other, x, gain, rstd, partials, x),
        ),
        "swiglu.forward": (
            partial(load("fp8_swiglu").forward, gate_up),
            partial(swiglu_twin.forward, gate_up),
            partial(load("swiglu").forward, gate_up),
        ),
        "swiglu.backward": (
            partial(load("fp8_swiglu").backward, grad_act, gate_up),
            partial(swiglu_twin.backward, grad_act, gate_up),
            partial(load("swiglu").backward, grad_act, gate_up),
        ),
        "nf4.rows": (
            lambda: [load("fp8_nf4").rows(codes, absmax, row, hidden)],
            lambda: [nf4_twin.rows(codes, absmax, row, hidden)],
            lambda: load("nf4").dequantize(codes, absmax, 2 * wide, hidden, dtype),
        ),
        "nf4.transposed": (
            lambda: [load("fp8_nf4").transposed(codes, absmax, column, 2 * wide)],
            lambda: [nf4_twin.transposed(codes, absmax, column, 2 * wide)],
            None,
        ),
        "loss": (
            partial(load("fp8_loss").forward_backward, logits, targets),
            partial(loss_twin.forward_backward, logits, targets),
            partial(load("cross_entropy").forward_backward_, logits.clone(), targets, 1.0),
        ),
    }
    return {
        name: {
            "differing": differing(kernel(), twin()),
            "elements": [part.numel() for part in kernel() if part is not None],
            "us": time_us(kernel, device),
            "bfloat16_us": None if plain is None else time_us(plain, device),
        }
        for name, (kernel, twin, plain) in pairs.items()
    }


def products(config: ModelConfig, tokens: int) -> dict[str, Any]:
    """Return the time in microseconds of each matrix product of a decoder block, by product and number format.

    The products are those of the forward pass and of the input gradients.
    """
    shapes = {
        "qkv": (config.qkv_dim, config.hidden_size),
        "output": (config.hidden_size, config.query_dim),
        "gate_up": (2 * config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
    }
    found: dict[str, Any] = {}
    for name, (outputs, inputs) in shapes.items():
        for way, n, k in (("forward", outputs, inputs), ("backward", inputs, outputs)):
            a = torch.randn(tokens, k, device="cuda").bfloat16()
            b = torch.randn(n, k, device="cuda").mul_(0.02).bfloat16()
            left, right = fp8.ScaledRows.of(a), fp8.ScaledRows.of(b)
            one = torch.ones((), device="cuda")
            tensors = fp8.ScaledRows(left.data, one), fp8.ScaledRows(right.data, one)
            row = {"bfloat16": time_us(partial(torch.mm, a, b.t()), torch.device("cuda"))}
            for scales, pair in (("row", (left, right)), ("tensor", tensors)):
                for fast in (True, False):
                    call = partial(fp8.Fp8Products(torch.bfloat16, k if fast else 0).multiply, *pair)
                    row[f"{scales}{' fast' if fast else ''}"] = time_us(call, torch.device("cuda"))
                    if scales == "row":
                        exact = fp8._twin(left, right, None, torch.float32, None)
                        error = (call().float() - exact).norm() / exact.norm()
                        row[f"error{' fast' if fast else ''}"] = float(error)
            same = fp8.Fp8Products(torch.bfloat16).multiply(left, right)
            repeats = [fp8.Fp8Products(torch.bfloat16).multiply(left, right) for _ in range(20)]
            row["repeats_equal"] = all(torch.equal(same, other) for other in repeats)
            found[f"{name} {way}"] = row
    return found
