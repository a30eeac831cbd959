"""Plant the harness's own faults in one arm. A wrapper passes each call on to the arm's run and changes one thing.

`faults.yaml` lists the faults. The faults fit any contract, so for each fault the file names the kinds of claims that
must notice it, and the verdict that these claims must get. Importing this module needs no torch.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from math import nan
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from harness.contract.strict_yaml import read
from harness.errors import UsageError
from harness.system.protocol import CaptureRecord, Expectation, FaultDescription, HasParameters, HasState, TrainingRun
from harness.system.sharded_tensors import local

if TYPE_CHECKING:
    from torch import Tensor

# Index of the step with the fault, for faults in one step. In a shorter run, the fault is planted in the last step.
FAULTY_STEP = 5
SLOWDOWN = 5  # factor by which a fault slows down a baseline; the judges would also notice a factor of 2
# A fault makes the candidate sleep in each step: for `CANDIDATE_SLEEP_S` seconds or, if that is longer, until the step
# has taken `CANDIDATE_SLOWDOWN` times its time. On an H200, a capture made the step of a tiny model (14 ms) 14 times as
# fast, and that of a model with 28 layers (28 ms) 4.6 times. The sleep is longer than the time that such a capture
# saves. In steps much longer than the sleep, the factor makes the candidate slower than the baseline.
CANDIDATE_SLOWDOWN = 2
CANDIDATE_SLEEP_S = 0.05
BUSY_OPERATIONS = 200
REMEMBERED = 3  # number of first steps whose results the fault `remembered_step` repeats in all later steps
RARELY = 10  # the fault `rare_sync` is planted in every tenth step; a check of only two steps would miss this fault
SHIFT = 1000.0  # the number that the fault `shifted_metric` adds to each metric
NAN = nan
LATE = 0.77  # share of the steps that come before a late fault, such as 7,700 of 10,000 steps
# With the fault `slowing_steps`, the last step takes this multiple of its normal time. The slowdown grows steadily.
LAST_STEP = 5.0
SCALE = 10.0  # factor by which parameters in a checkpoint are multiplied
REDUCTIONS = 16
NUMBERS: Mapping[str, float] = {name: value for name, value in globals().items() if type(value) in (int, float)}
"""The numbers above, by their names. `faults.yaml` uses these names."""


@cache
def _table() -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", read(Path(__file__).with_name("faults.yaml"), "a table of faults").value)


def described_faults(group: str) -> dict[str, FaultDescription]:
    """Return the faults of one group in `faults.yaml`, by name."""
    return {
        name: FaultDescription(
            name,
            row["summary"].format_map(NUMBERS),
            row.get("plant", "candidate"),
            {kind: _expectation(said) for kinds, said in row["breaks"].items() for kind in kinds.split(", ")},
            row.get("needs", "any"),
        )
        for name, row in _table()[group].items()
    }


def wrapped_faults(group: str) -> list[str]:
    """Return the names of those faults of a group that a wrapper class plants."""
    return [name for name, row in _table()[group].items() if "wrapper" in row]


def planted(training: TrainingRun, group: str, fault: str, steps: int) -> FaultyRun:
    """Return the run inside the wrapper that plants a fault. steps: how many steps the run will execute."""
    row = _table()[group][fault]
    module, _, name = row["wrapper"].partition(":")
    wrapper: type[FaultyRun] = getattr(import_module(f"harness.system.{module}"), name)
    return wrapper(training, steps, **{key: NUMBERS.get(value, value) for key, value in row.get("with", {}).items()})


def _expectation(said: str | Mapping[str, Any]) -> Expectation:
    if isinstance(said, str):
        return Expectation("FAIL", said)
    own = {"status", "reason", "or_reasons"}
    figures = {name: NUMBERS.get(value, value) for name, value in said.items() if name not in own}
    return Expectation(said.get("status", "FAIL"), said["reason"], figures, tuple(said.get("or_reasons", ())))


class FaultyRun:
    """Passes all calls on to the wrapped run. Each subclass changes one thing.

    Capabilities are copied as bound methods. The reason is that `isinstance` with a runtime-checkable protocol looks
    for existing attributes and does not call `__getattr__`.
    """

    def __init__(self, inner: TrainingRun, steps: int) -> None:
        self._inner, self._steps = inner, steps
        self._adopt()

    def _adopt(self) -> None:
        for name in dir(self._inner):
            if not name.startswith("_") and not hasattr(type(self), name):
                with suppress(Exception):  # a property that raises an error is not a capability
                    setattr(self, name, getattr(self._inner, name))
        self._replace_capabilities()

    def _replace_capabilities(self) -> None:
        """Replace those methods of the wrapped run that the fault changes. The base class replaces nothing."""

    @property
    def _faulty_step(self) -> int:
        return min(FAULTY_STEP, self._steps - 1)

    def step(self, index: int) -> Tensor:
        return self._inner.step(index)

    def facts(self) -> Mapping[str, bool | int | float | str]:
        return self._inner.facts()

    def _trained(self) -> list[Tensor]:
        """Return this rank's part of each trained tensor, detached."""
        inner = self._inner
        parameters = inner.parameters().values() if isinstance(inner, HasParameters) else ()
        return [local(parameter).detach() for parameter in parameters]

    def _of_optimizer(self, begins: tuple[str, ...]) -> list[Tensor]:
        """Return the optimizer's tensors whose names, without the parameter's name, begin with a text in `begins`."""
        state = self._inner.state().get("optimizer", {}) if isinstance(self._inner, HasState) else {}
        return [local(tensor).detach() for name, tensor in state.items() if name.rpartition(".")[2].startswith(begins)]

    def __enter__(self) -> Self:
        self._inner = self._inner.__enter__()
        self._adopt()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)


_GROUP = "of_any_system"  # name of a group in `faults.yaml`
SWAPPED_ARMS = "swapped_arms"  # planted where the arms are opened, because a wrapper sees only one arm
DECOY_GRAPH = "decoy_graph"  # planted where the arms are opened, because the arm must be opened without a capture


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
    """Reports the first loss plus a millionth of each loss's distance from the first loss. The sum is float64, so that
    this small distance is not rounded to 0."""

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
    """Trains uncaptured. After each step, replays a graph that only adds two numbers, and reports this graph as its
    capture."""

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
    """Runs each step, then replaces the loss and the parameters by copies from one of the first steps."""

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
    def step(self, index: int) -> Tensor:  # noqa: ARG002 - the fault ignores the index
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
    """Return `training` with a fault of the harness planted. steps: how many steps the run will execute."""
    known = wrapped_faults(_GROUP)
    if fault not in known:
        raise UsageError(
            "the harness has no planted fault of this name", got=fault, remedy=f"name one of {', '.join(sorted(known))}"
        )
    return planted(training, _GROUP, fault, steps)
