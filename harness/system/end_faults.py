"""Plant faults that no loss shows: they change what the training ends with, or leaves to a step that is not taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from harness.system.between_faults import MOMENTS
from harness.system.faulty_run import FaultyRun
from harness.system.protocol import HasInputs, HasMetrics, TrainingRun


class EndFault(FaultyRun):
    """Changes something once the last step of the series has returned."""

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
        """Apply the fault, then return the inputs. The harness asks for inputs after a step, so the step lacks this."""
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
    """Parameters end halfway between where they began and where training took them."""

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
    """Changes every metric, from the faulty step on; a run that reports none stays as it is."""

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
