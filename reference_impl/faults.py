"""The planted faults: each a small readable change of one opened run, off by default. Importable without torch.

Every fault is one that upstream's code or its public threads show. `first_differing_step` counts from 0 and is the
first step whose loss can tell: a wrong update of step k shows in the loss of step k + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from harness.system.protocol import Expectation, FaultDescription

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.system import QLoRARun

Plant = Callable[["QLoRARun"], None]


@dataclass(frozen=True)
class Fault:
    """A description for the harness, and the function that plants it in an opened run."""

    description: FaultDescription
    plant: Plant


FAULTS: dict[str, Fault] = {}


def fault(
    summary: str,
    breaks: Mapping[str, Expectation],
    *,
    plant_in: Literal["candidate", "baseline", "both"] = "candidate",
    needs: Literal["any", "cuda"] = "any",
) -> Callable[[Plant], Plant]:
    """Register the decorated function as a fault of its name."""

    def register(plant: Plant) -> Plant:
        name = plant.__name__
        FAULTS[name] = Fault(FaultDescription(name, summary, plant_in, breaks, needs), plant)
        return plant

    return register


def _twin(**figures: int) -> dict[str, Expectation]:
    """What the comparison with transformers must say: its bounds are of rounding, and figures name their part."""
    named = {name.replace("__", "."): value for name, value in figures.items()}
    return {"REF-STEP-001": Expectation("FAIL", "exceeds_tolerance", named)}


def trajectory(reason: str, step: int) -> dict[str, Expectation]:
    """What a trajectory claim must say: the reason, and the first step whose loss differs."""
    return {"trajectory_match": Expectation("FAIL", reason, {"first_differing_step": step})}


@fault(
    "the batch is rebound instead of copied, so every replay trains on batch 0",
    {
        **trajectory("unequal_batches", 1),
        "gradient_match": Expectation("FAIL", "unequal_batches", {"first_unequal_step": 1}),
    },
)
def stale_batch(run: QLoRARun) -> None:
    trainer, prepare = run.trainer, run.trainer.prepare

    def prepare_without_batch(index: int) -> None:
        kept = [tensor.clone() for tensor in (trainer.static.tokens, trainer.static.targets)]
        prepare(index)
        if index > 0:
            trainer.static.tokens.copy_(kept[0])
            trainer.static.targets.copy_(kept[1])

    trainer.prepare = prepare_without_batch  # type: ignore[method-assign]


@fault(
    "the capture records the first step but launches nothing, so its update is lost",
    {
        **trajectory("differs", 1),
        "gradient_match": Expectation("FAIL", "differs", {"first_differing_step": 0}),
        "capture": Expectation("FAIL", "lost_step"),
    },
)
def lost_first_update(run: QLoRARun) -> None:
    step = run.capturing.step

    def record_only_at_first(index: int) -> Tensor:
        if index > 0:
            return step(index)
        run.capturing.prepare(index)
        return run.trainer.forward_body().clone()

    run.capturing.step = record_only_at_first  # type: ignore[method-assign]


@fault(
    "the learning rate is a host scalar, baked in when the step is recorded",
    {**trajectory("differs", 2), **_twin(trajectory_match__first_exceeding_step=2)},
)
def frozen_learning_rate(run: QLoRARun) -> None:
    trainer, prepare = run.trainer, run.trainer.prepare

    def prepare_with_first_rate(index: int) -> None:
        prepare(index)
        trainer.optimizer.learning_rate.fill_(run.learning_rate_at(0))

    trainer.prepare = prepare_with_first_rate  # type: ignore[method-assign]


@fault(
    "Adam's bias corrections are host scalars, baked in when the step is recorded",
    {**trajectory("differs", 2), **_twin(trajectory_match__first_exceeding_step=2)},
)
def frozen_bias_correction(run: QLoRARun) -> None:
    trainer, prepare = run.trainer, run.trainer.prepare

    def prepare_at_count_zero(index: int) -> None:
        prepare(index)
        trainer.optimizer.step_count.zero_()

    trainer.prepare = prepare_at_count_zero  # type: ignore[method-assign]


@fault(
    "the clip is left out from the second step on",
    {
        **trajectory("differs", 2),
        "gradient_match": Expectation("FAIL", "differs", {"first_differing_step": 1}),
        "CGB-INV-003": Expectation("FAIL", "clipped_norm_exceeded"),
        **_twin(gradient_match__first_differing_step=1),
    },
)
def dropped_clip(run: QLoRARun) -> None:
    # Not from the first step on: Adam's first update does not depend on the gradient's scale, so that the first
    # difference would come at the step at which a rounding happens to show it.
    import torch

    trainer, prepare, apply = run.trainer, run.trainer.prepare, run.trainer.clip.apply_
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
    "no clip is in the step at all",
    {
        # both arms end within the bound: that the clip was never active gives it away
        "F-GRAPH-BWD-004": Expectation("FAIL", "vacuous_clip_inactive", {"clip_active_steps": 0}),
        "F-CGT-006": Expectation("FAIL", "clipped_tensors", {"capture.clipped_tensors": 0}),
    },
)
def removed_clip(run: QLoRARun) -> None:
    run.trainer.clip.apply_ = lambda gradient: None  # type: ignore[method-assign]  # noqa: ARG005


@fault(
    "the fused clip reads one norm back to the host",
    {"capture": Expectation("FAIL", "not_captured")},
)
def sync_in_capture(run: QLoRARun) -> None:
    clip, apply = run.trainer.clip, run.trainer.clip.apply_

    def apply_and_read(gradient: Tensor) -> None:
        apply(gradient)
        clip.norms.sum().item()

    clip.apply_ = apply_and_read  # type: ignore[method-assign]


@fault(
    "the captured region records no work: what it should hold ran elsewhere",
    {
        "capture": Expectation("FAIL", "not_captured"),
        # a recording without CUDA still holds the hand-over of the loss, so it is not empty: it is too short
        "TRACED-STEP-001": Expectation("FAIL", "launches_differ"),
    },
)
def empty_capture(run: QLoRARun) -> None:
    loss = run.trainer.clip.norms.new_zeros(())
    run.trainer.body = lambda: loss  # type: ignore[method-assign]
    run.trainer.backward_body = lambda: None  # type: ignore[method-assign]


@fault(
    "the optimizer is left out of the captured step",
    {
        **trajectory("differs", 1),
        "throughput_ratio": Expectation("FAIL", "differs"),
        **_twin(gradient_match__first_differing_step=1),
    },
)
def skipped_optimizer(run: QLoRARun) -> None:
    run.trainer.optimizer.update_ = lambda parameters, gradient, norms: None  # type: ignore[method-assign]  # noqa: ARG005


@fault(
    "a static buffer is replaced after the capture, so the graph reads the old one",
    {"capture": Expectation("FAIL", "moved_buffer")},
)
def moved_buffer(run: QLoRARun) -> None:
    step = run.capturing.step
    kept: list[Tensor] = []

    def step_after_move(index: int) -> Tensor:
        loss = step(index)
        if index == 0:
            static = run.trainer.static
            # The old ones stay alive: freed, their memory may hold anything, and a replay could read outside a table.
            kept.extend((static.tokens, static.targets))
            static.tokens, static.targets = static.tokens.clone(), static.targets.clone()
        return loss

    run.capturing.step = step_after_move  # type: ignore[method-assign]


@fault(
    "the graph cache forgets the shape in its key, so another shape's graph is replayed",
    {"capture": Expectation("FAIL", "wrong_capture_count")},
    needs="cuda",
)
def wrong_batch_graph(run: QLoRARun) -> None:
    key = run.capturing.key
    run.capturing.key = lambda: key()._replace(batch_size=0, seq_len=0)  # type: ignore[method-assign]


@fault(
    "every step keeps a buffer alive",
    {"memory_steady": Expectation("FAIL", "memory_grows")},
    needs="cuda",
)
def growing_memory(run: QLoRARun) -> None:
    step, kept = run.capturing.step, []

    def step_and_keep(index: int) -> Tensor:
        kept.append(run.trainer.trainable.flat.new_empty(4 * 2**20))
        return step(index)

    run.capturing.step = step_and_keep  # type: ignore[method-assign]


@fault(
    "one gradient of step 5 is NaN, so its update is left out",
    {**trajectory("differs", 6), "capture": Expectation("FAIL", "skipped_steps", {"skipped_steps": 1})},
)
def nan_gradient(run: QLoRARun) -> None:
    trainer, prepare, apply = run.trainer, run.trainer.prepare, run.trainer.clip.apply_
    poison = trainer.clip.norms.new_zeros(())

    def prepare_with_poison(index: int) -> None:
        prepare(index)
        poison.fill_(float("nan") if index == 5 else 0.0)

    def apply_poisoned(gradient: Tensor) -> None:
        gradient[0].add_(poison)
        apply(gradient)

    trainer.prepare = prepare_with_poison  # type: ignore[method-assign]
    trainer.clip.apply_ = apply_poisoned  # type: ignore[method-assign]


# They register themselves in FAULTS, so they come after it.
from reference_impl import kernel_faults as kernel_faults  # noqa: E402, PLC0414
from reference_impl import numeric_faults as numeric_faults  # noqa: E402, PLC0414
from reference_impl import replay_faults as replay_faults  # noqa: E402, PLC0414
