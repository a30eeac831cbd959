"""Make an opened trainer use the kernels that a planted fault has changed. Importable without torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from reference_impl.faults.registry import KERNELS, change_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from reference_impl.cuda_graph import CapturingTrainer
    from reference_impl.kernel_table import KernelTable
    from reference_impl.trainer import Trainer

# Name of an entry of a `KernelTable` -> name of the operator in `reference_impl.ops` that calls this kernel. The
# rotation's tables are left out, because a trainer computes them before a fault is planted.
_OPERATORS = {
    "backward_to_partials": "rms_norm_backward_to_partials",
    "reduce_gains": "rms_norm_reduce_gains",
    "fp8_loss": "fp8_loss_forward_backward",
    **{
        name: name
        for name in (
            "rms_norm_forward",
            "rms_norm_add_forward",
            "rope_add_rotate_",
            "attention_forward",
            "attention_backward",
            "swiglu_forward",
            "swiglu_backward",
            "add_product",
            "input_gradient",
            "lora_gradients",
            "cross_entropy_forward_backward_",
            "cross_entropy_from_statistics_",
            "head_logits",
            "nf4_dequantize",
            "fp8_quantize_rows",
            "fp8_norm_add_forward",
            "fp8_norm_backward_to_partials",
            "fp8_swiglu_forward",
            "fp8_swiglu_backward",
            "fp8_up_swiglu",
            "fp8_down_swiglu_backward",
            "fp8_from_nf4",
            "fp8_from_nf4_transposed",
        )
    },
}


def plant_kernels(name: str | None, capturing: CapturingTrainer) -> None:
    """Replace only those kernels of the trainer that the fault `name` changes. If `name` is None, replace no kernel."""
    change = change_of(name, KERNELS)
    if change is None:
        return
    from reference_impl.kernel_table import trainer_table

    trainer = capturing.trainer
    own = trainer_table(trainer.config.gemm)
    changed = replace(own)
    change(changed)
    if changed.backward_b is not own.backward_b:
        _use_product(trainer, changed)
    if changed.reduce_gains is not own.reduce_gains:
        _reduce_gains_apart(trainer)
    operators = {operator: getattr(changed, name) for name, operator in _OPERATORS.items()}
    _use_operators(capturing, operators | _around_swiglu(own, changed) | _around_loss(own, changed))
    if changed.adamw is not own.adamw:
        trainer.optimizer = changed.adamw(trainer.trainable.flat, trainer.config)
    if trainer.config.clip_mode == "fused":
        _use_clip(trainer, changed)


def _around_swiglu(own: KernelTable, changed: KernelTable) -> dict[str, object]:
    """Return new operators for the products that are fused with SwiGLU, by name.

    If the fault changes SwiGLU, return unfused operators, because the fused kernels would not call the changed SwiGLU.
    """
    from reference_impl import ops

    apart = own.swiglu_forward is not changed.swiglu_forward, own.swiglu_backward is not changed.swiglu_backward
    return {
        "up_swiglu": ops.up_then_swiglu if apart[0] else changed.up_swiglu,
        "down_swiglu_backward": ops.down_then_swiglu_backward if apart[1] else changed.down_swiglu_backward,
    }


def _around_loss(own: KernelTable, changed: KernelTable) -> dict[str, object]:
    """Return a new operator for head and loss, by name.

    If the fault changes the loss, return the unfused operator, because the fused kernel does not call that loss.
    """
    from reference_impl import ops

    apart = own.cross_entropy_forward_backward_ is not changed.cross_entropy_forward_backward_
    return {"head_loss": ops.head_then_loss if apart else ops.head_loss}


def _use_product(trainer: Trainer, table: KernelTable) -> None:
    def write_product_(out: Tensor, left: Tensor, right: Tensor) -> None:
        table.backward_b(left.t().contiguous(), right.contiguous(), out, False)

    for block in trainer.model.blocks:
        block.write_product_ = write_product_


def _reduce_gains_apart(trainer: Trainer) -> None:
    """Make each block compute LoRA's gradients one by one, so that a separate kernel reduces the gains' gradients."""
    from reference_impl.block import write_product_

    for block in trainer.model.blocks:
        block.write_product_ = block.write_product_ or write_product_


def _use_operators(capturing: CapturingTrainer, changed: Mapping[str, object]) -> None:
    """Replace operators of `reference_impl.ops`, where the model looks them up, until the run is closed."""
    from reference_impl import ops

    own, close = {name: getattr(ops, name) for name in changed}, capturing.close
    vars(ops).update(changed)

    def close_and_restore() -> None:
        vars(ops).update(own)
        close()

    capturing.close = close_and_restore  # type: ignore[method-assign]


def _use_clip(trainer: Trainer, table: KernelTable) -> None:
    from reference_impl.clip import EPS

    clip, max_norm = trainer.clip, trainer.config.max_norm

    def apply_(gradient: Tensor) -> None:
        plan = clip.plan
        table.squared_sum_partials(gradient, plan.starts, plan.counts, clip.partials)
        table.clip_scale_reduce(clip.partials, plan.group_starts, max_norm, EPS, clip.norms, clip.scales)
        table.scale_apply_(gradient, clip.scales, plan.starts, plan.counts, plan.groups)

    clip.apply_ = apply_  # type: ignore[method-assign]
