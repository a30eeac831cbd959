"""Products in FP8: scales that cost no bit, weights from NF4, products that are counted, and no way round them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reference_impl.config import TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.errors import ReferenceImplError
from reference_impl.faults import FAULTS, STEP, plant
from reference_impl.fp8 import Fp8Matrix, Fp8Products, ScaledRows
from reference_impl.fp8_model import Fp8Model
from reference_impl.fp8_record import FP8_NAME, precision_facts
from reference_impl.kernels.fp8_loss import naive as loss
from reference_impl.kernels.fp8_rows import naive as rows
from reference_impl.nf4 import FullMatrix, QuantizedMatrix
from reference_impl.trainer import Trainer, model_source

E4M3_ROUNDOFF = 2.0**-4
TINY = TrainConfig.preset("tiny", device="cpu", dtype="float32", precision="fp8", steps=8)


def dense(scaled: ScaledRows) -> Tensor:
    return scaled.data.float() * scaled.scale[:, None]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("amax", "scale"),
    [(448.0, 1.0), (448.1, 2.0), (449.0, 2.0), (224.0, 0.5), (1.0, 2.0**-8), (0.0, 2.0**-126), (1e-45, 2.0**-126)],
)
def test_a_scale_is_the_smallest_power_of_two_that_fits(amax: float, scale: float) -> None:
    found, inverse = rows.power_of_two_scale(torch.tensor([amax]))
    assert found.item() == scale
    assert found.item() * inverse.item() == 1.0


def test_fp8_rows_hold_the_largest_numbers_and_keep_non_finite_values_visible() -> None:
    largest = 3e38  # fp32 holds 3.4e38, which is nearer to 2^128 than to a smaller number of four bits
    x = torch.tensor([[largest, 1.0], [torch.inf, 1.0], [torch.nan, 1.0]])
    value = dense(ScaledRows(*rows.quantize(x)))
    assert value[0, 0] == pytest.approx(largest, rel=E4M3_ROUNDOFF)
    assert value[1:, 0].isnan().all()


def test_fp8_rows_of_any_size_err_only_by_the_rounding_of_e4m3() -> None:
    x = random(64, 256) * 10.0 ** random(64, 1, seed=1).mul(6)
    value = dense(ScaledRows(*rows.quantize(x)))
    floor = x.abs().amax(dim=1, keepdim=True) * 2.0**-13
    assert ((value - x).abs() <= E4M3_ROUNDOFF * (x.abs() + floor)).all()


def test_fp8_quantization_keeps_powers_of_two_exactly() -> None:
    x = 2.0 ** torch.arange(-6, 9).float()[None, :] * 2.0**30
    assert torch.equal(dense(ScaledRows(*rows.quantize(x))), x)


def test_a_weight_converted_from_nf4_to_fp8_has_an_error_of_one_rounding_also_transposed() -> None:
    matrix = QuantizedMatrix.from_dense(random(96, 192) * 0.02)
    weight, fp8 = matrix.dense(torch.float32), Fp8Matrix.of(matrix)
    for value, exact in ((dense(fp8.rows()), weight), (dense(fp8.transposed()), weight.t())):
        floor = exact.abs().amax(dim=1, keepdim=True) * 2.0**-12  # a column's bound is its blocks' largest absmax
        assert ((value - exact).abs() <= E4M3_ROUNDOFF * (exact.abs() + floor)).all()
        # Beside NF4's own error, which is 9 % of the weights.
        assert 0.02 < ((value - exact).norm() / exact.norm()).item() < 0.03


def test_small_probabilities_do_not_vanish_when_the_logits_gradient_is_rounded() -> None:
    logits = torch.zeros(1, 4096)
    logits[0, 0] = 17.0  # the others' probabilities are 4e-8
    _, gradient = loss.forward_backward(logits, torch.tensor([0]))
    found = gradient.float() / loss.FACTOR
    exact = torch.softmax(logits.double(), dim=1)
    assert found[0, 1:].double().sum().item() == pytest.approx(exact[0, 1:].sum().item(), rel=2**-3)


def test_an_fp8_product_equals_the_product_of_its_rounded_operands() -> None:
    a, b, bias = ScaledRows.of(random(16, 64)), ScaledRows.of(random(32, 64, seed=1)), random(32, seed=2)
    products = Fp8Products(torch.float32)
    torch.testing.assert_close(products.multiply(a, b, bias), dense(a) @ dense(b).t() + bias)
    assert products.count == 1


def test_only_nf4_weights_with_whole_blocks_can_be_converted_to_fp8() -> None:
    with pytest.raises(ReferenceImplError, match="nf4"):
        Fp8Matrix.of(FullMatrix(random(64, 64)))
    with pytest.raises(ReferenceImplError, match="multiple of 64"):
        Fp8Matrix.of(QuantizedMatrix.from_dense(random(64, 32)))


def test_every_fp8_product_of_a_step_is_counted() -> None:
    trainer = Trainer(TINY)
    facts = precision_facts(trainer)
    assert facts == {
        "dtype": FP8_NAME,
        "compute_dtype": "float32",
        "fp8_products": 8 * 4 + 2,
        "frozen_products": 8 * 4 + 2,
    }
    # Nothing is changed by counting.
    other = Trainer(TINY)
    assert trainer.step(0) == other.step(0)
    assert torch.equal(trainer.trainable.flat, other.trainable.flat)


@pytest.mark.slow
def test_fp8_products_of_micro_batches_and_of_logit_chunks_are_counted() -> None:
    trainer = Trainer(replace(TINY, micro_batches=2, loss_chunk=64))
    assert precision_facts(trainer)["fp8_products"] == 2 * (8 * 4 + 2 * 2)


def test_a_step_in_the_compute_dtype_has_no_fp8_products() -> None:
    facts = precision_facts(Trainer(replace(TINY, precision="dtype")))
    assert (facts["dtype"], facts["fp8_products"]) == ("float32", 0)


@pytest.mark.parametrize("fault", ["silent_fallback_from_fp8", "one_block_not_in_fp8", "unheeded_precision"])
def test_a_fault_that_bypasses_fp8_changes_the_reported_precision(fault: str) -> None:
    trainer = Trainer(TINY)
    plant(fault, STEP, trainer)
    assert FAULTS[fault].description.name == fault
    facts = precision_facts(trainer)
    assert facts["dtype"] == "float32"
    assert facts["fp8_products"] != facts["frozen_products"]
    assert trainer.step(0).isfinite()


def test_a_training_in_fp8_on_cuda_must_use_bfloat16_outside_of_products() -> None:
    shape, source, _ = model_source(TINY, torch.device("cpu"))
    with pytest.raises(ReferenceImplError, match="choose bfloat16"):
        Fp8Model(shape, TINY, source, torch.device("cuda"), torch.float32)


@pytest.mark.slow
def test_a_recorded_step_in_fp8_trains_as_the_plain_step() -> None:
    ends: list[Tensor] = []
    for scope in ("none", "step", "backward"):
        capturing = CapturingTrainer(Trainer(TINY), scope)
        for index in range(4):
            capturing.step(index)
        assert capturing.record().failure is None
        ends.append(capturing.trainer.trainable.flat.clone())
        capturing.close()
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_fp8_gradients_are_close_to_float32_gradients() -> None:
    plain, trainer = Trainer(replace(TINY, precision="dtype")), Trainer(TINY)
    for index in range(3):
        plain.step(index)
    trainer.trainable.flat.copy_(plain.trainable.flat)
    for each in (plain, trainer):
        each.prepare(3)
        each.gradients_body()
    exact = plain.trainable.gradient
    error = ((trainer.trainable.gradient - exact).norm() / exact.norm()).item()
    # A third of it each way: a scale that is off by two errs by 1 or by a half.
    assert 0.02 < error < 0.2
