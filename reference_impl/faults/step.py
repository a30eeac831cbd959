"""Planted faults of a step's data, kernels and updates, but not of its gradients. Importable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.config import learning_rate_at
from reference_impl.faults.expected import errs, trajectory, transformers_twin
from reference_impl.faults.registry import STEP, fault

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.trainer import Trainer

# Size of the copy that delays a batch, and the step from which on no batch is delayed. The copy takes 5 ms at 55 GB/s,
# so the race always has the same outcome: the step starts before its batch, for which it should wait, has arrived. The
# last steps are profiled and not delayed: the profile would show the copy as work outside of the graphs, which is a
# separate fault.
RACE_BYTES, RACED_STEPS = 2**28, 8


@fault(
    STEP,
    "the batch is rebound instead of copied, so every replay trains on batch 0",
    {
        **trajectory("unequal_batches", 1),
        "gradient_match": Expectation("FAIL", "unequal_batches", {"first_unequal_step": 1}),
    },
)
def stale_batch(trainer: Trainer) -> None:
    prepare = trainer.prepare

    def prepare_without_batch(index: int) -> None:
        kept = [tensor.clone() for tensor in (trainer.static.tokens, trainer.static.targets)]
        prepare(index)
        if index > 0:
            trainer.static.tokens.copy_(kept[0])
            trainer.static.targets.copy_(kept[1])

    trainer.prepare = prepare_without_batch  # type: ignore[method-assign]


@fault(
    STEP,
    "the batch is copied on another stream that the step does not wait for: a race that looks like bad numerics",
    trajectory("unequal_batches", 1),
    needs="cuda",
)
def cross_stream_race(trainer: Trainer) -> None:
    import torch

    prepare, stream = trainer.prepare, torch.cuda.Stream()  # type: ignore[no-untyped-call]
    # Delay the batch by a long copy, because a kernel's time outside of the graphs is a separate fault.
    source = torch.empty(RACE_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(RACE_BYTES, dtype=torch.uint8, device=trainer.device)

    def prepare_elsewhere(index: int) -> None:
        if index == 0:  # the capture in this step waits for the device, so the race would not happen
            prepare(index)
            return
        with torch.cuda.stream(stream):
            if index < RACED_STEPS:
                target.copy_(source, non_blocking=True)
            prepare(index)

    trainer.prepare = prepare_elsewhere  # type: ignore[method-assign]


@fault(
    STEP,
    "the update goes up the gradient, not down",
    {"not_worse": Expectation("FAIL", "worse")},
)
def ascending_update(trainer: Trainer) -> None:
    prepare = trainer.prepare

    def prepare_to_ascend(index: int) -> None:
        prepare(index)
        trainer.optimizer.learning_rate.neg_()

    trainer.prepare = prepare_to_ascend  # type: ignore[method-assign]


@fault(
    STEP,
    "the learning rate is a host scalar, baked in when the step is recorded",
    {
        **trajectory("differs", 2),
        **transformers_twin(trajectory_match__first_exceeding_step=2),
        **errs("loss_ratio"),
        "not_worse": Expectation("FAIL", "worse"),
    },
)
def frozen_learning_rate(trainer: Trainer) -> None:
    prepare = trainer.prepare

    def prepare_with_first_rate(index: int) -> None:
        prepare(index)
        trainer.optimizer.learning_rate.fill_(learning_rate_at(trainer.config, 0))

    trainer.prepare = prepare_with_first_rate  # type: ignore[method-assign]


@fault(
    STEP,
    "Adam's bias corrections are host scalars, baked in when the step is recorded",
    {**trajectory("differs", 2), **transformers_twin(trajectory_match__first_exceeding_step=2), **errs("loss_ratio")},
)
def frozen_bias_correction(trainer: Trainer) -> None:
    prepare = trainer.prepare

    def prepare_at_count_zero(index: int) -> None:
        prepare(index)
        trainer.optimizer.step_count.zero_()

    trainer.prepare = prepare_at_count_zero  # type: ignore[method-assign]


@fault(
    STEP,
    "the update has the wrong sign, so that the loss is driven up",
    {
        "F-GRAPH-BWD-004": Expectation("FAIL", "exceeds_tolerance", {"first_exceeding_step": 999}),
        "F-FP16-001": Expectation("FAIL", "exceeds_tolerance", {"first_exceeding_step": 99}),
        "F-FP16-001-STEPS": Expectation("FAIL", "exceeds_tolerance"),
        "F-FP16-002": Expectation("FAIL", "exceeds_tolerance"),
    },
)
def wrong_sign(trainer: Trainer) -> None:
    prepare = trainer.prepare

    def prepare_uphill(index: int) -> None:
        prepare(index)
        trainer.optimizer.learning_rate.neg_()

    trainer.prepare = prepare_uphill  # type: ignore[method-assign]


@fault(
    STEP,
    "the optimizer is left out of the captured step",
    {
        **trajectory("differs", 1),
        "throughput_ratio": Expectation("FAIL", "differs"),
        **transformers_twin(gradient_match__first_differing_step=1),
    },
)
def skipped_optimizer(trainer: Trainer) -> None:
    trainer.optimizer.update_ = lambda parameters, gradient, norms: None  # type: ignore[method-assign]  # noqa: ARG005


@fault(
    STEP,
    "the captured region contains no work, because the step ran outside of it",
    {
        "capture": Expectation("FAIL", "not_captured"),
        # A recording without CUDA still contains the copy of the loss. Therefore the recording is too short, but not
        # empty.
        "TRACED-STEP-001": Expectation("FAIL", "launches_differ"),
    },
)
def empty_capture(trainer: Trainer) -> None:
    loss = trainer.clip.norms.new_zeros(())
    trainer.body = lambda: loss  # type: ignore[method-assign]
    trainer.backward_body = lambda: None  # type: ignore[method-assign]


def _captures_too_little() -> dict[str, Expectation]:
    return {"capture": Expectation("FAIL", "kernels_per_layer")}


@fault(
    STEP,
    "the captured region contains a single kernel instead of the step",
    _captures_too_little(),
    needs="cuda",
)
def hollow_capture(trainer: Trainer) -> None:
    loss = trainer.clip.norms.new_ones(())
    # This work takes so long that the time of the real step is small in comparison.
    work = trainer.clip.norms.new_zeros(2**24)

    def one_kernel() -> Tensor:
        work.mul_(1.0)
        return loss

    def one_more() -> None:
        one_kernel()

    trainer.body = one_kernel  # type: ignore[method-assign]
    trainer.forward_body = one_kernel  # type: ignore[method-assign]
    trainer.backward_body = one_more  # type: ignore[method-assign]


@fault(
    STEP,
    "the captured region ends after the forward pass, without backward, clip and optimizer",
    _captures_too_little(),
    needs="cuda",
)
def forward_only_capture(trainer: Trainer) -> None:
    import torch

    @torch.no_grad()
    def forward_alone() -> Tensor:
        static = trainer.static
        loss, _ = trainer.model.forward(static.tokens, static.targets, static.shape)
        return loss

    trainer.body = forward_alone  # type: ignore[method-assign]
