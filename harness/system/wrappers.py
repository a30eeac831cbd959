"""Plant faults that the harness itself knows in any system, by wrapping its run.

Importing this needs no torch. The expectations are by claim kind: these faults know no contract.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from harness.errors import UsageError
from harness.system.faulty_run import (
    BUSY_OPERATIONS,
    CANDIDATE_SLEEP_S,
    CANDIDATE_SLOWDOWN,
    FAULTY_STEP,
    RARELY,
    REMEMBERED,
    SLOWDOWN,
    FaultyRun,
    described_faults,
    planted,
    wrapped_faults,
)
from harness.system.protocol import CaptureRecord, FaultDescription, TrainingRun

if TYPE_CHECKING:
    from torch import Tensor

_GROUP = "of_any_system"  # of the table of faults
SWAPPED_ARMS = "swapped_arms"  # planted where the arms are opened: a wrapper sees one arm only
DECOY_GRAPH = "decoy_graph"  # likewise: the arm is opened uncaptured


class NanTail(FaultyRun):
    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        return loss * float("nan") if index >= self._faulty_step else loss


class ConstantLoss(FaultyRun):
    _first: Tensor | None = None

    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        self._first = loss.clone() if self._first is None else self._first
        return self._first.clone()


class FlatLoss(FaultyRun):
    """Moves with each step, by a millionth of what its loss is; in float64, where that does not round to nothing."""

    _first: Tensor | None = None

    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index).double()
        self._first = loss.clone() if self._first is None else self._first
        return self._first + 1e-6 * (loss - self._first)


class UnsteadyLoss(FaultyRun):
    def step(self, index: int) -> Tensor:
        return self._inner.step(index) * (1 + random.SystemRandom().random())


class DroppedStep(FaultyRun):
    _last: Tensor | None = None

    def step(self, index: int) -> Tensor:
        if index != self._faulty_step or self._last is None:
            self._last = self._inner.step(index)
        return self._last


class DoubledStep(FaultyRun):
    def step(self, index: int) -> Tensor:
        if index == self._faulty_step:
            self._inner.step(index)
        return self._inner.step(index)


class StaleBatch(FaultyRun):
    def step(self, index: int) -> Tensor:
        return self._inner.step(max(0, index - 1))


class ExtraSync(FaultyRun):
    def _replace_capabilities(self) -> None:
        if hasattr(self._inner, "step_body"):
            self.step_body = self._waiting_body

    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        loss.item()
        return loss

    def _waiting_body(self) -> Callable[[], Tensor]:
        body = cast("Any", self._inner).step_body()

        def waiting() -> Tensor:
            loss = cast("Tensor", body())
            loss.item()
            return loss

        return waiting


class RareSync(FaultyRun):
    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        if index % RARELY == FAULTY_STEP:
            float(loss)
        return loss


class BusyStep(FaultyRun):
    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        if index == self._faulty_step:
            scratch = loss.clone()
            for _ in range(BUSY_OPERATIONS):
                scratch.add_(1.0)
        return loss


class DecoyGraph(FaultyRun):
    """Trains as the wrapped, uncaptured run does, launches a graph of one addition next to each step, and claims it."""

    _replays = 0
    _graph: Any = None

    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        if self._graph is None:
            self._capture(loss)
        self._graph.replay()
        self._replays += 1
        return loss

    def _capture(self, loss: Tensor) -> None:
        import torch

        from harness.devices.graphs import capture

        self._buffer = torch.zeros(16, device=loss.device)
        self._graph = capture(0, None, lambda: self._buffer.add_(1.0))

    def capture_record(self) -> CaptureRecord:
        address = {"decoy": self._buffer.data_ptr()} if self._graph is not None else {}
        return CaptureRecord(
            mechanism="cuda_graph",
            requested=True,
            captured=self._graph is not None,
            failure=None,
            captures=int(self._graph is not None),
            warmup_steps=0,
            replays=self._replays,
            uncaptured_steps=0,
            graphs={"decoy": self._graph.raw()} if self._graph is not None else {},
            static_buffers=address,
            captured_addresses=address,
        )


class RememberedStep(FaultyRun):
    """Replays as the wrapped run does, and then gives losses and parameters that it remembers of its first steps."""

    def __init__(self, inner: TrainingRun, steps: int) -> None:
        self._remembered = list[tuple["Tensor", list[Any]]]()
        super().__init__(inner, steps)

    def step(self, index: int) -> Tensor:
        import torch

        loss, trained = self._inner.step(index), self._trained()
        if len(self._remembered) < REMEMBERED:
            self._remembered.append((loss.clone(), [tensor.clone() for tensor in trained]))
        loss, tensors = self._remembered[index % len(self._remembered)]
        torch._foreach_copy_(trained, tensors)
        return loss.clone()


class Slowed(FaultyRun):
    slowdown = SLOWDOWN
    least_seconds = 0.0

    def step(self, index: int) -> Tensor:
        from harness.devices.device import wait_for

        started = time.perf_counter()
        loss = self._inner.step(index)
        wait_for(loss)
        time.sleep(max(self.least_seconds, (self.slowdown - 1) * (time.perf_counter() - started)))
        return loss


class SlowedCandidate(Slowed):
    slowdown = CANDIDATE_SLOWDOWN
    least_seconds = CANDIDATE_SLEEP_S


class FewerTokens(FaultyRun):
    def _replace_capabilities(self) -> None:
        if hasattr(self._inner, "inputs"):
            self.inputs = self._halved_inputs

    def _halved_inputs(self) -> dict[str, Tensor]:
        inputs = cast("Any", self._inner).inputs()
        return {name: x[..., : max(1, x.shape[-1] // 2)] if x.dim() else x for name, x in inputs.items()}


class OneBatch(FaultyRun):
    def step(self, index: int) -> Tensor:  # noqa: ARG002 - that is the fault
        return self._inner.step(0)


class IdleClip(FaultyRun):
    def _replace_capabilities(self) -> None:
        if hasattr(self._inner, "gradient_norms"):
            self.gradient_norms = self._small_norms

    def _small_norms(self) -> dict[str, Tensor]:
        norms = dict(cast("Any", self._inner).gradient_norms())
        return {**norms, "before": norms["before"] * 0}


HARNESS_FAULTS: dict[str, FaultDescription] = described_faults(_GROUP)


def wrap(training: TrainingRun, fault: str, *, steps: int) -> TrainingRun:
    """Return `training` with the harness's own `fault` planted; `steps` is the length of the run it will make."""
    known = wrapped_faults(_GROUP)
    if fault not in known:
        raise UsageError(
            "a fault of the harness is one of its wrappers", got=fault, remedy=f"one of {', '.join(sorted(known))}"
        )
    return planted(training, _GROUP, fault, steps)
