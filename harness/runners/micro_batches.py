"""What shows that a step was one of several micro-batches: the digest of each, and how often optimizers updated.

A step shows its micro-batches as a leading dimension of its inputs, in the order in which it takes them. An update
shows in the counter that an optimizer keeps for each tensor (torch's `step`), which a captured step brings forward,
too; so it is read from the device, and no call of Python's is counted.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from harness.evidence.arm_records import MicroBatches
from harness.runners.recorder import Recorder
from harness.runners.reductions import as_hex, combine_each, dense
from harness.runners.state_watch import watched_state
from harness.system.protocol import HasInputs, TrainingRun

_COUNTERS = ("step", "step_count")  # torch's optimizers, and the reference trainer's


class MicroBatchWatch:
    """Digests of the micro-batches of every step of one execution, in memory that is asked for once. No host sync."""

    def __init__(self, training: TrainingRun, arm: str, replica: int, *, parts: int, steps: int) -> None:
        self._training, self._arm, self._replica = training, arm, replica
        self._parts, self._steps = parts, steps
        self._counted = update_counters(training)
        self._rows: Tensor | None = None  # int64 [steps, parts]
        self._first = self._filled = 0

    def before_step(self) -> None:
        """Nothing: a step's inputs are there when it is over."""

    def add(self, index: int, recorder: Recorder) -> None:
        """Enqueue the digests of step `index`, which was the last one."""
        inputs = self._training.inputs() if isinstance(self._training, HasInputs) else {}
        found = split(inputs, self._parts)
        number = len(next(iter(found.values()))) if found else 0
        if self._rows is not None and self._rows.shape[1] != number:
            self.write(recorder)
        if self._rows is None:
            device = next(iter(found.values())).device if found else torch.device("cpu")
            self._rows = torch.zeros(self._steps - index, number, dtype=torch.int64, device=device)
            self._first, self._filled = index, 0
        if found:
            self._rows[self._filled].copy_(combine_each(found))
        self._filled += 1

    def write(self, recorder: Recorder) -> None:
        """Fetch the digests of the steps since the last write, and write them."""
        if self._rows is None:
            return
        digests = [[as_hex(value) for value in row] for row in self._rows[: self._filled].tolist()]
        recorder.write(MicroBatches(arm=self._arm, replica=self._replica, first_step=self._first, digests=digests))
        self._rows = None

    def updates(self) -> list[int]:
        """By how much counters of updates went up since this watch began, each number once; it may wait."""
        now = update_counters(self._training)
        return sorted({int(value - self._counted.get(name, 0)) for name, value in now.items()})


def split(inputs: Mapping[str, Tensor], parts: int) -> dict[str, Tensor]:
    """The inputs that hold one entry for each micro-batch along their first dimension, dense and contiguous.

    Where none has `parts` entries, those with as many as the first one has, in the order of names. What has none, such
    as a learning rate, is every micro-batch's.
    """
    lengths = {name: len(tensor) for name, tensor in sorted(inputs.items()) if tensor.dim()}
    number = parts if parts in lengths.values() else next(iter(lengths.values()), 0)
    return {name: dense(inputs[name]).contiguous() for name, length in lengths.items() if length == number > 0}


def update_counters(training: TrainingRun) -> dict[str, float]:
    """Counters of updates by name: optimizers' own for each tensor, and a tensor that the state calls `updates`."""
    state = watched_state(training)
    found = {name: tensor for name, tensor in state["optimizer"].items() if name.rpartition(".")[2] in _COUNTERS} | {
        name: tensor for name, tensor in state["tensors"].items() if name == "updates"
    }
    return {name: float(tensor) for name, tensor in found.items() if tensor.numel() == 1}
