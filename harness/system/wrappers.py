"""Plant faults that the harness itself knows in any system, by wrapping its run.

Importing this needs no torch. The expectations are by claim kind: these faults know no contract.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast

from harness.errors import UsageError
from harness.system import between_faults, rank_faults
from harness.system.end_faults import (
    SHIFT,
    ConstantMetric,
    DoubledMetric,
    DrawnNumbers,
    DroppedLastUpdate,
    HalfMoved,
    HalvedMetric,
    NanEndState,
    NanMetric,
    ShiftedMetric,
    WipedMoments,
)
from harness.system.faulty_run import FAULTY_STEP, FaultyRun
from harness.system.memory_faults import (
    LATE,
    SLOWING,
    HiddenMemory,
    LateDroppedUpdate,
    LateNan,
    LateStaleBatch,
    LeakingSteps,
    MemorySpike,
    ResetPeak,
    RetainedTensors,
    SlowingSteps,
)
from harness.system.protocol import CaptureRecord, Expectation, FaultDescription, TrainingRun

if TYPE_CHECKING:
    from torch import Tensor

SWAPPED_ARMS = "swapped_arms"  # planted where the arms are opened: a wrapper sees one arm only
DECOY_GRAPH = "decoy_graph"  # likewise: the arm is opened uncaptured
SLOWDOWN = 5  # of a baseline: any sleep as long as the step itself shows
# A captured step of a tiny model was 14 times as fast as an eager one of 14 ms on an H200, one of 28 layers 4.6 times
# as fast as one of 28 ms: the sleep turns such ratios over, the factor those of steps too long for it to matter.
CANDIDATE_SLOWDOWN = 2
CANDIDATE_SLEEP_S = 0.05
BUSY_OPERATIONS = 200
REMEMBERED = 3  # steps
RARELY = 10  # a fault in every tenth step, which two watched steps pass by
_SUMMARIES = {
    "nan_tail": f"every loss from step {FAULTY_STEP} on is NaN, in both arms",
    "constant_loss": "every step reports the first loss",
    "flat_loss": "every step reports the first loss, but for a millionth of what its own lies off",
    "unsteady_loss": "each loss is up to twice as large, by numbers that no seed reaches",
    "nan_metric": f"every metric from step {FAULTY_STEP} on is NaN, in both arms",
    "constant_metric": "every step reports the metrics of the first one, in both arms",
    "doubled_metric": f"every metric from step {FAULTY_STEP} on is twice what it is",
    "halved_metric": f"every metric from step {FAULTY_STEP} on is half of what it is",
    "shifted_metric": f"every metric from step {FAULTY_STEP} on is {SHIFT:g} more than it is",
    "nan_end_state": "once the last step has returned, every parameter is NaN",
    "dropped_last_update": "the last step's update is taken back",
    "half_moved": "once the last step has returned, every parameter is put back half of its way",
    "wiped_moments": "once the last step has returned, the optimizer's moments are zero",
    "drawn_numbers": "once the last step has returned, a random number is drawn",
    "dropped_step": f"step {FAULTY_STEP} is not executed",
    "doubled_step": f"step {FAULTY_STEP} is executed twice",
    "stale_batch": "each step trains on the batch before its own",
    "extra_sync": "each step reads its loss on the host",
    "rare_sync": f"one step in {RARELY} reads its loss on the host",
    "busy_step": f"step {FAULTY_STEP} issues {BUSY_OPERATIONS} operations beside its graph",
    "remembered_step": f"each step replays, and gives loss and parameters of one of the first {REMEMBERED} steps",
    DECOY_GRAPH: "the arm trains uncaptured, and launches a small graph beside each step as its capture",
    "slow_candidate": f"each step takes {CANDIDATE_SLOWDOWN} times its time, at least {CANDIDATE_SLEEP_S} s more",
    "slow_baseline": f"each step of the baseline takes {SLOWDOWN} times as long as it would, asleep for the rest",
    "one_batch": "every step of both arms trains on batch 0",
    "idle_clip": "norms before clipping are 0 in both arms, so the clip never scales anything",
    "noisy_control": "each step of the control reads its loss on the host once more",
    "fewer_tokens": "half of each sequence is processed",
    SWAPPED_ARMS: "candidate and baseline have changed places",
    "memory_spike": f"after step {FAULTY_STEP} both arms allocate nearly all of the device for a moment",
    "retained_tensors": f"from step {FAULTY_STEP} on each step keeps a tensor; in the end they hold half of the device",
    "hidden_memory": f"step {FAULTY_STEP} takes half of the device from the driver, behind torch's allocator",
    "reset_peak": "both arms do as in `memory_spike`, and then set torch's peak statistics back",
    "leaking_steps": "each step keeps a tensor of 1 KiB",
    "late_stale_batch": f"the step at {LATE:.0%} of the run trains on the batch before its own",
    "late_dropped_update": f"the update of the step at {LATE:.0%} of the run is taken back",
    "late_nan": f"the loss of the step at {LATE:.0%} of the run is NaN",
    "slowing_steps": f"steps take longer and longer, the last {1 + SLOWING:g} times its time",
    **between_faults.SUMMARIES,
    **rank_faults.SUMMARIES,
}
_EXCEEDS_RELATIVE = Expectation("FAIL", "exceeds_tolerance", {"exceeded_bound": "max_relative_difference"})
_ON_CUDA = (
    DECOY_GRAPH,
    "busy_step",
    "memory_spike",
    "reset_peak",
    "retained_tensors",
    "hidden_memory",
    "leaking_steps",
)
_PLANTED_IN_BOTH = (
    *("nan_tail", "constant_loss", "flat_loss", "nan_metric", "constant_metric", "one_batch", "idle_clip"),
    *(SWAPPED_ARMS, "memory_spike", "reset_peak"),
)
_PLANTED_IN_BASELINE = ("slow_baseline", "noisy_control")


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

        loss = self._inner.step(index)
        trained = [tensor.detach() for tensor in cast("Any", self._inner).parameters().values()]
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


_WRAPPERS: dict[str, type[FaultyRun]] = {
    "nan_tail": NanTail,
    "constant_loss": ConstantLoss,
    "flat_loss": FlatLoss,
    "unsteady_loss": UnsteadyLoss,
    "nan_metric": NanMetric,
    "constant_metric": ConstantMetric,
    "doubled_metric": DoubledMetric,
    "halved_metric": HalvedMetric,
    "shifted_metric": ShiftedMetric,
    "nan_end_state": NanEndState,
    "dropped_last_update": DroppedLastUpdate,
    "half_moved": HalfMoved,
    "wiped_moments": WipedMoments,
    "drawn_numbers": DrawnNumbers,
    "dropped_step": DroppedStep,
    "doubled_step": DoubledStep,
    "stale_batch": StaleBatch,
    "extra_sync": ExtraSync,
    "rare_sync": RareSync,
    "busy_step": BusyStep,
    "remembered_step": RememberedStep,
    DECOY_GRAPH: DecoyGraph,
    "slow_candidate": SlowedCandidate,
    "slow_baseline": Slowed,
    "fewer_tokens": FewerTokens,
    "one_batch": OneBatch,
    "idle_clip": IdleClip,
    "noisy_control": ExtraSync,
    "memory_spike": MemorySpike,
    "retained_tensors": RetainedTensors,
    "hidden_memory": HiddenMemory,
    "reset_peak": ResetPeak,
    "leaking_steps": LeakingSteps,
    "late_stale_batch": LateStaleBatch,
    "late_dropped_update": LateDroppedUpdate,
    "late_nan": LateNan,
    "slowing_steps": SlowingSteps,
    **between_faults.WRAPPERS,
    **rank_faults.WRAPPERS,
}


def _fails(reason: str, **figures: float) -> Expectation:
    return Expectation("FAIL", reason, figures)


_BREAKS: dict[str, dict[str, Expectation]] = {
    "nan_tail": {
        "trajectory_match": _fails("non_finite", first_non_finite_step=FAULTY_STEP),
        "repeatability": _fails("non_finite", first_non_finite_step=FAULTY_STEP),
        "not_worse": _fails("non_finite", first_non_finite_step=FAULTY_STEP),
    },
    "constant_loss": {
        "trajectory_match": _fails("vacuous_constant_loss"),
        "repeatability": _fails("vacuous_constant_loss"),
        "not_worse": _fails("vacuous_constant_loss"),
        "peak_memory": _fails("vacuous_constant_loss"),
        "long_replay": _fails("vacuous_constant_loss"),
    },
    "flat_loss": {
        "trajectory_match": _fails("vacuous_training_effect"),
        "repeatability": _fails("vacuous_training_effect"),
        "not_worse": _fails("vacuous_training_effect"),
    },
    "unsteady_loss": {
        **dict.fromkeys(("trajectory_match", "repeatability"), _EXCEEDS_RELATIVE),
        "not_worse": _fails("worse"),
    },
    "nan_metric": dict.fromkeys(
        ("trajectory_match", "not_worse"), _fails("non_finite", first_non_finite_step=FAULTY_STEP)
    ),
    "constant_metric": dict.fromkeys(("trajectory_match", "not_worse"), _fails("vacuous_constant_metric")),
    "doubled_metric": {
        "trajectory_match": _fails("differs", first_differing_step=FAULTY_STEP),
        "not_worse": _fails("worse"),
    },
    "halved_metric": {"trajectory_match": _EXCEEDS_RELATIVE, "not_worse": _fails("worse")},
    "shifted_metric": {"trajectory_match": _fails("exceeds_tolerance", first_exceeding_step=FAULTY_STEP)},
    "nan_end_state": {
        kind: _fails("non_finite_end")
        for kind in (
            *("trajectory_match", "gradient_match", "repeatability", "capture", "host_syncs", "memory_steady"),
            *("not_worse", "peak_memory", "long_replay"),
        )
    },
    "dropped_last_update": {
        "trajectory_match": _fails("end_differs", final_parameters_equal=False, steps_differing=0),
        "ranks_match": _fails("ranks_end_apart"),
    },
    "half_moved": dict.fromkeys(("trajectory_match", "ranks_match"), _fails("ends_apart")),
    "wiped_moments": {
        "trajectory_match": _fails("end_differs", final_parameters_equal=True, steps_differing=0),
        "gradient_match": _fails("end_differs"),
    },
    "drawn_numbers": {"trajectory_match": _fails("end_differs", final_parameters_equal=True, state_differing=1)},
    "dropped_step": {
        "trajectory_match": _fails("unequal_batches", first_unequal_step=FAULTY_STEP, first_differing_step=FAULTY_STEP),
        # every run drops it, so the runs agree: that one batch was read twice gives it away
        "repeatability": _fails("vacuous_batches_repeat"),
        "capture": _fails("lost_step"),
        "peak_memory": _fails("unequal_batches", first_unequal_step=FAULTY_STEP),
    },
    "doubled_step": {
        "trajectory_match": _fails("differs", first_differing_step=FAULTY_STEP),
        "capture": _fails("extra_step"),
        "peak_memory": _fails("differs"),
    },
    "stale_batch": {
        "trajectory_match": _fails("unequal_batches", first_unequal_step=1, first_differing_step=1),
        "gradient_match": _fails("unequal_batches", first_unequal_step=1),
    },
    "extra_sync": {"host_syncs": _fails("sync_count", candidate_syncs_per_step=1)},
    "rare_sync": {"host_syncs": _fails("sync_count")},
    "busy_step": {"capture": _fails("work_outside_graphs")},
    "remembered_step": {"capture": _fails("output_not_from_replay")},
    DECOY_GRAPH: {
        "capture": _fails("work_outside_graphs"),
        "trajectory_match": Expectation("INCONCLUSIVE", "candidate_not_captured"),
        "host_syncs": Expectation("INCONCLUSIVE", "candidate_not_captured"),
        "throughput_ratio": _fails("work_outside_graphs"),
    },
    "noisy_control": {"host_syncs": _fails("control_sync_count")},
    "one_batch": {
        "trajectory_match": _fails("vacuous_batches_repeat", distinct_batches=1),
        "repeatability": _fails("vacuous_batches_repeat", distinct_batches=1),
        "not_worse": _fails("vacuous_batches_repeat", distinct_batches=1),
        "long_replay": _fails("vacuous_batches_repeat", distinct_batches=1),
    },
    "idle_clip": {
        "trajectory_match": _fails("vacuous_clip_inactive", clip_active_steps=0),
        "repeatability": _fails("vacuous_clip_inactive", clip_active_steps=0),
        "not_worse": _fails("vacuous_clip_inactive", clip_active_steps=0),
        "gradient_match": _fails("vacuous_clip_inactive", clip_active_steps=0),
    },
    "slow_candidate": {"throughput_ratio": _fails("too_slow")},
    "slow_baseline": {"throughput_ratio": Expectation("INCONCLUSIVE", "baseline_idle")},
    "fewer_tokens": {
        "trajectory_match": _fails("unequal_tokens", first_unequal_step=0),
        "not_worse": _fails("unequal_tokens", first_unequal_step=0),
        "throughput_ratio": _fails("unequal_tokens", first_unequal_step=0),
    },
    SWAPPED_ARMS: {
        "throughput_ratio": Expectation("INCONCLUSIVE", "candidate_not_captured"),
        "trajectory_match": Expectation("INCONCLUSIVE", "candidate_not_captured"),
        "capture": _fails("not_captured"),
    },
    "memory_spike": {"peak_memory": _fails("peak_memory", candidate_peak_resets=0)},
    "reset_peak": {"peak_memory": _fails("peak_memory", candidate_peak_resets=1)},
    "retained_tensors": {"peak_memory": _fails("peak_ratio")},
    "hidden_memory": {"peak_memory": _fails("memory_outside_allocator")},
    "leaking_steps": {"long_replay": _fails("memory_grows")},
    "late_stale_batch": {"long_replay": _fails("unequal_batches")},
    "late_dropped_update": {"long_replay": _fails("differs")},
    "late_nan": {"long_replay": _fails("non_finite")},
    "slowing_steps": {"long_replay": _fails("slows_down")},
    **between_faults.BREAKS,
    **rank_faults.BREAKS,
}


def _planted_in(name: str) -> Literal["candidate", "baseline", "both"]:
    if name in _PLANTED_IN_BOTH:
        return "both"
    return "baseline" if name in _PLANTED_IN_BASELINE else "candidate"


HARNESS_FAULTS: dict[str, FaultDescription] = {
    name: FaultDescription(name, summary, _planted_in(name), _BREAKS[name], needs="cuda" if name in _ON_CUDA else "any")
    for name, summary in _SUMMARIES.items()
}


def wrap(training: TrainingRun, fault: str, *, steps: int) -> TrainingRun:
    """Return `training` with the harness's own `fault` planted; `steps` is the length of the run it will make."""
    if fault not in _WRAPPERS:
        raise UsageError(
            "a fault of the harness is one of its wrappers", got=fault, remedy=f"one of {', '.join(sorted(_WRAPPERS))}"
        )
    return _WRAPPERS[fault](training, steps)
