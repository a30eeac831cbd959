"""Planted faults: mistakes after a failed capture, and captures that no setting requests. Importable without torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.system.protocol import CaptureRecord, Expectation
from reference_impl.faults.registry import REPLAY, fault

if TYPE_CHECKING:
    from torch import Tensor

    from harness.system.replay.captured_step import CapturedStep
    from reference_impl.cuda_graph import CapturingTrainer, GraphKey, TracedReplay


def _falls_back(reason: str, **figures: int) -> dict[str, Expectation]:
    return {"capture_fallback": Expectation("FAIL", reason, figures)}


@fault(REPLAY, "a failed capture is recorded without its reason", _falls_back("fallback_unsaid"))
def unsaid_fallback(capturing: CapturingTrainer) -> None:
    record = capturing.record

    def record_without_reason() -> CaptureRecord:
        return replace(record(), failure=None)

    capturing.record = record_without_reason  # type: ignore[method-assign]


@fault(REPLAY, "a failed capture is tried again at the next step", _falls_back("capture_attempts"))
def retried_capture(capturing: CapturingTrainer) -> None:
    prepare = capturing.prepare

    def prepare_afresh(index: int) -> CapturedStep | TracedReplay | None:
        capturing.failure = None
        return prepare(index)

    capturing.prepare = prepare_afresh  # type: ignore[method-assign]


@fault(
    REPLAY,
    "the effects of the code that a failed capture executed are not undone",
    _falls_back("differs", first_differing_step=0),
)
def kept_failed_step(capturing: CapturingTrainer) -> None:
    capture = capturing._capture

    def capture_and_keep(key: GraphKey) -> CapturedStep | TracedReplay | None:
        captured = capture(key)
        if captured is None:
            capturing.trainer.body()
        return captured

    capturing._capture = capture_and_keep  # type: ignore[method-assign]


@fault(
    REPLAY,
    "the step is captured by default, without a setting that requests a capture",
    _falls_back("captured_unasked"),
    plant_in="baseline",
)
def captured_by_default(capturing: CapturingTrainer) -> None:
    type(capturing).__init__(capturing, capturing.trainer, "step")


@fault(
    REPLAY,
    "the step after a failed capture is lost",
    _falls_back("differs", first_differing_step=1),
)
def lost_fallback_step(capturing: CapturingTrainer) -> None:
    step = capturing.step

    def step_without_update(index: int) -> Tensor:
        if index > 0:
            return step(index)
        parameters = capturing.trainer.trainable.flat
        before = parameters.clone()
        loss = step(index)
        parameters.copy_(before)
        return loss

    capturing.step = step_without_update  # type: ignore[method-assign]
