"""Small trainers with more state than their parameters; each differs from `Stateful` in one way.

If a trainer spoils its end, it does so in the captured arm alone, after the last step has returned.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.protocol import CaptureRecord, TrainingRun
from harness.system.replay.traced import TracedStep
from harness.system.step_function import StepFunction, StepFunctionSystem
from harness.system.wrappers import FaultyRun


@dataclass
class Built:
    """The objects from which one arm was built."""

    model: Any  # a module; its attributes are what each system gave it
    optimizer: torch.optim.Optimizer
    more: dict[str, Any] = field(default_factory=dict)


class _Spoiled(FaultyRun):
    """A run that calls the system's `spoil` after the last step has returned."""

    system: Stateful

    def step(self, index: int) -> Tensor:
        self.system.before(index, self._steps)
        loss = self._inner.step(index)
        if index == self._steps - 1:
            with torch.no_grad():
                self.system.spoil(self.system.built)
        return loss


class Stateful(StepFunctionSystem):
    """A regression with batch normalization, trained by AdamW."""

    name = "stateful"
    layers = 2
    built: Built

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 1))

    def forward(self, built: Built, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.mse_loss(built.model(batch["x"]), batch["y"])

    def prepare(self, built: Built, arm: Arm) -> None:
        """Add to `built.more`; here nothing."""

    def after_update(self, built: Built) -> None:
        """Run a further part of the step; here nothing."""

    def named(self, built: Built) -> dict[str, Tensor]:
        return dict(built.model.named_parameters())

    def before(self, index: int, steps: int) -> None:
        """Run before step `index` of the captured arm; here nothing."""

    def spoil(self, built: Built) -> None:
        """Run after the last step of the captured arm; here nothing."""

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        torch.manual_seed(workload.seed)
        model = self.model()
        rate = torch.tensor(float(arm.settings().get("learning_rate", 1e-1)))
        built = Built(model, torch.optim.AdamW(model.parameters(), lr=rate, fused=True))
        self.built = built
        self.prepare(built, arm)

        def step(batch: dict[str, Tensor]) -> Tensor:
            built.optimizer.zero_grad()
            loss = self.forward(built, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            built.optimizer.step()
            self.after_update(built)
            return loss.detach()

        def batch(index: int) -> dict[str, Tensor]:
            generator = torch.Generator().manual_seed(1000 * workload.seed + index)
            x = torch.randn(workload.batch_size * 4, 6, generator=generator)
            return {"x": x, "y": x.sum(dim=1, keepdim=True)}

        return step, batch, lambda: self.named(built)

    def open(self, workload: Workload, arm: Arm, **rest: Any) -> TrainingRun:  # type: ignore[override]
        run = super().open(workload, arm, **rest)
        if arm.capture == "none":
            return run
        spoiled = _Spoiled(run, workload.steps)
        spoiled.system = self
        return spoiled


def moments(built: Built) -> list[Tensor]:
    return [
        entry[name] for entry in built.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq") if name in entry
    ]


# --- correct trainers -----------------------------------------------------------------------------------------


class Drops(Stateful):
    """Use dropout, which draws from torch's global generator."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))


class LazyTable(Stateful):
    """Keep a table of scales that the first forward pass builds."""

    def forward(self, built: Built, batch: dict[str, Tensor]) -> Tensor:
        if "table" not in built.more:
            built.more["table"] = torch.linspace(0.5, 1.5, 6)
        return nn.functional.mse_loss(built.model(batch["x"] * built.more["table"]), batch["y"])


class LazyBuffer(Stateful):
    """Keep the table in a buffer that the first forward pass registers."""

    def forward(self, built: Built, batch: dict[str, Tensor]) -> Tensor:
        if not hasattr(built.model, "table"):
            built.model.register_buffer("table", torch.linspace(0.5, 1.5, 6))
        return nn.functional.mse_loss(built.model(batch["x"] * built.model.table), batch["y"])


class BindsABuffer(Stateful):
    """Bind a buffer to a new tensor in each forward pass, as spiking neurons do: the results of the last batch."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("seen", torch.zeros(1))
        return model

    def forward(self, built: Built, batch: dict[str, Tensor]) -> Tensor:
        built.model.seen = built.model(batch["x"])
        return nn.functional.mse_loss(built.model.seen, batch["y"])


class ChangesItsBatch(Stateful):
    """Normalize the batch in place with the statistics learned so far."""

    def forward(self, built: Built, batch: dict[str, Tensor]) -> Tensor:
        first = next(built.model.parameters())
        batch["x"].mul_(1 + 0.1 * first.detach().mean())
        return super().forward(built, batch)


class Compiled(Stateful):
    """Compile the plain arm's model, so that its names begin with `_orig_mod.`."""

    def prepare(self, built: Built, arm: Arm) -> None:
        if arm.capture == "none":
            built.model = torch.compile(built.model, backend="eager")


class NamesItsBuffers(Stateful):
    """Name everything that a checkpoint would contain."""

    def named(self, built: Built) -> dict[str, Tensor]:
        return {**dict(built.model.named_parameters()), **dict(built.model.named_buffers())}


class NamesItsCheckpoint(Stateful):
    """Name the same by `state_dict`, whose tensors are different objects with the same storage."""

    def named(self, built: Built) -> dict[str, Tensor]:
        return dict(built.model.state_dict())


class Masked(Stateful):
    """Hold a causal mask that is infinite by design."""

    def prepare(self, built: Built, arm: Arm) -> None:
        built.model.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))


class KeepsItsLastLoss(Stateful):
    """Keep the result of the last forward pass, and count steps, both in Python."""

    def prepare(self, built: Built, arm: Arm) -> None:
        built.more["steps"] = 0

    def forward(self, built: Built, batch: dict[str, Tensor]) -> Tensor:
        loss = super().forward(built, batch)
        built.more["last"] = loss.detach()
        built.more["steps"] += 1
        return loss


class Averages(Stateful):
    """Keep an exponential moving average of the weights, in tensors that nothing names."""

    def prepare(self, built: Built, arm: Arm) -> None:
        built.more["average"] = [parameter.detach().clone() for parameter in built.model.parameters()]

    def after_update(self, built: Built) -> None:
        with torch.no_grad():
            for average, parameter in zip(built.more["average"], built.model.parameters(), strict=True):
                average.lerp_(parameter, 0.1)


class AveragesACopy(Stateful):
    """Keep an average in a copy of the model; its parameters have the names of the trained parameters."""

    def prepare(self, built: Built, arm: Arm) -> None:
        built.more["average"] = copy.deepcopy(built.model)

    def after_update(self, built: Built) -> None:
        with torch.no_grad():
            for average, parameter in zip(built.more["average"].parameters(), built.model.parameters(), strict=True):
                average.lerp_(parameter, 0.1)


class LazyAverage(Averages):
    """Create the average in the first step and change it in each step, which no capture can represent."""

    def prepare(self, built: Built, arm: Arm) -> None:
        """Do nothing yet."""

    def after_update(self, built: Built) -> None:
        if "average" not in built.more:
            built.more["average"] = [parameter.detach().clone() for parameter in built.model.parameters()]
        super().after_update(built)


class CapturesItself(Averages):
    """Make its own capture, an average that is created in the first step, and a buffer of the capture."""

    forgets = False

    def prepare(self, built: Built, arm: Arm) -> None:
        built.more["replayed"] = False

    def open(self, workload: Workload, arm: Arm, **rest: Any) -> TrainingRun:  # type: ignore[override]
        return StepFunctionSystem.open(self, workload, arm, **rest)

    def build(self, workload: Workload, arm: Arm) -> Any:
        step, batch, named = super().build(workload, arm)
        built, static, recorded, replays = self.built, dict[str, Tensor](), list[TracedStep](), list[int]()
        requested = arm.capture == "step"

        def own(given: dict[str, Tensor]) -> Tensor:
            if "average" not in built.more:
                Averages.prepare(self, built, arm)
            if not requested:
                loss: Tensor = step(given)
                return loss
            for name, tensor in given.items():
                static.setdefault(name, tensor.clone()).copy_(tensor)
            if not recorded:
                built.more["replayed"] = True
                recorded.append(TracedStep(lambda: step(static), dict, roots=[step]))
                recorded[0].record()
            replays.append(1)
            return self.replay(recorded[0], lambda: step(static), len(replays))

        def captured() -> CaptureRecord:
            mechanism: Any = "traced" if requested else None
            operations = sum(each.operations for each in recorded)
            ours = (len(recorded), 0, len(replays))
            places = {name: tensor.data_ptr() for name, tensor in static.items()}
            seen: Any = {"fake_pass_clean": True, "static_buffers": places, "captured_addresses": places}
            counts: Any = (*ours, 0, operations)
            return CaptureRecord(mechanism, requested, bool(recorded), None, *counts, **seen)

        return StepFunction(own, batch, named, captured=captured)

    def replay(self, recorded: TracedStep, eager: Callable[[], Tensor], number: int) -> Tensor:
        """Return the loss of replay `number`."""
        return recorded.replay()

    def after_update(self, built: Built) -> None:
        if not (self.forgets and built.more["replayed"]):
            super().after_update(built)


class SaysItReplays(CapturesItself):
    """Run eagerly on each step that it reports as a replay."""

    def replay(self, recorded: TracedStep, eager: Callable[[], Tensor], number: int) -> Tensor:
        return eager()


class ReplaysADecoy(CapturesItself):
    """Replay a recording that trains nothing, and run eagerly."""

    def replay(self, recorded: TracedStep, eager: Callable[[], Tensor], number: int) -> Tensor:
        self.decoy = getattr(self, "decoy", None) or TracedStep(torch.ones(3).sum, dict)
        self.decoy.replay()
        return eager()


class ReplaysWhileProfiled(CapturesItself):
    """Replay the first and last steps, which a GPU's profiler sees; in between, run eagerly with a decoy."""

    def replay(self, recorded: TracedStep, eager: Callable[[], Tensor], number: int) -> Tensor:
        if number not in (5, 6):
            return recorded.replay()
        return ReplaysADecoy.replay(self, recorded, eager, number)  # type: ignore[arg-type]


class ForgetsItsLazyAverage(CapturesItself):
    """Do not update the average in replays."""

    forgets = True


CORRECT = (
    Stateful,
    Drops,
    LazyTable,
    LazyBuffer,
    BindsABuffer,
    ChangesItsBatch,
    Compiled,
    NamesItsBuffers,
    NamesItsCheckpoint,
    Masked,
    KeepsItsLastLoss,
    Averages,
    AveragesACopy,
)

# --- trainers whose captured arm ends elsewhere ----------------------------------------------------------------


class EndsInNaN(Stateful):
    def spoil(self, built: Built) -> None:
        for parameter in built.model.parameters():
            parameter.fill_(torch.nan)


class EndsInInfinity(Stateful):
    def spoil(self, built: Built) -> None:
        next(built.model.parameters())[0, 0] = torch.inf


class InfiniteMoment(Stateful):
    def spoil(self, built: Built) -> None:
        moments(built)[1].fill_(torch.inf)


class NaNStatistics(Stateful):
    def spoil(self, built: Built) -> None:
        built.model[1].running_var.fill_(torch.nan)


class DropsTheLastUpdate(Stateful):
    def before(self, index: int, steps: int) -> None:
        if index == steps - 1:
            self.built.more["before"] = [parameter.detach().clone() for parameter in self.built.model.parameters()]

    def spoil(self, built: Built) -> None:
        for parameter, value in zip(built.model.parameters(), built.more["before"], strict=True):
            parameter.copy_(value)


class WipesItsMoments(Stateful):
    def spoil(self, built: Built) -> None:
        for moment in moments(built):
            moment.zero_()


class ReplacesItsMoments(Stateful):
    def spoil(self, built: Built) -> None:
        for entry in built.optimizer.state.values():
            entry["exp_avg"] = torch.zeros_like(entry["exp_avg"])


class LosesItsOptimizersState(Stateful):
    def spoil(self, built: Built) -> None:
        built.optimizer.state.clear()


class ForgetsAStep(Stateful):
    def spoil(self, built: Built) -> None:
        for entry in built.optimizer.state.values():
            entry["step"].sub_(1)


class DriftsInABuffer(Stateful):
    def spoil(self, built: Built) -> None:
        built.model[1].num_batches_tracked.add_(1)


class DriftsInItsAverage(Averages):
    def spoil(self, built: Built) -> None:
        built.more["average"][0].mul_(2)


class DriftsInItsCopy(AveragesACopy):
    def spoil(self, built: Built) -> None:
        built.more["average"][0].weight.mul_(2)


class LosesItsAverage(Averages):
    def spoil(self, built: Built) -> None:
        del built.more["average"]


class SecondHead(Stateful):
    """Train a second head that `parameters` does not name; the captured arm trains it with the wrong sign."""

    sign = -1.0

    def prepare(self, built: Built, arm: Arm) -> None:
        head = nn.Linear(6, 1)
        rate = built.optimizer.param_groups[0]["lr"]
        built.more["head"] = head
        built.more["optimizer"] = torch.optim.AdamW(head.parameters(), lr=rate, fused=True)
        built.more["sign"] = self.sign if arm.capture == "step" else 1.0

    def forward(self, built: Built, batch: dict[str, Tensor]) -> Tensor:
        built.more["optimizer"].zero_grad()
        loss = nn.functional.mse_loss(built.more["head"](batch["x"]), batch["y"])
        (built.more["sign"] * loss).backward()
        built.more["optimizer"].step()
        return super().forward(built, batch)


class RightSecondHead(SecondHead):
    sign = 1.0


class SpendsRandomNumbers(Drops):
    def spoil(self, built: Built) -> None:
        torch.rand(1)


class SpendsNumpysNumbers(Stateful):
    def spoil(self, built: Built) -> None:
        np.random.rand()  # noqa: NPY002 - the global generator is the point


class SpendsPythonsNumbers(Stateful):
    def spoil(self, built: Built) -> None:
        random.random()


class SpendsItsOwnNumbers(Stateful):
    def prepare(self, built: Built, arm: Arm) -> None:
        built.more["generator"] = torch.Generator().manual_seed(3)

    def spoil(self, built: Built) -> None:
        torch.rand(1, generator=built.more["generator"])


class _Scaled(nn.Module):
    """A module with tensors of uncommon kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 1)
        self.register_buffer("half_", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("waves_", torch.ones(3, dtype=torch.complex64))
        self.register_buffer("flags_", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("turned_", torch.arange(6.0).reshape(2, 3).t())
        self.register_buffer("few_", torch.eye(3).to_sparse(), persistent=False)
        self.register_buffer("nothing_", torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x)
        return result


class UncommonTensors(Stateful):
    def model(self) -> nn.Module:
        return _Scaled()


class DriftsInBfloat16(UncommonTensors):
    def spoil(self, built: Built) -> None:
        built.model.half_[1] = 2


class DriftsInComplex(UncommonTensors):
    def spoil(self, built: Built) -> None:
        built.model.waves_[1] = 1j


class DriftsInAFlag(UncommonTensors):
    def spoil(self, built: Built) -> None:
        built.model.flags_[1] = True


class DriftsInATransposed(UncommonTensors):
    def spoil(self, built: Built) -> None:
        built.model.turned_[1, 1] = 9


class DriftsInASparse(UncommonTensors):
    def spoil(self, built: Built) -> None:
        built.model.few_ = 2 * built.model.few_


class LateBuffer(LazyBuffer):
    def spoil(self, built: Built) -> None:
        built.model.table.mul_(2)


class LateTable(LazyTable):
    def spoil(self, built: Built) -> None:
        built.more["table"].mul_(2)


class AveragesByBinding(BindsABuffer):
    """Compute each average from the last one; every replay reads the average at capture time."""

    def forward(self, built: Built, batch: dict[str, Tensor]) -> Tensor:
        built.model.seen = 0.9 * built.model.seen + 0.1 * batch["x"].mean()
        return Stateful.forward(self, built, batch)


class Scheduled(Stateful):
    """Leave the captured arm's scheduler one step behind."""

    def prepare(self, built: Built, arm: Arm) -> None:
        built.more["schedule"] = torch.optim.lr_scheduler.LambdaLR(built.optimizer, lambda _: 1.0)

    def spoil(self, built: Built) -> None:
        built.more["schedule"].last_epoch += 5


class GradScaled(Stateful):
    """End the captured arm with another loss scale."""

    def prepare(self, built: Built, arm: Arm) -> None:
        built.more["scaler"] = torch.amp.GradScaler("cpu", init_scale=4.0)
        built.more["scaler"].scale(torch.ones(()))

    def spoil(self, built: Built) -> None:
        built.more["scaler"]._scale.mul_(2)


APART: tuple[type[Stateful], ...] = (
    DropsTheLastUpdate,
    WipesItsMoments,
    ReplacesItsMoments,
    LosesItsOptimizersState,
    ForgetsAStep,
    DriftsInABuffer,
    DriftsInItsAverage,
    DriftsInItsCopy,
    LosesItsAverage,
    SecondHead,
    SpendsRandomNumbers,
    SpendsNumpysNumbers,
    SpendsPythonsNumbers,
    SpendsItsOwnNumbers,
    DriftsInBfloat16,
    DriftsInComplex,
    DriftsInAFlag,
    DriftsInATransposed,
    DriftsInASparse,
    AveragesByBinding,
    LateBuffer,
    LateTable,
    Scheduled,
    GradScaled,
)
NOT_FINITE: tuple[type[Stateful], ...] = (EndsInNaN, EndsInInfinity, InfiniteMoment, NaNStatistics)
ENDS_ELSEWHERE = dict.fromkeys(APART, "end_differs") | dict.fromkeys(NOT_FINITE, "non_finite_end")


class CountsInItsGroup(Stateful):
    """Count the optimizer's steps in a Python number that nothing reads; replays do not count."""

    def prepare(self, built: Built, arm: Arm) -> None:
        built.optimizer.param_groups[0]["count"] = 0

    def after_update(self, built: Built) -> None:
        built.optimizer.param_groups[0]["count"] += 1


class SlowsLater(Stateful):
    """Reduce the learning rate after many steps, by a Python number that no replay changes."""

    falls_at = 500

    def prepare(self, built: Built, arm: Arm) -> None:
        built.more["done"] = 0

    def after_update(self, built: Built) -> None:
        built.more["done"] += 1
        if built.more["done"] > self.falls_at:
            built.optimizer.param_groups[0]["lr"].fill_(1e-3)


class SlowsSoon(SlowsLater):
    falls_at = 5
