"""Backward products: every path against fp64 and every other path, and each argument that is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor

from reference_impl.config import GemmPath, TrainConfig
from reference_impl.errors import ReferenceImplError
from reference_impl.gemm import BackwardGemm
from reference_impl.trainer import Trainer

PATHS: tuple[GemmPath, ...] = get_args(GemmPath)
M, K, N = 17, 33, 70
# A product's operands round once by half the spacing of their type (2^-11, 2^-8), a sum of n fp32 terms by n * 2^-24.
# Relative to the sum of the terms' absolute values, which bounds the error whatever the terms' signs are.
UNIT = {"cublas": 0.0, "tiled": 0.0, "fp16": 2.0**-11, "bf16": 2.0**-8}


def operands(gradient_scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """A, B of weights' size, and grad_C."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return normal(M, K), normal(K, N) * 2e-2, normal(M, N) * gradient_scale


def assert_within_rounding(got: Tensor, left: Tensor, right: Tensor, path: str, operands_rounded: int) -> None:
    exact = left.double() @ right.double()
    terms = left.double().abs() @ right.double().abs()
    bound = (operands_rounded * UNIT[path] * 1.01 + (left.shape[1] + 4) * 2.0**-24) * terms
    assert bool(got.isfinite().all())
    assert bool(((got.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
@pytest.mark.parametrize("path", PATHS)
def test_both_products_of_the_backward_pass_are_within_rounding_of_fp64(path: GemmPath, scale: float) -> None:
    gemm, (a, b, grad_c) = BackwardGemm(path), operands(scale)
    cached = gemm.cache_weight(b)
    grad_a = gemm.grad_a(grad_c, cached)
    # The cached weight is the operand: its own rounding is the cache's, judged in the test of the cache.
    assert_within_rounding(grad_a, grad_c, cached.double().t(), path, operands_rounded=1)
    assert_within_rounding(gemm.grad_b(a, grad_c), a.t(), grad_c, path, operands_rounded=2)


@pytest.mark.parametrize("path", PATHS)
def test_accumulation_adds_the_products_of_gate_and_up(path: GemmPath) -> None:
    gemm, (_, b, grad_c) = BackwardGemm(path), operands()
    gate, up = gemm.cache_weight(b), gemm.cache_weight(b.flip(0).contiguous())
    total = gemm.grad_a(grad_c, gate)
    assert gemm.grad_a(grad_c, up, total, accumulate=True) is total
    expected = gemm.grad_a(grad_c, gate) + gemm.grad_a(grad_c, up)
    assert (total - expected).abs().max() <= 4 * 2**-24 * expected.abs().max() + 2**-20 * UNIT[path]
    start = torch.full((K, N), 3.0)
    a = operands()[0]
    added = gemm.grad_b(a, grad_c, start.clone(), accumulate=True)
    assert torch.allclose(added, start + gemm.grad_b(a, grad_c), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("other", PATHS)
def test_every_gemm_path_agrees_with_every_other_path(path: GemmPath, other: GemmPath) -> None:
    a, b, grad_c = operands()
    one, two = BackwardGemm(path), BackwardGemm(other)
    pairs = [
        (one.grad_a(grad_c, one.cache_weight(b)), two.grad_a(grad_c, two.cache_weight(b))),
        (one.grad_b(a, grad_c), two.grad_b(a, grad_c)),
    ]
    for left, right in pairs:
        terms = 4.0 * math.sqrt(N)  # of the sum of the terms' absolute values, over the largest result
        bound = (2 * UNIT[path] + 2 * UNIT[other] + 80 * 2.0**-24) * terms
        assert (left - right).abs().max() <= bound * right.abs().max()


def test_half_precision_gemm_paths_really_round_their_operands() -> None:
    """A path that kept its operands in fp32 would pass every bound."""
    a, _, grad_c = operands()
    exact, fp16, bf16 = (BackwardGemm(path).grad_b(a, grad_c) for path in ("cublas", "fp16", "bf16"))
    assert 1e-5 < (fp16 - exact).abs().max() / exact.abs().max() < (bf16 - exact).abs().max() / exact.abs().max()


def test_products_of_half_precision_operands_are_stored_in_fp32_without_a_rounding_in_between() -> None:
    gemm, (a, _, grad_c) = BackwardGemm("cublas"), operands()
    a16, grad16 = a.bfloat16(), grad_c.bfloat16()
    got = gemm.grad_b(a16, grad16, torch.full((K, N), math.nan))
    assert_within_rounding(got, a16.t(), grad16, "cublas", operands_rounded=0)


def test_an_fp16_gradient_of_zeros_and_of_the_largest_number_stays_finite() -> None:
    gemm = BackwardGemm("fp16")
    weight = gemm.cache_weight(torch.eye(4))
    assert gemm.grad_a(torch.zeros(3, 4), weight).tolist() == [[0.0] * 4] * 3
    large = torch.full((1, 4), 3e38)
    assert torch.allclose(gemm.grad_a(large, weight), large, rtol=2**-11)
    assert bool(gemm.grad_a(torch.full((1, 4), math.nan), weight).isnan().all())


@pytest.mark.parametrize(("path", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_a_weight_cached_in_half_precision_takes_half_the_bytes_and_is_rounded_once(
    path: GemmPath, dtype: torch.dtype
) -> None:
    b = operands()[1]
    cached = BackwardGemm(path).cache_weight(b)
    assert (cached.dtype, cached.numel() * cached.element_size()) == (dtype, b.numel() * 2)
    assert torch.equal(cached, b.to(dtype))
    for full in ("cublas", "tiled"):
        assert BackwardGemm(full).cache_weight(b) is b


def test_a_weight_outside_the_range_of_fp16_is_refused() -> None:
    with pytest.raises(ReferenceImplError, match="weight: has elements beyond 65504"):
        BackwardGemm("fp16").cache_weight(torch.tensor([[7e4]]))


def bad_a() -> dict[str, tuple[str, dict[str, Tensor]]]:
    """What is wrong -> the argument that must be named, and the arguments of `grad_a` that differ from good ones."""
    return {
        "other columns": ("b", {"b": torch.ones(K, N + 1)}),
        "rank 0": ("b", {"b": torch.ones(0, N)}),
        "empty sequence": ("grad_c", {"grad_c": torch.ones(0, N)}),
        "a vector": ("grad_c", {"grad_c": torch.ones(N)}),
        "transposed": ("b", {"b": torch.ones(N, K).t()}),
        "strided": ("grad_c", {"grad_c": torch.ones(M, 2 * N)[:, ::2]}),
        "fp64": ("grad_c", {"grad_c": torch.ones(M, N, dtype=torch.float64)}),
        "integers": ("b", {"b": torch.ones(K, N, dtype=torch.int32)}),
        "another device": ("b", {"b": torch.ones(K, N, device="meta")}),
        "wrong out shape": ("out", {"out": torch.ones(K, M)}),
        "wrong out dtype": ("out", {"out": torch.ones(M, K, dtype=torch.float16)}),
        "strided out": ("out", {"out": torch.ones(K, M).t()}),
        "out elsewhere": ("out", {"out": torch.ones(M, K, device="meta")}),
    }


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("what", bad_a())
def test_a_product_with_an_invalid_argument_names_the_argument_and_writes_nothing(what: str, path: GemmPath) -> None:
    argument, changed = bad_a()[what]
    given = {"grad_c": torch.ones(M, N), "b": torch.ones(K, N), "out": torch.full((M, K), 7.0), **changed}
    before = given["out"].clone()
    with pytest.raises(ReferenceImplError) as raised:
        BackwardGemm(path).grad_a(given["grad_c"], given["b"], given["out"])
    assert raised.value.argument == argument
    if not before.is_meta:
        assert torch.equal(given["out"], before)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("out", lambda gemm: gemm.grad_a(torch.ones(M, N), torch.ones(K, N), accumulate=True)),
        ("grad_c", lambda gemm: gemm.grad_b(torch.ones(M, K), torch.ones(M + 1, N))),
        ("a", lambda gemm: gemm.grad_b(torch.ones(M, 0), torch.ones(M, N))),
        ("out", lambda gemm: gemm.grad_b(torch.ones(M, K), torch.ones(M, N), torch.ones(N, K))),
    ],
    ids=["nothing to accumulate into", "other rows", "rank 0", "wrong out shape"],
)
def test_an_invalid_argument_of_the_backward_gemm_is_named(
    argument: str, call: Callable[[BackwardGemm], Tensor]
) -> None:
    with pytest.raises(ReferenceImplError) as raised:
        call(BackwardGemm("tiled"))
    assert raised.value.argument == argument


def test_cublas_products_of_two_different_dtypes_are_refused() -> None:
    with pytest.raises(ReferenceImplError, match=r"b: has dtype torch.bfloat16, but grad_c has torch.float32"):
        BackwardGemm("cublas").grad_a(torch.ones(M, N), torch.ones(K, N, dtype=torch.bfloat16))


@pytest.mark.parametrize("path", PATHS)
def test_the_trainer_computes_lora_gradients_by_its_gemm_path(path: GemmPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients agree with those of the default path within rounding, and the product of the path was called."""
    calls: list[str] = []
    product = BackwardGemm.grad_b

    def counted(self: BackwardGemm, a: Tensor, grad_c: Tensor, out: Tensor | None = None) -> Tensor:
        calls.append(self.path)
        return product(self, a, grad_c, out)

    monkeypatch.setattr(BackwardGemm, "grad_b", counted)
    gradients: dict[str, dict[str, Tensor]] = {}
    for used in (PATHS[0], path):
        trainer = Trainer(TrainConfig.preset("tiny", batch_size=1, seq_len=20, device="cpu", gemm=used))
        trainer.step(0)
        gradients[used] = {key: value.clone() for key, value in trainer.gradients().items()}
    # Two products in each of 4 layers; the default needs no detour.
    assert calls == ([] if path == "cublas" else [path] * 8)
    for name, expected in gradients["cublas"].items():
        # Sums of 20 terms of either sign: their rounding relative to the largest gradient is below 8 units.
        bound = 8 * (2 * UNIT[path] + 20 * 2.0**-24) * expected.abs().max()
        assert (gradients[path][name] - expected).abs().max() <= bound, name
