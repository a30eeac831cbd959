"""Drive transformers' `Trainer` from outside, without changes to it. TRL's trainers inherit from it.

    class MySystem(TransformersTrainerSystem):
        name = "my trainer"

        def trainer(self, workload, arm):
            return my_script.make_trainer(seed=workload.seed)     # its `train()` was not called yet

An arm has `drive: loop` (the default) for `trainer.train()`, or `drive: steps` for single steps (`driven_trainer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.extras.trainers.driven_trainer import DrivenTrainer, DrivenTrainerSystem, UnsuitableTrainerError

if TYPE_CHECKING:
    from torch import Tensor

    from harness.contract.schema import Arm, Workload
    from harness.system.owned_loop import Batch


class TransformersTrainerSystem(DrivenTrainerSystem):
    """The system for transformers' Trainer. A user writes a subclass that sets `name` and defines `trainer`."""

    summary = "transformers' Trainer, driven from outside"

    def trainer(self, workload: Workload, arm: Arm) -> Any:
        """Return the `transformers.Trainer` of an arm. Its `train()` must not have been called yet."""
        raise NotImplementedError

    def driven(self, workload: Workload, arm: Arm) -> DrivenTrainer:
        return DrivenTransformersTrainer(self.trainer(workload, arm))


class DrivenTransformersTrainer(DrivenTrainer):
    """A trainer of transformers whose steps the harness makes one by one. Raises UnsuitableTrainerError if the trainer
    accumulates gradients over several batches."""

    libraries = frozenset({"transformers"})

    def __init__(self, trainer: Any) -> None:
        accumulated = trainer.args.gradient_accumulation_steps
        kind = f"{type(trainer).__module__.partition('.')[0]}.{type(trainer).__name__}"
        if accumulated != 1:
            raise UnsuitableTrainerError(
                "a step must read exactly one batch",
                where=kind,
                got=f"gradient_accumulation_steps={accumulated}",
                remedy="compare the training with gradient_accumulation_steps=1",
            )
        super().__init__(trainer.train, trainer.get_train_dataloader(), f"{kind}.train")
        self._trainer, self._training_step = trainer, trainer.training_step
        trainer.training_step = self._take_and_train
        self.prepare()

    def trainer(self) -> Any:
        return self._trainer

    def callbacks(self) -> Sequence[Any]:
        return list(self._trainer.callback_handler.callbacks)

    def model(self) -> Any:
        return self._trainer.model_wrapped

    def optimizer(self) -> Any:
        return getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)

    def one_step(self, batch: Batch) -> Tensor:
        trainer, model = self._trainer, self._trainer.model_wrapped
        (inputs,), items = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)
        loss: Tensor = self._training_step(model, inputs, items)
        if trainer.args.max_grad_norm > 0:
            trainer.accelerator.clip_grad_norm_(model.parameters(), trainer.args.max_grad_norm)
        trainer.optimizer.step()
        model.zero_grad()
        return loss.detach()

    def schedule(self) -> None:
        self._trainer.lr_scheduler.step()

    def _take_and_train(self, model: Any, inputs: Any, *arguments: Any) -> Tensor:
        return self.hand_over(inputs, lambda batch: self._training_step(model, batch, *arguments))
