"""A user's trainer (BatchNorm, dropout, a cosine schedule, a shuffled loader), and incorrect trainers like it.

`Right` saves and loads all of its state, and its evaluation changes nothing. Each other system has one mistake.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any, ClassVar

import torch
from failing_arms import misbehave
from step_function_systems import Descending
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.step_function import StepFunction, StepFunctionSystem

ROWS, BATCH = 40, 8  # five batches an epoch


class Loader:
    """Yield epoch after epoch in random order, as a DataLoader with `shuffle=True` and its own generator does."""

    def __init__(self, seed: int) -> None:
        self.data = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(seed))
        self.generator = torch.Generator().manual_seed(seed + 1)
        self.position = 0
        self.order = torch.randperm(ROWS, generator=self.generator)

    def current(self, index: int) -> Tensor:
        """Return the next rows, shifted slightly by the number of the step, like an augmentation that depends on it."""
        return self.data[self.order[self.position * BATCH : (self.position + 1) * BATCH]] + 0.01 * index

    def advance(self) -> None:
        self.position += 1
        if self.position * BATCH == ROWS:
            self.position, self.order = 0, torch.randperm(ROWS, generator=self.generator)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "order": self.order, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state.get("position", self.position)
        self.order = state.get("order", self.order)
        self.generator.set_state(state.get("generator", self.generator.get_state()))


class Trainer:
    """Everything that a step, a checkpoint and an evaluation read or change."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)]
        self.model = nn.Sequential(*layers)
        rate = torch.tensor(0.02)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, fused=True)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=100)
        self.loader = Loader(seed)
        self.held_out = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed + 2))
        self.average = {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}

    def loss(self, x: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True))

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "loader": self.loader.state_dict(),
            "average": self.average,
            "draws": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("model", "optimizer", "schedule", "loader"):
            if name in state:
                getattr(self, name).load_state_dict(state[name])
        for name, tensor in state.get("average", {}).items():
            self.average[name].copy_(tensor)
        if "draws" in state:
            torch.set_rng_state(state["draws"])


class Right(StepFunctionSystem):
    """Save and load correctly, except for the state in `lost`."""

    name = "a trainer with a checkpoint"
    lost: ClassVar[tuple[str, ...]] = ()

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        self.trainer = trainer = Trainer(workload.seed)

        def step(batch: dict[str, Tensor]) -> Tensor:
            loss = trainer.loss(batch["x"])
            loss.backward()  # type: ignore[no-untyped-call]
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
            with torch.no_grad():
                for name, tensor in trainer.model.named_parameters():
                    trainer.average[name].lerp_(tensor, 0.1)
            return loss.detach()

        def after() -> None:
            trainer.schedule.step()
            trainer.loader.advance()

        return StepFunction(
            step=step,
            batch=self.batch,
            parameters=lambda: dict(trainer.model.named_parameters()),
            state=lambda: trainer.average,
            evaluate=self.evaluate,
            save=self.save,
            load=self.load,
            after=after,
        )

    def batch(self, index: int) -> dict[str, Tensor]:
        return {"x": self.trainer.loader.current(index)}

    def save(self, path: Path) -> None:
        torch.save({name: value for name, value in self.trainer.state_dict().items() if name not in self.lost}, path)

    def load(self, path: Path) -> None:
        self.trainer.load_state_dict(torch.load(path))

    def evaluate(self) -> Any:
        self.trainer.model.eval()
        with torch.no_grad():
            loss = self.trainer.loss(self.trainer.held_out)
        self.trainer.model.train()
        return {"loss": loss}


class ByIndex(Right):
    """Read a batch that depends on the number of the step alone."""

    def batch(self, index: int) -> dict[str, Tensor]:
        rows = torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(index))
        return {"x": rows}


# --- wrong checkpoints --------------------------------------------------------------------------------------------


class WithoutSchedule(Right):
    lost = ("schedule",)


class WithoutOptimizer(Right):
    lost = ("optimizer",)


class WithoutGenerator(Right):
    """Lose the state of the generator, so that dropout draws other masks after a load."""

    lost = ("draws",)


class WithoutLoader(Right):
    """Lose the loader's position, so that the epoch starts again."""

    lost = ("loader",)


class WithoutAverage(Right):
    """Lose the averaged weights, which no loss reads."""

    lost = ("average",)


class EpochOnly(Right):
    """Keep the position in the epoch, but draw the order of the epoch again."""

    def save(self, path: Path) -> None:
        torch.save({**self.trainer.state_dict(), "loader": {"position": self.trainer.loader.position}}, path)


class LaterEpochsDiffer(Right):
    """Keep the current epoch, but lose the generator that orders the following epochs."""

    def save(self, path: Path) -> None:
        loader = self.trainer.loader.state_dict()
        del loader["generator"]
        torch.save({**self.trainer.state_dict(), "loader": loader}, path)


class ParametersOnly(Right):
    """Lose the running statistics."""

    def save(self, path: Path) -> None:
        model = dict(self.trainer.model.named_parameters())
        torch.save({**self.trainer.state_dict(), "model": model}, path)

    def load(self, path: Path) -> None:
        state = torch.load(path)
        self.trainer.model.load_state_dict(state.pop("model"), strict=False)
        self.trainer.load_state_dict(state)


class RenamedLayer(ParametersOnly):
    """Give the last layer another name in the file, which `strict=False` hides."""

    def save(self, path: Path) -> None:
        model = {name.replace("4.", "head."): each for name, each in self.trainer.model.state_dict().items()}
        torch.save({**self.trainer.state_dict(), "model": model}, path)


class RenamedModel(ParametersOnly):
    """Start every name in the file with `module.`, which `strict=False` hides."""

    def save(self, path: Path) -> None:
        model = {f"module.{name}": each for name, each in self.trainer.model.state_dict().items()}
        torch.save({**self.trainer.state_dict(), "model": model}, path)


class AnotherModel(Right):
    """Make a new model when loading, while the optimizer keeps the parameters of the old model."""

    def load(self, path: Path) -> None:
        trainer, state = self.trainer, torch.load(path)
        trainer.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
        trainer.load_state_dict(state)


class HalfPrecision(Right):
    """Write floating-point weights as bfloat16."""

    def save(self, path: Path) -> None:
        model = {
            name: each.bfloat16() if each.is_floating_point() else each
            for name, each in self.trainer.model.state_dict().items()
        }
        torch.save({**self.trainer.state_dict(), "model": model}, path)


class StepCountRestarts(Right):
    """Keep the moments, but restart the step count of the bias corrections."""

    def load(self, path: Path) -> None:
        super().load(path)
        for state in self.trainer.optimizer.state.values():
            state["step"].zero_()


class ScheduleSteppedOnLoad(Right):
    """Step the schedule when loading, although the epoch has not ended."""

    def load(self, path: Path) -> None:
        super().load(path)
        self.trainer.schedule.step()


class EvalModeAfterLoad(Right):
    """Leave dropout switched off after a load, which no tensor shows."""

    def load(self, path: Path) -> None:
        super().load(path)
        self.trainer.model.eval()


KEPT: dict[str, Any] = {}


class InMemory(Right):
    """Load from a global variable of the module, so that any test within one process passes."""

    def save(self, path: Path) -> None:
        KEPT.update(self.trainer.state_dict())
        path.write_text("saved")

    def load(self, path: Path) -> None:
        assert path.read_text() == "saved"
        self.trainer.load_state_dict(KEPT)


class SavesTheFirstAgain(Right):
    """Write the data of the first checkpoint for every later one."""

    staged: Any = None

    def save(self, path: Path) -> None:
        self.staged = copy.deepcopy(self.trainer.state_dict()) if self.staged is None else self.staged
        torch.save(self.staged, path)


class TrainsOnFromItsAverage(Right):
    """Leave the averaged weights in the model after a save; they are correct in the checkpoint."""

    def save(self, path: Path) -> None:
        super().save(path)
        with torch.no_grad():
            for name, tensor in self.trainer.model.named_parameters():
                tensor.copy_(self.trainer.average[name])


class ElsewhereThanAsked(Right):
    """Write nothing to the given path; the load restores only one tensor."""

    def save(self, path: Path) -> None:
        """Do nothing, as if a callback saved."""

    def load(self, path: Path) -> None:
        with torch.no_grad():
            next(self.trainer.model.parameters()).add_(1.0)


# --- wrong evaluations --------------------------------------------------------------------------------------------


class StaysInEvalMode(Right):
    def evaluate(self) -> Any:
        found = super().evaluate()
        self.trainer.model.eval()
        return found


class EvaluatesInTrainMode(Right):
    """Evaluate in training mode, which updates running statistics and draws dropout masks."""

    def evaluate(self) -> Any:
        with torch.no_grad():
            return self.trainer.loss(self.trainer.held_out)


class UpdatesStatistics(Right):
    """Update the running statistics in the evaluation."""

    def evaluate(self) -> Any:
        before = torch.get_rng_state()
        with torch.no_grad():
            found = self.trainer.loss(self.trainer.held_out)
        torch.set_rng_state(before)
        return found


class DrawsItsBatch(Right):
    def evaluate(self) -> Any:
        torch.randint(ROWS, (4,))
        return super().evaluate()


class EvaluatesItsAverage(Right):
    """Evaluate the averaged weights in the captured arm, but the trained weights in the plain one."""

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        self.captured = arm.capture == "step"
        return super().build(workload, arm)

    def evaluate(self) -> Any:
        if not self.captured:
            return super().evaluate()
        trained = {name: tensor.detach().clone() for name, tensor in self.trainer.model.named_parameters()}
        self._put(self.trainer.average)
        found = super().evaluate()
        self._put(trained)
        return found

    def _put(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in self.trainer.model.named_parameters():
                tensor.copy_(values[name])


class TakesTrainingBatches(Right):
    def evaluate(self) -> Any:
        self.trainer.loader.position = (self.trainer.loader.position + 1) % (ROWS // BATCH)
        return super().evaluate()


class LeavesGradients(Right):
    """Leave the gradients of the evaluation, to which the next step adds its own."""

    def evaluate(self) -> Any:
        self.trainer.model.eval()
        loss = self.trainer.loss(self.trainer.held_out)
        loss.backward()  # type: ignore[no-untyped-call]
        self.trainer.model.train()
        return loss.item()


class ReturnsNothing(Right):
    def evaluate(self) -> Any:
        super().evaluate()


class ComputesOnce(Right):
    found: Any = None

    def evaluate(self) -> Any:
        self.found = self.found or float(super().evaluate()["loss"])
        return self.found


class DividesByNothing(Right):
    def evaluate(self) -> Any:
        return super().evaluate()["loss"] / 0


class ReturnsText(Right):
    def evaluate(self) -> Any:
        return {"loss": f"{float(super().evaluate()['loss']):.3f}"}


# --- processes that come to no good end ---------------------------------------------------------------------------


class Without(Right):
    """Offer neither evaluation nor checkpoint."""

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        whole = super().build(workload, arm)
        return StepFunction(whole.step, whole.batch, whole.parameters)


class Dying(StepFunctionSystem):
    """Die as the arm's setting `dies` says (`save killed` or `load raises`), with a half-written file."""

    name = "a trainer that dies"
    arm_options = {"dies": str, "note": str}  # noqa: RUF012 - as users write it

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        self.settings = arm.settings()
        step, batch, self.parameters = Descending().build(workload, arm)
        return StepFunction(step=step, batch=batch, parameters=self.parameters, save=self.save, load=self.load)

    def save(self, path: Path) -> None:
        path.mkdir()
        torch.save({name: tensor.detach() for name, tensor in self.parameters().items()}, path / "state.pt")
        (path / "locked").mkdir()
        (path / "locked" / "rest").write_text("half")
        (path / "locked").chmod(0o500)
        self._maybe_die("save")

    def load(self, path: Path) -> None:
        self._maybe_die("load")
        saved = torch.load(path / "state.pt")
        with torch.no_grad():
            for name, tensor in self.parameters().items():
                tensor.copy_(saved[name])

    def _maybe_die(self, where: str) -> None:
        if "note" in self.settings:
            Path(str(self.settings["note"])).write_text(str(os.getpid()))
        here, _, how = str(self.settings.get("dies", "")).partition(" ")
        if here == where:
            misbehave(how)
