"""The step_match probe: compare every step of the candidate with a reference's step from the same state.

The reference makes two things of each step: loss and clipped gradients, of its own batch at the parameters
that the candidate had before; and an update by its own optimizer, of the candidate's state and gradients.
So a rounding is seen where it happens, and no difference grows from step to step. A yardstick, the same
reference in the candidate's precision, shows how far rounding alone leads from the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol, cast

import torch

from harness.evidence.arm_records import ComparedStep
from harness.evidence.plan_records import Run
from harness.execution.arm import ArmLife
from harness.execution.probes.step_errors import Evaluated, evaluated_errors, magnitudes, updated_errors
from harness.execution.recorder import Recorder
from harness.execution.watchers.capture_attempts import attempts_of
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
    """Execute the candidate's steps, and compare each with the reference's and the yardstick's."""
    names = [str(run.settings[role]) for role in ("reference", "yardstick", "candidate")]
    with ExitStack() as stack:
        lives = [stack.enter_context(_recorded(run, name, recorder, names[2])) for name in names]
        reference, yardstick = (cast("_Twin", _offering(life, "single_steps", MakesSingleSteps)) for life in lives[:2])
        candidate = cast("_Candidate", _offering(lives[2], "moments", HasMoments))
        lives[2].phase("steps")
        before = _start_of(candidate)
        for index in range(run.workload.steps):
            exact = _stepped(lives[0], reference, index, _evaluation(reference, before))
            noisy = _stepped(lives[1], yardstick, index, _evaluation(yardstick, before))
            ours = _stepped(lives[2], candidate, index, candidate.step)
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


@contextmanager
def _recorded(run: Run, name: str, recorder: Recorder, candidate: str) -> Iterator[ArmLife]:
    """Open an arm, record its start before the block, and record its end after it."""
    with ArmLife(run, name, recorder) as life:
        life.start()
        # of the candidate alone: no two profiles can be open at once
        with life.watched(range(run.workload.steps), asked=name == candidate) as watch:
            life.begin(run.workload.steps)
            yield life
        life.phase("end")
        life.end()
        life.census(watch.seen)


def _offering(life: ArmLife, own: str, protocol: type) -> TrainingRun:
    """Return the arm's run. Raises `NotAvailable` for a capability that the run lacks."""
    needed = {"parameters": HasParameters, "gradients": HasGradients, "gradient_norms": HasGradientNorms, own: protocol}
    for capability, each in needed.items():
        if not isinstance(life.training, each):
            raise NotAvailable(f"the system of arm {life.arm} lacks the capability `{capability}`")
    return life.training


def _evaluation(twin: _Twin, before: OptimizerState) -> Callable[[int], torch.Tensor]:
    return lambda index: twin.evaluate(index, before.parameters)


def _stepped(life: ArmLife, training: _Shows, index: int, step: Callable[[int], torch.Tensor]) -> Evaluated:
    """Make one step of one of the open arms, and return what it left."""
    with attempts_of(training).working():
        return _seen(training, life.step(index, step))


def _seen(training: _Shows, loss: torch.Tensor) -> Evaluated:
    """Return what the last step left, as copies, since a later step may write over it."""
    norms = training.gradient_norms()["before"].detach().clone()
    return Evaluated(
        loss=loss.detach().clone(),
        norms=dict(zip(training.gradient_groups(), norms, strict=True)),
        gradients={name: tensor.detach().clone() for name, tensor in training.gradients().items()},
    )


def _start_of(candidate: _Candidate) -> OptimizerState:
    """Return the start with moments of zero, as Adam has. Other moments of the candidate show in the first update."""
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
