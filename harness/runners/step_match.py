"""The step_match probe: every step of the candidate beside a reference's step from the same state.

The reference makes two things of each step: loss and clipped gradients, of its own batch at the parameters that the
candidate had before; and an update by its own optimizer, of the candidate's state and gradients. So a rounding is
seen where it happens, and no difference grows from step to step. A yardstick, the same reference in the candidate's
precision, shows how far rounding alone leads from the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol, cast

import torch

from harness.evidence.arm_records import ComparedStep
from harness.evidence.plan_records import Run
from harness.runners.capture import capture_evidence, capture_record
from harness.runners.capture_attempts import attempts_of
from harness.runners.opening import opened
from harness.runners.paired import arm_end, arm_start
from harness.runners.profiling import Watched
from harness.runners.recorder import Recorder
from harness.runners.series_block import SeriesBlock
from harness.runners.state_watch import Ends, StateWatch
from harness.runners.step_errors import Evaluated, evaluated_errors, magnitudes, updated_errors
from harness.system.protocol import (
    HasGradientNorms,
    HasGradients,
    HasMoments,
    HasParameters,
    MakesSingleSteps,
    NotAvailable,
    OptimizerState,
    TrainingRun,
)


class _Shows(HasParameters, HasGradients, HasGradientNorms, TrainingRun, Protocol):
    """What every arm offers."""


class _Candidate(_Shows, HasMoments, Protocol):
    """The arm whose steps are judged."""


class _Twin(_Shows, MakesSingleSteps, Protocol):
    """Reference and yardstick."""


def execute(run: Run, recorder: Recorder) -> None:
    """Execute the candidate's steps, each beside the reference's and the yardstick's."""
    names = [str(run.settings[role]) for role in ("reference", "yardstick", "candidate")]
    with ExitStack() as stack:
        arms = [stack.enter_context(_recorded(run, name, recorder)) for name in names]
        reference, yardstick = (cast("_Twin", _offering(arm, "single_steps", MakesSingleSteps)) for arm in arms[:2])
        candidate = cast("_Candidate", _offering(arms[2], "moments", HasMoments))
        recorder.phase(f"{names[2]}: steps")
        before = _start_of(candidate)
        for index in range(run.workload.steps):
            exact, noisy = (_evaluated(twin, index, before) for twin in (reference, yardstick))
            with attempts_of(candidate).working():
                ours = _seen(candidate, candidate.step(index))
            for arm, seen in zip(arms, (exact, noisy, ours), strict=True):
                arm.block.add(index, seen.loss)
            after = _state_of(candidate)
            with attempts_of(reference).working():
                expected = reference.update(index, before, ours.gradients)
                scale = reference.update(index, *magnitudes(before, ours.gradients))
            recorder.write(
                ComparedStep(
                    arm=names[2],
                    replica=0,
                    reference=names[0],
                    yardstick=names[1],
                    step=index,
                    readings=[*evaluated_errors(ours, exact, noisy), *updated_errors(after, expected, scale)],
                )
            )
            before = after


class _Arm:
    """An open arm, and its series as far as it is not written."""

    def __init__(self, name: str, training: TrainingRun, block: SeriesBlock) -> None:
        self.name, self.training, self.block = name, training, block


@contextmanager
def _recorded(run: Run, name: str, recorder: Recorder) -> Iterator[_Arm]:
    """An arm with its records of start and end around what is done with it."""
    recorder.phase(f"{name}: open")
    with opened(run, name) as training:
        watch = StateWatch(training)
        recorder.phase(f"{name}: start")
        recorder.write(arm_start(training, name, 0, watch))
        block = SeriesBlock(run, recorder, recorder.series(name, 0), training)
        yield _Arm(name, training, block)
        recorder.phase(f"{name}: end")
        block.write()
        recorder.write(arm_end(training, name, 0, run.workload.steps, watch, Ends()))
        planned = run.arms[name]
        if planned.arm.capture != "none":
            recorder.phase(f"{name}: census")
            recorder.write(capture_evidence(training, name, 0, capture_record(training, planned), Watched()))


def _offering(arm: _Arm, own: str, protocol: type) -> TrainingRun:
    """The arm's run; raises `NotAvailable` for a capability that it lacks."""
    needed = {"parameters": HasParameters, "gradients": HasGradients, "gradient_norms": HasGradientNorms, own: protocol}
    for capability, each in needed.items():
        if not isinstance(arm.training, each):
            raise NotAvailable(f"the system of arm {arm.name} lacks the capability `{capability}`")
    return arm.training


def _evaluated(twin: _Twin, index: int, before: OptimizerState) -> Evaluated:
    with attempts_of(twin).working():
        return _seen(twin, twin.evaluate(index, before.parameters))


def _seen(training: _Shows, loss: torch.Tensor) -> Evaluated:
    """What the last step left; copies, since a later step may write over it."""
    norms = training.gradient_norms()["before"].detach().clone()
    return Evaluated(
        loss=loss.detach().clone(),
        norms=dict(zip(training.gradient_groups(), norms, strict=True)),
        gradients={name: tensor.detach().clone() for name, tensor in training.gradients().items()},
    )


def _start_of(candidate: _Candidate) -> OptimizerState:
    """Adam starts with moments of zero, whatever the candidate's are: that they are shows in the first update."""
    parameters = {name: tensor.detach().clone() for name, tensor in candidate.parameters().items()}
    zeros = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
    return OptimizerState(parameters, zeros, zeros)


def _state_of(candidate: _Candidate) -> OptimizerState:
    moments = candidate.moments()
    copies = [
        {name: tensor.detach().clone() for name, tensor in tensors.items()}
        for tensors in (candidate.parameters(), moments["exp_avg"], moments["exp_avg_sq"])
    ]
    return OptimizerState(*copies)
