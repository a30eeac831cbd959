"""Planted faults of steps with micro-batches: wrong parts of the batch are read, or gradients are summed or used
wrongly.

With each of these faults the loss still falls, so a falling loss does not show them. Importable without torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.expected import trajectory
from reference_impl.faults.registry import STEP, fault

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.accumulation import Accumulation
    from reference_impl.attention import StepShape
    from reference_impl.trainer import Trainer


def _apart(step: int, quantity: str) -> dict[str, Expectation]:
    figures: dict[str, int | str] = {"first_exceeding_step": step, "first_exceeding_quantity": quantity}
    return {"accumulation": Expectation("FAIL", "differs_from_one_batch", figures)}


def _accumulation(trainer: Trainer) -> Accumulation:
    """Return the trainer's `Accumulation`. If the trainer has none (a step has one micro-batch), return a new one that
    no step uses, so that the fault has no effect."""
    from reference_impl.accumulation import Accumulation

    return trainer.accumulation or Accumulation(trainer.model, trainer.config.micro_batches)


def _read(trainer: Trainer, source: dict[int, int]) -> None:
    """Make each micro-batch `number` in `source` read the part `source[number]` of the batch instead of the part
    `number`."""
    accumulation = _accumulation(trainer)
    right = accumulation.micro_batch

    def micro_batch(tokens: Tensor, targets: Tensor, shape: StepShape, number: int) -> Tensor:
        return right(tokens, targets, shape, source.get(number, number))

    accumulation.micro_batch = micro_batch  # type: ignore[method-assign]


@fault(
    STEP, "the forward and backward pass of the second micro-batch read the first micro-batch again", _apart(0, "loss")
)
def repeated_micro_batch(trainer: Trainer) -> None:
    _read(trainer, {1: 0})


@fault(
    STEP,
    "the graph of the first micro-batch is replayed for every micro-batch",
    {**_apart(0, "loss"), **trajectory("differs", 0)},
)
def one_replayed_micro_batch(trainer: Trainer) -> None:
    _read(trainer, dict.fromkeys(range(trainer.config.micro_batches), 0))


@fault(STEP, "the gradients of the last micro-batch are left out", _apart(0, "norms"))
def dropped_micro_batch(trainer: Trainer) -> None:
    accumulation = _accumulation(trainer)
    add = accumulation.add

    def add_but_the_last(number: int) -> None:
        if number == accumulation.parts - 1:
            trainer.trainable.gradient.zero_()
        add(number)

    accumulation.add = add_but_the_last  # type: ignore[method-assign]


@fault(STEP, "each micro-batch's gradients overwrite those of the micro-batches before it", _apart(0, "norms"))
def overwritten_gradients(trainer: Trainer) -> None:
    _accumulation(trainer).add = lambda number: None  # type: ignore[method-assign]  # noqa: ARG005


@fault(STEP, "gradients are not zeroed between steps", _apart(1, "norms"))
def kept_gradients(trainer: Trainer) -> None:
    accumulation = _accumulation(trainer)

    def add(number: int) -> None:
        accumulation.total.add_(trainer.trainable.gradient)
        if number == accumulation.parts - 1:
            trainer.trainable.gradient.copy_(accumulation.total)

    accumulation.add = add  # type: ignore[method-assign]


@fault(
    STEP, "gradients are summed but should be averaged; an active clip and Adam hide the difference", _apart(0, "norms")
)
def summed_micro_batches(trainer: Trainer) -> None:
    accumulation = _accumulation(trainer)
    add = accumulation.add

    def add_undivided(number: int) -> None:
        trainer.trainable.gradient.mul_(accumulation.parts)
        add(number)

    accumulation.add = add_undivided  # type: ignore[method-assign]


@fault(STEP, "each micro-batch's gradients are clipped, instead of only their mean", _apart(0, "norms"))
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
    {"accumulation": Expectation("FAIL", "update_count")},
)
def update_at_every_micro_batch(trainer: Trainer) -> None:
    accumulation = _accumulation(trainer)

    def update(number: int) -> None:
        if number < accumulation.parts - 1:
            trainer.update()

    accumulation.add = update  # type: ignore[method-assign]


@fault(
    STEP,
    "the loader returns one micro-batch twice in a step",
    {"accumulation": Expectation("FAIL", "micro_batches_repeat", {"first_repeating_step": 0})},
    plant_in="both",
)
def loaded_twice(trainer: Trainer) -> None:
    prepare = trainer.prepare

    def prepare_with_a_copy(index: int) -> None:
        prepare(index)
        for whole in (trainer.static.tokens, trainer.static.targets):
            sequences = whole.view(-1, whole.shape[-1])
            half = sequences.shape[0] // 2  # the number of micro-batches is even, and all have the same size
            sequences[half:].copy_(sequences[:half])

    trainer.prepare = prepare_with_a_copy  # type: ignore[method-assign]


@fault(
    STEP,
    "the batch is divided into only half as many micro-batches",
    {"accumulation": Expectation("FAIL", "micro_batch_count")},
)
def fewer_micro_batches(trainer: Trainer) -> None:
    type(trainer).__init__(trainer, replace(trainer.config, micro_batches=trainer.config.micro_batches // 2))


@fault(
    STEP,
    "the whole batch passes through the model at once, but is reported as micro-batches",
    {"accumulation": Expectation("FAIL", "vacuous_one_batch")},
)
def all_at_once(trainer: Trainer) -> None:
    from reference_impl.attention import StepShape

    def gradients(tokens: Tensor, targets: Tensor, shape: StepShape) -> Tensor:
        whole = StepShape(tokens[..., 0].numel(), shape.seq_len, shape.cos, shape.sin)
        loss, context = trainer.model.forward(tokens.flatten(0, 1), targets.flatten(0, 1), whole)
        trainer.model.backward(context, whole, consume=True)
        return loss

    _accumulation(trainer).gradients = gradients  # type: ignore[method-assign]
