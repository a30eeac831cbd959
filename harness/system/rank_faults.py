"""Plant faults in ranks that train together, for any system: each rank's run is wrapped, and knows its number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from harness.system.faulty_run import FAULTY_STEP, FaultyRun
from harness.system.protocol import Expectation, HasParameters
from harness.system.ranks import rank, reading_for, world_size
from harness.system.shards import local

if TYPE_CHECKING:
    from torch import Tensor

    from harness.system.protocol import TrainingRun


def _is_last() -> bool:
    return rank() == world_size() - 1 > 0


def _held(training: TrainingRun) -> list[Tensor]:
    """Return this rank's part of each parameter; parameters of which it has no element are left out."""
    parameters = training.parameters().values() if isinstance(training, HasParameters) else ()
    return [part for part in map(local, parameters) if part.numel()]


class MovedRanks(FaultyRun):
    """Every rank moves one parameter alike: the replicas stay equal, and train something else."""

    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        if index == self._faulty_step and self._moves():
            self._move()
        return loss

    def _moves(self) -> bool:
        return world_size() > 1

    def _move(self) -> None:
        import torch

        held = _held(self._inner)
        if held:
            with torch.no_grad():
                held[0].mul_(1.25).add_(0.25)


class DivergingRank(MovedRanks):
    def _moves(self) -> bool:
        return _is_last()


class StaleParameters(FaultyRun):
    def step(self, index: int) -> Tensor:
        import torch

        held = _held(self._inner) if index == self._faulty_step and _is_last() else []
        before = [part.detach().clone() for part in held]
        loss = self._inner.step(index)
        with torch.no_grad():
            for part, value in zip(held, before, strict=True):
                part.copy_(value)
        return loss


class RoundedParameters(FaultyRun):
    def step(self, index: int) -> Tensor:
        import torch

        loss = self._inner.step(index)
        with torch.no_grad():
            for part in _held(self._inner):
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
        from harness.system.replay.generators import seed_all

        if index == self._faulty_step:
            seed_all(self._seed())
        return self._inner.step(index)

    def _seed(self) -> int:
        return 271_828


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
            import torch.distributed as dist

            for _ in range(REDUCTIONS):
                dist.all_reduce(loss.detach().clone())
        return loss


REDUCTIONS = 16


@contextmanager
def _unreduced() -> Iterator[None]:
    """Keep every rank from reducing gradients within the block: by DistributedDataParallel, and by the functions that
    FSDP2 and users' own loops call. Where a reduction scatters, each rank keeps its part of its own gradients.
    """
    import gc

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

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


_SCATTERING = ("reduce_scatter_tensor", "reduce_scatter_single")  # the latter since torch 2.13


def _leave_alone(*_: object, **__: object) -> None:
    """Do nothing instead of an `all_reduce`: every rank keeps what it has."""


def _keep_own_part(output: Tensor, input: Tensor, *_: object, **__: object) -> None:  # noqa: A002 - torch's names
    output.copy_(input.view(world_size(), *output.shape)[rank()])


WRAPPERS: dict[str, type[FaultyRun]] = {
    "moved_ranks": MovedRanks,
    "diverging_rank": DivergingRank,
    "stale_parameters": StaleParameters,
    "rounded_parameters": RoundedParameters,
    "stale_rank": StaleRank,
    "twin_rank": TwinRank,
    "seeded_alike": SeededAlike,
    "seeded_apart": SeededApart,
    "skipped_reduction": SkippedReduction,
    "second_reduction": SecondReduction,
}
SUMMARIES = {
    "moved_ranks": f"after step {FAULTY_STEP} every rank moves its first parameter, all alike",
    "diverging_rank": f"after step {FAULTY_STEP} the last rank moves its first parameter, and no other one does",
    "stale_parameters": f"after step {FAULTY_STEP} the last rank takes its own update back",
    "rounded_parameters": "after each step every rank rounds its parameters to bfloat16, as without float32 masters",
    "stale_rank": "the last rank trains on the batch before its own",
    "twin_rank": "the last rank reads the rows of the first",
    "seeded_alike": f"in step {FAULTY_STEP} every rank seeds its generators by one number",
    "seeded_apart": f"in step {FAULTY_STEP} every rank seeds its generators by a number of its own",
    "skipped_reduction": f"in step {FAULTY_STEP} no rank reduces its gradients",
    "second_reduction": f"after step {FAULTY_STEP} the host begins {REDUCTIONS} more collectives",
}


def _fails(reason: str, **figures: float) -> Expectation:
    return Expectation("FAIL", reason, figures)


BREAKS: dict[str, dict[str, Expectation]] = {
    "moved_ranks": {"ranks_match": _fails("exceeds_tolerance")},
    "diverging_rank": {
        "ranks_agree": _fails("ranks_differ", first_differing_step=FAULTY_STEP),
        "ranks_match": _fails("exceeds_tolerance"),
    },
    "stale_parameters": {
        "ranks_agree": _fails("ranks_differ", first_differing_step=FAULTY_STEP),
        "ranks_match": _fails("exceeds_tolerance"),
    },
    "rounded_parameters": {"ranks_match": _fails("exceeds_tolerance")},
    "stale_rank": {"ranks_match": _fails("unequal_batches", first_unequal_step=1)},
    "twin_rank": {
        "ranks_agree": _fails("rank_batches_equal", first_equal_step=0),
        "ranks_match": _fails("unequal_batches", first_unequal_step=0),
    },
    "seeded_alike": {"ranks_agree": _fails("ranks_draw_alike")},
    "seeded_apart": {"ranks_agree": _fails("ranks_draw_apart", first_draw=FAULTY_STEP)},
    "skipped_reduction": {
        "ranks_agree": _fails("ranks_differ", first_differing_step=FAULTY_STEP),
        "ranks_match": _fails("exceeds_tolerance"),
    },
    "second_reduction": {"ranks_agree": _fails("collectives_outside_graph")},
}
