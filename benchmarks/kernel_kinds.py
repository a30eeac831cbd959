"""Classify GPU kernels by what they compute, which is derived from their names."""

from __future__ import annotations

import re
from collections.abc import Callable

# The first matching pattern decides, so specific patterns come before general ones.
_KINDS: tuple[tuple[str, str], ...] = (
    ("to FP8", r"fp8_rows"),
    ("GEMM and more", r"^products_"),
    ("copy", r"^memcpy|^memset|direct_copy|catarray|copy_device|copy_kernel"),
    ("dequantize + GEMM", r"nf4.*(gemm|matmul|linear|mm_)|dequant.*(gemm|matmul)|gemm_4bit|gemv_4bit"),
    ("dequantize", r"dequant|nf4"),
    ("attention", r"fmha|flash|sdpa|attention|\bmha"),
    ("cross-entropy", r"cross_entropy|nll_loss|softmax|fp8_loss"),
    ("clip + Adam", r"adam|clip_|l2norm|lpnorm|multi_tensor"),
    ("norm", r"rms_?norm|layer_?norm|_norm_"),
    ("RoPE", r"rope|rotary"),
    ("SwiGLU", r"swiglu|silu"),
    ("GEMM", r"nvjet|gemm|gemv|cutlass|splitk|xmma|matmul|^aten::(add)?mm$|dot_kernel"),
    ("reduction", r"reduce"),
    ("compiled Triton", r"^triton_"),
    ("embedding, index", r"index|gather|scatter|embedding"),
    ("elementwise", r"elementwise|vectorized|fill|foreach"),
)
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)
KINDS = (*(kind for kind, _ in _KINDS), "other")


def kind_of(name: str) -> str:
    """Return the kind of the kernel with this name, or on a CPU the kind of the ATen operator. Return ``other`` if no
    pattern matches."""
    lowered = name.lower()
    return next((kind for kind, pattern in _PATTERNS if pattern.search(lowered)), "other")


def name_kernels_by_operation() -> None:
    """Put the operation in front of the names of the trainer's Triton kernels, because several kernels have the same
    name.

    Call this before the first launch, with a separate ``TRITON_CACHE_DIR``, because cached binaries keep their names.
    """
    from reference_impl.kernels.registry import KERNELS, load
    from reference_impl.kernels.triton_source import TritonFunction

    for operation in KERNELS:
        for name, value in vars(load(operation)).items():
            if isinstance(value, TritonFunction):
                value.jit._repr = _constant(f"{operation}{name}")


def _constant(name: str) -> Callable[[object], str]:
    return lambda _: name
