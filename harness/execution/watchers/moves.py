"""Measure how an execution moves each tensor from start to end, and how that differs from another arm's first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median_low

import torch
from torch import Tensor

from harness.evidence.arm_records import MovedApart
from harness.execution.watchers.reductions import made_of, real
from harness.system.replay.found_state import StateByCategory

LEFT_OUT = ("generators",)  # what is drawn from them shows in what is moved
OPTIMIZER = "optimizer"
STEP = "step"  # an optimizer's count of updates, which is judged by itself
# BatchNorm's count of batches: one of a forward pass that is recomputed may be another, and is judged by itself
COUNT = "num_batches_tracked"
SAMPLED = 65_536  # numbers of a tensor that show how far it moved
MOVES = "moves"  # the name of movements among what an arm leaves for another commit's


def movable(state: StateByCategory) -> dict[str, Tensor]:
    """Return by `category name` what may move: tensors that a later step or a reader finds, integers and flags too.

    Of an optimizer's state only tensors with a parameter's shape may: averages, slow weights and
    moments, which another format keeps in blocks, or under a name with its data type.
    """
    shapes = {tensor.shape for tensor in state.get("parameters", {}).values()}
    return {
        f"{category} {name}": tensor
        for category, tensors in state.items()
        if category not in (*LEFT_OUT, OPTIMIZER)
        for name, tensor in tensors.items()
        if name.rpartition(".")[2] != COUNT
    } | {
        f"{OPTIMIZER} {name}{_format(tensor)}": tensor
        for name, tensor in state.get(OPTIMIZER, {}).items()
        if tensor.is_floating_point() and tensor.shape in shapes and name.rpartition(".")[2] != STEP
    }


def _format(tensor: Tensor) -> str:
    return "" if tensor.dtype == torch.float32 else f" ({str(tensor.dtype).removeprefix('torch.')})"


def watched(state: StateByCategory) -> set[str]:
    """Return by `category name` all that an end may be compared by; of an optimizer's state, what may move."""
    others = {name: each for name, each in state.items() if name not in (*LEFT_OUT, OPTIMIZER)}
    return {f"{category} {name}" for category, tensors in others.items() for name in tensors} | movable(state).keys()


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors into the host's memory, as real numbers. Parts are gathered from every rank."""
    return {name: real(tensor).detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def moved(start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, float]]:
    """Return by name the movement in float32 [as the tensor], in the host's memory, and the L2 norm of the end."""
    found = {}
    for name, tensor in end.items():
        ours = real(tensor).detach().double()
        before = start.get(name)
        alike = before is not None and before.shape == ours.shape
        change = _from(before.to(ours.device).double(), ours) if before is not None and alike else ours
        found[name] = (change.to("cpu", torch.float32, copy=True), float(ours.norm()))
    return found


def _from(before: Tensor, now: Tensor) -> Tensor:
    """Return the movement, from 0 where it began infinite, as a least value so far does: no distance exists from there.

    What was NaN and still is has not moved: the part of a log that nothing has written to yet.
    """
    change = _less(now, torch.where(before.isfinite() | (before == now), before, torch.zeros_like(before)))
    return torch.where(before.isnan() & now.isnan(), torch.zeros_like(change), change)


def _less(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the difference; 0 between equal infinities, which a mask has."""
    return torch.where(ours == theirs, torch.zeros((), dtype=ours.dtype, device=ours.device), ours - theirs)


def sampled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return up to `SAMPLED` evenly spaced numbers of each floating-point tensor, in the host's memory."""
    plain = {name: real(tensor).detach() for name, tensor in made_of(tensors).items() if not tensor.is_meta}
    return {
        name: each.reshape(-1)[:: max(1, each.numel() // SAMPLED)].to("cpu", torch.float64, copy=True)
        for name, each in plain.items()
        if each.is_floating_point()
    }


def median_moved(start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> float | None:
    """Return how far the median sample moved over its norm at the start; None if all samples began as zeros."""
    moved = [
        float((end[name] - before).norm() / before.norm())
        for name, before in start.items()
        if name in end and end[name].shape == before.shape and before.any()
    ]
    return median_low(moved) if moved else None


@dataclass
class Moves:
    """Movements that executions of one run made: the first of each arm whose movements some claim reads."""

    _kept: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def apart(self, made: Mapping[str, tuple[Tensor, float]], watched: set[str]) -> list[MovedApart]:
        """Return how the movements differ from each one kept. watched: all names of the execution, integers too."""
        return [self._apart(arm, kept, made, watched) for arm, kept in self._kept.items()]

    def _apart(
        self, arm: str, kept: Mapping[str, Tensor], made: Mapping[str, tuple[Tensor, float]], watched: set[str]
    ) -> MovedApart:
        common = sorted(name for name in made.keys() & kept.keys() if kept[name].shape == made[name][0].shape)
        return MovedApart(
            arm=arm,
            tensors={
                name: (
                    float(_less(made[name][0].double(), kept[name].double()).norm()),
                    float(kept[name].double().norm()),
                    made[name][1],
                )
                for name in common
            },
            uncompared=sorted(watched - set(common)),
            missing=sorted(kept.keys() - set(common)),
        )

    def kept(self, arm: str) -> Mapping[str, Tensor]:
        """Return the movements that the first execution of `arm` made; none if the arm is not known."""
        return self._kept.get(arm, {})

    def keep(self, made: Mapping[str, tuple[Tensor, float]], arm: str) -> None:
        """Keep the movements of the first execution of `arm`."""
        self._kept.setdefault(arm, {name: movement for name, (movement, _) in made.items()})

    def forget(self, arm: str) -> None:
        """Forget an arm that failed: nothing is compared with it."""
        self._kept.pop(arm, None)
