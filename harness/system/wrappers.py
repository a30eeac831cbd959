"""Faults that the harness itself can plant in any system, by wrapping its run.

Importing this needs no torch. The expectations are by claim kind: these faults know no contract.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from harness.errors import UsageError
from harness.system.protocol import Expectation, FaultDescription, TrainingRun

if TYPE_CHECKING:
    from torch import Tensor

SWAPPED_ARMS = "swapped_arms"  # planted where the arms are opened: a wrapper sees one arm only
SLOWDOWN = 5  # of a baseline: any sleep as long as the step itself shows
# A captured step of a tiny model was 14 times as fast as an eager one of 14 ms on an H200, one of 28 layers 4.6 times
# as fast as one of 28 ms: the sleep turns such ratios over, the factor those of steps too long for it to matter.
CANDIDATE_SLOWDOWN = 2
CANDIDATE_SLEEP_S = 0.05
FAULTY_STEP = 5  # the step that a fault of one step hits; the last one of a shorter run


class FaultyRun:
    """Passes everything through to the wrapped run; subclasses change one thing.

    Capabilities are copied as bound methods, since `isinstance` with a runtime-checkable protocol looks at
    attributes that are there and not at `__getattr__`.
    """

    def __init__(self, inner: TrainingRun, steps: int) -> None:
        self._inner, self._steps = inner, steps
        self._adopt()

    def _adopt(self) -> None:
        for name in dir(self._inner):
            if not name.startswith("_") and not hasattr(type(self), name):
                setattr(self, name, getattr(self._inner, name))
        self._replace_capabilities()

    def _replace_capabilities(self) -> None:
        """For a fault in a capability: put another method in the place of the wrapped run's, if it has that."""

    @property
    def _faulty_step(self) -> int:
        return min(FAULTY_STEP, self._steps - 1)

    def step(self, index: int) -> Tensor:
        return self._inner.step(index)

    def facts(self) -> Mapping[str, bool | int | float | str]:
        return self._inner.facts()

    def __enter__(self) -> Self:
        self._inner = self._inner.__enter__()
        self._adopt()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)


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


class Slowed(FaultyRun):
    slowdown = SLOWDOWN
    least_seconds = 0.0

    def step(self, index: int) -> Tensor:
        started = time.perf_counter()
        loss = self._inner.step(index)
        if loss.is_cuda:
            import torch

            torch.cuda.synchronize(loss.device)
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


_WRAPPERS: dict[str, type[FaultyRun]] = {
    "nan_tail": NanTail,
    "constant_loss": ConstantLoss,
    "dropped_step": DroppedStep,
    "doubled_step": DoubledStep,
    "stale_batch": StaleBatch,
    "extra_sync": ExtraSync,
    "slow_candidate": SlowedCandidate,
    "slow_baseline": Slowed,
    "fewer_tokens": FewerTokens,
}
_SUMMARIES = {
    "nan_tail": f"every loss from step {FAULTY_STEP} on is NaN, in both arms",
    "constant_loss": "every step reports the first loss",
    "dropped_step": f"step {FAULTY_STEP} is not executed",
    "doubled_step": f"step {FAULTY_STEP} is executed twice",
    "stale_batch": "each step trains on the batch before its own",
    "extra_sync": "each step reads its loss on the host",
    "slow_candidate": f"each step takes {CANDIDATE_SLOWDOWN} times its time, at least {CANDIDATE_SLEEP_S} s more",
    "slow_baseline": f"each step of the baseline takes {SLOWDOWN} times as long as it would, asleep for the rest",
    "fewer_tokens": "half of each sequence is processed",
    SWAPPED_ARMS: "candidate and baseline have changed places",
}


def _fails(reason: str, **figures: float) -> Expectation:
    return Expectation("FAIL", reason, figures)


_BREAKS: dict[str, dict[str, Expectation]] = {
    "nan_tail": {
        "trajectory_match": _fails("non_finite", first_non_finite_step=FAULTY_STEP),
        "repeatability": _fails("non_finite", first_non_finite_step=FAULTY_STEP),
    },
    "constant_loss": {
        "trajectory_match": _fails("vacuous_training_effect"),
        "repeatability": _fails("vacuous_training_effect"),
    },
    "dropped_step": {
        "trajectory_match": _fails("unequal_batches", first_unequal_step=FAULTY_STEP, first_differing_step=FAULTY_STEP),
        # every run drops it, so the runs agree: that one batch was read twice gives it away
        "repeatability": _fails("vacuous_batches_repeat"),
        "capture": _fails("lost_step"),
    },
    "doubled_step": {
        "trajectory_match": _fails("differs", first_differing_step=FAULTY_STEP),
        "capture": _fails("extra_step"),
    },
    "stale_batch": {
        "trajectory_match": _fails("unequal_batches", first_unequal_step=1, first_differing_step=1),
        "gradient_match": _fails("unequal_batches", first_unequal_step=1),
    },
    "extra_sync": {"host_syncs": _fails("sync_count", candidate_syncs_per_step=1)},
    "slow_candidate": {"throughput_ratio": _fails("too_slow")},
    "slow_baseline": {"throughput_ratio": Expectation("INCONCLUSIVE", "baseline_idle")},
    "fewer_tokens": {
        "trajectory_match": _fails("unequal_tokens", first_unequal_step=0),
        "throughput_ratio": _fails("unequal_tokens", first_unequal_step=0),
    },
    SWAPPED_ARMS: {
        "throughput_ratio": Expectation("INCONCLUSIVE", "candidate_not_captured"),
        "trajectory_match": Expectation("INCONCLUSIVE", "candidate_not_captured"),
        "capture": _fails("not_captured"),
    },
}
_PLANTED_IN_BOTH = ("nan_tail", "constant_loss", SWAPPED_ARMS)


def _planted_in(name: str) -> Literal["candidate", "baseline", "both"]:
    if name in _PLANTED_IN_BOTH:
        return "both"
    return "baseline" if name == "slow_baseline" else "candidate"


HARNESS_FAULTS: dict[str, FaultDescription] = {
    name: FaultDescription(name, summary, _planted_in(name), _BREAKS[name]) for name, summary in _SUMMARIES.items()
}


def wrap(training: TrainingRun, fault: str, *, steps: int) -> TrainingRun:
    """`training` with the harness's own `fault` planted; `steps` is the length of the run it will make."""
    if fault not in _WRAPPERS:
        raise UsageError(
            "a fault of the harness is one of its wrappers", got=fault, remedy=f"one of {', '.join(sorted(_WRAPPERS))}"
        )
    return _WRAPPERS[fault](training, steps)
