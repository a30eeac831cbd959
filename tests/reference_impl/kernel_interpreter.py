"""Runs the kernels that are named in Triton's interpreter at ragged sizes and prints one JSON line a case.

Started with TRITON_INTERPRET=1 in a process of its own: a process that interprets kernels cannot compile them. The
interpreter computes in fp32 only; its bf16 is wrong without an error.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable
from unittest import mock

import attention_oracle
import kernel_oracles as oracles
import torch

from reference_impl.config import MODEL_PRESETS, TrainConfig
from reference_impl.kernel_table import kernel_table
from reference_impl.kernels.attention import kernel as attention
from reference_impl.kernels.rms_norm import kernel as rms_norm
from reference_impl.step_cases import STEP_OPERATIONS, Setting

CPU = torch.device("cpu")
FP32 = torch.float32


def check_rms_norm_in_small_tiles(tokens: int, hidden: int) -> list[oracles.Comparison]:
    """The second stage reduces its partials in more than one tile, the last one ragged; by itself with 513 tokens."""
    with mock.patch.object(rms_norm, "REDUCE_ROWS", 16):
        assert rms_norm.gain_partials(torch.empty(tokens, hidden), 1).shape[1] > 16
        return oracles.check_rms_norm(CPU, FP32, tokens, hidden)


def attention_by_descriptor(*sizes: int) -> list[oracles.Comparison]:
    """As sequences too long for the interpreter are read: whole blocks of two bytes an element."""
    with mock.patch.object(attention, "_TILED_FROM", sizes[1]):
        assert attention.forward_spec(*sizes, "fp16").constexprs["TILED"]
        return attention_oracle.check_attention(CPU, torch.float16, *sizes)


def check_fp8(operation: str, relative: float) -> list[oracles.Comparison]:
    """The comparisons that FP8-KERNELS-001 makes, at tiny's own sizes and at ragged ones, each within its bound."""
    config = TrainConfig.preset("tiny", device="cpu", dtype="float32", batch_size=1, seq_len=5)
    setting = Setting(kernel_table("cublas", CPU), config, MODEL_PRESETS["tiny"], "float32", 1.0, CPU)
    found = []
    for each in STEP_OPERATIONS[operation](setting):
        assert each.terms is not None
        exact, terms = each.reference(), each.terms()
        for output, got in (each.kernel({}) or {}).items():
            found.append(oracles.Comparison(f"{each.shape} {output}", got, exact[output], relative * terms[output]))
    assert found
    return found


# Kernel and fp64 lie a rounding of the format apart, or two where they round apart: 2^-3 in e4m3, 2^-2 in e5m2.
E4M3, E5M2 = 0.126, 0.251

CASES: dict[str, Callable[[], list[oracles.Comparison]]] = {
    "nf4-R7-C192": lambda: oracles.check_nf4(CPU, FP32, 7, 192),
    "nf4-R64-C128": lambda: oracles.check_nf4(CPU, FP32, 64, 128),
    "nf4-R1-C33024": lambda: oracles.check_nf4(CPU, FP32, 1, 33024),
    "rms_norm-T5-H100": lambda: oracles.check_rms_norm(CPU, FP32, 5, 100),
    "rms_norm-T1-H64": lambda: oracles.check_rms_norm(CPU, FP32, 1, 64),
    "rms_norm-T37-H12-tiles-of-16": lambda: check_rms_norm_in_small_tiles(37, 12),
    "rope-B2-S5-N3-Nkv1-D24-R6": lambda: oracles.check_rope(CPU, FP32, 2, 5, 3, 1, 24, 6),
    "rope-B3-S13-N4-Nkv2-D16-R32": lambda: oracles.check_rope(CPU, FP32, 3, 13, 4, 2, 16, 32),
    "attention-B2-S5-N4-Nkv2-D16": lambda: attention_oracle.check_attention(CPU, FP32, 2, 5, 4, 2, 16),
    "attention-B2-S32-N2-Nkv1-D8": lambda: attention_oracle.check_attention(CPU, FP32, 2, 32, 2, 1, 8),
    "attention-B1-S48-N2-Nkv2-D32": lambda: attention_oracle.check_attention(CPU, FP32, 1, 48, 2, 2, 32),
    "attention-B2-S100-N3-Nkv1-D24": lambda: attention_oracle.check_attention(CPU, FP32, 2, 100, 3, 1, 24),
    "attention-by-descriptor-B2-S128-N2-Nkv1-D32-fp16": lambda: attention_by_descriptor(2, 128, 2, 1, 32),
    "swiglu-T3-I100": lambda: oracles.check_swiglu(CPU, FP32, 3, 100),
    "swiglu-T2-I1100": lambda: oracles.check_swiglu(CPU, FP32, 2, 1100),
    "cross_entropy-T4-V37": lambda: oracles.check_cross_entropy(CPU, FP32, 4, 37),
    "cross_entropy-T3-V16397": lambda: oracles.check_cross_entropy(CPU, FP32, 3, 16397),
    "cross_entropy-T3-V300-large": lambda: oracles.check_cross_entropy(CPU, FP32, 3, 300, magnitude=40.0),
    "cross_entropy-T3-V37-negative": lambda: oracles.check_cross_entropy(CPU, FP32, 3, 37, shift=-500.0),
    "cross_entropy-bad-target": lambda: oracles.check_cross_entropy_bad_target(CPU),
    "softmax-R3-C37": lambda: oracles.check_softmax(CPU, FP32, 3, 37),
    "softmax-R2-C4100": lambda: oracles.check_softmax(CPU, FP32, 2, 4100),
    "clip-active": lambda: oracles.check_clip(CPU, [[1500, 0, 7], [1024, 33]], 1.0),
    "clip-one-group": lambda: oracles.check_clip(CPU, [[2500, 0, 7, 1024, 33]], 1.0),
    "clip-inactive": lambda: oracles.check_clip(CPU, [[1500, 0, 7], [1024, 33]], 1e3),
    # Norms of the size of eps: a clip that drops it is off by a third here, and by nothing at common norms.
    "clip-tiny": lambda: oracles.check_clip(CPU, [[7, 2], [3]], 1e-6, scale=1e-6),
    "clip-empty-group": lambda: oracles.check_clip(CPU, [[70, 3], [0, 0]], 1.0),
    "clip-nan": lambda: oracles.check_clip_not_finite(CPU, math.nan, math.nan),
    "clip-infinite": lambda: oracles.check_clip_not_finite(CPU, math.inf, 0.0),
    "gemm-M17-K33-N70": lambda: oracles.check_gemm(CPU, FP32, FP32, 17, 33, 70),
    "gemm-M16-K16-N16": lambda: oracles.check_gemm(CPU, FP32, FP32, 16, 16, 16),
    "gemm-M5-K20-N3-fp16": lambda: oracles.check_gemm(CPU, FP32, torch.float16, 5, 20, 3),
    "gemm-M33-K18-N20-large": lambda: oracles.check_gemm(CPU, FP32, FP32, 33, 18, 20, grad_scale=1e5),
    "lora_gradients-T1-O8-H12-R2-P1": lambda: oracles.check_lora_gradients(CPU, FP32, 1, 8, 12, 2, 1),
    "lora_gradients-T37-O40-H24-R6-P5": lambda: oracles.check_lora_gradients(CPU, FP32, 37, 40, 24, 6, 5),
    # Several of everything, and the last one ragged: chunks, tiles of tokens, blocks of columns, rows of the gains.
    "lora_gradients-T165-O130-H68-R32-P270": lambda: oracles.check_lora_gradients(CPU, FP32, 165, 130, 68, 32, 270),
    "lora_gradients-T1100-O16-H12-R8-P3": lambda: oracles.check_lora_gradients(CPU, FP32, 1100, 16, 12, 8, 3),
    # More ranks than a program takes.
    "lora_gradients-T70-O20-H36-R70-P2": lambda: oracles.check_lora_gradients(CPU, FP32, 70, 20, 36, 70, 2),
    "fp8_rows": lambda: check_fp8("fp8.rows", E4M3),
    "fp8_norm-forward": lambda: check_fp8("fp8.norm", E4M3),
    "fp8_norm-backward": lambda: check_fp8("fp8.norm_backward", E4M3),
    "fp8_swiglu-forward": lambda: check_fp8("fp8.swiglu", E4M3),
    "fp8_swiglu-backward": lambda: check_fp8("fp8.swiglu_backward", E4M3),
    "fp8_nf4": lambda: check_fp8("fp8.weight", E4M3),
    "fp8_loss": lambda: check_fp8("fp8.loss", E5M2),
}


def run(case: Callable[[], list[oracles.Comparison]]) -> dict[str, float] | str:
    try:
        return {comparison.name: comparison.worst() for comparison in case()}
    except Exception:
        return traceback.format_exc()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, case in CASES.items():
        if name.startswith(tuple(sys.argv[1:])):
            print(json.dumps([name, run(case)]), flush=True)  # noqa: T201 - the parent reads it
