"""Faults of a training step that REF-STEP-001 was not written for, to see whether it kills them too.

Each changes the reference trainer alone, in a process of its own. Importing this registers them beside its own faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reference_impl.config import learning_rate_at
from reference_impl.faults.registry import STEP, fault
from reference_impl.trainer import Trainer

OUTSIDERS: list[str] = []
Change = Callable[[Trainer], None]


def outsider(summary: str) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        OUTSIDERS.append(change.__name__)
        return fault(STEP, summary, {}, plant_in="both")(change)

    return register


def _before_each_step(trainer: Trainer, change: Callable[[int], object]) -> None:
    prepare = trainer.prepare

    def prepare_and_change(index: int) -> None:
        prepare(index)
        change(index)

    trainer.prepare = prepare_and_change  # type: ignore[method-assign]


def _with_gradient(trainer: Trainer, change: Callable[[dict[str, Tensor]], object]) -> None:
    apply = trainer.clip.apply_

    def change_and_apply(gradient: Tensor) -> None:
        change(trainer.gradients())
        apply(gradient)

    trainer.clip.apply_ = change_and_apply  # type: ignore[method-assign]


@outsider("Adam's second moment is set to zero before step 70")
def second_moment_reset(trainer: Trainer) -> None:
    _before_each_step(trainer, lambda index: index == 70 and trainer.optimizer.exp_avg_sq.zero_())


@outsider("the gradient of one gain is a thousandth too large")
def scaled_gradient(trainer: Trainer) -> None:
    _with_gradient(trainer, lambda gradients: gradients["layers.3.input_norm"].mul_(1.001))


@outsider("one element of one LoRA gradient is left out")
def lost_element(trainer: Trainer) -> None:
    _with_gradient(trainer, lambda gradients: gradients["layers.2.lora_b_q"][5, 3].zero_())


@outsider("every NF4 code 3 of one matrix is read as 4")
def another_code(trainer: Trainer) -> None:
    codes = trainer.frozen_tensors()["layers.0.output.codes"]
    codes.copy_(torch.where(codes >> 4 == 3, codes + 16, codes))


@outsider("one block of 64 weights has a scale that is one per cent too large")
def block_scale(trainer: Trainer) -> None:
    trainer.frozen_tensors()["layers.1.gate_up.absmax"][7].mul_(1.01)


@outsider("Adam's eps is 1e-7 in place of 1e-8")
def optimizer_eps(trainer: Trainer) -> None:
    trainer.optimizer._config = replace(trainer.config, eps=1e-7)


@outsider("Adam's beta1 is 0.901 in place of 0.9")
def first_beta(trainer: Trainer) -> None:
    trainer.optimizer._config = replace(trainer.config, beta1=0.901)


@outsider("Adam's beta2 is 0.9991 in place of 0.999")
def second_beta(trainer: Trainer) -> None:
    trainer.optimizer._config = replace(trainer.config, beta2=0.9991)


@outsider("a weight decay of 1e-3 in place of none")
def weight_decay(trainer: Trainer) -> None:
    trainer.optimizer._config = replace(trainer.config, weight_decay=1e-3)


@outsider("the norms' epsilon is 1e-5 in place of 1e-6")
def norm_epsilon(trainer: Trainer) -> None:
    trainer.model.config = replace(trainer.model.config, rms_norm_eps=1e-5)
    for block in trainer.model.blocks:
        block.config = replace(block.config, rms_norm_eps=1e-5)


@outsider("query heads read key and value heads in turn, not in groups")
def head_mapping(trainer: Trainer) -> None:  # noqa: ARG001 - every trainer of the process has it
    from reference_impl.kernels.attention import naive

    packed, grouped = naive._packed, naive._grouped

    def reordered(rows: Tensor, head_dim: int, order: list[int]) -> Tensor:
        return rows.view(len(rows), -1, head_dim)[:, order].reshape(rows.shape)

    def grouped_in_turn(rows: Tensor, batch: int, kv_heads: int, head_dim: int) -> Tensor:
        order = _in_turn(rows.shape[1] // head_dim, kv_heads)
        return grouped(reordered(rows, head_dim, order), batch, kv_heads, head_dim)

    def packed_in_turn(grouped: Tensor, batch: int, seq_len: int) -> Tensor:
        flat, head_dim = packed(grouped, batch, seq_len), grouped.shape[2]
        order = _in_turn(flat.shape[1] // head_dim, len(grouped) // batch)
        return reordered(flat, head_dim, [order.index(head) for head in range(len(order))])

    naive._grouped, naive._packed = grouped_in_turn, packed_in_turn


def _in_turn(heads: int, kv_heads: int) -> list[int]:
    """Which head stands where groups of consecutive heads are expected."""
    return [head for key in range(kv_heads) for head in range(key, heads, kv_heads)]


@outsider("the bias of one layer's projections is left out")
def missing_bias(trainer: Trainer) -> None:
    trainer.frozen_tensors()["layers.2.qkv_bias"].zero_()


@outsider("the clip's threshold is one per cent too high")
def clip_threshold(trainer: Trainer) -> None:
    trainer.clip._config = replace(trainer.config, max_norm=1.01 * trainer.config.max_norm)


@outsider("the schedule is one step ahead")
def early_schedule(trainer: Trainer) -> None:
    rate = trainer.optimizer.learning_rate
    _before_each_step(trainer, lambda index: rate.fill_(learning_rate_at(trainer.config, index + 1)))


@outsider("the schedule's cosine ends at zero, not at a tenth")
def cosine_to_zero(trainer: Trainer) -> None:
    rate, peak = trainer.optimizer.learning_rate, trainer.config.learning_rate

    def lower(index: int) -> None:
        if index >= trainer.config.warmup_steps:
            rate.fill_((learning_rate_at(trainer.config, index) - 0.1 * peak) / 0.9)

    _before_each_step(trainer, lower)


@outsider("the last token of each sequence has the first one's label")
def last_label(trainer: Trainer) -> None:
    _before_each_step(trainer, lambda _: trainer.static.targets[:, -1].copy_(trainer.static.targets[:, 0]))


@outsider("batches are read in pairs that have changed places")
def swapped_batches(trainer: Trainer) -> None:
    batch = trainer.batch
    trainer.batch = lambda index: batch(index ^ 1)  # type: ignore[method-assign]


@outsider("the rows of a batch are read in another order")
def swapped_rows(trainer: Trainer) -> None:
    batch = trainer.batch
    trainer.batch = lambda index: tuple(each.flip(0) for each in batch(index))  # type: ignore[method-assign, return-value, assignment]


@outsider("LoRA's scale is that of another rank")
def lora_scale(trainer: Trainer) -> None:
    trainer.trainable.scale *= 1.01


@outsider("bias corrections count one step too many from step 60 on")
def step_counter(trainer: Trainer) -> None:
    _before_each_step(trainer, lambda index: index == 60 and trainer.optimizer.step_count.add_(1))


@outsider("the update of step 90 is left out")
def lost_update(trainer: Trainer) -> None:
    update, at = trainer.optimizer.update_, [0]
    _before_each_step(trainer, lambda index: at.__setitem__(0, index))

    def update_but_once(parameters: Tensor, gradient: Tensor, norms: Tensor) -> None:
        if at[0] != 90:
            update(parameters, gradient, norms)

    trainer.optimizer.update_ = update_but_once  # type: ignore[method-assign]


@outsider("the loss is the mean over one token fewer")
def loss_mean(trainer: Trainer) -> None:
    forward: Any = trainer.model.forward

    def forward_with_other_mean(tokens: Tensor, targets: Tensor, shape: Any, *, mean_over: int | None = None) -> Any:
        loss, context = forward(tokens, targets, shape, mean_over=mean_over)
        return loss * (targets.numel() / (targets.numel() - 1)), context

    trainer.model.forward = forward_with_other_mean  # type: ignore[method-assign]
