"""Foresee on a CPU what a step would do on a GPU: copy from the host, and repeat no bits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from harness.evidence.arm_records import OnAGpu
from harness.runners.raised import message_of
from harness.system.protocol import HasParameters, HasStepBody, TrainingRun
from harness.system.replay.as_written import as_written
from harness.system.replay.placement import Placement


def foreseen_on_a_gpu(opens: Callable[[], AbstractContextManager[TrainingRun]]) -> OnAGpu:
    """Open an arm once more, execute its step twice, and return what the second execution would do on a GPU."""
    placement = Placement()
    try:
        with as_written(), placement, opens() as training:
            if not isinstance(training, HasStepBody) or not isinstance(training, HasParameters):
                return _unforeseen("the system has no `step_body`")
            body = training.step_body()
            for _ in range(2):
                with placement.watching():
                    body()
            sides = {placement.side_of(parameter) for parameter in training.parameters().values()}
    except Exception as error:  # a step that only the watching breaks: nothing that is judged depends on it
        return _unforeseen(message_of(error))
    if "device" not in sides:
        return _unforeseen("no line puts its parameters on a device")
    return OnAGpu(
        copies=placement.copies,
        changes=placement.changes,
        unknown=placement.unknown,
        unrepeated=placement.unrepeated,
    )


def _unforeseen(failure: str) -> OnAGpu:
    return OnAGpu(copies=[], changes=[], unknown=[], unrepeated=[], failure=failure)
