"""Every kernel cross-compiled without a GPU, and what its PTX and metadata promise."""

from __future__ import annotations

import re
from typing import Any

import pytest
from budget import is_long
from step_kernels import fp8_specs, gemm_specs, qwen2_specs

from reference_impl.kernels import registry
from reference_impl.kernels.registry import KernelSpec

pytestmark = pytest.mark.usefixtures("own_cache")

TARGETS = (80, 90, 100, 120)
FP8_TARGETS = (90, 100, 120)  # e4m3 came with 8.9


def ptx_of(spec: KernelSpec, sm: int) -> str:
    text: str = registry.offline_compile(spec, sm).asm["ptx"]
    return text


def in_turn(specs: list[KernelSpec], targets: tuple[int, ...] = TARGETS) -> list[Any]:
    """Each kernel for one target, the next for the next; for all four in `.ci/long fuzz`. One command compiles all."""
    pairs = [
        (spec, sm)
        for place, spec in enumerate(specs)
        for sm in (sorted(set(targets)) if is_long() else [targets[place % len(targets)]])
    ]
    first = {spec.op.partition(".")[0]: spec for spec in reversed(specs)}.values()  # of each source
    return [
        pytest.param(spec, sm, id=f"{spec.key}-{sm}", marks=() if spec in first else pytest.mark.slow)
        for spec, sm in pairs
    ]


@pytest.mark.parametrize(("spec", "sm"), [*in_turn(qwen2_specs()), *in_turn(fp8_specs(), FP8_TARGETS)])
def test_ptx_targets_the_named_architecture_and_is_deterministic(spec: KernelSpec, sm: int) -> None:
    ptx = ptx_of(spec, sm)
    assert re.findall(r"^\.target sm_(\d+)[af]?$", ptx, re.MULTILINE) == [str(sm)]
    # A sum in fixed order has no atomic operation.
    assert re.findall(r"\b(?:atom|red)\.(?:global|gpu|shared|relaxed|acq_rel)\S*", ptx) == []


@pytest.mark.parametrize(("spec", "sm"), in_turn(gemm_specs()))
def test_backward_gemm_is_tiled_unrolled_and_without_tensor_cores(spec: KernelSpec, sm: int) -> None:
    compiled: Any = registry.offline_compile(spec, sm)
    ptx = compiled.asm["ptx"]
    assert compiled.metadata.shared == 2 * 16 * 16 * 4
    assert re.findall(r"\.reqntid (\d+)", ptx) == ["256"]
    # 16 products a tile, four tiles an iteration, one output element a thread.
    assert len(re.findall(r"\bfma\.rn\.f32\b", ptx)) == 16 * 4
    # Barriers stand outside every branch on the thread's own index: none is predicated.
    barriers = re.findall(r"^\s*(@\S+\s+)?bar\.sync", ptx, re.MULTILINE)
    assert barriers
    assert set(barriers) == {""}
    assert re.findall(r"\S*(?:mma|tf32)\S*", ptx) == []


def test_clip_scale_keeps_nan_and_rounds_as_ieee() -> None:
    ptx = ptx_of(registry.load("clip").scale_reduce_spec(2212, 28, 1.0, 1e-6), 90)
    # Plain min.f32 drops a NaN operand, and a NaN norm would leave the gradients unscaled (the interpreter can't tell).
    assert re.findall(r"\bmin\.\S*f32", ptx) == ["min.NaN.f32"]
    assert re.findall(r"\bsqrt\.\S*f32", ptx) == ["sqrt.rn.f32"]
    assert re.findall(r"\bdiv\.\S*f32", ptx) == ["div.rn.f32"]


@pytest.mark.parametrize(("seq_len", "sm", "described"), [(2048, 90, True), (2048, 86, False), (512, 90, False)])
def test_attention_for_long_sequences_reads_its_tiles_with_the_copy_engine(
    seq_len: int, sm: int, described: bool
) -> None:
    spec = registry.load("attention").forward_spec(4, seq_len, 12, 2, 128, "bf16")
    assert ("cp.async.bulk.tensor" in ptx_of(spec, sm)) == described


@pytest.mark.parametrize("double", [False, True])
def test_dequantization_reads_no_table_from_memory_and_writes_16_bytes(double: bool) -> None:
    spec = registry.load("nf4").specializations(rows=17920, cols=1536, dtype="bf16", double=double)[0]
    ptx = ptx_of(spec, 90)
    stores = re.findall(r"st\.global\.(\S+)", ptx)
    assert stores == ["v4.b32"] * 4
    # Four words and four scales a thread; a doubly quantized scale takes three loads, and the mean one for all.
    assert len(re.findall(r"ld\.global\.", ptx)) == (4 + 4 * 3 + 1 if double else 4 + 4)
    assert len(re.findall(r"ld\.shared\.b32", ptx)) == 32


def test_kernels_move_bf16_data_in_vectors_of_16_bytes() -> None:
    data = (
        "rms_norm.forward",
        "rms_norm.add_forward",
        "rope.add_rotate",
        "swiglu.forward",
        "swiglu.backward",
    )
    specs = [spec for spec in qwen2_specs() if spec.op in data]
    assert len(specs) == 5
    for spec in specs:
        widths = set(re.findall(r"(?:ld|st)\.global\.(v\d\.b\d+)", ptx_of(spec, 90)))
        assert widths == {"v4.b32"}, spec.key


def test_one_instruction_rounds_a_pair_of_values_to_the_nearest_fp8_values() -> None:
    for spec in fp8_specs():
        ptx, kind = ptx_of(spec, 90), "e5m2x2" if spec.op.startswith("fp8_loss") else "e4m3x2"
        conversions = set(re.findall(r"cvt\.\S*e[45]m[23]x2\S*", ptx))
        assert conversions == {f"cvt.rn.satfinite.{kind}.f32"}, spec.key
