"""What the references of a step's kernels rest on: transformers' rotation, bitsandbytes' table, NF4's definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.system.protocol import KernelComparison
from reference_impl import ops
from reference_impl.config import MODEL_PRESETS, TrainConfig
from reference_impl.kernel_table import trainer_table
from reference_impl.step_cases import BFLOAT16_ALONE, FLOAT32_ALONE, STEP_OPERATIONS, Setting
from reference_impl.step_cases.heads import Heads
from reference_impl.step_cases.nf4 import PAPER
from reference_impl.step_cases.rotation import tables_like_transformers

CPU = torch.device("cpu")
CONFIG = TrainConfig.preset("tiny", batch_size=1, seq_len=5)
# Those of bfloat16 alone that are no cases without a GPU, but for the head's, whose twin a CPU's table has.
ON_A_CPU = [each for each in STEP_OPERATIONS if each not in BFLOAT16_ALONE or each == "products.head_logits"]
SETTING = Setting(trainer_table("cublas"), CONFIG, MODEL_PRESETS["tiny"], "float32", 1.0, CPU)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def of(operation: str, setting: Setting = SETTING) -> list[KernelComparison]:
    return list(STEP_OPERATIONS[operation](setting))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 0.0), (torch.bfloat16, 0.0), (torch.float64, 1e-15)])
def test_heads_are_rotated_as_transformers_does(dtype: torch.dtype, bound: float) -> None:
    """In the data types in which transformers is the peer, every bit is equal. In fp64, only rounding differs."""
    modeling = pytest.importorskip("transformers.models.qwen2.modeling_qwen2")
    heads = Heads(2, 7, 4, 2, 6)
    qkv, angles = normal(heads.tokens, heads.width).to(dtype), 3 * normal(7, 3)
    cos, sin = angles.cos(), angles.sin()
    query, key, value = torch.split(heads.unpacked(qkv), [4, 2, 2], dim=1)
    tables = (torch.cat((table, table), dim=1)[None].to(dtype) for table in (cos, sin))
    query, key = modeling.apply_rotary_pos_emb(query, key, *tables)
    expected = heads.packed(torch.cat((query, key, value), dim=1))
    assert (heads.rotated(qkv, cos, sin) - expected).abs().max().item() <= bound * expected.abs().max().item()


def test_rotating_heads_back_undoes_their_rotation() -> None:
    heads = Heads(2, 7, 4, 2, 6)
    qkv, angles = normal(heads.tokens, heads.width).double(), 3 * normal(7, 3).double()
    there = heads.rotated(qkv, angles.cos(), angles.sin())
    torch.testing.assert_close(heads.rotated_back(there, angles.cos(), angles.sin()), qkv, rtol=0, atol=1e-14)


def test_rope_tables_equal_those_of_transformers() -> None:
    modeling = pytest.importorskip("transformers.models.qwen2.modeling_qwen2")
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2Config(
        hidden_size=64, num_attention_heads=2, rope_parameters={"rope_type": "default", "rope_theta": 1e6}
    )
    cos, sin = modeling.Qwen2RotaryEmbedding(config)(torch.empty(1), torch.arange(90)[None])
    ours = tables_like_transformers(90, 32, 1e6, CPU)
    assert torch.equal(ours[0], cos[0, :, :16])
    assert torch.equal(ours[1], sin[0, :, :16])


def test_the_nf4_table_of_the_paper_equals_that_of_bitsandbytes() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    assert torch.equal(torch.tensor(PAPER), functional.get_4bit_type("nf4", "cpu"))


def test_the_nf4_table_of_the_paper_consists_of_quantiles_of_a_normal_distribution() -> None:
    """QLoRA's appendix E uses eight quantiles below zero, and nine from zero on.

    They are scaled so that the outermost are 1 and -1.
    """
    outermost = 0.9677083

    def quantiles(count: int) -> Tensor:
        found: Tensor = torch.special.ndtri(torch.linspace(outermost, 0.5, count, dtype=torch.float64)[:-1])
        return found

    values = torch.cat((quantiles(9), torch.zeros(1, dtype=torch.float64), -quantiles(8))).sort().values
    torch.testing.assert_close(values / values.max(), torch.tensor(PAPER, dtype=torch.float64), rtol=0, atol=2e-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_nf4_reference_equals_the_bitsandbytes_kernel_except_for_rounding(dtype: str) -> None:
    pytest.importorskip("bitsandbytes")
    [case] = [case for case in of("nf4.dequantize", replace(SETTING, dtype_name=dtype)) if case.shape == "R64 C130"]
    seen: list[tuple[Tensor, ...]] = []

    def recorded(codes: Tensor, absmax: Tensor, *_given: object) -> Tensor:
        seen.append((codes, absmax))
        return torch.empty(64, 130)

    table = replace(SETTING.table, nf4_dequantize=recorded)
    [again] = [
        case
        for case in of("nf4.dequantize", replace(SETTING, dtype_name=dtype, table=table))
        if case.shape == "R64 C130"
    ]
    again.kernel({"weight": torch.empty(64, 130)})
    [(codes, absmax)] = seen
    theirs = torch.ops.bitsandbytes.dequantize_4bit(codes, absmax, 64, "nf4", (64, 130), getattr(torch, dtype))
    expected = case.reference()["weight"]
    roundoff = 2.0**-23 if dtype == "float32" else 1.001 * 2.0**-8
    assert bool(((theirs.double() - expected).abs() <= roundoff * expected.abs()).all())


@pytest.mark.parametrize("operation", ON_A_CPU)
def test_kernel_cases_have_different_shapes_and_different_random_inputs(operation: str) -> None:
    cases = of(operation)
    assert len({case.shape for case in cases}) == len(cases) >= 4
    sums = [sum(value.sum().item() for value in case.reference().values()) for case in cases]
    assert len(set(sums)) == len(cases)


@pytest.mark.parametrize("operation", ON_A_CPU)
@pytest.mark.parametrize("magnitude", [1e-4, 1e5])
def test_the_terms_of_a_kernel_case_bound_every_value_and_are_of_similar_size(operation: str, magnitude: float) -> None:
    """Terms far above the values would let any error pass. Only the terms of a peaked softmax may be far above them."""
    for case in of(operation, replace(SETTING, magnitude=magnitude)):
        assert case.terms is not None
        terms, exact = case.terms(), case.reference()
        assert terms.keys() == exact.keys() == case.written.keys() | case.updated.keys()
        for name, value in exact.items():
            assert bool((terms[name] * (1 + 1e-9) >= value.abs()).all()), (case.shape, name)
            if "peaked" not in case.shape:
                assert value.norm() / terms[name].norm() > 2e-3, (case.shape, name)


def test_kernel_case_inputs_are_surrounded_by_nans() -> None:
    values = SETTING.inputs("an operation", "a shape").normal(3, 4)
    around = values.as_strided((2,), (values.numel() + 1,), values.storage_offset() - 1)
    assert bool(around.isnan().all())
    assert not bool(values.isnan().any())


def test_operations_computed_only_in_float32_are_listed() -> None:
    assert set(FLOAT32_ALONE) == {"rope.tables", "adamw.update"}
    assert ops.rope_tables(3, 4, 1e4, CPU)[0].dtype is torch.float32
