"""Planted faults of a step's gradients and of their clip. Importable without torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.expected import trajectory, transformers_twin
from reference_impl.faults.registry import STEP, fault

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.trainer import Trainer


@fault(
    STEP,
    "the clip is left out from the second step on",
    {
        **trajectory("differs", 2),
        "gradient_match": Expectation("FAIL", "differs", {"first_differing_step": 1}),
        "CGB-INV-003": Expectation("FAIL", "clipped_norm_exceeded"),
        **transformers_twin(gradient_match__first_differing_step=1),
    },
)
def dropped_clip(trainer: Trainer) -> None:
    # Do not plant the fault in the first step, because Adam's first update does not depend on the scale of the
    # gradient. In the first step only rounding would show the fault, and the first step that differs could not be
    # predicted.
    import torch

    prepare, apply = trainer.prepare, trainer.clip.apply_
    at_first = trainer.clip.norms.new_zeros((), dtype=torch.bool)

    def prepare_with_flag(index: int) -> None:
        prepare(index)
        at_first.fill_(index == 0)

    def apply_at_first(gradient: Tensor) -> None:
        unclipped = gradient.clone()
        apply(gradient)
        gradient.copy_(torch.where(at_first, gradient, unclipped))

    trainer.prepare = prepare_with_flag  # type: ignore[method-assign]
    trainer.clip.apply_ = apply_at_first  # type: ignore[method-assign]


@fault(
    STEP,
    "the step has no clip",
    {
        # The final losses are within the bound, so only the number of steps with an active clip shows the fault.
        "F-GRAPH-BWD-004": Expectation("FAIL", "vacuous_clip_inactive", {"clip_active_steps": 0}),
        "F-CGT-006": Expectation("FAIL", "clipped_tensors", {"capture.clipped_tensors": 0}),
    },
)
def removed_clip(trainer: Trainer) -> None:
    trainer.clip.apply_ = lambda gradient: None  # type: ignore[method-assign]  # noqa: ARG005


@fault(
    STEP,
    "both arms clip at twice the threshold, so their results agree",
    {"gradient_match": Expectation("FAIL", "clipped_norm_exceeded")},
    plant_in="both",
)
def doubled_threshold(trainer: Trainer) -> None:
    trainer.clip._config = replace(trainer.config, max_norm=2 * trainer.config.max_norm)


@fault(
    STEP,
    "the captured step clips by one global norm, and the plain step by the norm of each layer",
    {
        # The first differing step cannot be predicted. The two clips differ only in the scale of the gradient, and
        # Adam's first update does not depend on this scale.
        "trajectory_match": Expectation("FAIL", "differs", {"final_parameters_equal": False}),
        "gradient_match": Expectation("FAIL", "differs", {"first_differing_step": 0}),
    },
)
def global_clip(trainer: Trainer) -> None:
    from reference_impl.clip import GradientClip

    slots = trainer.trainable.slots
    config = replace(trainer.config, clip_scope="global")
    trainer.clip = GradientClip([slot.size for slot in slots], [slot.layer for slot in slots], config, trainer.device)


@fault(
    STEP,
    "the fused clip reads one norm back to the host",
    {"capture": Expectation("FAIL", "not_captured")},
)
def sync_in_capture(trainer: Trainer) -> None:
    clip, apply = trainer.clip, trainer.clip.apply_

    def apply_and_read(gradient: Tensor) -> None:
        apply(gradient)
        clip.norms.sum().item()

    clip.apply_ = apply_and_read  # type: ignore[method-assign]


@fault(
    STEP,
    "one gradient of step 5 is NaN, so its update is left out",
    {**trajectory("differs", 6), "capture": Expectation("FAIL", "skipped_steps", {"skipped_steps": 1})},
)
def nan_gradient(trainer: Trainer) -> None:
    prepare, apply = trainer.prepare, trainer.clip.apply_
    poison = trainer.clip.norms.new_zeros(())

    def prepare_with_poison(index: int) -> None:
        prepare(index)
        poison.fill_(float("nan") if index == 5 else 0.0)

    def apply_poisoned(gradient: Tensor) -> None:
        gradient[0].add_(poison)
        apply(gradient)

    trainer.prepare = prepare_with_poison  # type: ignore[method-assign]
    trainer.clip.apply_ = apply_poisoned  # type: ignore[method-assign]


@fault(
    STEP,
    "gradients are added to a buffer that the graph also writes, so they count twice from the second replay on",
    {
        # The clip divides the doubled gradient by a doubled norm. Only a rounding error remains, which changes the loss
        # a few steps later. That step cannot be predicted.
        "trajectory_match": Expectation("FAIL", "differs", {"final_parameters_equal": False}),
        "gradient_match": Expectation("FAIL", "differs", {"first_differing_step": 1}),
    },
)
def aliased_gradients(trainer: Trainer) -> None:
    prepare, apply = trainer.prepare, trainer.clip.apply_
    times = trainer.clip.norms.new_ones(())

    def prepare_with_alias(index: int) -> None:
        prepare(index)
        times.fill_(1.0 if index == 0 else 2.0)

    def accumulate_and_apply(gradient: Tensor) -> None:
        gradient.mul_(times)
        apply(gradient)

    trainer.prepare = prepare_with_alias  # type: ignore[method-assign]
    trainer.clip.apply_ = accumulate_and_apply  # type: ignore[method-assign]


@fault(
    STEP,
    "the gradient of a gain is summed in an order that changes from run to run, and so does its last bit",
    {"repeatability": Expectation("FAIL", "differs")},
)
def order_of_arrival(trainer: Trainer) -> None:
    import os

    import numpy as np
    import torch

    apply = trainer.clip.apply_
    gains = [slot.name for slot in trainer.trainable.slots if slot.name.endswith("norm")]

    def apply_to_unordered_sums(gradient: Tensor) -> None:
        for name in gains:
            gain = trainer.gradients()[name]
            # Use no generator of the run: the fault imitates an order in which threads add, which no seed determines.
            chance = np.frombuffer(os.urandom(gain.numel()), dtype=np.uint8).astype(np.int32) % 3 - 1
            last_bits = torch.from_numpy(chance).view(gain.shape).to(gain.device)
            gain.view(torch.int32).add_(last_bits * (gain != 0))
        apply(gradient)

    trainer.clip.apply_ = apply_to_unordered_sums  # type: ignore[method-assign]
