"""Plant faults that no loss shows: in checkpoints, in evaluations between steps, in the end state and in metrics.

Faults of checkpoints take effect when the system is saved or loaded. Faults of evaluations take effect when the system
is evaluated. Faults of the end state change the training after its last step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from harness.system.adapter_checks import require_values
from harness.system.protocol import HasInputs, HasMetrics, TrainingRun
from harness.system.replay.generators import seed_all
from harness.system.wrappers import SCALE, FaultyRun

MOMENTS = ("exp_avg", "momentum", "square_avg")
COUNTS = ("step",)
SEED = 271_828
OTHER = 1.5


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


class CheckpointFault(FaultyRun):
    """Base class of faults that change what `save` writes, or that change the training after `load`."""

    _loaded = False

    def _replace_capabilities(self) -> None:
        if hasattr(self._inner, "save") and hasattr(self._inner, "load"):
            self.save, self.load = self._save, self._load

    def _save(self, path: Path) -> None:
        cast("Any", self._inner).save(path)

    def _load(self, path: Path) -> None:
        cast("Any", self._inner).load(path)
        self._loaded = True
        self._after_load()

    def _after_load(self) -> None:
        """Change the training after a load. The base class changes nothing."""

    def _save_others(self, path: Path, values: list[Tensor]) -> None:
        """Save a checkpoint in which the parameters have the given values. Then restore the parameters' earlier
        values."""
        kept = _copies(self._trained())
        torch._foreach_copy_(self._trained(), values)
        cast("Any", self._inner).save(path)
        torch._foreach_copy_(self._trained(), kept)


class IdleLoad(CheckpointFault):
    def _load(self, path: Path) -> None:
        """Load nothing, so that the training stays as it was."""


class EmptyCheckpoint(CheckpointFault):
    def _save(self, path: Path) -> None:
        """Write nothing, so that there is no checkpoint."""

    def _load(self, path: Path) -> None:  # noqa: ARG002 - `_save` wrote nothing there
        """Change one parameter, so that the load seems to have loaded something."""
        self._trained()[0].add_(1.0)


class StaleCheckpoint(CheckpointFault):
    """Saves a checkpoint with the parameters from before the last step."""

    def step(self, index: int) -> Tensor:
        self._before = _copies(self._trained())
        return self._inner.step(index)

    def _save(self, path: Path) -> None:
        self._save_others(path, self._before)


class HalfCheckpoint(CheckpointFault):
    def _save(self, path: Path) -> None:
        self._save_others(path, [each.half().to(each.dtype) for each in self._trained()])


class ScaledCheckpoint(CheckpointFault):
    def _save(self, path: Path) -> None:
        self._save_others(path, [each * SCALE for each in self._trained()])


class UnsavedParameter(CheckpointFault):
    """After a load, restores the old value of one parameter: the last parameter that the load changed."""

    def _load(self, path: Path) -> None:
        before = _copies(self._trained())
        super()._load(path)
        pairs = zip(self._trained(), before, strict=True)
        changed = [(parameter, old) for parameter, old in pairs if not torch.equal(parameter, old)]
        for parameter, old in changed[-1:]:
            parameter.copy_(old)


class LostMoments(CheckpointFault):
    begins: tuple[str, ...] = MOMENTS

    def _after_load(self) -> None:
        torch._foreach_zero_(self._of_optimizer(self.begins))


class LostStepCount(LostMoments):
    begins = COUNTS


class LostGenerators(CheckpointFault):
    def _after_load(self) -> None:
        seed_all(SEED)


class RestartedData(CheckpointFault):
    """After a load, starts again with the first batch of the data."""

    _first: int | None = None

    def step(self, index: int) -> Tensor:
        if self._loaded and self._first is None:
            self._first = index
        return self._inner.step(index - (self._first or 0))


class WeightsAlone(RestartedData, LostMoments):
    """Loads the weights, and resets the optimizer, the generators and the position in the data."""

    begins = (*MOMENTS, *COUNTS)

    def _after_load(self) -> None:
        super()._after_load()
        seed_all(SEED)


class RepeatedBatch(CheckpointFault):
    shift = -1

    def step(self, index: int) -> Tensor:
        return self._inner.step(index + self.shift if self._loaded else index)


class SkippedBatch(RepeatedBatch):
    shift = 1


class DoubledFirstStep(CheckpointFault):
    def step(self, index: int) -> Tensor:
        if self._loaded:
            self._loaded = False
            self._inner.step(index)
        return self._inner.step(index)


class LostFirstUpdate(CheckpointFault):
    def step(self, index: int) -> Tensor:
        if not self._loaded:
            return self._inner.step(index)
        self._loaded = False
        before = _copies(self._trained())
        loss = self._inner.step(index)
        torch._foreach_copy_(self._trained(), before)
        return loss


class EvaluationFault(FaultyRun):
    """Base class of faults that change what an evaluation does, or what an evaluation returns."""

    def _replace_capabilities(self) -> None:
        if hasattr(self._inner, "evaluate"):
            self.evaluate = self._evaluate

    def _evaluate(self) -> Any:
        return cast("Any", self._inner).evaluate()


class IdleEvaluation(EvaluationFault):
    _first: Any = None

    def _evaluate(self) -> Any:
        self._first = super()._evaluate() if self._first is None else self._first
        return self._first


class NanEvaluation(EvaluationFault):
    def _evaluate(self) -> Mapping[str, float]:
        super()._evaluate()
        return {"loss": float("nan")}


class OtherEvaluation(EvaluationFault):
    def _evaluate(self) -> Mapping[str, float]:
        returned = require_values(super()._evaluate(), cast("Any", self._inner).evaluate)
        return {name: OTHER * value + 1.0 for name, value in returned.items()}


class TrainingEvaluation(EvaluationFault):
    def _evaluate(self) -> Any:
        returned = super()._evaluate()
        self._inner.step(0)
        return returned


class DrawingEvaluation(EvaluationFault):
    def _evaluate(self) -> Any:
        returned = super()._evaluate()
        torch.rand(1)
        return returned


class ConsumingEvaluation(EvaluationFault):
    _taken = 0

    def _evaluate(self) -> Any:
        self._taken += 1
        return super()._evaluate()

    def step(self, index: int) -> Tensor:
        return self._inner.step(index + self._taken)


class EndFault(FaultyRun):
    """Base class of faults that change the training after its last step has returned."""

    _next = 0

    def _replace_capabilities(self) -> None:
        if isinstance(self._inner, HasInputs):
            self.inputs = self._inputs_between_steps

    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        self._next = index + 1
        if not isinstance(self._inner, HasInputs):
            self._between_steps()
        return loss

    def _inputs_between_steps(self) -> Mapping[str, Tensor]:
        """Apply the fault, and return the last step's inputs. The harness reads inputs after a step, so the fault does
        not change the step itself."""
        self._between_steps()
        return cast("HasInputs", self._inner).inputs()

    def _between_steps(self) -> None:
        if self._next == self._steps:
            self._change_end()

    def _change_end(self) -> None:
        raise NotImplementedError


class NanEndState(EndFault):
    def _change_end(self) -> None:
        torch._foreach_mul_(self._trained(), float("nan"))


class DroppedLastUpdate(EndFault):
    def _between_steps(self) -> None:
        if self._next == self._steps - 1:
            self._before = torch._foreach_mul(self._trained(), 1.0)
        super()._between_steps()

    def _change_end(self) -> None:
        torch._foreach_copy_(self._trained(), self._before)


class HalfMoved(EndFault):
    """Ends with each parameter halfway between its initial and its trained value."""

    def step(self, index: int) -> Tensor:
        if not self._next:
            self._start = torch._foreach_mul(self._trained(), 1.0)
        return super().step(index)

    def _change_end(self) -> None:
        torch._foreach_lerp_(self._trained(), self._start, 0.5)


class WipedMoments(EndFault):
    def _change_end(self) -> None:
        torch._foreach_zero_(self._of_optimizer(MOMENTS))


class DrawnNumbers(EndFault):
    def _change_end(self) -> None:
        torch.rand(1)


class FaultyMetrics(FaultyRun):
    """Changes every metric from the faulty step on. A run without metrics stays unchanged."""

    _index = -1

    def __init__(self, inner: TrainingRun, steps: int, factor: float = 1, shift: float = 0) -> None:
        self._factor, self._shift = factor, shift
        super().__init__(inner, steps)

    def _replace_capabilities(self) -> None:
        if isinstance(self._inner, HasMetrics):
            self.metrics = self._changed_metrics

    def step(self, index: int) -> Tensor:
        self._index = index
        return self._inner.step(index)

    def _changed_metrics(self) -> dict[str, Tensor]:
        metrics = cast("HasMetrics", self._inner).metrics()
        if self._index < self._faulty_step:
            return dict(metrics)
        return {name: tensor * self._factor + self._shift for name, tensor in metrics.items()}


class ConstantMetric(FaultyMetrics):
    _first: dict[str, Tensor] | None = None

    def _changed_metrics(self) -> dict[str, Tensor]:
        metrics = cast("HasMetrics", self._inner).metrics()
        if self._first is None:
            self._first = {name: tensor.clone() for name, tensor in metrics.items()}
        return self._first
