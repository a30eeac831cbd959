"""Planted faults of the trainer's checkpoint and of its evaluation. Importable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.config import learning_rate_at
from reference_impl.faults.registry import BETWEEN, fault

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from reference_impl.between_steps import BetweenSteps


@fault(
    BETWEEN,
    "the load restarts the schedule, so warm-up and cosine begin again",
    {"resume": Expectation("FAIL", "differs")},
)
def lost_schedule(between: BetweenSteps) -> None:
    load, trainer = between.load, between.trainer
    prepare = trainer.prepare
    resumed: list[int] = []

    def load_without_schedule(path: Path) -> None:
        load(path)
        resumed.append(-1)

    def prepare_by_count(index: int) -> None:
        prepare(index)
        if resumed:
            resumed[0] += 1
            trainer.optimizer.learning_rate.fill_(learning_rate_at(trainer.config, resumed[0]))

    between.load = load_without_schedule  # type: ignore[method-assign]
    trainer.prepare = prepare_by_count  # type: ignore[method-assign]


@fault(
    BETWEEN,
    "the load creates new tensors for Adam's moments, but a step that was captured before still uses the old tensors",
    {"resume": Expectation("FAIL", "differs")},
)
def orphaned_moments(between: BetweenSteps) -> None:
    load, optimizer = between.load, between.trainer.optimizer
    kept: list[Tensor] = []  # keeps the old tensors alive; otherwise other data could overwrite their memory

    def load_into_new_tensors(path: Path) -> None:
        kept.extend((optimizer.exp_avg, optimizer.exp_avg_sq))
        optimizer.exp_avg, optimizer.exp_avg_sq = optimizer.exp_avg.clone(), optimizer.exp_avg_sq.clone()
        load(path)

    between.load = load_into_new_tensors  # type: ignore[method-assign]


@fault(
    BETWEEN,
    "the evaluation replays the captured training step, so the model trains on each evaluated batch",
    {"evaluation": Expectation("FAIL", "evaluation_changed_state", {"changed": "optimizer, parameters"})},
)
def replayed_training_step(between: BetweenSteps) -> None:
    def evaluate_by_step() -> Tensor:
        trainer, shape = between.trainer, between.trainer.static.shape
        return between.capturing.step(trainer.data.distinct(shape.batch_size, shape.seq_len) - 1)

    between.evaluate = evaluate_by_step  # type: ignore[method-assign]


@fault(
    BETWEEN,
    "the evaluation writes its batch into the step's static buffers, over the batch that waits there for the next step",
    {"evaluation": Expectation("FAIL", "unequal_batches")},
)
def evaluated_in_static_buffers(between: BetweenSteps) -> None:
    evaluate, trainer = between.evaluate, between.trainer
    prepare = trainer.prepare
    overwritten: list[tuple[Tensor, Tensor]] = []

    def evaluate_there() -> Tensor:
        loss = evaluate()
        shape = trainer.static.shape
        overwritten.append(trainer.batch(trainer.data.distinct(shape.batch_size, shape.seq_len) - 1))
        return loss

    def prepare_where_empty(index: int) -> None:
        prepare(index)
        if overwritten:
            tokens, targets = overwritten.pop()
            trainer.static.tokens.copy_(tokens)
            trainer.static.targets.copy_(targets)

    between.evaluate = evaluate_there  # type: ignore[method-assign]
    trainer.prepare = prepare_where_empty  # type: ignore[method-assign]
