"""Planted faults of the step's code, in the captured and the plain step alike. Importable without torch.

Both steps give equal results, and both results are wrong. So no comparison of the trainer's arms shows these faults.
The faults are small, such as one wrong code of one weight, or one wrong tensor of one layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.expected import errs, single_evaluations, single_steps
from reference_impl.faults.registry import STEP, fault

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.trainer import Trainer

RESET_STEP = 50
ZEROED_FROM, ZEROED = 20, "layers.1.lora_a_v"
OTHER_BASE = 100.0  # factor on the base of the rotation; the bases of Llama 2 and Qwen2 differ by about this factor


@fault(
    STEP,
    "in both arms each token's label is the token itself, not the next one",
    # labels are inputs of a step, so the trainer's arm and the transformers twin no longer read the same batch
    dict.fromkeys(("step_match", "step_accuracy"), Expectation("FAIL", "unequal_batches", {"first_unequal_step": 0})),
    plant_in="both",
)
def labels_not_shifted(trainer: Trainer) -> None:
    prepare = trainer.prepare

    def prepare_without_shift(index: int) -> None:
        prepare(index)
        trainer.static.targets.copy_(trainer.static.tokens)

    trainer.prepare = prepare_without_shift  # type: ignore[method-assign]


@fault(
    STEP,
    f"in both arms Adam's first moment is set to zero before step {RESET_STEP}",
    single_steps("exp_avg", RESET_STEP),
    plant_in="both",
)
def reset_momentum(trainer: Trainer) -> None:
    prepare = trainer.prepare

    def prepare_with_reset(index: int) -> None:
        prepare(index)
        if index == RESET_STEP:
            trainer.optimizer.exp_avg.zero_()

    trainer.prepare = prepare_with_reset  # type: ignore[method-assign]


@fault(
    STEP,
    f"in both arms the gradient of {ZEROED} is zero from step {ZEROED_FROM} on",
    {**single_steps("norms", ZEROED_FROM), **errs("gradient_ratio")},
    plant_in="both",
)
def zeroed_gradient(trainer: Trainer) -> None:
    prepare, apply = trainer.prepare, trainer.clip.apply_
    factor = trainer.clip.norms.new_ones(())

    def prepare_with_factor(index: int) -> None:
        prepare(index)
        factor.fill_(1.0 if index < ZEROED_FROM else 0.0)

    def apply_to_the_rest(gradient: Tensor) -> None:
        trainer.gradients()[ZEROED].mul_(factor)
        apply(gradient)

    trainer.prepare = prepare_with_factor  # type: ignore[method-assign]
    trainer.clip.apply_ = apply_to_the_rest  # type: ignore[method-assign]


@fault(
    STEP,
    "in both arms one weight has its neighbour's NF4 code",
    single_evaluations(0),
    plant_in="both",
)
def wrong_nf4_value(trainer: Trainer) -> None:
    codes = trainer.frozen_tensors()["layers.2.down.codes"]
    codes[0].bitwise_xor_(1)  # flip the last bit of the code of the second weight


@fault(
    STEP,
    "in both arms the learning rate stays at its peak, without warm-up or decay",
    {**single_steps("parameters", 0), **errs("loss_ratio")},
    plant_in="both",
)
def constant_learning_rate(trainer: Trainer) -> None:
    prepare = trainer.prepare

    def prepare_at_the_peak(index: int) -> None:
        prepare(index)
        trainer.optimizer.learning_rate.fill_(trainer.config.learning_rate)

    trainer.prepare = prepare_at_the_peak  # type: ignore[method-assign]


@fault(
    STEP,
    "both arms use a rotary base that differs from the config's",
    {**single_steps("loss", 0), **errs("median_gradient_ratio")},
    plant_in="both",
)
def wrong_rotary_base(trainer: Trainer) -> None:
    from dataclasses import replace

    trainer.model_config = replace(trainer.model_config, rope_theta=OTHER_BASE * trainer.model_config.rope_theta)
    trainer._buffers.clear()
    trainer.set_shape(trainer.config.seq_len)
