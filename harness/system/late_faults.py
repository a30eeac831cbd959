"""Faults that a short run never meets: one late step that goes wrong, and steps that become slower."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from harness.system.faulty_run import FaultyRun
from harness.system.protocol import HasParameters
from harness.system.shards import local

if TYPE_CHECKING:
    from torch import Tensor

LATE = 0.77  # of all steps: 7,700 of 10,000
SLOWING = 4.0  # how much longer the last step takes, as a multiple of its own time


class LateFault(FaultyRun):
    """Something is wrong in one late step."""

    @property
    def _late_step(self) -> int:
        return int(LATE * self._steps)


class LateStaleBatch(LateFault):
    def step(self, index: int) -> Tensor:
        return self._inner.step(index - 1 if index == self._late_step else index)


class LateNan(LateFault):
    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        return loss * float("nan") if index == self._late_step else loss


class LateDroppedUpdate(LateFault):
    def step(self, index: int) -> Tensor:
        if index != self._late_step or not isinstance(self._inner, HasParameters):
            return self._inner.step(index)
        import torch

        parameters = [local(parameter).detach() for parameter in self._inner.parameters().values()]
        before = [parameter.clone() for parameter in parameters]
        loss = self._inner.step(index)
        torch._foreach_copy_(parameters, before)
        return loss


class SlowingSteps(FaultyRun):
    def step(self, index: int) -> Tensor:
        started = time.perf_counter()
        loss = self._inner.step(index)
        if loss.is_cuda:
            import torch

            torch.cuda.synchronize(loss.device)
        time.sleep(SLOWING * index / self._steps * (time.perf_counter() - started))
        return loss
