"""FP8 on a GPU: products beside their twin, kernels beside theirs, a captured step beside the plain one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reference_impl.config import MODEL_PRESETS, TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.fp8 import Fp8Matrix, Fp8Products, MlpLimits, ScaledRows, _twin
from reference_impl.fp8_record import FP8_NAME, precision_facts
from reference_impl.kernels import registry
from reference_impl.kernels.fp8_products import naive as products_twin
from reference_impl.kernels.fp8_rows import naive as rows_twin
from reference_impl.kernels.fp8_swiglu import naive as swiglu_twin
from reference_impl.kernels.target import hopper
from reference_impl.nf4 import QuantizedMatrix
from reference_impl.trainer import Trainer

BFLOAT16_ROUNDOFF = 2.0**-8
TINY = TrainConfig.preset("tiny", precision="fp8", steps=8)
# Large enough for SwiGLU to be made within its products, where the GPU has them.
_WIDE = replace(MODEL_PRESETS["qwen2-1.5b"], num_layers=2, vocab_size=1024)
FUSED = TrainConfig(model=_WIDE, precision="fp8", steps=8, batch_size=4, seq_len=150, learning_rate=1e-2)


def _has_row_scales() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _has_row_scales(), reason="row scales need compute capability 9.0"),
]


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").bfloat16()


def in_rows(x: Tensor) -> ScaledRows:
    return replace(ScaledRows.of(x), norm=x.float().norm(dim=1))


@pytest.mark.skipif(not hopper(), reason="these kernels are made of Hopper's own instructions")
@pytest.mark.parametrize("tokens", [512, 1000, 2048])
def test_fused_fp8_swiglu_equals_its_twin_and_repeats_its_bits(tokens: int) -> None:
    hidden, wide = 1536, 8960
    x, grad = in_rows(random(tokens, hidden)), in_rows(random(tokens, hidden, seed=1))
    up, down = QuantizedMatrix.from_dense(random(2 * wide, hidden, seed=2) * 0.02), random(hidden, wide, seed=3) * 0.02
    limits = MlpLimits.of(up, QuantizedMatrix.from_dense(down))
    made, weight = Fp8Products(torch.bfloat16), Fp8Matrix.of(up).rows()
    transposed = Fp8Matrix.of(QuantizedMatrix.from_dense(down)).transposed()
    assert made.serves(x, wide)
    gate_up, act = made.up_swiglu(x, weight, limits)
    assert x.norm is not None
    assert grad.norm is not None
    gradient = made.down_swiglu_backward(grad, transposed, gate_up, x.norm, limits)
    assert made.count == 2
    read = (x.data, x.scale, weight.data, weight.scale, x.norm, limits.forward)
    twin_gate_up, *twin_act = products_twin.up_swiglu(*read)
    assert ((gate_up.float() - twin_gate_up.float()).norm() / twin_gate_up.float().norm()).item() < BFLOAT16_ROUNDOFF
    back = (grad.data, grad.scale, transposed.data, transposed.scale, gate_up, grad.norm, x.norm, limits.backward)
    for found, twin in ((act, twin_act), (gradient, products_twin.down_swiglu_backward(*back))):
        value, other = found.data.float() * found.scale[:, None], twin[0].float() * twin[1][:, None]
        assert torch.equal(found.scale, twin[1])
        # a sum that rounds apart to bfloat16 may round apart to e4m3
        assert ((value - other).norm() / other.norm()).item() < 4 * BFLOAT16_ROUNDOFF
    for _ in range(100):
        again, once_more = made.up_swiglu(x, weight, limits)
        back_again = made.down_swiglu_backward(grad, transposed, gate_up, x.norm, limits)
        assert torch.equal(again, gate_up)
        for first, second in ((act, once_more), (gradient, back_again)):
            assert torch.equal(first.data.view(torch.uint8), second.data.view(torch.uint8))


def on_cpu(rows: ScaledRows) -> ScaledRows:
    return ScaledRows(rows.data.cpu(), rows.scale.cpu())


@pytest.mark.parametrize("terms", [64, 1536, 17920])
@pytest.mark.parametrize("most_terms_fast", [0, 32768], ids=["exact", "fast"])
def test_an_fp8_product_equals_its_twin_within_its_last_rounding(terms: int, most_terms_fast: int) -> None:
    a, b = ScaledRows.of(random(96, terms)), ScaledRows.of(random(128, terms, seed=1))
    bias = random(128, seed=2) if terms == 1536 else None  # q, k and v have one; down's and its gradient's terms do not
    product = Fp8Products(torch.bfloat16, most_terms_fast).multiply(a, b, bias).cpu()
    exact = _twin(on_cpu(a), on_cpu(b), None if bias is None else bias.cpu(), torch.float32, None)
    bound = BFLOAT16_ROUNDOFF * (2 if most_terms_fast else 1)
    assert ((product.float() - exact).norm() / exact.norm()).item() < bound


def test_an_fp8_product_repeats_its_bits() -> None:
    a, b = ScaledRows.of(random(512, 8960)), ScaledRows.of(random(1536, 8960, seed=1))
    products = Fp8Products(torch.bfloat16)
    first = products.multiply(a, b)
    assert all(torch.equal(first, products.multiply(a, b)) for _ in range(100))


def test_fp8_row_quantization_equals_its_reference_twin_in_bits() -> None:
    x = random(300, 2048) * torch.logspace(-6, 6, 300, device="cuda")[:, None].bfloat16()
    for found, twin in zip(registry.load("fp8_rows").quantize(x), rows_twin.quantize(x), strict=True):
        assert torch.equal(found.view(torch.uint8), twin.view(torch.uint8))


def test_fp8_swiglu_differs_from_its_twin_only_by_fp32_rounding() -> None:
    gate_up = random(64, 2 * 8960)
    data, scale = registry.load("fp8_swiglu").forward(gate_up)
    twin, twin_scale = swiglu_twin.forward(gate_up)
    assert torch.equal(scale, twin_scale)
    assert (data.float() != twin.float()).float().mean().item() < 1e-4


def test_fp8_products_are_counted_in_the_precision_facts_on_the_device() -> None:
    facts = precision_facts(Trainer(TINY))
    assert (facts["dtype"], facts["fp8_products"]) == (FP8_NAME, 8 * 4 + 2)
    assert facts["compute_dtype"] == "bfloat16"


def test_every_fp8_product_with_fused_swiglu_is_counted() -> None:
    trainer = Trainer(FUSED)
    assert precision_facts(trainer)["dtype"] == FP8_NAME
    assert precision_facts(trainer)["fp8_products"] == 8 * 2 + 2


@pytest.mark.parametrize("config", [TINY, FUSED], ids=["apart", "within"])
@pytest.mark.parametrize("scope", ["step", "backward"])
def test_a_captured_fp8_step_equals_the_plain_step_in_bits(scope: str, config: TrainConfig) -> None:
    ends: list[Tensor] = []
    for each in ("none", scope):
        capturing = CapturingTrainer(Trainer(config), each)
        losses = torch.stack([capturing.step(index) for index in range(8)])
        assert capturing.record().failure is None
        ends.append(torch.cat((losses, capturing.trainer.trainable.flat)))
        capturing.close()
    assert torch.equal(*ends)
