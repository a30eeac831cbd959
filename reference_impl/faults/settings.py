"""Planted faults with which the trainer ignores a setting, wholly or partly: the seed, or the setting that switches
LoRA off. Importable without torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.registry import STEP, fault

if TYPE_CHECKING:
    from reference_impl.trainer import Trainer

BUILT_IN_SEED = 0  # the seed that a faulty trainer uses instead of the seed in the settings
STRAY_B = 0.01


def _differ(reason: str, **figures: int | bool) -> dict[str, Expectation]:
    return {"runs_differ": Expectation("FAIL", reason, figures)}


@fault(STEP, "every seed is read as 0", _differ("losses_equal", start_equal=True))
def ignored_seed(trainer: Trainer) -> None:
    type(trainer).__init__(trainer, replace(trainer.config, seed=BUILT_IN_SEED))


@fault(
    STEP,
    "every seed is read as 0 in both arms",
    {"not_worse": Expectation("FAIL", "vacuous_seeds_alike")},
    plant_in="both",
)
def one_seed(trainer: Trainer) -> None:
    ignored_seed(trainer)


@fault(STEP, "the order of the batches does not come from the seed", _differ("batches_equal", start_equal=False))
def seed_without_batches(trainer: Trainer) -> None:
    trainer.data._seed = BUILT_IN_SEED


@fault(STEP, "the parameters that training starts from do not come from the seed", _differ("start_equal"))
def seed_without_start(trainer: Trainer) -> None:
    from reference_impl.lora import Trainable

    config = trainer.config
    other = Trainable(trainer.model_config, config.rank, config.alpha, BUILT_IN_SEED, trainer.device, trainer.dtype)
    drawn = other.parameters()
    for name, parameter in trainer.parameters().items():
        if "lora_a" in name:
            parameter.copy_(drawn[name])


@fault(
    STEP,
    "LoRA adds something although its B is zero",
    {"FALSIFY-QT-002": Expectation("FAIL", "differs", {"trajectory_match.first_differing_step": 0})},
)
def stray_adapter(trainer: Trainer) -> None:
    trainable = trainer.trainable
    refresh = trainable.refresh_compute_copies

    def refresh_and_add() -> None:
        refresh()
        trainable.b.add_(STRAY_B)

    trainable.refresh_compute_copies = refresh_and_add  # type: ignore[method-assign]


@fault(
    STEP,
    "LoRA is also computed in arms that switch it off",
    {"FALSIFY-QT-002": Expectation("FAIL", "losses_equal", {"runs_differ.losses_equal": 10})},
)
def unheeded_adapters(trainer: Trainer) -> None:
    for block in trainer.model.blocks:
        block.adapters = True


@fault(
    STEP,
    "the step always computes in float32 and ignores the setting",
    {claim: Expectation("FAIL", "vacuous_precision") for claim in ("F-FP16-001", "F-FP16-001-STEPS", "not_worse")},
)
def unheeded_dtype(trainer: Trainer) -> None:
    type(trainer).__init__(trainer, replace(trainer.config, dtype="float32"))
