"""Plant faults that no loss shows: they change what the training ends with, or leaves to a step that is not taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from harness.system.faulty_run import FaultyRun
from harness.system.protocol import HasInputs, HasMetrics, HasParameters, HasState, TrainingRun
from harness.system.shards import local

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

SHIFT = 1000.0


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

    def _parameters(self) -> list[Tensor]:
        inner = self._inner
        return list(map(local, inner.parameters().values())) if isinstance(inner, HasParameters) else []


class NanEndState(EndFault):
    def _change_end(self) -> None:
        import torch

        with torch.no_grad():
            torch._foreach_mul_(self._parameters(), float("nan"))


class DroppedLastUpdate(EndFault):
    def _between_steps(self) -> None:
        import torch

        if self._next == self._steps - 1:
            with torch.no_grad():
                self._before = torch._foreach_mul(self._parameters(), 1.0)
        super()._between_steps()

    def _change_end(self) -> None:
        import torch

        with torch.no_grad():
            torch._foreach_copy_(self._parameters(), self._before)


class HalfMoved(EndFault):
    """Parameters end halfway between where they began and where training took them."""

    def step(self, index: int) -> Tensor:
        import torch

        if not self._next:
            with torch.no_grad():
                self._start = torch._foreach_mul(self._parameters(), 1.0)
        return super().step(index)

    def _change_end(self) -> None:
        import torch

        with torch.no_grad():
            torch._foreach_lerp_(self._parameters(), self._start, 0.5)


class WipedMoments(EndFault):
    def _change_end(self) -> None:
        import torch

        optimizer = self._inner.state().get("optimizer", {}) if isinstance(self._inner, HasState) else {}
        moments = ("exp_avg", "momentum", "square_avg")
        wiped = [local(tensor) for name, tensor in optimizer.items() if name.rpartition(".")[2].startswith(moments)]
        with torch.no_grad():
            torch._foreach_zero_(wiped)


class DrawnNumbers(EndFault):
    def _change_end(self) -> None:
        import torch

        torch.rand(1)


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
