"""The kernels on the GPU: fp64 references and naive twins, real and ragged sizes, and equal bits from run to run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impl.kernels import registry
from reference_impl.kernels.cross_entropy import naive as ce_naive
from reference_impl.kernels.rms_norm import naive as norm_naive
from reference_impl.kernels.rope import naive as rope_naive
from reference_impl.kernels.softmax import naive as softmax_naive
from reference_impl.kernels.swiglu import naive as swiglu_naive

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
WEIGHT_DTYPES = {"fp16": torch.float16, "fp32": torch.float32}


def _load_oracles() -> ModuleType:
    """The fp64 references stand beside the tests that run in the interpreter."""
    path = Path(__file__).parents[1] / "reference_impl" / "kernel_oracles.py"
    spec = importlib.util.spec_from_file_location("kernel_oracles", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up while they are made
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def oracles() -> ModuleType:
    return _load_oracles()


CHECKS: dict[str, tuple[str, tuple[int, ...]]] = {
    "nf4-R7-C192": ("check_nf4", (7, 192)),
    "nf4-R1536-C8960": ("check_nf4", (1536, 8960)),
    "rms_norm-T5-H100": ("check_rms_norm", (5, 100)),
    "rms_norm-T2048-H1536": ("check_rms_norm", (2048, 1536)),
    "rope-B2-S5-N3-Nkv1-D24-R6": ("check_rope", (2, 5, 3, 1, 24, 6)),
    "rope-B4-S512-N12-Nkv2-D128-R32": ("check_rope", (4, 512, 12, 2, 128, 32)),
    "swiglu-T3-I100": ("check_swiglu", (3, 100)),
    "swiglu-T512-I8960": ("check_swiglu", (512, 8960)),
    "cross_entropy-T4-V37": ("check_cross_entropy", (4, 37)),
    "cross_entropy-T37-V16397": ("check_cross_entropy", (37, 16397)),
    "cross_entropy-T64-V151936": ("check_cross_entropy", (64, 151936)),
    "lora_gradients-T1-O8-H12-R2-P1": ("check_lora_gradients", (1, 8, 12, 2, 1)),
    "lora_gradients-T165-O130-H68-R6-P270": ("check_lora_gradients", (165, 130, 68, 6, 270)),
    "lora_gradients-T300-O256-H192-R140-P3": ("check_lora_gradients", (300, 256, 192, 140, 3)),
    "lora_gradients-T512-O2048-H1536-R32-P256": ("check_lora_gradients", (512, 2048, 1536, 32, 256)),
    "lora_gradients-T8192-O2048-H1536-R32-P512": ("check_lora_gradients", (8192, 2048, 1536, 32, 512)),
    "softmax-R3-C37": ("check_softmax", (3, 37)),
    "softmax-R3-C4100": ("check_softmax", (3, 4100)),
    "softmax-R6144-C512": ("check_softmax", (6144, 512)),
}


def assert_within_bounds(comparisons: list[Any]) -> None:
    assert comparisons
    shares = {comparison.name: comparison.worst() for comparison in comparisons}
    assert {name: share for name, share in shares.items() if not share <= 1} == {}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CHECKS)
def test_kernel_is_within_rounding_of_fp64(case: str, dtype: str, oracles: ModuleType) -> None:
    check, sizes = CHECKS[case]
    assert_within_bounds(getattr(oracles, check)(CUDA, DTYPES[dtype], *sizes))


@pytest.mark.parametrize("weight", WEIGHT_DTYPES)
@pytest.mark.parametrize("magnitude", [1.0, 1e5])
@pytest.mark.parametrize("sizes", [(17, 33, 70), (512, 1536, 16), (512, 16, 1536), (300, 256, 1536)], ids=str)
def test_backward_gemm_is_within_rounding_of_fp64(
    sizes: tuple[int, int, int], magnitude: float, weight: str, oracles: ModuleType
) -> None:
    comparisons = oracles.check_gemm(CUDA, torch.float32, WEIGHT_DTYPES[weight], *sizes, grad_scale=magnitude)
    assert_within_bounds(comparisons)


def test_backward_gemm_of_bf16_operands_is_within_rounding_of_fp64(oracles: ModuleType) -> None:
    assert_within_bounds(oracles.check_gemm(CUDA, torch.bfloat16, torch.bfloat16, 65, 130, 257))


QWEN2_LAYER = [16 * 1536, 1536 * 16, 16 * 1536, 256 * 16, 1536, 1536]


@pytest.mark.parametrize(
    ("groups", "max_norm"),
    [
        ([[1500, 0, 7], [1024, 33]], 1.0),
        ([[70, 3], [0, 0]], 1.0),
        ([QWEN2_LAYER] * 28, 1.0),
        ([QWEN2_LAYER * 28], 1.0),
        ([QWEN2_LAYER] * 28, 1e4),
    ],
    ids=["ragged", "empty-group", "per-layer", "global", "inactive"],
)
def test_clip_is_within_rounding_of_fp64(groups: list[list[int]], max_norm: float, oracles: ModuleType) -> None:
    assert_within_bounds(oracles.check_clip(CUDA, groups, max_norm))


@pytest.mark.parametrize(("bad", "bad_scale"), [(float("nan"), float("nan")), (float("inf"), 0.0)])
def test_the_clip_kernel_does_not_hide_a_non_finite_gradient(bad: float, bad_scale: float, oracles: ModuleType) -> None:
    assert_within_bounds(oracles.check_clip_not_finite(CUDA, bad, bad_scale))


def test_gradient_clipping_keeps_its_epsilon_for_tiny_gradients(oracles: ModuleType) -> None:
    assert_within_bounds(oracles.check_clip(CUDA, [[7, 2], [3]], 1e-6, scale=1e-6))


def test_cross_entropy_of_very_negative_logits_is_within_its_bounds(oracles: ModuleType) -> None:
    assert_within_bounds(oracles.check_cross_entropy(CUDA, torch.float32, 3, 37, shift=-500.0))


def test_a_target_outside_the_vocabulary_gives_a_nan_loss(oracles: ModuleType) -> None:
    assert_within_bounds(oracles.check_cross_entropy_bad_target(CUDA))


def _bits(comparisons: list[Any]) -> dict[str, Tensor]:
    return {comparison.name: comparison.got for comparison in comparisons}


@pytest.mark.parametrize("case", [*CHECKS, "clip", "gemm"])
def test_two_runs_of_a_kernel_give_the_same_bits(case: str, oracles: ModuleType) -> None:
    def run() -> dict[str, Tensor]:
        if case == "clip":
            return _bits(oracles.check_clip(CUDA, [QWEN2_LAYER] * 28, 1.0))
        if case == "gemm":
            return _bits(oracles.check_gemm(CUDA, torch.float32, torch.float32, 300, 256, 1536))
        check, sizes = CHECKS[case]
        return _bits(getattr(oracles, check)(CUDA, torch.bfloat16, *sizes))

    first, second = run(), run()
    assert first
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def _close(name: str, kernel: Tensor, naive: Tensor, *, floor: float = 0.0) -> None:
    """Both round an fp32 value once; where they round apart, it is by one step of the dtype.

    `floor`, of the largest value, is for outputs whose terms cancel: there fp32's own errors show.
    """
    step = max(torch.finfo(kernel.dtype).eps, 2.0**-17)
    allowed = step * naive.float().abs() + floor * naive.float().abs().max()
    outside = (kernel.float() - naive.float()).abs() > allowed
    assert kernel.isfinite().all(), name
    assert not outside.any(), f"{name}: {int(outside.sum())} of {outside.numel()} elements"


CANCELLING = 2.0**-18


def test_kernels_agree_with_their_naive_twins() -> None:
    torch.manual_seed(3)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=CUDA, dtype=torch.bfloat16)

    x, grad, residual = random(64, 1536), random(64, 1536), random(64, 1536)
    gain = torch.rand(1536, device=CUDA) + 0.5
    got = registry.load("rms_norm").add_forward(x, residual, gain, 1e-6)
    expected = norm_naive.add_forward(x, residual, gain, 1e-6)
    for name, left, right in zip(("total", "y", "rstd"), got, expected, strict=True):
        _close(name, left, right)
    rstd = expected[2]
    got_grads = registry.load("rms_norm").backward(grad, x, gain, rstd, residual)
    for name, left, right in zip(
        ("grad_x", "grad_gain"), got_grads, norm_naive.backward(grad, x, gain, rstd, residual), strict=True
    ):
        _close(name, left, right, floor=CANCELLING)
    gate_up = random(64, 2 * 8960)
    _close("act", registry.load("swiglu").forward(gate_up), swiglu_naive.forward(gate_up))
    grad_act = random(64, 8960)
    got_gate_up = registry.load("swiglu").backward(grad_act, gate_up)
    _close("grad_gate_up", got_gate_up, swiglu_naive.backward(grad_act, gate_up), floor=CANCELLING)
    p = torch.softmax(random(64, 512).float(), dim=1).bfloat16()
    grad_p = random(64, 512)
    _close("grad_s", registry.load("softmax").backward(grad_p, p), softmax_naive.backward(grad_p, p), floor=CANCELLING)
    qkv = random(64, 16 * 128)
    cos, sin = rope_naive.tables(32, 128, 1e6, CUDA)
    twin = qkv.clone()
    low_rank, b = random(64, 32), random(16 * 128, 32)
    registry.load("rope").add_rotate_(qkv, low_rank, b, cos, sin, 32, 14, 128)
    rope_naive.add_rotate_(twin, low_rank, b, cos, sin, 32, 14, 128)
    _close("qkv", qkv, twin, floor=CANCELLING)
    logits, targets = random(8, 151936), torch.arange(8, device=CUDA) * 1000
    twin = logits.clone()
    losses = registry.load("cross_entropy").forward_backward_(logits, targets, 0.125)
    _close("losses", losses, ce_naive.forward_backward_(twin, targets, 0.125))
    _close("logits", logits, twin)


def test_a_launch_compiles_the_kernel_that_the_plan_names() -> None:
    """The PTX that is compiled in advance for the planned kernel equals the PTX that the device runs."""
    major, minor = torch.cuda.get_device_capability()
    rms_norm, clip = registry.load("rms_norm"), registry.load("clip")
    specs = [
        *rms_norm.specializations(tokens=24, hidden=96, eps=1e-6, dtype="bf16"),
        *clip.specializations(partials=5, groups=2, max_norm=1.0, eps=1e-6),
        *registry.load("gemm").specializations(m=24, k=16, n=96),
        *registry.load("lora_gradients").specializations(tokens=24, outputs=64, hidden=96, ranks=8, dtype="bf16"),
    ]
    for spec in specs:
        compiled = registry.compile_for_device(spec)
        offline = registry.offline_compile(spec, 10 * major + minor)
        assert compiled.asm["ptx"] == offline.asm["ptx"], spec.key


def test_a_launch_after_warming_compiles_nothing() -> None:
    """`compile_for_device` fills the cache that a launch reads, also for slices and for tensors without dimensions."""
    import triton

    rms_norm, cross_entropy = registry.load("rms_norm"), registry.load("cross_entropy")
    for spec in (
        *rms_norm.specializations(tokens=40, hidden=72, eps=1e-6, dtype="bf16"),
        *cross_entropy.specializations(tokens=7, vocabulary=130, chunk=7, dtype="fp32"),
    ):
        registry.load_compiled(spec, registry.compile_for_device(spec))
    compiled: list[str] = []

    def record(**event: Any) -> None:
        compiled.append(str(event["repr"]))

    hook, triton.knobs.runtime.jit_cache_hook = triton.knobs.runtime.jit_cache_hook, record
    try:
        x = torch.randn(40, 72, device=CUDA, dtype=torch.bfloat16)
        _, rstd = rms_norm.forward(x, torch.ones(72, device=CUDA), 1e-6)
        rms_norm.add_forward(x, x, torch.ones(72, device=CUDA), 1e-6)
        rms_norm.backward(x, x, torch.ones(72, device=CUDA), rstd)
        rms_norm.backward(x, x, torch.ones(72, device=CUDA), rstd, x)
        unaligned_targets = torch.arange(8, device=CUDA)[1:]
        unaligned_scale = torch.ones(3, device=CUDA)[1]
        cross_entropy.forward_backward_(torch.randn(7, 130, device=CUDA), unaligned_targets, unaligned_scale)
    finally:
        triton.knobs.runtime.jit_cache_hook = hook
    assert compiled == []


def test_kernels_replay_from_a_cuda_graph(oracles: ModuleType) -> None:
    """RMSNorm, its backward pass and the clip make no host sync.

    Their replay gives the bits of the uncaptured kernels.
    """
    rms_norm, clip = registry.load("rms_norm"), registry.load("clip")
    plan = oracles.clip_plan([[72], [0, 3000]], CUDA)
    x = torch.randn(40, 72, device=CUDA, dtype=torch.bfloat16)
    gain, flat = torch.ones(72, device=CUDA), torch.randn(plan.total, device=CUDA)
    partials = torch.empty(plan.starts.numel(), device=CUDA)
    norms, scales = torch.empty(2, device=CUDA), torch.empty(2, device=CUDA)

    def body() -> tuple[Tensor, Tensor]:
        y, rstd = rms_norm.forward(x, gain, 1e-6)
        grad_x, grad_gain = rms_norm.backward(y, x, gain, rstd)
        clip.squared_sum_partials(flat, plan.starts, plan.counts, partials)
        clip.clip_scale_reduce(partials, plan.group_starts, 1.0, 1e-6, norms, scales)
        clip.scale_apply_(flat, scales, plan.starts, plan.counts, plan.groups)
        return grad_x, grad_gain

    start = flat.clone()
    eager = [tensor.clone() for tensor in body()]
    clipped = flat.clone()
    flat.copy_(start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = body()
    assert torch.equal(flat, start)
    for tensor in captured:
        tensor.fill_(float("nan"))
    graph.replay()
    assert torch.equal(captured[0], eager[0])
    assert torch.equal(captured[1], eager[1])
    assert torch.equal(flat, clipped)
    assert not torch.equal(flat, start)
