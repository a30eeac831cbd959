"""Reduce the gradients of chosen steps: as a step leaves them and, if that differs, as its backward pass did.

A baseline's gradients are kept on the device for its candidates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from harness.evidence.arm_records import Gradients, GroupNorm
from harness.execution.arm import ArmLife
from harness.execution.probes.exchange import Exchange
from harness.execution.watchers.made_gradients import MadeGradients
from harness.execution.watchers.reductions import norm, reduce_gradients, reduce_groups
from harness.system.protocol import HasGradientNorms, HasGradients, HasParameters, RecordsUnderWatch, TrainingRun
from harness.system.replay.found_state import plain_name
from harness.system.sharded_tensors import whole

Tensors = Mapping[str, Tensor]


class Kept(NamedTuple):
    """A baseline's gradients of one step."""

    left: Tensors
    changed: Tensors | None  # what those were that changed after they were made; None: not seen


KeptGradients = dict[tuple[str, int], Kept]


class GradientReader:
    """Reads the gradients of one execution, and keeps them if it is a baseline's."""

    def __init__(self, life: ArmLife, kept: KeptGradients, *, keep: bool) -> None:
        self._life, self._run, self._kept, self._keep = life, life.run, kept, keep
        self.watch: MadeGradients | None = None  # of an uncaptured arm
        if self.steps and life.replica == 0 and isinstance(life.training, RecordsUnderWatch):
            life.training.record_under(MadeGradients)

    @property
    def steps(self) -> list[int]:
        """Return the steps whose gradients a claim reads; a baseline's repetition only shows the losses' noise."""
        arms, life = self._run.gradient_arms, self._life
        first = life.replica == 0 or life.arm not in self._run.baseline_of.values()
        are_read = arms is None or life.planned.sketches or (life.arm in arms and first)
        return self._run.gradient_steps if are_read else []

    def read(self, index: int) -> None:
        """Write the gradients of the step that was made last, if a claim reads them."""
        training = self._life.training
        if index not in self.steps or not isinstance(training, HasGradients):
            return
        # gathered by every rank, also by those that compare none: the baseline may be known to the first one alone
        gradients = {plain_name(name): whole(tensor) for name, tensor in training.gradients().items()}
        trained = training.parameters() if isinstance(training, HasParameters) else {}
        without = sorted({plain_name(name) for name in trained} - set(gradients))
        arm, planned, exchange = self._life.arm, self._life.planned, Exchange(self._life.recorder.exchange)
        baseline = self._run.baseline_of.get(arm)
        other = None if baseline is None else self._kept.get((baseline, index))
        if baseline is not None and baseline not in self._run.arms:  # it is of another commit
            device = next((each.device for each in gradients.values()), "cpu")
            left = exchange.take(baseline, str(index), device)
            other = None if left is None else Kept(left, None)
        changed, written = self._changed(gradients)
        self._life.recorder.write(
            Gradients(
                arm=arm,
                replica=self._life.replica,
                step=index,
                baseline=baseline if other is not None else None,
                tensors=reduce_gradients(gradients, None if other is None else other.left, sketched=planned.sketches),
                groups=_groups(training, gradients, without),
                without=without,
                made=None
                if changed is None or other is None or not (changed or other.changed) or other.changed is None
                else reduce_gradients({**gradients, **changed}, {**other.left, **other.changed}),
                made_norm=None if changed is None else norm({**gradients, **changed}.values()),
                written=written,
            )
        )
        if self._keep and planned.commit is not None:
            exchange.leave(arm, str(index), {name: tensor.detach().clone() for name, tensor in gradients.items()})
        if self._keep and any(self._run.baseline_of.get(each) == arm for each in self._run.arms):
            self._kept[arm, index] = Kept({name: each.detach().clone() for name, each in gradients.items()}, changed)

    def _changed(self, gradients: Tensors) -> tuple[Tensors | None, list[str] | None]:
        """Return gradients as they were before the step changed them, and names of those the optimizer wrote into."""
        training = self._life.training
        seen: tuple[Tensors, Collection[str]] | None = None
        if self.watch is not None:
            seen = (self.watch.copies, self.watch.written) if self.watch.is_sure() else None
        elif isinstance(training, RecordsUnderWatch):
            seen = training.made_gradients()
        if seen is None:
            return None, None
        copies, written = seen
        named = {plain_name(name): each for name, each in copies.items()}
        if self.watch is not None:
            self.watch.copies = {}  # their memory is the next step's
        return {name: each for name, each in named.items() if name in gradients}, sorted(map(plain_name, written))


def _groups(training: TrainingRun, gradients: Tensors, without: Sequence[str]) -> list[GroupNorm]:
    if not isinstance(training, HasGradientNorms):
        return []
    before = training.gradient_norms()["before"]
    groups = {group: [plain_name(name) for name in names] for group, names in training.gradient_groups().items()}
    return reduce_groups(gradients, groups, before, without)
