"""Planted faults of ranks that train together: a rank sums or updates wrong values, or a sum is started in the wrong
place.

If a rank left out a collective, the other ranks would wait forever. Therefore every rank takes part in every sum. A
faulty rank contributes wrong values to the sum, or does not use the sum. In an arm with one rank these faults change
nothing. Importable without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.expected import trajectory
from reference_impl.faults.registry import REPLAY, STEP, fault

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.cuda_graph import CapturingTrainer
    from reference_impl.data_parallel import Ranks
    from reference_impl.trainer import Trainer

WRONG_STEP = 5
# If a claim fails for all ranks, the verdict is that of the first rank. These faults make wrong, one step after
# another: the last rank's parameters in `WRONG_STEP`, then its gradient and so the sum, then the first rank's loss.
SEEN_BY_FIRST = trajectory("differs", WRONG_STEP + 2)


def _is_last(ranks: Ranks | None) -> bool:
    return ranks is not None and ranks.rank == ranks.count - 1


def _at(trainer: Trainer, step: int) -> Tensor:
    """Return a 0-d bool tensor on the device that is True only in step `step`. With a Python `if`, each replay would
    repeat the choice that was made during the capture."""
    import torch

    prepare, flag = trainer.prepare, trainer.clip.norms.new_zeros((), dtype=torch.bool)

    def prepare_with_flag(index: int) -> None:
        prepare(index)
        flag.fill_(index == step)

    trainer.prepare = prepare_with_flag  # type: ignore[method-assign]
    return flag


@fault(
    STEP,
    "the last rank does not use the result of step 5's sum, and trains on its own gradients",
    {"ranks_agree": Expectation("FAIL", "ranks_differ", {"first_differing_step": WRONG_STEP}), **SEEN_BY_FIRST},
)
def unused_sum(trainer: Trainer) -> None:
    import torch

    ranks = trainer.ranks
    if ranks is None or not _is_last(ranks):
        return
    sum_, wrong = ranks.sum_, _at(trainer, WRONG_STEP)

    def sum_and_leave_it(tensor: Tensor) -> None:
        own = tensor * ranks.count
        sum_(tensor)
        tensor.copy_(torch.where(wrong, own, tensor))

    ranks.sum_ = sum_and_leave_it  # type: ignore[method-assign]


@fault(
    STEP,
    "the last rank misses the update of step 5, and continues with parameters that are one step old",
    {"ranks_agree": Expectation("FAIL", "ranks_differ", {"first_differing_step": WRONG_STEP}), **SEEN_BY_FIRST},
)
def missed_update(trainer: Trainer) -> None:
    import torch

    if not _is_last(trainer.ranks):
        return
    optimizer, update, missed = trainer.optimizer, trainer.optimizer.update_, _at(trainer, WRONG_STEP)

    def update_but_once(parameters: Tensor, gradient: Tensor, norms: Tensor) -> None:
        changed = [parameters, *optimizer.state_tensors().values()]
        before = [tensor.clone() for tensor in changed]
        update(parameters, gradient, norms)
        for tensor, old in zip(changed, before, strict=True):
            tensor.copy_(torch.where(missed, old, tensor))

    optimizer.update_ = update_but_once  # type: ignore[method-assign]


@fault(
    STEP,
    "the last rank adds the gradients of the step before to the sum",
    {"ranks_match": Expectation("FAIL", "exceeds_tolerance"), **trajectory("differs", 2)},
)
def stale_gradients(trainer: Trainer) -> None:
    import torch

    ranks = trainer.ranks
    if ranks is None or not _is_last(ranks):
        return
    sum_, at_first = ranks.sum_, _at(trainer, 0)
    kept = torch.zeros_like(trainer.trainable.gradient)

    def sum_of_old(tensor: Tensor) -> None:
        own = tensor.clone()
        tensor.copy_(torch.where(at_first, own, kept))
        kept.copy_(own)
        sum_(tensor)

    ranks.sum_ = sum_of_old  # type: ignore[method-assign]


@fault(
    STEP,
    "each rank clips its own gradients before the sum, instead of clipping the sum",
    {"ranks_match": Expectation("FAIL", "exceeds_tolerance"), **trajectory("differs", 1)},
)
def clip_before_sum(trainer: Trainer) -> None:
    ranks = trainer.ranks
    if ranks is None:
        return
    gradient = trainer.trainable.gradient

    def update() -> None:
        trainer.clip.apply_(gradient.mul_(ranks.count))
        ranks.sum_(gradient.div_(ranks.count))
        trainer.optimizer.update_(trainer.trainable.flat, gradient, trainer.clip.norms)

    trainer.update = update  # type: ignore[method-assign]


@fault(
    REPLAY,
    "the graph ends before the sum over ranks: after each replay, the host starts the sum and the update",
    {"ranks_agree": Expectation("FAIL", "collectives_missing_in_graph")},
    needs="cuda",
)
def sum_outside_graph(capturing: CapturingTrainer) -> None:
    import torch

    trainer, step = capturing.trainer, capturing.step
    trainer.body = trainer.gradients_body  # type: ignore[method-assign]

    @torch.no_grad()
    def step_and_update(index: int) -> Tensor:
        loss = step(index)
        trainer.update()
        return loss

    capturing.step = step_and_update  # type: ignore[method-assign]


@fault(
    REPLAY,
    "after each replay, the host also sums the loss over ranks, for the log",
    {"ranks_agree": Expectation("FAIL", "collectives_outside_graph")},
    needs="cuda",
)
def summed_loss(capturing: CapturingTrainer) -> None:
    step, ranks = capturing.step, capturing.trainer.ranks

    def step_and_sum(index: int) -> Tensor:
        loss = step(index)
        if ranks is not None:
            ranks.sum_(loss.clone())
        return loss

    capturing.step = step_and_sum  # type: ignore[method-assign]
