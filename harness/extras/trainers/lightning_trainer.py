"""Drive Lightning's `Trainer` from outside, without changes to it.

    class MySystem(LightningSystem):
        name = "my Lightning trainer"

        def fit(self, workload, arm):
            return my_script.make_fit(seed=workload.seed)     # the trainer, its module, and the data loader

An arm has `drive: loop` (the default) for `trainer.fit()`, or `drive: steps` for single steps (`driven_trainer`). The
trainer has one optimizer and automatic optimization. A batch must consist of tensors in tuples, lists or dictionaries.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.extras.trainers.driven_trainer import DrivenTrainer, DrivenTrainerSystem, UnsuitableTrainerError
from harness.system.batches import OWN_ORDER, shuffled_by_the_process

if TYPE_CHECKING:
    from torch import Tensor

    from harness.contract.schema import Arm, Workload
    from harness.system.owned_loop import Batch, OwnedLoopRun
    from harness.system.step_function_run import StepFunctionRun


class LightningSystem(DrivenTrainerSystem):
    """The system for Lightning's Trainer. A user writes a subclass that sets `name` and defines `fit`."""

    summary = "Lightning's Trainer, driven from outside"

    def fit(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        """Return trainer, module and data loader. `trainer.fit(module, loader)` must not have been called yet."""
        raise NotImplementedError

    def driven(self, workload: Workload, arm: Arm) -> DrivenTrainer:
        return DrivenLightningTrainer(*self.fit(workload, arm))


class DrivenLightningTrainer(DrivenTrainer):
    libraries = frozenset({"lightning", "pytorch_lightning"})

    def __init__(self, trainer: Any, module: Any, loader: Any) -> None:
        super().__init__(functools.partial(trainer.fit, module, loader), loader, "Lightning's Trainer.fit")
        self._trainer, self._module, self._training_step = trainer, module, module.training_step
        self._loader, self._index = loader, 0

        @functools.wraps(self._training_step)
        def take_and_train(own: Any, *arguments: Any) -> Any:
            return self.hand_over(own, lambda batch: _loss(self._training_step(batch, *arguments)))

        module.training_step = take_and_train
        self.prepare()

    def run(self, drive: str, capture: str, layers: int) -> OwnedLoopRun | StepFunctionRun:
        if drive == "steps":
            _require_own_order(self._loader)
            _require_one_update(self._trainer, self._module)
            self._module.training_step = self._training_step
            # Without this line, logging would write to tensors that belong to the trainer's loop, which is suspended.
            self._module.log = self._module.log_dict = lambda *_arguments, **_options: None
        return super().run(drive, capture, layers)

    def trainer(self) -> Any:
        return self._trainer

    def callbacks(self) -> Sequence[Any]:
        return list(self._trainer.callbacks)

    def model(self) -> Any:
        return self._module

    def optimizer(self) -> Any:
        # The trainer itself holds torch's optimizer. Elsewhere, Lightning wraps the optimizer.
        return self._trainer.optimizers[0]

    def optimizers(self) -> list[Any]:
        return list(self._trainer.optimizers)

    def one_step(self, batch: Batch) -> Tensor:
        """Make a step as Lightning does: the optimizer calls a closure that contains the whole step. Return the loss as
        a tensor of shape []."""
        strategy, optimizer = self._trainer.strategy, self.optimizer()
        batch = self._trainer.precision_plugin.convert_input(batch)
        losses: list[Tensor] = []

        def closure() -> Any:
            loss = _loss(strategy.training_step(batch, self._index))
            losses.append(loss.detach())
            optimizer.zero_grad()
            strategy.backward(loss, optimizer)
            return loss

        strategy.optimizer_step(optimizer, closure)
        return losses[0]

    def schedule(self) -> None:
        self._index += 1
        for config in self._trainer.lr_scheduler_configs:
            if config.interval == "step" and self._index % config.frequency == 0:
                config.scheduler.step()


def _require_own_order(loader: Any) -> None:
    """Raise an error if the loader shuffles with the random generator of the whole process. With such a loader, any
    other random number that the process draws changes the order of the batches."""
    if shuffled_by_the_process(loader):
        raise UnsuitableTrainerError(
            "a data loader that is read step by step must shuffle with its own generator",
            where=type(loader.sampler).__name__,
            got="the process's global generator",
            remedy=OWN_ORDER,
        )


def _require_one_update(trainer: Any, module: Any) -> None:
    """Raise an error unless the trainer makes one update of one optimizer for each batch, because `one_step` makes only
    such an update."""
    found = {
        "a module that optimizes itself (`automatic_optimization=False`)": not module.automatic_optimization,
        f"{len(trainer.optimizers)} optimizers": len(trainer.optimizers) != 1,
        f"accumulate_grad_batches={trainer.accumulate_grad_batches}": trainer.accumulate_grad_batches != 1,
    }
    got = [text for text, present in found.items() if present]
    if got:
        raise UnsuitableTrainerError(
            "with `drive: steps`, Lightning must make one update of one optimizer for each batch",
            where=type(module).__name__,
            got=" and ".join(got),
            remedy="use Lightning's own loop: `drive: loop`",
        )


def _loss(returned: Any) -> Any:
    return returned["loss"] if isinstance(returned, dict) else returned
