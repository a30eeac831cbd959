"""SwiGLU within the MLP's products in FP8: when they serve, what is planned, and bounds that hold for any rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impl import ops
from reference_impl.config import TrainConfig
from reference_impl.fp8 import Fp8Matrix, Fp8Products, MlpLimits, ScaledRows
from reference_impl.kernels import registry
from reference_impl.kernels.fp8_products import kernel as products
from reference_impl.kernels.fp8_products import naive
from reference_impl.kernels.fp8_swiglu import naive as apart
from reference_impl.kernels.registry import KernelArgumentError, KernelSpec
from reference_impl.kernels.target import planning_for
from reference_impl.nf4 import QuantizedMatrix
from reference_impl.trainer import Trainer

QWEN: dict[str, int] = {"hidden": 1536, "intermediate": 8960}
FUSED = ["fp8_products.up_swiglu", "fp8_products.down_swiglu_backward"]
APART = ["fp8_swiglu.forward", "fp8_swiglu.backward"]
T, H, WIDE = 48, 256, 192


def operations(tokens: int, dtype: str = "bf16", sizes: dict[str, int] = QWEN) -> list[str]:
    return [spec.op for spec in products.specializations(tokens=tokens, dtype=dtype, **(QWEN | sizes))]


def test_fp8_products_are_fused_from_512_tokens_on() -> None:
    assert operations(511) == APART
    assert operations(512) == FUSED


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_100", "sm_120"])
def test_fp8_products_on_other_architectures_keep_swiglu_separate(target: str) -> None:
    with planning_for(target):
        assert operations(8192) == APART


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden": 1544},  # rows that start off 16 bytes
        {"intermediate": 8976},  # no whole groups of 32 columns
        {"hidden": 128},  # less than a tile's columns
        {"intermediate": 160},
    ],
)
def test_fp8_products_of_unsupported_widths_keep_swiglu_separate(sizes: dict[str, int]) -> None:
    assert operations(8192, sizes=sizes) == APART


def test_fp32_products_keep_swiglu_separate() -> None:
    assert operations(8192, "fp32") == APART


def rows_in_turns(spec: KernelSpec) -> list[int]:
    """Of the first 32 rows of a box of the weight, which row of memory each of them is."""
    right: Any = spec.function.parameters[1]  # type: ignore[attr-defined]
    (_, b, q, e, groups), row = right.box, right.sizes[0]
    assert (b, q, e, groups) == (2, 4, 4, 3)
    places = product(range(e), range(q), range(b))
    return [sum(n * s // row for n, s in zip(place, right.strides[2::-1], strict=True)) for place in places]


@pytest.mark.parametrize("spec", [products.up_spec(512, 1536, 8960), products.down_backward_spec(512, 1536, 8960)])
def test_each_gpu_thread_holds_eight_adjacent_columns_of_a_row(spec: KernelSpec) -> None:
    found = rows_in_turns(spec)
    assert sorted(found) == list(range(32))
    for thread in range(4):
        # columns 2 q and 2 q + 1 of each eight, as the tensor cores' results lie
        held = [found[8 * eight + 2 * thread + each] for eight in range(4) for each in range(2)]
        assert held == list(range(8 * thread, 8 * thread + 8))


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def with_norm(x: Tensor) -> ScaledRows:
    return replace(ScaledRows.of(x), norm=x.norm(dim=1))


class Mlp:
    """Weights, and what stands for them in FP8."""

    def __init__(self, *, twice: bool = False) -> None:
        gate = random(WIDE, H, scale=0.02)
        up = gate if twice else random(WIDE, H, seed=2, scale=0.02)
        self.up = QuantizedMatrix.from_dense(torch.cat((gate, up)))
        self.down = QuantizedMatrix.from_dense(random(H, WIDE, seed=1, scale=0.02))
        self.limits = MlpLimits.of(self.up, self.down)

    def forward(self, x: ScaledRows) -> tuple[Tensor, Tensor, Tensor]:
        weight = Fp8Matrix.of(self.up).rows()
        return naive.up_swiglu(x.data, x.scale, weight.data, weight.scale, norm_of(x), self.limits.forward)

    def backward(self, grad: ScaledRows, gate_up: Tensor, x: ScaledRows) -> tuple[Tensor, Tensor]:
        weight = Fp8Matrix.of(self.down).transposed()
        read = (grad.data, grad.scale, weight.data, weight.scale, gate_up, norm_of(grad), norm_of(x))
        return naive.down_swiglu_backward(*read, self.limits.backward)


def norm_of(rows: ScaledRows) -> Tensor:
    assert rows.norm is not None
    return rows.norm


def along_the_weight(matrix: QuantizedMatrix) -> Tensor:
    """Rows that make one of their products with a weight as large as rows of their length can."""
    return matrix.dense(torch.float32)[:T] * 1e3


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e12])
@pytest.mark.parametrize("aligned", [False, True])
def test_no_value_of_an_fp8_row_exceeds_the_bound_of_its_row(size: float, *, aligned: bool) -> None:
    mlp = Mlp(twice=aligned)  # gate and up alike: both factors are as large as they can be
    x = with_norm((along_the_weight(mlp.up) if aligned else random(T, H)) * size)
    gate_up, data, scale = mlp.forward(x)
    act = apart.forward(gate_up)
    assert (data.float().abs() < 448).all()  # its largest value, which saturated ones have
    assert ((data.float() * scale[:, None]).amax(dim=1) >= 0.9 * (act[0].float() * act[1][:, None]).amax(dim=1)).all()
    grads = with_norm(mlp.down.dense(torch.float32).t()[:T] * size)
    data, _ = mlp.backward(grads, gate_up, x)
    assert (data.float().abs() < 448).all()


def test_scaling_by_the_bound_of_a_row_loses_almost_no_precision() -> None:
    mlp, x, grad = Mlp(), with_norm(random(T, H)), with_norm(random(T, H, seed=3))
    gate_up, *act = mlp.forward(x)
    weight = Fp8Matrix.of(mlp.down).transposed()
    grad_act = Fp8Products(torch.float32).multiply(grad, weight)
    for bounded, exact, by_largest in (
        (act, silu_times_up(gate_up), apart.forward(gate_up)),
        (mlp.backward(grad, gate_up, x), gradient(grad_act, gate_up), apart.backward(grad_act, gate_up)),
    ):
        errors = [((dense(*rows) - exact).norm() / exact.norm()).item() for rows in (bounded, by_largest)]
        assert 0.02 < errors[1] < 0.03
        assert errors[0] < 1.05 * errors[1]


def dense(data: Tensor, scale: Tensor) -> Tensor:
    return data.float() * scale[:, None]


def silu_times_up(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


def gradient(grad_act: Tensor, gate_up: Tensor) -> Tensor:
    leaf = gate_up.float().requires_grad_()
    [result] = torch.autograd.grad(silu_times_up(leaf), leaf, grad_act)
    return result


def test_non_finite_inputs_of_the_fp8_mlp_stay_non_finite() -> None:
    mlp, x = Mlp(), random(4, H)
    x[0, 0], x[1, 0] = torch.inf, torch.nan
    _, data, scale = mlp.forward(with_norm(x))
    assert dense(data, scale).isfinite().all(dim=1).tolist() == [False, False, True, True]


def test_fp8_norm_kernels_return_the_norms_of_their_rows() -> None:
    x, gain = random(8, 64), random(64, seed=1)
    _, y, *_, norm = ops.fp8_norm_add_forward(x, None, gain, 1e-6, keep=True)
    assert y is not None
    torch.testing.assert_close(norm, y.norm(dim=1))
    rstd, partials = x.square().mean(dim=1).rsqrt(), torch.empty(1, 64)
    grad, *_, norm = ops.fp8_norm_backward_to_partials(random(8, 64, seed=2), x, gain, rstd, partials)
    torch.testing.assert_close(norm, grad.norm(dim=1))


def test_a_device_without_fused_fp8_kernels_makes_the_same_operations_separately() -> None:
    mlp, x, made = Mlp(), with_norm(random(T, H)), Fp8Products(torch.float32)
    weight = Fp8Matrix.of(mlp.up).rows()
    gate_up, act = made.up_swiglu(x, weight, mlp.limits)
    assert made.count == 1
    for found, expected in zip((act.data, act.scale), apart.forward(gate_up), strict=True):
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def test_a_step_launches_exactly_the_planned_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[KernelSpec] = []
    monkeypatch.setattr(registry, "_launchers", [lambda spec, _arguments: launched.append(spec)])
    tokens = 512
    x, weight = (torch.zeros(rows, H, dtype=torch.float8_e4m3fn) for rows in (tokens, 2 * WIDE))
    numbers = torch.zeros(tokens)
    gate_up, *_ = products.up_swiglu(x, numbers, weight, torch.zeros(2 * WIDE), numbers, torch.ones(1))
    products.down_swiglu_backward(
        x, numbers, weight[:WIDE], torch.zeros(WIDE), gate_up, numbers, numbers, torch.ones(1)
    )
    planned = products.specializations(tokens=tokens, dtype="bf16", hidden=H, intermediate=WIDE)
    assert {spec.key: spec.identity for spec in launched} == {spec.key: spec.identity for spec in planned}


def test_an_fp8_weight_of_a_different_shape_is_refused() -> None:
    x, numbers = torch.zeros(512, H, dtype=torch.float8_e4m3fn), torch.zeros(512)
    narrow = torch.zeros(2 * WIDE, H - 16, dtype=torch.float8_e4m3fn)
    with pytest.raises(KernelArgumentError, match="weight"):
        products.up_swiglu(x, numbers, narrow, numbers, numbers, torch.ones(1))


def test_the_default_logit_chunk_in_fp8_is_twice_as_long() -> None:
    config = TrainConfig.preset("tiny", device="cpu")
    fp8 = replace(config, precision="fp8")
    assert (config.chunk_tokens, fp8.chunk_tokens, replace(fp8, loss_chunk=96).chunk_tokens) == (512, 1024, 96)


def test_each_block_has_fp8_limits_from_its_own_weights() -> None:
    trainer = Trainer(TrainConfig.preset("tiny", device="cpu", dtype="float32", precision="fp8"))
    limits = {each.limits.forward.item() for each in trainer.model.blocks}  # type: ignore[attr-defined]
    assert len(limits) == len(trainer.model.blocks)
