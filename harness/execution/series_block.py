"""Write the series of one execution in blocks of steps, and handle errors of detectors that observe the execution.

In each step, only data that the next step overwrites is copied: the loss, the metrics and the inputs. Of the gradient
norms, only the result of their comparison with the clip's threshold is kept. Digests are computed once for all steps of
a block, and copied to the host in a few transfers. If a detector or recorder raises an error, only its part of the
evidence is missing (see `Parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic  # import this function before user code, which could replace it in the module `time`
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from harness.errors import UsageError
from harness.evidence.plan_records import Run
from harness.evidence.run_records import Part, PartFailed
from harness.execution.opening import release_memory
from harness.execution.recorder import Recorder, StepRows
from harness.execution.watchers.reductions import as_hex, combine_each, dense, made_of, stacked
from harness.system.adapter_checks import require_loss, require_metrics
from harness.system.protocol import HasGradientNorms, HasInputs, HasMetrics, NotAvailable, TrainingRun
from harness.system.users_code import message_of, obstacle_of, stack_of

BLOCK_STEPS = 50
BLOCK_SECONDS = 5.0
KEPT_BYTES = 2**24  # largest number of bytes for the kept inputs of one shape; more only if one step needs more
# If steps have inputs of more different shapes than this, at most 2 * KEPT_BYTES stay allocated after a block.
KEPT_SHAPES = 8
NOT_REPORTED = -1

Shapes = tuple[tuple[str, torch.Size, torch.dtype, torch.device], ...]


class Rows(Protocol):
    """An object with the method `rows` of `SeriesWriter`, which receives the rows of a block of steps."""

    def rows(self, block: StepRows) -> None: ...


class SeriesBlock:
    """Collects the losses, inputs and metrics of steps on the device, and writes them as one block of the series."""

    def __init__(self, run: Run, recorder: Recorder, series: Rows, training: TrainingRun) -> None:
        self._run, self._recorder, self._series, self._step = run, recorder, series, training.step
        self._shows_inputs = training if isinstance(training, HasInputs) else None
        self._shows_norms = training if isinstance(training, HasGradientNorms) else None
        self._inputs = _KeptInputs()
        self._metrics = _KeptMetrics(training) if isinstance(training, HasMetrics) else None
        self.input_names: list[str] | None = None  # names of the last step's inputs
        self._clear()

    @property
    def input_shapes(self) -> int | None:
        """Return how many different combinations of shapes and types the inputs of the steps so far had; None if the
        system shows no inputs."""
        return len(self._inputs.shapes) if self._shows_inputs is not None else None

    def _clear(self) -> None:
        self._steps: list[int] = []
        self._tokens: list[int] = []
        self._losses: list[Tensor] = []
        # for each step, a tensor of shape [groups]: True if the clip made the gradients of the group smaller
        self._active: list[Tensor] = []
        self._began = monotonic()

    def add(self, index: int, loss: Tensor) -> None:
        """Copy the loss, inputs and metrics of step `index` on the device, without waiting for the copies.

        If the block of collected steps is now full, or older than five seconds, write the block to the series.
        """
        self._steps.append(index)
        one_number = require_loss(loss, self._step, "step(index)")
        self._losses.append(one_number.detach().to(torch.float64, copy=True).reshape(()))
        inputs = self._shows_inputs.inputs() if self._shows_inputs is not None else {}
        self.input_names = sorted(inputs) if self._shows_inputs is not None else None
        self._tokens.append(tokens_of(self._run, index, inputs))
        if self._shows_norms is not None:
            norms = self._shows_norms.gradient_norms()
            self._active.append(norms["before"].detach() > norms["max_norm"])
        if self._metrics is not None:
            self._metrics.keep()
        full = self._inputs.keep(inputs) if self._shows_inputs is not None else False
        if full or len(self._steps) >= BLOCK_STEPS or monotonic() - self._began > BLOCK_SECONDS:
            self.write()

    def write(self) -> None:
        """Copy the block's losses, digests, clip counts and metrics from the device, and write them to the series."""
        if not self._steps:
            return
        unreported = [NOT_REPORTED] * len(self._steps)
        block = StepRows(
            self._steps,
            stacked(self._losses).tolist(),
            self._inputs.take() if self._shows_inputs is not None else [""] * len(self._steps),
            torch.stack(self._active).reshape(len(self._steps), -1).sum(dim=1).tolist() if self._active else unreported,
            self._tokens,
            self._metrics.take() if self._metrics is not None else {},
        )
        self._series.rows(block)
        self._recorder.heartbeat()
        self._clear()


def tokens_of(run: Run, index: int, inputs: Mapping[str, Tensor]) -> int:
    """Return how many tokens step `index` read: the number of elements of its input `tokens`. Without such an input,
    return the batch size times the sequence length of the workload."""
    if "tokens" in inputs:
        return inputs["tokens"].numel()
    lengths = run.workload.seq_len
    length = lengths[index % len(lengths)] if isinstance(lengths, list) else lengths
    return run.workload.batch_size * length


class _KeptInputs:
    """Copies of the inputs of a block's steps, in memory that is allocated once for each shape.

    Within a block, the harness therefore needs no additional memory. If a claim measures whether memory grows, only the
    system can make the memory grow. If there are too many shapes, the memory of all shapes is freed after each block.
    """

    def __init__(self) -> None:
        # shapes of a step's inputs -> name of an input -> tensor [rows, ...], one row for each step
        self._rows: dict[Shapes, dict[str, Tensor]] = {}
        # shapes of a step's inputs -> positions, in the block, of the steps whose inputs have these shapes
        self._filled: dict[Shapes, list[int]] = {}
        self._steps = 0
        self.held_bytes = 0
        self.shapes: set[Shapes] = set()  # the shapes of the inputs of all steps so far

    def keep(self, inputs: Mapping[str, Tensor]) -> bool:
        """Copy the inputs of a step. Return True if no memory for another step is left, for this shape or in total."""
        tensors = {name: dense(tensor) for name, tensor in made_of(inputs).items()}
        shapes = shapes_of_inputs(tensors)
        self.shapes.add(shapes)
        if not tensors:  # the system shows no input of this step, so the step has no digest
            self._steps += 1
            return False
        rows = self._rows.get(shapes)
        if rows is None:
            rows = self._rows[shapes] = _room_for(tensors)
            self.held_bytes += sum(map(_bytes_of, rows.values()))
        filled = self._filled.setdefault(shapes, [])
        for name, tensor in tensors.items():
            rows[name][len(filled)].copy_(tensor)
        filled.append(self._steps)
        self._steps += 1
        return len(filled) == min(len(each) for each in rows.values()) or self._holds_too_much()

    def _holds_too_much(self) -> bool:
        return len(self._rows) > KEPT_SHAPES and self.held_bytes > 2 * KEPT_BYTES

    def take(self) -> list[str]:
        """Return a digest for each kept step, in the order of the steps, and forget the kept steps."""
        digests = [""] * self._steps
        for shapes, places in self._filled.items():
            kept = {name: rows[: len(places)] for name, rows in self._rows[shapes].items()}
            for place, digest in zip(places, combine_each(kept).tolist(), strict=True):
                digests[place] = as_hex(digest)
        self._filled, self._steps = {}, 0
        if self._holds_too_much():
            self._rows, self.held_bytes = {}, 0
        return digests


class _KeptMetrics:
    """The metrics of a block's steps. Each metric has memory for BLOCK_STEPS numbers, which is allocated only once."""

    def __init__(self, training: HasMetrics) -> None:
        self._read = training.metrics
        self._kept: dict[str, Tensor] | None = None
        self._steps = 0

    def keep(self) -> None:
        """Copy the metrics of the last step."""
        metrics = require_metrics(self._read(), self._read, () if self._kept is None else self._kept)
        if self._kept is None:
            self._kept = {
                name: torch.zeros(BLOCK_STEPS, dtype=torch.float64, device=tensor.device)
                for name, tensor in metrics.items()
            }
        for name, tensor in metrics.items():
            self._kept[name][self._steps].copy_(tensor.detach().reshape(()))
        self._steps += 1

    def take(self) -> dict[str, list[float]]:
        """Return the kept metrics by name, in the order of the steps, and forget them."""
        taken = {name: values[: self._steps].tolist() for name, values in (self._kept or {}).items()}
        self._steps = 0
        return taken


def batch_digests(batches: Sequence[Mapping[str, Tensor]]) -> list[str]:
    """Return the digest of each step's inputs, in the order of `batches`. Inputs with equal shapes are digested
    together."""
    alike: dict[Shapes, list[int]] = {}
    plain = [made_of(inputs) for inputs in batches]
    for place, inputs in enumerate(plain):
        alike.setdefault(shapes_of_inputs(inputs), []).append(place)
    digests = [""] * len(plain)
    for shapes, places in alike.items():
        if not shapes:
            continue
        together = {name: torch.stack([dense(plain[place][name]) for place in places]) for name in plain[places[0]]}
        for place, digest in zip(places, combine_each(together).tolist(), strict=True):
            digests[place] = as_hex(digest)
    return digests


def shapes_of_inputs(inputs: Mapping[str, Tensor]) -> Shapes:
    return tuple((name, each.shape, each.dtype, each.device) for name, each in sorted(inputs.items()))


def _bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _room_for(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return memory for the inputs of a block's steps: for each input a tensor [rows, ...] with one row for each step.

    All tensors together have at most KEPT_BYTES, unless one step needs more. This function also computes a digest, so
    that torch allocates the memory for digests now and not during the block.
    """
    each = sum(map(_bytes_of, tensors.values()))
    number = max(1, min(BLOCK_STEPS, KEPT_BYTES // max(each, 1)))
    rows = {
        name: torch.zeros((number, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        for name, tensor in tensors.items()
    }
    combine_each(rows)
    return rows


Seen = TypeVar("Seen")


class Parts:
    """Calls the detectors and recorders of one execution of an arm. If one of them raises an error, its parts of the
    evidence are recorded as failed."""

    def __init__(self, arm: str, replica: int, recorder: Recorder) -> None:
        self._arm, self._replica, self._recorder = arm, replica, recorder
        self.failed: set[Part] = set()

    def ask(self, question: Callable[[], Seen], *parts: Part) -> Seen | None:
        """Call `question`, which creates the `parts` of the evidence, and return its result.

        If `question` raises an error, record that the parts failed, and return None, so that the execution continues.
        If one of the parts has failed before, return None and do not call `question`. Raises torch's error if the
        device cannot be used any more. Raises `UsageError` unchanged, because it means that the plan of the run is
        wrong.
        """
        if not self.failed.isdisjoint(parts):
            return None
        try:
            return question()
        except UsageError:
            raise
        except BaseException as error:  # user code may raise anything, also SystemExit
            self._record(error, parts)
        # A CUDA error persists in the process. If `error` is a CUDA error, the call below raises it again, and the arm
        # ends.
        release_memory()
        return None

    def _record(self, error: BaseException, parts: tuple[Part, ...]) -> None:
        self.failed.update(parts)
        for part in parts:
            self._recorder.write(
                PartFailed(
                    arm=self._arm,
                    replica=self._replica,
                    part=part,
                    detail=message_of(error),
                    phase=self._recorder.current_phase,
                    stack=stack_of(error),
                    obstacle=obstacle_of(error) if isinstance(error, NotAvailable) else None,
                )
            )
