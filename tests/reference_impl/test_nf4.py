"""NF4 against bitsandbytes' CPU kernels: the same codes, the same values, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference_impl.errors import ReferenceImplError
from reference_impl.kernels.nf4.naive import CODEBOOK, dequantize, dequantize_double
from reference_impl.nf4 import BOUNDARIES, QuantizedMatrix, quantize


@pytest.fixture(scope="module")
def bitsandbytes() -> None:
    pytest.importorskip("bitsandbytes")


def normal(rows: int, cols: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)) * 0.02


def at_boundaries() -> Tensor:
    """A block of absmax 1, so that the values are the decision boundaries themselves and their float neighbours."""
    values = torch.cat((BOUNDARIES, BOUNDARIES.nextafter(torch.tensor(2.0)), BOUNDARIES.nextafter(torch.tensor(-2.0))))
    return torch.nn.functional.pad(values, (1, 64 - values.numel() - 1), value=1.0).view(1, 64)


def near_boundaries() -> Tensor:
    """Blocks of random absmax with values at the boundaries times it: here dividing by absmax, where bitsandbytes
    multiplies by its reciprocal, gives other codes."""
    absmax = torch.rand(500, 1, generator=torch.Generator().manual_seed(3)) + 0.5
    return torch.nn.functional.pad(torch.cat((absmax, absmax * BOUNDARIES), dim=1), (0, 48))


CASES = {
    "R8-C64": normal(8, 64),
    "R96-C160": normal(96, 160, seed=1),
    "boundaries": at_boundaries(),
    "near-boundaries": near_boundaries(),
    "block-of-zeros": torch.cat((torch.zeros(1, 64), normal(1, 64))),
    "subnormal-block": torch.full((1, 64), 1e-40),
    "bf16": normal(4, 64, seed=2).bfloat16(),
}


@pytest.mark.usefixtures("bitsandbytes")
@pytest.mark.parametrize("case", CASES)
def test_codes_and_absmax_equal_bitsandbytes(case: str) -> None:
    weight = CASES[case]
    codes, absmax = quantize(weight)
    expected_codes, expected_absmax = torch.ops.bitsandbytes.quantize_4bit(weight, 64, "nf4", torch.uint8)
    assert torch.equal(codes, expected_codes.flatten())
    assert torch.equal(absmax, expected_absmax)


@pytest.mark.usefixtures("bitsandbytes")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_equal_bitsandbytes(dtype: torch.dtype) -> None:
    codes, absmax = quantize(normal(96, 160))
    # One block a row: for rows that are no multiple of 64, the CPU kernel of bitsandbytes 0.50 takes the wrong absmax.
    expected = torch.ops.bitsandbytes.dequantize_4bit(codes, absmax, 64, "nf4", [240, 64], dtype).view(96, 160)
    assert torch.equal(dequantize(codes, absmax, 96, 160, dtype), expected)


def test_a_value_halfway_between_two_nf4_codes_takes_the_lower_code() -> None:
    block = torch.zeros(1, 64)
    block[0, 0], block[0, 1] = 1.0, BOUNDARIES[0]  # halfway between codes 0 and 1
    codes, _ = quantize(block)
    assert codes[0].item() == 15 * 16 + 0  # high nibble first


def test_quantization_in_chunks_equals_quantization_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal(32, 128)
    whole = quantize(weight)
    monkeypatch.setattr("reference_impl.nf4._CHUNK", 192)
    parts = quantize(weight)
    assert all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True))


def test_dequantize_writes_into_the_tensor_passed_as_out() -> None:
    weight = normal(4, 64)
    codes, absmax = quantize(weight)
    out = torch.full((4, 64), float("nan"))
    assert dequantize(codes, absmax, 4, 64, torch.float32, out) is out
    assert torch.equal(out, dequantize(codes, absmax, 4, 64, torch.float32))


def test_double_quantization_is_lookup_times_nested_scale_plus_offset() -> None:
    codes, absmax = quantize(normal(4, 64 * 257))  # 1028 absmax values: the last nested block is not full
    absmax_map = torch.linspace(-1, 1, 256)
    absmax_codes = torch.arange(absmax.numel(), dtype=torch.int64).remainder(256).to(torch.uint8)
    nested, offset = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), torch.tensor(0.25)
    expected_absmax = torch.stack(
        [absmax_map[int(code)] * nested[number // 256] + offset for number, code in enumerate(absmax_codes)]
    )
    got = dequantize_double(codes, absmax_codes, absmax_map, nested, offset, 4, 64 * 257, torch.float32)
    assert torch.equal(got, dequantize(codes, expected_absmax, 4, 64 * 257, torch.float32))


def test_error_of_a_round_trip_is_at_most_half_the_widest_gap() -> None:
    weight = normal(16, 64)
    matrix = QuantizedMatrix.from_dense(weight)
    # The widest gap of the codebook is 1 - 0.6962 = 0.3038 of a block's absmax.
    bound = matrix.absmax.repeat_interleave(64).view(16, 64) * (0.3038072 / 2) + 1e-7
    assert bool(((matrix.dense(torch.float32) - weight).abs() <= bound).all())


def test_weights_that_do_not_fill_whole_blocks_are_refused() -> None:
    with pytest.raises(ReferenceImplError, match=r"weight: \(3, 40\) has 120 elements; NF4 needs a multiple of 64"):
        quantize(torch.zeros(3, 40))


@pytest.mark.usefixtures("bitsandbytes")
def test_correct_nf4_errs_by_more_than_an_eighth_of_absmax() -> None:
    """The upstream claim FALSIFY-NF4-003 bounds the error by 2 * absmax / 16.

    The true bound, half of the widest gap below -0.7, is 0.152.
    """
    weight = torch.zeros(1, 64)
    weight[0, :2] = torch.tensor([1.0, (-1.0 - 0.6961928009986877) / 2])
    theirs = torch.ops.bitsandbytes.dequantize_4bit(
        *torch.ops.bitsandbytes.quantize_4bit(weight, 64, "nf4", torch.uint8), 64, "nf4", (1, 64), torch.float32
    )
    for values in (QuantizedMatrix.from_dense(weight).dense(torch.float32), theirs):
        assert (values - weight).abs().max().item() == pytest.approx(0.1519, abs=1e-4)
    assert 2 / 16 < 0.1519


def test_the_upstream_formula_for_the_nf4_table_gives_a_different_table() -> None:
    """The formula's quantiles of (i + 0.5) / 16 have no zero, which the same contract requires.

    The two halves of the true table are made separately.
    """
    quantiles = torch.special.ndtri((torch.arange(16, dtype=torch.float64) + 0.5) / 16)
    assert (quantiles / quantiles.max())[7].item() == pytest.approx(-0.0421, abs=1e-4)


def test_the_first_element_of_a_byte_is_in_its_high_half() -> None:
    """The upstream claim FALSIFY-NF4-006 requires this for the byte 0xAB."""
    codes = torch.full((32,), 0xAB, dtype=torch.uint8)
    values = dequantize(codes, torch.ones(1), 1, 64, torch.float32)
    assert values[0, :4].tolist() == [CODEBOOK[0xA].item(), CODEBOOK[0xB].item()] * 2
