"""The products that have SwiGLU, a residual or an adapter within: when they serve, what is planned and compiled."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from torch.nn import functional

from reference_impl import ops
from reference_impl.kernels import registry
from reference_impl.kernels.products import kernel as products
from reference_impl.kernels.products import naive
from reference_impl.kernels.registry import KernelArgumentError, KernelSpec
from reference_impl.kernels.target import planning_for

QWEN: dict[str, int] = {"hidden": 1536, "query": 1536, "qkv": 2048, "intermediate": 8960, "ranks": 32}
SMALL: dict[str, int] = {"hidden": 192, "query": 192, "qkv": 256, "intermediate": 200, "ranks": 8}
ALL = ["products.up_swiglu", "products.down_swiglu_backward", "products.add", "products.input_gradient"]


def operations(tokens: int, dtype: str = "bf16", sizes: dict[str, int] = QWEN) -> list[str]:
    specs = products.specializations(tokens=tokens, dtype=dtype, **sizes)
    return list(dict.fromkeys(spec.op for spec in specs))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (256, ["swiglu.forward", "swiglu.backward"]),
        (512, ["products.up_swiglu", "products.down_swiglu_backward"]),
        (2048, ALL[:2]),
        (8192, ALL),
    ],
)
def test_the_number_of_tokens_decides_which_products_are_fused(tokens: int, expected: list[str]) -> None:
    assert operations(tokens) == expected


@pytest.mark.parametrize("target", ["sm_80", "sm_100", "sm_120"])
def test_bfloat16_products_on_other_architectures_keep_swiglu_separate(target: str) -> None:
    with planning_for(target):
        assert operations(8192) == ["swiglu.forward", "swiglu.backward"]


def test_products_of_other_data_types_or_odd_widths_keep_swiglu_separate() -> None:
    apart = ["swiglu.forward", "swiglu.backward"]
    assert operations(8192, "fp32") == apart
    assert operations(8192, sizes=QWEN | {"hidden": 1540}) == apart  # rows that start off 16 bytes
    assert operations(8192, sizes=QWEN | {"hidden": 128}) == apart  # less than a tile's columns


def test_an_adapter_rank_that_does_not_fit_one_stage_is_not_fused_into_the_input_gradient() -> None:
    assert "products.input_gradient" not in operations(8192, sizes=QWEN | {"ranks": 72})
    assert "products.input_gradient" not in operations(8192, sizes=QWEN | {"ranks": 6})


def test_a_step_launches_exactly_the_planned_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[KernelSpec] = []
    monkeypatch.setattr(registry, "_launchers", [lambda spec, _arguments: launched.append(spec)])
    tokens, hidden, wide = 4096, SMALL["hidden"], SMALL["intermediate"]

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.bfloat16)

    gate_up, _ = products.up_swiglu(zeros(tokens, hidden), zeros(2 * wide, hidden))
    products.down_swiglu_backward(zeros(tokens, hidden), zeros(hidden, wide), gate_up, gate_up)
    products.add(zeros(tokens, hidden), zeros(hidden, hidden), zeros(tokens, hidden))
    products.add(zeros(tokens, wide), zeros(hidden, wide), zeros(tokens, hidden))
    products.input_gradient(zeros(tokens, 256), zeros(256, hidden), zeros(tokens, 8), zeros(8, hidden))
    planned = products.specializations(tokens=tokens, dtype="bf16", **SMALL)
    assert {spec.key: spec.identity for spec in launched} == {spec.key: spec.identity for spec in planned}


def test_a_product_with_a_matrix_of_the_wrong_shape_is_refused() -> None:
    x, weight = torch.zeros(512, 192, dtype=torch.bfloat16), torch.zeros(400, 200, dtype=torch.bfloat16)
    with pytest.raises(KernelArgumentError, match=r"weight.*\[400, 200\].*\[400, 192\]"):
        products.up_swiglu(x, weight)


SPECS = {
    spec.key: spec
    for spec in (
        *products.specializations(tokens=8192, dtype="bf16", **QWEN),
        *(products.head_spec(tokens, 1536, 151936) for tokens in (512, 300)),
    )
}


@pytest.mark.parametrize("key", SPECS)
def test_product_kernels_compiled_for_hopper_spill_no_registers(key: str, tmp_path: Path) -> None:
    # what the assembler warns of, such as products that it had to serialize, is an error of this suite
    compiled: Any = registry.offline_compile(SPECS[key], 90)
    assert re.findall(r"^\.target (\S+)$", compiled.asm["ptx"], re.MULTILINE) == ["sm_90a"]
    assert "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16" in compiled.asm["ptx"]
    assert re.findall(r"\b(?:atom|red)\.global\S*", compiled.asm["ptx"]) == []  # every sum is in fixed order
    assert compiled.metadata.shared <= registry.shared_memory_bytes()
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"STACK:(\d+)", usage) == ["0"]


def inputs(*shapes: tuple[int, int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def test_naive_fused_products_equal_their_formulas() -> None:
    x, up_weight, grad, down_weight = inputs((5, 8), (12, 8), (5, 8), (8, 6))
    gate_up, act = naive.up_swiglu(x, up_weight)
    leaf = (x @ up_weight.t()).requires_grad_()
    gate, up = leaf.chunk(2, dim=1)
    expected = functional.silu(gate) * up
    torch.testing.assert_close((gate_up, act), (leaf.detach(), expected.detach()))
    [gradient] = torch.autograd.grad(expected, leaf, grad @ down_weight)
    torch.testing.assert_close(naive.down_swiglu_backward(grad, down_weight, gate_up), gradient)
    assert naive.down_swiglu_backward(grad, down_weight, gate_up, gate_up) is gate_up
    torch.testing.assert_close(gate_up, gradient)


def test_a_matrix_product_plus_another_tensor_or_product_equals_the_same_sum_in_torch() -> None:
    x, weight, residual, extra, weight_extra = inputs((5, 8), (6, 8), (5, 6), (5, 2), (2, 6))
    torch.testing.assert_close(naive.add(x, weight, residual), residual + x @ weight.t())
    both = naive.input_gradient(x, weight.t(), extra, weight_extra)
    torch.testing.assert_close(both, x @ weight.t() + extra @ weight_extra)


def test_on_a_cpu_fused_products_run_as_separate_operations_with_a_rounding_each() -> None:
    x, weight, grad, down_weight = (tensor.bfloat16() for tensor in inputs((5, 8), (12, 8), (5, 8), (8, 6)))
    gate_up, act = ops.up_swiglu(x, weight)
    assert torch.equal(gate_up, x @ weight.t())
    assert torch.equal(act, ops.swiglu_forward(gate_up))
    assert not ops.adds_products(x.expand(5, 8), 8, 8)
    apart = ops.swiglu_backward(grad @ down_weight, gate_up)
    assert torch.equal(ops.down_swiglu_backward(grad, down_weight, gate_up), apart)
