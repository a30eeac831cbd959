"""Foresee on a CPU what a step would do on a GPU: copy from the host, and repeat no bits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from harness.evidence.arm_records import OnAGpu
from harness.runners.raised import message_of
from harness.system.protocol import HasParameters, HasStateRoots, HasStepBody, TrainingRun
from harness.system.replay.as_written import as_written
from harness.system.replay.placement import Placement
from harness.system.replay.state import StateError, StateGuard


def foreseen_on_a_gpu(opens: Callable[[], AbstractContextManager[TrainingRun]]) -> OnAGpu:
    """Open an arm once more, warm its step up as a capture does, and return what its next execution would do there."""
    placement = Placement()
    try:
        with as_written(), placement, opens() as training:
            if not isinstance(training, HasStepBody) or not isinstance(training, HasParameters):
                return _unforeseen("the system has no `step_body`")
            body = training.step_body()
            _warm_up(training, body)
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
        of_cpu=placement.of_cpu,
    )


def _warm_up(training: HasStepBody, body: Callable[[], object]) -> None:
    """Execute the step and undo it, but for state that it makes lazily: what it puts elsewhere is put back, too."""
    roots = training.state_roots() if isinstance(training, HasStateRoots) else [training]
    with StateGuard(training.state_tensors, roots) as guard:
        with guard.first_execution():
            body()
        body()
        with suppress(StateError):
            guard.restore(keep_created=True)


def _unforeseen(failure: str) -> OnAGpu:
    return OnAGpu(copies=[], changes=[], unknown=[], unrepeated=[], of_cpu=[], failure=failure)
