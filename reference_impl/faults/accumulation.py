"""Faults of a step of several micro-batches: which are read, how their gradients add up, and when they are used.

Each leaves a loss that falls. Importable without torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.registry import STEP, fault

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.accumulation import Accumulation
    from reference_impl.attention import StepShape
    from reference_impl.trainer import Trainer


def _apart(step: int, quantity: str = "gradients") -> dict[str, Expectation]:
    figures = {"first_exceeding_step": step, "first_exceeding_quantity": quantity}
    return {"accumulation": Expectation("FAIL", "differs_from_one_batch", figures)}


def _accumulation(trainer: Trainer) -> Accumulation:
    """That of an arm with micro-batches; planted in another arm these faults change nothing to be seen."""
    from reference_impl.accumulation import Accumulation

    return trainer.accumulation or Accumulation(trainer.model, trainer.config.micro_batches)


def _read(trainer: Trainer, source: dict[int, int]) -> None:
    """Micro-batch `number` is taken from place `source[number]` of the batch, where that says another one."""
    accumulation = _accumulation(trainer)
    right = accumulation.micro_batch

    def micro_batch(tokens: Tensor, targets: Tensor, shape: StepShape, number: int) -> Tensor:
        return right(tokens, targets, shape, source.get(number, number))

    accumulation.micro_batch = micro_batch  # type: ignore[method-assign]


@fault(STEP, "the second micro-batch's forward and backward read the first one again", _apart(0, "loss"))
def repeated_micro_batch(trainer: Trainer) -> None:
    _read(trainer, {1: 0})


@fault(STEP, "a graph of one micro-batch is replayed for all of them", _apart(0, "loss"))
def one_replayed_micro_batch(trainer: Trainer) -> None:
    _read(trainer, dict.fromkeys(range(trainer.config.micro_batches), 0))


@fault(STEP, "the gradients of the last micro-batch are left out", _apart(0))
def dropped_micro_batch(trainer: Trainer) -> None:
    accumulation = _accumulation(trainer)
    add = accumulation.add

    def add_but_the_last(number: int) -> None:
        if number == accumulation.parts - 1:
            trainer.trainable.gradient.zero_()
        add(number)

    accumulation.add = add_but_the_last  # type: ignore[method-assign]


@fault(STEP, "each micro-batch's gradients overwrite those before", _apart(0))
def overwritten_gradients(trainer: Trainer) -> None:
    _accumulation(trainer).add = lambda number: None  # type: ignore[method-assign]  # noqa: ARG005


@fault(STEP, "gradients are not zeroed between steps", _apart(1))
def kept_gradients(trainer: Trainer) -> None:
    accumulation = _accumulation(trainer)

    def add(number: int) -> None:
        accumulation.total.add_(trainer.trainable.gradient)
        if number == accumulation.parts - 1:
            trainer.trainable.gradient.copy_(accumulation.total)

    accumulation.add = add  # type: ignore[method-assign]


@fault(STEP, "gradients are summed where they are to be averaged; an active clip and Adam hide it", _apart(0, "norms"))
def summed_micro_batches(trainer: Trainer) -> None:
    accumulation = _accumulation(trainer)
    add = accumulation.add

    def add_undivided(number: int) -> None:
        trainer.trainable.gradient.mul_(accumulation.parts)
        add(number)

    accumulation.add = add_undivided  # type: ignore[method-assign]


@fault(STEP, "each micro-batch's gradients are clipped, and not their mean alone", _apart(0, "norms"))
def clip_each_micro_batch(trainer: Trainer) -> None:
    accumulation = _accumulation(trainer)
    add, clip = accumulation.add, trainer.clip.apply_

    def clip_and_add(number: int) -> None:
        gradient = trainer.trainable.gradient
        clip(gradient.mul_(accumulation.parts))
        gradient.div_(accumulation.parts)
        add(number)

    accumulation.add = clip_and_add  # type: ignore[method-assign]


@fault(
    STEP,
    "the optimizer is called after every micro-batch",
    {"accumulation": Expectation("FAIL", "update_count", {"updates_in_a_step": 4})},
)
def update_at_every_micro_batch(trainer: Trainer) -> None:
    accumulation = _accumulation(trainer)

    def update(number: int) -> None:
        if number < accumulation.parts - 1:
            trainer.update()

    accumulation.add = update  # type: ignore[method-assign]


@fault(
    STEP,
    "the loader hands out one micro-batch twice in a step",
    {"accumulation": Expectation("FAIL", "micro_batches_repeat", {"first_repeating_step": 0})},
    plant_in="both",
)
def loaded_twice(trainer: Trainer) -> None:
    prepare = trainer.prepare

    def prepare_with_a_copy(index: int) -> None:
        prepare(index)
        for whole in (trainer.static.tokens, trainer.static.targets):
            sequences = whole.view(-1, whole.shape[-1])
            half = sequences.shape[0] // 2  # whole micro-batches of an even number of them
            sequences[half:].copy_(sequences[:half])

    trainer.prepare = prepare_with_a_copy  # type: ignore[method-assign]


@fault(
    STEP,
    "the batch is taken in half as many micro-batches",
    {"accumulation": Expectation("FAIL", "micro_batch_count", {"micro_batches": 2})},
)
def fewer_micro_batches(trainer: Trainer) -> None:
    type(trainer).__init__(trainer, replace(trainer.config, micro_batches=trainer.config.micro_batches // 2))


@fault(
    STEP,
    "the arm of one batch is taken in micro-batches, too",
    {"accumulation": Expectation("FAIL", "vacuous_one_batch")},
    plant_in="baseline",
)
def no_batch_in_one(trainer: Trainer) -> None:
    type(trainer).__init__(trainer, replace(trainer.config, micro_batches=4))
