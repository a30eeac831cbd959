"""Captured steps whose outputs do not come from their replays, and honest steps that look alike."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.protocol import CaptureRecord
from harness.system.replay.traced import TracedStep
from harness.system.step_function import StepFunction, StepFunctionSystem

Batch = dict[str, Tensor]


def _batch(index: int) -> Batch:
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(index))
    return {"x": x, "y": x.sum(dim=1, keepdim=True)}


class _Model:
    """A model that learns a linear map by plain descent, in parts that a system puts inside or outside a recording."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
        self.static = _batch(0)
        for parameter in self.net.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def take(self, batch: Mapping[str, Tensor]) -> None:
        for name, tensor in self.static.items():
            tensor.copy_(batch[name])

    def gradients(self) -> Tensor:
        for parameter in self.net.parameters():
            parameter.grad.zero_()  # type: ignore[union-attr]
        loss = nn.functional.mse_loss(self.net(self.static["x"]), self.static["y"])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    @torch.no_grad()
    def update(self) -> Tensor:
        for parameter in self.net.parameters():
            parameter.sub_(0.05 * parameter.grad)  # type: ignore[operator]
        return next(self.net.parameters()).detach().sum()

    def train(self) -> Tensor:
        loss = self.gradients()
        self.update()
        return loss


class _CapturesItself(StepFunctionSystem):
    """Train plainly, or by `captured_step` if a capture is requested; `record` describes what was recorded."""

    name = "captures itself"
    layers = 1
    batch = staticmethod(_batch)

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        model = _Model(workload.seed)
        captured = arm.capture != "none"
        recorded: list[TracedStep] = []
        replays = [0]

        def recording(body: Callable[[], Tensor]) -> TracedStep:
            if not recorded:
                recorded.append(TracedStep(body, dict, static=lambda: model.static, roots=[body]))
                recorded[0].record()
            return recorded[0]

        def step(batch: Batch) -> Tensor:
            model.take(batch)
            if not captured:
                return model.train()
            replays[0] += 1
            return self.captured_step(model, recording)

        def record() -> CaptureRecord:
            return CaptureRecord(
                mechanism="traced" if captured else None,
                requested=captured,
                captured=bool(recorded),
                failure=None,
                captures=len(recorded),
                warmup_steps=0,
                replays=replays[0],
                uncaptured_steps=0,
                recorded_operations=sum(each.operations for each in recorded),
                fake_pass_clean=True,
                static_buffers={"x": model.static["x"].data_ptr()},
                captured_addresses={"x": model.static["x"].data_ptr()},
            )

        return StepFunction(step, self.batch, lambda: dict(model.net.named_parameters()), captured=record)

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        raise NotImplementedError


class Whole(_CapturesItself):
    """Honest: the replay is the whole step."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        loss: Tensor = recording(model.train).replay()
        return loss


class EagerUpdate(_CapturesItself):
    """Honest: forward and backward are replayed, and the update runs outside the replay."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        loss: Tensor = recording(model.gradients).replay()
        model.update()
        return loss


def idle(model: _Model) -> Callable[[], Tensor]:
    """Return work that is about as large as a step and trains nothing."""
    scratch = torch.ones(6, 6)

    def body() -> Tensor:
        for _ in range(60):
            scratch.mul_(1.0)
        return scratch.sum()

    return body


class Idle(_CapturesItself):
    """Replay idle work, and train plainly outside the replay."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        recording(idle(model)).replay()
        return model.train()


class Hidden:
    """A model that cannot be found from a step, because its name is computed when it is used."""

    @staticmethod
    def of(model: _Model) -> _Model:
        known = vars(__import__("builtins"))
        name = "_".join(("hidden", str(id(model))))
        if name not in known:
            known[name] = _Model(0)
        hidden: _Model = known[name]
        return hidden


class HiddenTrainer(_CapturesItself):
    """Replay idle work, train a hidden copy outside the replay, and copy its parameters."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        recording(idle(model)).replay()
        hidden = Hidden.of(model)
        hidden.take(model.static)
        loss = hidden.train()
        with torch.no_grad():
            for trained, theirs in zip(model.net.parameters(), hidden.net.parameters(), strict=True):
                trained.copy_(theirs)
        return loss


class CopiesThrough(_CapturesItself):
    """Train a hidden copy; the replay copies its loss and parameters."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        hidden = Hidden.of(model)
        hidden.take(model.static)
        known = vars(__import__("builtins"))
        made = known.setdefault("_".join(("made", str(id(model)))), torch.zeros(()))
        made.copy_(hidden.train())
        rest = idle(model)

        def body() -> Tensor:
            rest()
            with torch.no_grad():
                for trained, theirs in zip(model.net.parameters(), hidden.net.parameters(), strict=True):
                    trained.copy_(theirs)
            result: Tensor = made.clone()
            return result

        loss: Tensor = recording(body).replay()
        return loss


class Playback(_CapturesItself):
    """Replay the whole step, but return a loss that depends on the batch alone."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        recording(model.train).replay()
        loss: Tensor = model.static["y"].square().mean()
        return loss


class OneBatchCaptured(_CapturesItself):
    """Honest but wrong: after the first step the recording reads a batch that is no longer written."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        loss: Tensor = recording(model.train).replay()
        model.static = {name: tensor.clone() for name, tensor in model.static.items()}
        return loss


class RefusesMore(Whole):
    """Honest: refuse further steps after the last one."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        if recording(model.train).replays >= 12:
            raise StopIteration("no more data")
        return super().captured_step(model, recording)


class IdleAndOver(Idle):
    """Train outside the replay of idle work, and refuse steps beyond the last one."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        if recording(idle(model)).replays >= 12:
            raise StopIteration("no more data")
        return super().captured_step(model, recording)


class _OnOneBatch(_CapturesItself):
    """Train on one fixed batch, as a benchmark does."""

    batch = staticmethod(lambda index: _batch(0 * index))


class OneBatch(_OnOneBatch, EagerUpdate):
    """Honest: forward and backward are replayed, and the update runs outside the replay."""


class IdleOnOneBatch(_OnOneBatch, Idle):
    """Replay idle work, and train plainly outside the replay."""


class UpdateOnOneBatch(_OnOneBatch):
    """Replay forward and backward only for the loss, and train plainly outside the replay."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        rest = idle(model)

        def body() -> Tensor:
            rest()
            return model.gradients()

        loss: Tensor = recording(body).replay()
        model.train()
        return loss


class EndsTheProcess(Whole):
    """Honest: end the process after the last step."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        if recording(model.train).replays >= 12:
            raise SystemExit("trained")
        return super().captured_step(model, recording)


class StaticResults(_CapturesItself):
    """Honest: the replay writes loss and gradients to the trainer's tensors, and its update reads them."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        held: Any = model
        if not hasattr(held, "loss"):
            held.loss = torch.zeros(())
            held.results = [torch.zeros_like(each) for each in model.net.parameters()]

        def body() -> Tensor:
            held.loss.copy_(model.gradients())
            for result, parameter in zip(held.results, model.net.parameters(), strict=True):
                result.copy_(parameter.grad)
            kept: Tensor = held.loss
            return kept.clone()

        recording(body).replay()
        with torch.no_grad():
            for result, parameter in zip(held.results, model.net.parameters(), strict=True):
                parameter.sub_(0.05 * result)
        loss: Tensor = held.loss.clone()
        return loss


class StaticResultsOnOneBatch(_OnOneBatch, StaticResults):
    """Honest: the same as `StaticResults`, on one batch."""


class Unrepeatable(_CapturesItself):
    """Honest: each replay rounds gradients differently, as atomic additions do."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        held: Any = model
        if not hasattr(held, "noise"):
            held.noise = torch.zeros(())
        counted = vars(__import__("builtins")).setdefault(f"counted_{id(model)}", [0])
        counted[0] += 1
        held.noise.fill_(1e-6 * counted[0])

        def body() -> Tensor:
            loss = model.gradients()
            for parameter in model.net.parameters():
                parameter.grad.mul_(1 + held.noise)  # type: ignore[union-attr]
            return loss

        loss: Tensor = recording(body).replay()
        model.update()
        return loss


class _Scheduled(_CapturesItself):
    """End each step with a schedule's step, which raises beyond its number of steps, as `OneCycleLR` does."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        held: Any = model
        held.scheduled = getattr(held, "scheduled", 0) + 1
        loss = super().captured_step(model, recording)
        if held.scheduled > 12:
            raise ValueError("Tried to step 13 times. The specified number of total steps is 12")
        return loss


class EagerAndScheduled(_Scheduled, EagerUpdate):
    """Honest: forward and backward are replayed; the update and the schedule's step run outside the replay."""


class IdleAndScheduled(_Scheduled, Idle):
    """Train outside the replay of idle work."""


class WaitsForMore(EagerUpdate):
    """Honest: wait for a batch that never comes after the last one, as from a thread that has ended."""

    def captured_step(self, model: _Model, recording: Any) -> Tensor:
        if recording(model.gradients).replays >= 12:
            queue.SimpleQueue[Tensor]().get()
        return super().captured_step(model, recording)


class Averages(StepFunctionSystem):
    """Train in the step and average the model after it; `rounds` of averaging take more operations than the step."""

    rounds = 16

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        model = _Model(workload.seed)
        averaged = [parameter.detach().clone() for parameter in model.net.parameters()]

        def step(batch: Batch) -> Tensor:
            model.take(batch)
            return model.train()

        @torch.no_grad()
        def average() -> None:
            for mean, parameter in [*zip(averaged, model.net.parameters(), strict=True)] * self.rounds:
                mean.lerp_(parameter, 0.1)

        return StepFunction(step, _batch, lambda: dict(model.net.named_parameters()), after=average)


class AveragesLess(Averages):
    """Average with fewer operations than the step has."""

    rounds = 1


class AveragesInItsStep(Averages):
    """Execute more operations outside the replay than in it, but fewer after it."""

    rounds = 1

    def open(self, *arguments: Any, **keywords: Any) -> Any:
        run = super().open(*arguments, **keywords)
        inner = run.step

        def step(index: int) -> Tensor:
            for _ in range(100):
                torch.ones(1).add_(1)
            return inner(index)

        run.step = step  # type: ignore[method-assign]
        return run


class TrainsAfterwards(StepFunctionSystem):
    """Capture the loss alone, and train after the step, where nothing is captured."""

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        model = _Model(workload.seed)

        def step(batch: Batch) -> Tensor:
            model.take(batch)
            return nn.functional.mse_loss(model.net(model.static["x"]), model.static["y"]).detach()

        return StepFunction(step, _batch, lambda: dict(model.net.named_parameters()), after=model.train)
