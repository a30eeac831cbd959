"""Record the digest of each micro-batch of a step, to show that the step was made of several.

A step shows its micro-batches as a leading dimension of its inputs, in the order in which it takes
them. How often its optimizers updated is in the record of every arm's end.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from harness.evidence.arm_records import MicroBatches
from harness.execution.arm import ArmLife
from harness.execution.watchers.reductions import as_hex, combine_each, dense
from harness.system.protocol import HasInputs


class MicroBatchWatch:
    """Digests of the micro-batches of every step of one execution, in memory that is asked for once. No host sync."""

    def __init__(self, life: ArmLife, parts: int) -> None:
        """Start without digests. parts: how many micro-batches a step is expected to have."""
        self._life, self._training = life, life.training
        self._parts, self._steps = parts, life.run.workload.steps
        self._rows: Tensor | None = None  # int64 [steps, parts]
        self._first = self._filled = 0

    def add(self, index: int) -> None:
        """Enqueue the digests of step `index`, which was the last one."""
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
        """Fetch the digests of the steps since the last write, and write them."""
        if self._rows is None:
            return
        digests = [[as_hex(value) for value in row] for row in self._rows[: self._filled].tolist()]
        of_arm = {"arm": self._life.arm, "replica": self._life.replica}
        self._life.recorder.write(MicroBatches(**of_arm, first_step=self._first, digests=digests))
        self._rows = None


def split(inputs: Mapping[str, Tensor], parts: int) -> dict[str, Tensor]:
    """Return the inputs that hold one entry for each micro-batch along their first dimension, dense and contiguous.

    If no input has `parts` entries, return those with as many as the first one, in the order of
    names. An input without entries, such as a learning rate, belongs to every micro-batch.
    """
    lengths = {name: len(tensor) for name, tensor in sorted(inputs.items()) if tensor.dim()}
    number = parts if parts in lengths.values() else next(iter(lengths.values()), 0)
    return {name: dense(inputs[name]).contiguous() for name, length in lengths.items() if length == number > 0}
