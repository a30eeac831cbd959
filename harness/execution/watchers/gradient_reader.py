"""Record norms and differences of the gradients in chosen steps, and digests of each step's micro-batches.

The gradients are read after the step. If the step changed them after its backward pass, the values right after the
backward pass are recorded, too. The gradients of a baseline are kept on the device, so that the gradients of its
candidates can be compared with them. If the candidate is of another commit, its process begins after the baseline's
process, and gets the baseline's gradients through a folder (`Exchange`). The files in this folder are not evidence, and
only tensors are loaded from them.

Digests of micro-batches show whether the micro-batches of a step differ. The first dimension of the step's inputs
contains the micro-batches, in the order of their use. The record of an arm's end contains how often the optimizer
updated the parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from harness.evidence.arm_records import Gradients, GroupNorm, MicroBatches
from harness.execution.arm import ArmLife
from harness.execution.watchers.made_gradients import MadeGradients
from harness.execution.watchers.reductions import as_hex, combine_each, dense, norm, reduce_gradients, reduce_groups
from harness.system.protocol import (
    HasGradientNorms,
    HasGradients,
    HasInputs,
    HasParameters,
    RecordsUnderWatch,
    TrainingRun,
)
from harness.system.replay.found_state import plain_name
from harness.system.sharded_tensors import whole


class Exchange:
    """The folder through which the processes of two commits exchange tensors in a run. folder: None if all arms are of
    one commit. Without a folder, nothing is written or read."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def leave(self, arm: str, what: str, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors of an arm into the folder, under the name `what`."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            torch.save({name: tensor.detach() for name, tensor in tensors.items()}, self._path(self._folder, arm, what))

    def take(self, arm: str, what: str, device: torch.device | str = "cpu") -> dict[str, Tensor] | None:
        """Return, on `device`, the tensors that `leave` wrote for an arm under the name `what`, or None."""
        if self._folder is None or not (path := self._path(self._folder, arm, what)).exists():
            return None
        found: dict[str, Tensor] = torch.load(path, map_location=device, weights_only=True)
        return found

    @staticmethod
    def _path(folder: Path, arm: str, what: str) -> Path:
        return folder / f"{arm}+{what}"  # the name of an arm cannot contain a plus sign, so the file name is unique


Tensors = Mapping[str, Tensor]


class Kept(NamedTuple):
    """The gradients of a baseline arm in one step, with which the gradients of candidates are compared. left: the
    gradients after the step."""

    left: Tensors
    # for each gradient that changed after the backward pass, its value right after the backward pass; None: not
    # observed
    changed: Tensors | None


KeptGradients = dict[tuple[str, int], Kept]


class GradientReader:
    """Reads and records the gradients of one execution of an arm. kept: the gradients of the baselines. keep: True to
    add this execution's gradients to `kept`."""

    def __init__(self, life: ArmLife, kept: KeptGradients, *, keep: bool) -> None:
        self._life, self._run, self._kept, self._keep = life, life.run, kept, keep
        # observes changes of gradients in an uncaptured arm; None: they are not observed
        self.watch: MadeGradients | None = None
        if self.steps and life.replica == 0 and isinstance(life.training, RecordsUnderWatch):
            life.training.record_under(MadeGradients)

    @property
    def steps(self) -> list[int]:
        """Return the steps whose gradients are read in this execution.

        If claims need only the gradients of certain arms, gradients of other arms and of a baseline's repetitions are
        not read. If the plan requires sketches (sums over gradients), the gradients of all executions are read.
        """
        arms, life = self._run.gradient_arms, self._life
        first = life.replica == 0 or life.arm not in self._run.baseline_of.values()
        are_read = arms is None or life.planned.sketches or (life.arm in arms and first)
        return self._run.gradient_steps if are_read else []

    def read(self, index: int) -> None:
        """Write the gradients of the step that was made last, if at least one claim reads them."""
        training = self._life.training
        if index not in self.steps or not isinstance(training, HasGradients):
            return
        # Every rank must take part in gathering the gradients, even a rank that has no baseline and compares nothing.
        gradients = {plain_name(name): whole(tensor) for name, tensor in training.gradients().items()}
        trained = training.parameters() if isinstance(training, HasParameters) else {}
        without = sorted({plain_name(name) for name in trained} - set(gradients))
        arm, planned, exchange = self._life.arm, self._life.planned, Exchange(self._life.recorder.exchange)
        baseline = self._run.baseline_of.get(arm)
        other = None if baseline is None else self._kept.get((baseline, index))
        # the baseline belongs to another commit, so its gradients come from another process
        if baseline is not None and baseline not in self._run.arms:
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
        """Return two things: the earlier values of the gradients that the step changed after its backward pass, and the
        names of the gradients that an optimizer wrote to. Return None for both if the observation is not certain."""
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
            self.watch.copies = {}  # free the memory of the copies for the next step
        return {name: each for name, each in named.items() if name in gradients}, sorted(map(plain_name, written))


def _groups(training: TrainingRun, gradients: Tensors, without: Sequence[str]) -> list[GroupNorm]:
    if not isinstance(training, HasGradientNorms):
        return []
    before = training.gradient_norms()["before"]
    groups = {group: [plain_name(name) for name in names] for group, names in training.gradient_groups().items()}
    return reduce_groups(gradients, groups, before, without)


class MicroBatchWatch:
    """Computes digests of the micro-batches of each step. Its memory is allocated once, and it causes no host sync."""

    def __init__(self, life: ArmLife, parts: int) -> None:
        """Prepare the digests. parts: how many micro-batches a step should have."""
        self._life, self._training = life, life.training
        self._parts, self._steps = parts, life.run.workload.steps
        self._rows: Tensor | None = None  # the digests: int64 [steps, micro-batches of a step]
        self._first = self._filled = 0

    def add(self, index: int) -> None:
        """Begin to compute the digests of step `index` on the device. The step must be the last one that was made."""
        inputs = self._training.inputs() if isinstance(self._training, HasInputs) else {}
        found = split(inputs, self._parts)
        number = len(next(iter(found.values()))) if found else 0
        if self._rows is not None and self._rows.shape[1] != number:
            self.write()
        if self._rows is None:
            device = next(iter(found.values())).device if found else torch.device("cpu")
            self._rows = torch.zeros(self._steps - index, number, dtype=torch.int64, device=device)
            self._first, self._filled = index, 0
        if found:
            self._rows[self._filled].copy_(combine_each(found))
        self._filled += 1

    def write(self) -> None:
        """Copy the digests that were computed since the last call from the device, and record them."""
        if self._rows is None:
            return
        digests = [[as_hex(value) for value in row] for row in self._rows[: self._filled].tolist()]
        of_arm = {"arm": self._life.arm, "replica": self._life.replica}
        self._life.recorder.write(MicroBatches(**of_arm, first_step=self._first, digests=digests))
        self._rows = None


def split(inputs: Mapping[str, Tensor], parts: int) -> dict[str, Tensor]:
    """Return the inputs whose first dimension has `parts` entries, one for each micro-batch, as contiguous tensors.

    If no input has `parts` entries, take the number of entries of the alphabetically first input instead of `parts`.
    Inputs without dimensions, such as a learning rate, are left out, because all micro-batches use the same value.
    """
    lengths = {name: len(tensor) for name, tensor in sorted(inputs.items()) if tensor.dim()}
    number = parts if parts in lengths.values() else next(iter(lengths.values()), 0)
    return {name: dense(inputs[name]).contiguous() for name, length in lengths.items() if length == number > 0}
