"""Faults of what a run reports beside its loss, for claims on another metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from harness.system.faulty_run import FaultyRun
from harness.system.protocol import HasMetrics, TrainingRun

if TYPE_CHECKING:
    from torch import Tensor

SHIFT = 1000.0


class FaultyMetrics(FaultyRun):
    """Changes every metric, from the faulty step on; a run that reports none stays as it is."""

    _index = -1

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
        return {name: self._changed(name, tensor) for name, tensor in metrics.items()}

    def _changed(self, name: str, metric: Tensor) -> Tensor:
        raise NotImplementedError


class NanMetric(FaultyMetrics):
    def _changed(self, name: str, metric: Tensor) -> Tensor:  # noqa: ARG002
        return metric * float("nan")


class DoubledMetric(FaultyMetrics):
    def _changed(self, name: str, metric: Tensor) -> Tensor:  # noqa: ARG002
        return metric * 2


class HalvedMetric(FaultyMetrics):
    def _changed(self, name: str, metric: Tensor) -> Tensor:  # noqa: ARG002
        return metric / 2


class ShiftedMetric(FaultyMetrics):
    def _changed(self, name: str, metric: Tensor) -> Tensor:  # noqa: ARG002
        return metric + SHIFT


class ConstantMetric(FaultyMetrics):
    def __init__(self, inner: TrainingRun, steps: int) -> None:
        self._first: dict[str, Tensor] = {}
        super().__init__(inner, steps)

    @property
    def _faulty_step(self) -> int:
        return 0

    def _changed(self, name: str, metric: Tensor) -> Tensor:
        if name not in self._first:
            self._first[name] = metric.clone()
        return self._first[name]
