"""Kernels of training steps, one of each kind: what tests compile without a GPU."""

from __future__ import annotations

from dataclasses import replace

from reference_impl.config import MODEL_PRESETS, TrainConfig
from reference_impl.kernels import registry
from reference_impl.kernels.cuda_source import CudaFunction
from reference_impl.kernels.registry import KernelSpec
from reference_impl.kernels.target import planning_for
from reference_impl.prewarm import plan


def qwen2_specs() -> list[KernelSpec]:
    """The kernels of a Qwen2-1.5B step of 4 sequences of 512 tokens, one of each kind."""
    load = registry.load
    return [
        *load("nf4").specializations(rows=17920, cols=1536, dtype="bf16"),
        *load("nf4").specializations(rows=17920, cols=1536, dtype="bf16", double=True),
        *load("rms_norm").specializations(tokens=2048, hidden=1536, eps=1e-6, dtype="bf16"),
        load("rope").add_rotate_spec(2048, 2048, 32, 512, 14, 128, "bf16"),
        *load("attention").specializations(batch=4, seq_len=512, heads=12, kv_heads=2, head_dim=128, dtype="bf16"),
        *load("swiglu").specializations(tokens=2048, intermediate=8960, dtype="bf16"),
        *load("swiglu").specializations(tokens=2048, intermediate=8960, dtype="bf16", gated=False),
        *load("cross_entropy").specializations(tokens=2048, vocabulary=151936, chunk=512, dtype="bf16"),
        load("cross_entropy").from_statistics_spec(512, 151936, 792, "bf16"),
        *load("softmax").specializations(rows=24576, columns=512, dtype="bf16"),
        *load("clip").specializations(partials=2212, groups=28, max_norm=1.0, eps=1e-6),
        *load("gemm").specializations(m=2048, k=1536, n=16),
        *load("lora_gradients").specializations(tokens=2048, outputs=2048, hidden=1536, ranks=32, dtype="bf16"),
    ]


def gemm_specs() -> list[KernelSpec]:
    gemm = registry.load("gemm")
    return [
        *gemm.specializations(m=512, k=1536, n=256),
        *gemm.specializations(m=512, k=1536, n=256, accumulate=True),
        *gemm.specializations(m=512, k=1536, n=256, weight_dtype="fp16"),
        *gemm.specializations(m=37, k=51, n=23),
    ]


def fp8_specs() -> list[KernelSpec]:
    """Those of a step whose products are FP8."""
    load = registry.load
    return [
        *load("fp8_rows").specializations(rows=2048, cols=2048, dtype="bf16"),
        *load("fp8_norm").specializations(tokens=2048, hidden=1536, eps=1e-6, dtype="bf16", blocks=28),
        *load("fp8_swiglu").specializations(tokens=2048, intermediate=8960, dtype="bf16"),
        *load("fp8_nf4").specializations(rows=17920, cols=1536),
        *load("fp8_loss").specializations(tokens=2048, vocabulary=151936, chunk=512, dtype="bf16"),
    ]


def hopper_specs() -> list[KernelSpec]:
    """Those in CUDA C++ of a Qwen2-1.5B step of 4 sequences of 2048 tokens."""
    model = replace(MODEL_PRESETS["qwen2-1.5b"], num_layers=1)
    config = TrainConfig(model=model, batch_size=4, device="cpu", loss_chunk=512)
    with planning_for("sm_90"):
        others = replace(config, weights="full"), replace(config, precision="fp8")
        planned = [spec for each in (config, *others) for spec in plan(model, each, (2048,))]
    return list(dict.fromkeys(spec for spec in planned if isinstance(spec.function, CudaFunction)))
