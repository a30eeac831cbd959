"""Each fault of the kernels' arithmetic changes what it says and nothing else; planted in a trainer, it is used."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from harness.contract.schema import Needs
from harness.system.protocol import Arm, HasKernelCases, Workload
from reference_impl import ops
from reference_impl.faults import FAULTS, KERNELS, plant
from reference_impl.kernel_table import KernelTable, trainer_table
from reference_impl.system import QLoRASystem

STEP = Workload(model="tiny", batch_size=1, seq_len=20, steps=2, seed=1, needs=Needs(device="cpu"))
KERNEL_FAULTS = {name: fault.description for name, fault in FAULTS.items() if fault.hook is KERNELS}


def faulty(name: str) -> KernelTable:
    table = trainer_table("tiled")
    plant(name, KERNELS, table)
    return table


def test_every_kernel_fault_declares_its_expected_reason_code() -> None:
    codes = {name: fault.breaks["kernel_match"].reason for name, fault in KERNEL_FAULTS.items()}
    assert codes == {
        "tf32_backward": "exceeds_tolerance",
        "unwritten_tile": "unwritten_elements",
        "atomic_gain_reduction": "not_repeatable",
        "clip_fourth_power": "exceeds_tolerance",
        "clip_without_epsilon": "exceeds_tolerance",
        "clip_missing_tensor": "exceeds_tolerance",
        "clip_last_layer_scale": "exceeds_tolerance",
        "unscaled_fp16": "non_finite",
        "missing_terms": "exceeds_tolerance",
        "clip_squares_in_fp16": "non_finite",
        "gain_partials_in_fp16": "non_finite",
        "missing_gain_partial": "exceeds_tolerance",
        "wide_tile": "demand_unmet",
        "fewer_threads": "demand_unmet",
        "more_stages": "demand_unmet",
        "shorter_unroll": "demand_unmet",
        "attention_mask_off_by_one": "exceeds_tolerance",
        "attention_without_scale": "exceeds_tolerance",
        "attention_other_group": "exceeds_tolerance",
        "attention_lost_tail": "exceeds_tolerance",
        "attention_backward_without_delta": "exceeds_tolerance",
        "rotation_backward_sign": "exceeds_tolerance",
        "rotation_sign": "exceeds_tolerance",
        "rotated_values": "exceeds_tolerance",
        "rotation_without_lora": "exceeds_tolerance",
        "rotation_base": "exceeds_tolerance",
        "table_angles_in_fp16": "non_finite",
        "coarse_tables": "exceeds_peer",
        "norm_without_epsilon": "non_finite",
        "norm_other_epsilon": "exceeds_tolerance",
        "norm_without_addition": "exceeds_tolerance",
        "norm_backward_without_residual": "exceeds_tolerance",
        "norm_backward_other_row": "exceeds_tolerance",
        "lora_without_last_chunk": "exceeds_tolerance",
        "lora_without_norm": "exceeds_tolerance",
        "lora_b_scaled_as_a": "exceeds_tolerance",
        "lora_factors_exchanged": "exceeds_tolerance",
        "lora_gains_exchanged": "exceeds_tolerance",
        "swiglu_halves_exchanged": "exceeds_tolerance",
        "swiglu_derivative": "exceeds_tolerance",
        "product_without_last_stage": "exceeds_tolerance",
        "product_halves_exchanged": "exceeds_tolerance",
        "product_without_residual": "exceeds_tolerance",
        "gradient_without_adapter": "exceeds_tolerance",
        "loss_without_last_token": "exceeds_tolerance",
        "loss_of_ignored_tokens": "exceeds_tolerance",
        "loss_without_maximum": "non_finite",
        "statistics_without_last_panel": "exceeds_tolerance",
        "statistics_beyond_vocabulary": "exceeds_tolerance",
        "statistics_without_maximum": "non_finite",
        "statistics_not_rescaled": "exceeds_tolerance",
        "nf4_value_off": "exceeds_tolerance",
        "nf4_neighbours_scale": "exceeds_tolerance",
        "nf4_halves_exchanged": "exceeds_tolerance",
        "adam_epsilon_in_root": "exceeds_tolerance",
        "adam_without_bias_correction": "exceeds_tolerance",
        "adam_without_decay": "exceeds_tolerance",
        "adam_takes_bad_step": "exceeds_tolerance",
        "results_in_fp16": "non_finite",
        "coarse_results": "exceeds_peer",
        "coarse_bfloat16_results": "exceeds_tolerance",
        "fp8_scale_of_another_row": "exceeds_tolerance",
        "fp8_stale_scale": "exceeds_tolerance",
        "fp8_inverse_scale": "exceeds_tolerance",
        "fp8_scale_in_fp16": "non_finite",
        "fp8_saturated_values": "exceeds_tolerance",
        "fp8_coarser_format": "exceeds_tolerance",
        "fp8_loss_in_e4m3": "exceeds_tolerance",
        "fp8_weight_not_transposed": "exceeds_tolerance",
        "fp8_bound_too_small": "exceeds_tolerance",
        "fp8_bound_too_large": "exceeds_tolerance",
        "fp8_product_without_last_stage": "exceeds_tolerance",
        "fp8_product_scale_of_another_column": "exceeds_tolerance",
        "fp8_product_scale_of_another_row": "exceeds_tolerance",
        "fp8_product_halves_exchanged": "exceeds_tolerance",
        "fp8_product_sums_in_fp16": "non_finite",
    }
    assert QLoRASystem().describe().faults.keys() >= codes.keys()


def test_the_tf32_fault_keeps_ten_bits_of_an_operand() -> None:
    one = torch.eye(1)
    values = torch.tensor([[1 + 2.0**-10], [1 + 2.0**-11], [1 + 2.0**-12], [-(1 + 3 * 2.0**-11)], [1e5 + 1]])
    got = faulty("tf32_backward").backward_a(values, one, torch.empty(5, 1), False)
    assert got.flatten().tolist() == [1 + 2.0**-10, 1 + 2.0**-10, 1.0, -(1 + 2 * 2.0**-10), 1563 * 64.0]


def test_the_unwritten_tile_fault_does_not_write_the_rows_after_the_last_whole_tile() -> None:
    for rows, left in ((33, 1), (32, 0), (5, 5)):
        out = torch.full((rows, 3), -1.0)
        faulty("unwritten_tile").backward_a(torch.ones(rows, 2), torch.ones(3, 2), out, False)
        assert (out == -1).all(dim=1).sum() == left
        assert (out == 2).all(dim=1).sum() == rows - left


def test_the_fault_of_sums_in_order_of_arrival_gives_different_results_from_call_to_call() -> None:
    reduce = faulty("atomic_gain_reduction").reduce_gains
    partials = torch.randn(2, 40, 64, generator=torch.Generator().manual_seed(0))
    first, second = torch.empty(128), torch.empty(128)
    reduce(partials, first)
    reduce(partials, second)
    assert not torch.equal(first, second)
    torch.testing.assert_close(first, partials.sum(dim=1).flatten(), rtol=1e-4, atol=1e-5)


def scale_of(name: str, norm: float, eps: float) -> float:
    norms, scales = torch.empty(1), torch.empty(1)
    starts = torch.tensor([0, 1], dtype=torch.int32)
    faulty(name).clip_scale_reduce(torch.tensor([norm**2]), starts, 0.5, eps, norms, scales)
    assert norms.item() == pytest.approx(norm)
    return scales.item()


def test_the_wrong_norm_faults_compute_their_wrong_scales() -> None:
    assert scale_of("clip_fourth_power", 2.0, 1e-6) == pytest.approx(0.5 / 16)
    assert scale_of("clip_without_epsilon", 2.0, 2.0) == pytest.approx(0.25)


def test_the_missing_tensor_and_last_layer_scale_faults_change_the_clip() -> None:
    starts, counts = torch.tensor([0, 2]), torch.tensor([2, 1], dtype=torch.int32)
    partials = faulty("clip_missing_tensor").squared_sum_partials(
        torch.tensor([1.0, 2.0, 3.0]), starts, counts, torch.empty(2)
    )
    assert partials.tolist() == [5.0, 0.0]
    flat, groups = torch.ones(3), torch.tensor([0, 1], dtype=torch.int32)
    faulty("clip_last_layer_scale").scale_apply_(flat, torch.tensor([0.5, 0.25]), starts, counts, groups)
    assert flat.tolist() == [0.25, 0.25, 0.25]


def gradients_of(fault: str | None, settings: dict[str, str]) -> dict[str, Tensor]:
    """Gradients of step 1 of a fused run."""
    with QLoRASystem().open(STEP, Arm.model_validate(settings), fault=fault) as run:
        run.step(0)
        run.step(1)
        return {name: value.clone() for name, value in run.gradients().items()}


@cache
def plain_gradients(settings: tuple[tuple[str, str], ...]) -> dict[str, Tensor]:
    """Without a fault: the same for all faults of an arm."""
    return gradients_of(None, dict(settings))


def changed_by(fault: str) -> list[str]:
    """Names of the tensors whose gradients are others with a fault planted, which the run leaves as it found it."""
    settings, own = settings_for(fault), ops.rms_norm_reduce_gains
    plain, changed = plain_gradients(tuple(settings.items())), gradients_of(fault, settings)
    assert ops.rms_norm_reduce_gains is own
    assert plain.keys() == changed.keys()
    return [key for key in plain if not torch.equal(plain[key], changed[key])]


# On a CPU there is one row of partial sums, and no order to lose; the small model's shapes have no ragged edge, and its
# products are the naive twins, which are launched by nobody.
LAUNCHES = {"wide_tile", "fewer_threads", "more_stages", "shorter_unroll"}
# A trainer has made the rotation's tables when a fault is planted; it decays no weight, ignores no token and meets no
# bad gradient; its norms add the residuals; the scales of a small model are powers of two that half precision holds.
NOT_IN_THIS_STEP = {
    "product_without_residual",
    "fp8_scale_in_fp16",
    "rotation_base",
    "table_angles_in_fp16",
    "coarse_tables",
    "adam_without_decay",
    "adam_takes_bad_step",
    "loss_of_ignored_tokens",
}
# Of the head's product with statistics, which no CPU has: `test_head_loss.py`.
STATISTICS = {name for name in KERNEL_FAULTS if name.startswith("statistics_")}
# Of the products in FP8 that have SwiGLU within, which no CPU has either: a drill of `contracts/fp8-v1.yaml` on a GPU.
WITHIN = {name for name in KERNEL_FAULTS if name.startswith(("fp8_bound_", "fp8_product_"))}
SHOWN_ELSEWHERE = {"atomic_gain_reduction", "unwritten_tile"} | LAUNCHES | NOT_IN_THIS_STEP | STATISTICS | WITHIN


def settings_for(fault: str) -> dict[str, str]:
    """The arm that has what the fault changes."""
    if fault.startswith("fp8_"):
        return {"precision": "fp8"}
    if fault == "coarse_bfloat16_results":
        return {"gemm": "tiled", "dtype": "bfloat16"}
    # Product by product, a block has no kernel for LoRA's gradients.
    return {"gemm": "cublas" if fault.startswith("lora_") else "tiled"}


@pytest.mark.parametrize("name", sorted(KERNEL_FAULTS.keys() - SHOWN_ELSEWHERE))
def test_a_fault_planted_in_the_trainer_changes_its_gradients(name: str) -> None:
    assert changed_by(name)


def test_the_gain_reduction_fault_changes_gradients_of_norms_even_if_each_block_has_one_launch() -> None:
    own = {"gemm": "cublas"}
    plain, changed = plain_gradients(tuple(own.items())), gradients_of("missing_gain_partial", own)
    different = {key.rsplit(".", 1)[1] for key in plain if not torch.equal(plain[key], changed[key])}
    assert {"input_norm", "post_attn_norm"} <= different


@pytest.mark.parametrize("name", sorted(SHOWN_ELSEWHERE))
def test_a_fault_with_nothing_to_change_leaves_the_trainer_unchanged(name: str) -> None:
    assert changed_by(name) == []


def test_the_system_offers_its_kernels_for_comparison() -> None:
    assert isinstance(QLoRASystem(), HasKernelCases)
    assert "kernel_cases" in QLoRASystem().describe().capabilities


def test_coarse_bfloat16_results_change_only_bfloat16_and_coarse_results_only_float32() -> None:
    """Results in bfloat16 do not have the bits that the fault `coarse_results` changes."""
    for name, of_bfloat16 in (("coarse_bfloat16_results", 1 + 2.0**-5), ("coarse_results", 1.0)):
        table = trainer_table("tiled")
        table.swiglu_forward = torch.clone
        plant(name, KERNELS, table)
        changed = [table.swiglu_forward(torch.ones(2, dtype=dtype)) for dtype in (torch.bfloat16, torch.float32)]
        assert changed[0].tolist() == [of_bfloat16] * 2
        assert (changed[1] == 1).all() == (name == "coarse_bfloat16_results")
