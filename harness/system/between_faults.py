"""Plant faults in what a system does between steps: what a checkpoint loses, what an evaluation leaves behind.

They change nothing until the system is saved, loaded or evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from harness.system.adapter_checks import require_values
from harness.system.faulty_run import SCALE, FaultyRun
from harness.system.replay.generators import seed_all

MOMENTS = ("exp_avg", "momentum", "square_avg")
COUNTS = ("step",)
SEED = 271_828
OTHER = 1.5


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


class CheckpointFault(FaultyRun):
    """Changes what is saved, or what is there after a load."""

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
        """Change what was loaded."""

    def _save_others(self, path: Path, values: list[Tensor]) -> None:
        """Save with these values instead of the parameters' own."""
        kept = _copies(self._trained())
        torch._foreach_copy_(self._trained(), values)
        cast("Any", self._inner).save(path)
        torch._foreach_copy_(self._trained(), kept)


class IdleLoad(CheckpointFault):
    def _load(self, path: Path) -> None:
        """Change nothing."""


class EmptyCheckpoint(CheckpointFault):
    def _save(self, path: Path) -> None:
        """Write nothing."""

    def _load(self, path: Path) -> None:  # noqa: ARG002 - there is nothing at it
        """Change one parameter, so that something seems to have been loaded."""
        self._trained()[0].add_(1.0)


class StaleCheckpoint(CheckpointFault):
    """The copy that is saved was made before the last step."""

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
    """The last one that the checkpoint would have changed."""

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
    """Batches begin anew with the first."""

    _first: int | None = None

    def step(self, index: int) -> Tensor:
        if self._loaded and self._first is None:
            self._first = index
        return self._inner.step(index - (self._first or 0))


class WeightsAlone(RestartedData, LostMoments):
    """Optimizer, generators and the place in the data are those of a fresh start."""

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
    """Changes what an evaluation does, or returns."""

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
