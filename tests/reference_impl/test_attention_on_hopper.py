"""Attention's backward in CUDA C++ for Hopper: when it serves, what is planned, launched and compiled."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from reference_impl.config import MODEL_PRESETS, TrainConfig
from reference_impl.kernel_recording import recorded
from reference_impl.kernel_table import trainer_table
from reference_impl.kernels import registry
from reference_impl.kernels.attention import hopper
from reference_impl.kernels.attention import kernel as attention
from reference_impl.kernels.nvrtc import CompilationError
from reference_impl.kernels.registry import KernelSpec
from reference_impl.kernels.target import planning_for
from reference_impl.prewarm import plan
from reference_impl.step_cases import Setting
from reference_impl.step_cases.attention import _shapes

QWEN = replace(MODEL_PRESETS["qwen2-1.5b"], num_layers=1)
OF_TRITON = ["attention.delta", "attention.backward", "attention.reduce"]
OF_HOPPER = ["attention.dq", "attention.dkdv"]
# batch, seq_len: blocks that share a pair of key tiles, and stages; as they were fastest on an H100
MEASURED = {(4, 1024): (3, 2), (4, 2048): (2, 3), (4, 4096): (1, 4), (1, 8192): (2, 2)}
SERVED = [*MEASURED, (2, 2048), (1, 4096), (1, 16384), (8, 4096)]


def backward(
    batch: int, seq_len: int, heads: int = 12, kv_heads: int = 2, head_dim: int = 128, dtype: str = "bf16"
) -> list[str]:
    """Operations of a backward, as planned."""
    specs = attention.specializations(
        batch=batch, seq_len=seq_len, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype
    )
    assert specs[0].op == "attention.forward"
    return [spec.op for spec in specs[1:]]


@pytest.mark.parametrize(("batch", "seq_len"), SERVED)
def test_long_sequences_use_the_two_hopper_attention_kernels(batch: int, seq_len: int) -> None:
    assert backward(batch, seq_len) == OF_HOPPER


@pytest.mark.parametrize("sizes", [(4, 512), (8, 512), (4, 1000), (4, 1152)], ids=str)
def test_short_sequences_and_odd_lengths_use_triton_attention(sizes: tuple[int, int]) -> None:
    assert backward(*sizes) == OF_TRITON


@pytest.mark.parametrize("sizes", [(0, 1024), (1, 1024), (2, 1024), (1, 2048)], ids=str)
def test_too_few_tokens_to_fill_most_multiprocessors_use_triton_attention(sizes: tuple[int, int]) -> None:
    assert backward(*sizes) == OF_TRITON


def test_untested_data_types_and_head_sizes_use_triton_attention() -> None:
    assert backward(4, 2048, dtype="fp16") == OF_TRITON
    assert backward(4, 2048, dtype="fp32") == OF_TRITON
    assert backward(4, 2048, head_dim=64) == OF_TRITON
    assert backward(4, 2048, heads=28, kv_heads=4) == OF_TRITON
    assert backward(4, 2048, heads=24, kv_heads=4) == OF_HOPPER  # groups of six, too


@pytest.mark.parametrize("target", ["sm_80", "sm_100", "sm_120"])
def test_attention_on_non_hopper_devices_uses_triton_kernels(target: str) -> None:
    with planning_for(target):
        assert backward(4, 2048) == OF_TRITON


@pytest.mark.parametrize(("sizes", "expected"), MEASURED.items(), ids=str)
def test_hopper_attention_uses_the_fastest_measured_clusters_and_stages(
    sizes: tuple[int, int], expected: tuple[int, int]
) -> None:
    spec: Any = hopper.dkdv_spec(*sizes, 12, 2)
    assert (spec.function.cluster, spec.num_stages) == expected


@pytest.mark.parametrize("target", ["sm_90", "sm_120"])
@pytest.mark.parametrize(("batch", "seq_len"), MEASURED)
def test_the_kernel_plan_of_hopper_attention_equals_the_launched_kernels(batch: int, seq_len: int, target: str) -> None:
    config = TrainConfig(model=QWEN, batch_size=batch, device="cpu", loss_chunk=512)
    with planning_for(target):
        planned, launched = plan(QWEN, config, (seq_len,)), recorded(QWEN, config, (seq_len,))
    assert {spec.key: spec.identity for spec in planned} == {spec.key: spec.identity for spec in launched}
    own = [spec.op for spec in launched if spec.op.startswith("attention.")]
    assert own == ["attention.forward", *(OF_HOPPER if target == "sm_90" else OF_TRITON)]


def test_each_hopper_attention_kernel_gets_the_tensors_named_in_its_signature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched: list[tuple[KernelSpec, tuple[Tensor, ...]]] = []
    monkeypatch.setattr(registry, "_launchers", [lambda spec, arguments: launched.append((spec, arguments))])
    grad_output, output = (torch.zeros(4096, 12 * 128, dtype=torch.bfloat16) for _ in range(2))
    qkv, log_sum_exp = torch.zeros(4096, 16 * 128, dtype=torch.bfloat16), torch.zeros(4, 12, 1024)
    cos, sin = (torch.zeros(1024, 64) for _ in range(2))
    grad_qkv = attention.backward(grad_output, qkv, output, log_sum_exp, cos, sin, 4, 1024, 12, 2, 128)
    named = {"grad_output": grad_output, "qkv": qkv, "output": output, "log_sum_exp": log_sum_exp}
    named |= {"cos": cos, "sin": sin, "grad_qkv": grad_qkv, "delta": launched[0][1][4]}
    assert [spec.op for spec, _ in launched] == OF_HOPPER
    for spec, arguments in launched:
        for given, pointer in zip(arguments, spec.pointers, strict=True):
            assert given is named[pointer.name]


SPECS = {spec.key: spec for sizes in MEASURED for spec in hopper.specializations(*sizes, 12, 2)}


@pytest.mark.parametrize("key", SPECS)
def test_kernels_compiled_for_hopper_spill_no_registers(key: str, tmp_path: Path) -> None:
    # what the assembler warns of, such as products that it had to serialize, is an error of this suite
    compiled: Any = registry.offline_compile(SPECS[key], 90)
    assert re.findall(r"^\.target (\S+)$", compiled.asm["ptx"], re.MULTILINE) == ["sm_90a"]
    shapes = {"m64n64k16", "m64n128k16"}
    assert set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.(\w+)\.", compiled.asm["ptx"])) == shapes
    assert re.findall(r"\b(?:atom|red)\.\S*", compiled.asm["ptx"]) == []  # every sum is in fixed order
    assert compiled.metadata.shared <= registry.shared_memory_bytes()
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"REG:(\d+) STACK:(\d+)", usage) == [("168", "0")]


@pytest.mark.parametrize("spec", [hopper.dq_spec(4, 1024, 12, 2), hopper.dkdv_spec(4, 1024, 12, 2)], ids=str)
def test_a_shared_memory_size_different_from_that_in_the_source_is_refused(spec: KernelSpec) -> None:
    given: Any = spec.constexprs
    other = replace(spec, constexprs={**given, "SHARED_MEMORY": given["SHARED_MEMORY"] + 16})
    with pytest.raises(CompilationError, match="a launch gives as many bytes"):
        registry.offline_compile(other, 90)


def setting(dtype: str, device: str) -> Setting:
    table, config = trainer_table("cublas"), TrainConfig.preset("qwen2-1.5b")
    return Setting(table, config, MODEL_PRESETS["qwen2-1.5b"], dtype, 1.0, torch.device(device))


def test_one_kernel_case_has_a_shape_that_uses_the_hopper_attention_kernels() -> None:
    def reached(dtype: str, device: str) -> list[str]:
        sizes = [shape.heads.sizes for shape in _shapes(setting(dtype, device))]
        return [str(each) for each in sizes if hopper.serves(*each, "bf16" if dtype == "bfloat16" else "fp32")]

    assert reached("bfloat16", "cuda") == ["(4, 1024, 12, 2, 128)"]
    assert reached("bfloat16", "cpu") == []
    with planning_for("sm_100"):
        assert "B4 S1024 N12 Nkv2 D128" not in [shape.name for shape in _shapes(setting("bfloat16", "cuda"))]
    assert "B4 S1024 N12 Nkv2 D128" not in [shape.name for shape in _shapes(setting("float32", "cuda"))]
