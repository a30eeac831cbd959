"""Plant faults in one or all of the ranks that train together. A fault wraps the run of each rank, so it fits any
system."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from harness.system.between_faults import SEED
from harness.system.ranks import rank, reading_for, world_size
from harness.system.replay.generators import seed_all
from harness.system.wrappers import REDUCTIONS, FaultyRun


def _is_last() -> bool:
    return rank() == world_size() - 1 > 0


class RanksFault(FaultyRun):
    def _held(self) -> list[Tensor]:
        """Return this rank's part of each parameter, without empty parts."""
        return [part for part in self._trained() if part.numel()]


class MovedRanks(RanksFault):
    """Changes one parameter equally on every rank. The ranks' models stay equal, but all of them train wrongly."""

    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        if index == self._faulty_step and self._moves():
            self._move()
        return loss

    def _moves(self) -> bool:
        return world_size() > 1

    def _move(self) -> None:
        for part in self._held()[:1]:
            part.mul_(1.25).add_(0.25)


class DivergingRank(MovedRanks):
    def _moves(self) -> bool:
        return _is_last()


class StaleParameters(RanksFault):
    def step(self, index: int) -> Tensor:
        held = self._held() if index == self._faulty_step and _is_last() else []
        before = [part.clone() for part in held]
        loss = self._inner.step(index)
        for part, value in zip(held, before, strict=True):
            part.copy_(value)
        return loss


class RoundedParameters(RanksFault):
    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        for part in self._held():
            part.copy_(part.bfloat16())
        return loss


class StaleRank(FaultyRun):
    def step(self, index: int) -> Tensor:
        return self._inner.step(max(0, index - 1) if _is_last() else index)


class TwinRank(FaultyRun):
    def step(self, index: int) -> Tensor:
        with reading_for(0) if _is_last() else nullcontext():
            return self._inner.step(index)


class SeededAlike(FaultyRun):
    def step(self, index: int) -> Tensor:
        if index == self._faulty_step:
            seed_all(self._seed())
        return self._inner.step(index)

    def _seed(self) -> int:
        return SEED


class SeededApart(SeededAlike):
    def _seed(self) -> int:
        return super()._seed() + rank()


class SkippedReduction(FaultyRun):
    def step(self, index: int) -> Tensor:
        with _unreduced() if index == self._faulty_step else nullcontext():
            return self._inner.step(index)


class SecondReduction(FaultyRun):
    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        if index == self._faulty_step and world_size() > 1:
            for _ in range(REDUCTIONS):
                dist.all_reduce(loss.detach().clone())
        return loss


@contextmanager
def _unreduced() -> Iterator[None]:
    """Disable the reduction of gradients over ranks within the `with` block.

    This affects DistributedDataParallel and the functions of torch.distributed that FSDP2 and user code call. In place
    of a reduce-scatter, a rank keeps its part of its own gradients.
    """
    modules = [each for each in gc.get_objects() if isinstance(each, DistributedDataParallel)]
    distributed: Any = dist
    own = {"all_reduce": _leave_alone, **dict.fromkeys(_SCATTERING, _keep_own_part)}
    originals = {name: getattr(distributed, name) for name in own if hasattr(distributed, name)}
    for module in modules:
        module.require_backward_grad_sync = False
    for name in originals:
        setattr(distributed, name, own[name])
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(distributed, name, original)
        for module in modules:
            module.require_backward_grad_sync = True


# Names of torch's functions for a reduce-scatter. The second name exists since torch 2.13.
_SCATTERING = ("reduce_scatter_tensor", "reduce_scatter_single")


def _leave_alone(*_: object, **__: object) -> None:
    """Do nothing instead of an `all_reduce`, so that every rank keeps its own values."""


def _keep_own_part(output: Tensor, input: Tensor, *_: object, **__: object) -> None:  # noqa: A002 - torch's names
    output.copy_(input.view(world_size(), *output.shape)[rank()])
