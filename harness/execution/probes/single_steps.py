"""Compare single steps from the same state (`step_match`), or gradients at the same parameters (`step_accuracy`).

step_match: for each step of the candidate, the reference computes the loss and the clipped gradients. It uses the
parameters that the candidate had before the step, and a batch that the reference makes itself. With the candidate's
gradients, the reference's optimizer also updates the state that the candidate had before the step. An error therefore
shows in the step in which it occurs, and does not grow over the steps. The yardstick is the same reference in the
candidate's precision. It shows how large errors are that come from rounding alone.

step_accuracy: three implementations train the same model with every seed: first the candidate, then the reference, then
the peer (another project's implementation). Reference and peer are opened once, and restarted for each seed. Each
implementation makes its batches and its initial parameters itself, and digests show whether they are equal. At chosen
steps, the reference and the peer also compute loss and gradients at the candidate's parameters. The candidate's
parameters before these steps and all gradients stay on the device, where the norms of the gradients' differences are
computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, Protocol, cast

import torch
from torch import Tensor

from harness.evidence.arm_records import ComparedStep, StepReading
from harness.evidence.plan_records import Run
from harness.evidence.run_records import StepErrors, TensorErrors
from harness.execution.arm import ArmLife
from harness.execution.recorder import Recorder
from harness.execution.series_block import batch_digests
from harness.execution.watchers.capture_attempts import attempts_of
from harness.execution.watchers.reductions import digest_of_all, real
from harness.system.protocol import (
    HasCheckpoint,
    HasGradientNorms,
    HasGradients,
    HasInputs,
    HasMoments,
    HasParameters,
    MakesSingleSteps,
    NotAvailable,
    OptimizerState,
    ServesAsPeer,
    TrainingRun,
)
from harness.system.replay.found_state import plain_name
from harness.system.resolve import resolve

# The following functions return the largest error of each quantity of a step, measured from the reference's step. For
# loss, norms and gradients, the error is the L2 norm of the difference, divided by the L2 norm of the reference. For
# moments and parameters after an update, the error of an element is its difference, divided by a scale. The scale is
# what the same update gives if the absolute values of all terms are added up. Rounding errors are bounded by this scale
# (Higham, Accuracy and Stability of Numerical Algorithms, section 3.3: running error analysis).

Quantity = Literal["loss", "norms", "gradients", "exp_avg", "exp_avg_sq", "parameters"]


@dataclass(frozen=True)
class Evaluated:
    """Copies of one step's loss, gradient norms and clipped gradients, in the arm's own precision."""

    loss: Tensor  # shape []
    norms: Mapping[str, Tensor]  # name of a group -> norm of its gradients before the clip, shape []
    gradients: Mapping[str, Tensor]  # name of a parameter -> its gradient after the clip


def evaluated_errors(candidate: Evaluated, reference: Evaluated, yardstick: Evaluated) -> list[StepReading]:
    """Return the largest errors of the candidate and of the yardstick (the reference in the candidate's precision), for
    loss, norms and gradients.

    Errors are relative to the reference. The error of a tensor is infinite if only one side has the tensor: the
    reference, or the step that is compared with it.
    """
    ours, theirs, exact = _quantities(candidate), _quantities(yardstick), _quantities(reference)
    readings = []
    for quantity, tensors in exact.items():
        names = _either(ours[quantity], tensors)
        tensor, error = _worst({name: _relative(ours[quantity].get(name), tensors.get(name)) for name in names})
        _, noise = _worst({name: _relative(theirs[quantity].get(name), each) for name, each in tensors.items()})
        readings.append(StepReading(quantity=quantity, tensors=len(names), error=error, tensor=tensor, yardstick=noise))
    return readings


def _quantities(seen: Evaluated) -> dict[Quantity, Mapping[str, Tensor]]:
    return {"loss": {"loss": seen.loss}, "norms": seen.norms, "gradients": seen.gradients}


def updated_errors(after: OptimizerState, expected: OptimizerState, magnitude: OptimizerState) -> list[StepReading]:
    """Return the largest errors of the moments and parameters in `after`, the candidate's state after one update.
    expected: the state after the same update by the reference. magnitude: the scales by which errors are divided (see
    `magnitudes`)."""
    readings = []
    for quantity in ("exp_avg", "exp_avg_sq", "parameters"):
        ours, exact, scale = (getattr(state, quantity) for state in (after, expected, magnitude))
        names = _either(ours, exact)
        tensor, error = _worst({name: _elementwise(ours.get(name), exact.get(name), scale.get(name)) for name in names})
        readings.append(StepReading(quantity=quantity, tensors=len(names), error=error, tensor=tensor))
    return readings


def magnitudes(before: OptimizerState, gradients: Mapping[str, Tensor]) -> tuple[OptimizerState, Mapping[str, Tensor]]:
    """Return a state and gradients with which an update by the optimizer adds up the absolute values of all its terms.
    The updated state is the scale of rounding errors. Each parameter p is returned as -|p|. The update is subtracted
    from it, so that both have the same sign and do not cancel."""
    state = OptimizerState(
        parameters={name: -tensor.abs() for name, tensor in before.parameters.items()},
        exp_avg={name: tensor.abs() for name, tensor in before.exp_avg.items()},
        exp_avg_sq=before.exp_avg_sq,
    )
    return state, {name: tensor.abs() for name, tensor in gradients.items()}


def _either(ours: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> list[str]:
    """Return the names that are in at least one of the mappings, the names in `exact` first."""
    return list(dict.fromkeys([*exact, *ours]))


def _worst(errors: Mapping[str, float]) -> tuple[str, float]:
    """Return the name of the tensor with the largest error, and this error. NaN counts as larger than any number.
    Return "" and 0.0 if `errors` is empty."""
    if not errors:
        return "", 0.0
    tensor = max(errors, key=lambda name: (math.isnan(errors[name]), errors[name]))
    return tensor, errors[tensor]


def _relative(ours: Tensor | None, exact: Tensor | None) -> float:
    """Return |ours - exact| / |exact| in L2 norms. The result is infinite if a tensor is missing, if the shapes differ,
    or if `exact` is 0 and `ours` is not."""
    if ours is None or exact is None or ours.shape != exact.shape:
        return math.inf
    ours, exact = real(ours).double(), real(exact).double()
    apart, scale = float((ours - exact).norm()), float(exact.norm())
    return 0.0 if apart == 0 else math.inf if scale == 0 else apart / scale


def _elementwise(ours: Tensor | None, exact: Tensor | None, scale: Tensor | None) -> float:
    """Return the largest element of |ours - exact| / (|scale| + smallest normal number of the data type).

    The smallest normal number is added because below it the rounding error of a number does not get smaller.
    """
    if ours is None or exact is None or scale is None or ours.shape != exact.shape:
        return math.inf
    smallest = torch.finfo(ours.dtype).tiny
    ours, exact, scale = (real(each).double() for each in (ours, exact, scale))
    if not ours.numel():
        return 0.0
    return float(((ours - exact).abs() / (scale.abs() + smallest)).max())


class _Shows(HasParameters, HasGradients, HasGradientNorms, TrainingRun, Protocol):
    """The capabilities that the system of every compared arm must have."""


class _Candidate(_Shows, HasMoments, Protocol):
    """The capabilities of the arm whose steps are judged."""


class _Twin(_Shows, MakesSingleSteps, Protocol):
    """The capabilities of a reference or a yardstick (the reference in the candidate's precision), which make single
    steps from a given state."""


def execute_step_match(run: Run, recorder: Recorder) -> None:
    """Execute the candidate's steps, and compare each step with the same step of the reference and of the yardstick
    (the reference in the candidate's precision)."""
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
    """Open an arm, and yield its `ArmLife` for the `with` block. Record the arm's start before this block, and the
    arm's end after it. Only the steps of the arm `candidate` are observed."""
    with ArmLife(run, name, recorder) as life:
        life.start()
        # observe only the candidate, because a process can have only one open profile at a time
        with life.watched(range(run.workload.steps), asked=name == candidate) as watch:
            life.begin(run.workload.steps)
            yield life
        life.phase("end")
        life.end()
        life.census(watch.seen)


def _offering(life: ArmLife, own: str, protocol: type) -> TrainingRun:
    """Return the opened training of the arm. Raises `NotAvailable` if the training lacks a capability that every arm
    needs, or the capability `protocol`. own: the name of the capability `protocol` in messages."""
    needed = {"parameters": HasParameters, "gradients": HasGradients, "gradient_norms": HasGradientNorms, own: protocol}
    for capability, each in needed.items():
        if not isinstance(life.training, each):
            raise NotAvailable(f"the system of arm {life.arm} lacks the capability `{capability}`")
    return life.training


def _evaluation(twin: _Twin, before: OptimizerState) -> Callable[[int], torch.Tensor]:
    return lambda index: twin.evaluate(index, before.parameters)


def _stepped(life: ArmLife, training: _Shows, index: int, step: Callable[[int], torch.Tensor]) -> Evaluated:
    """Make one step of an open arm by calling `step`. Return copies of the step's loss, gradient norms and
    gradients."""
    with attempts_of(training).working():
        return _seen(training, life.step(index, step))


def _seen(training: _Shows, loss: torch.Tensor) -> Evaluated:
    """Return copies of the last step's results. They must be copied, because a later step may overwrite them."""
    norms = training.gradient_norms()["before"].detach().clone()
    return Evaluated(
        loss=loss.detach().clone(),
        norms=dict(zip(training.gradient_groups(), norms, strict=True)),
        gradients={name: tensor.detach().clone() for name, tensor in training.gradients().items()},
    )


def _start_of(candidate: _Candidate) -> OptimizerState:
    """Return the candidate's state before its first step: copies of its parameters, and moments that are 0, as in Adam.
    If the candidate's moments are not 0 at its start, its first update differs from the reference's first update."""
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


Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Settings:
    """The settings of a run that compares gradients at the same parameters. The values come from the claim."""

    candidate: str
    peer: str
    reference: str
    gradient_seeds: list[int]
    gradient_steps: list[int]
    loss_seeds: list[int]

    @property
    def seeds(self) -> list[int]:
        """Return all seeds, in the order in which each arm is trained with them."""
        return sorted({*self.gradient_seeds, *self.loss_seeds})


@dataclass
class Point:
    """One step of one arm: the parameters before the step, the batch, the loss, and the gradients after the clip."""

    parameters: Tensors
    batch: str  # digest of the batch
    loss: Tensor
    gradients: Tensors


Points = dict[tuple[int, int], Point]  # key: the seed and the step


def execute_step_accuracy(run: Run, recorder: Recorder) -> None:
    """Execute the candidate, the reference and the peer (another implementation). Raises `NotAvailable` if one of these
    arms lacks a capability."""
    settings = Settings(**run.settings)  # type: ignore[arg-type]
    with TemporaryDirectory(prefix="harness-checkpoint-") as folder:
        recorder.phase("write the checkpoint")
        system = resolve(run.arms[settings.candidate].system)
        if not isinstance(system, HasCheckpoint):
            raise NotAvailable(f"{run.arms[settings.candidate].system} lacks the capability `checkpoint`")
        directory = system.checkpoint(run.workload, Path(folder), model_directory=run.model_directory)
        from_checkpoint = run.model_copy(update={"model_directory": str(directory)})
        points: Points = {}
        for replica, seed in enumerate(settings.seeds):
            points |= _train(from_checkpoint, settings, seed, replica, recorder)
        references = _follow(from_checkpoint, settings, settings.reference, points, recorder)
        peers = _follow(from_checkpoint, settings, settings.peer, points, recorder)
    recorder.phase("compare gradients")
    for (seed, step), point in points.items():
        arms = {settings.candidate: point, settings.peer: peers[seed, step], settings.reference: references[seed, step]}
        recorder.write(step_errors(settings, seed, step, arms))


def _train(run: Run, settings: Settings, seed: int, replica: int, recorder: Recorder) -> Points:
    """Train the candidate with one seed. Return a `Point` for each step whose gradients are compared. If this seed's
    losses are compared, make all steps. Otherwise stop after the last step whose gradients are compared."""
    arm, points = settings.candidate, Points()
    steps = run.workload.steps if seed in settings.loss_seeds else max(settings.gradient_steps) + 1
    seeded = run.model_copy(update={"workload": run.workload.model_copy(update={"seed": seed})})
    with ArmLife(seeded, arm, recorder, replica, facts={"seed": seed}, digest=_digest) as life:
        shown = _Shown(life.training, arm)
        life.start()
        life.phase("steps")
        life.begin(steps)
        for index in range(steps):
            is_compared = seed in settings.gradient_seeds and index in settings.gradient_steps
            before = shown.parameters() if is_compared else {}
            loss = life.step(index)
            if is_compared:
                points[seed, index] = shown.point(before, loss)
        life.end()
        life.census()
    return points


def _follow(run: Run, settings: Settings, arm: str, points: Points, recorder: Recorder) -> Points:
    """Train `arm` (reference or peer) with every seed. Return a `Point` for each of `points`: the loss and the
    gradients that `arm` computes at the candidate's parameters in `points`."""
    found: Points = {}
    with ArmLife(run, arm, recorder, 0, digest=_digest) as opened:
        training = opened.training
        shown = _Shown(training, arm)
        if not isinstance(training, ServesAsPeer):
            raise NotAvailable(f"arm {arm} lacks the capability `peer`")
        for replica, seed in enumerate(settings.seeds):
            life = opened.anew(replica, {"seed": seed})
            life.phase("start")
            training.restart(seed)
            life.train(range(run.workload.steps if seed in settings.loss_seeds else 0))
            life.phase("gradients")
            for step in (step for of_seed, step in points if of_seed == seed):
                loss = training.evaluate(step, points[seed, step].parameters)
                found[seed, step] = shown.point(shown.parameters(), loss)
                recorder.heartbeat()
    return found


class _Shown:
    """Reads the parameters, gradients and batch of an opened arm. Raises `NotAvailable` if the arm cannot show one of
    these."""

    def __init__(self, training: TrainingRun, arm: str) -> None:
        if not (
            isinstance(training, HasParameters)
            and isinstance(training, HasGradients)
            and isinstance(training, HasInputs)
        ):
            raise NotAvailable(f"arm {arm} lacks one of the capabilities `parameters`, `gradients` and `inputs`")
        self._training = training

    def parameters(self) -> Tensors:
        return _copies(self._training.parameters())

    def point(self, before: Tensors, loss: Tensor) -> Point:
        """Return the `Point` (parameters, batch, loss, gradients) of the last step. before: the parameters before the
        step. loss: the step's loss."""
        batch = batch_digests([self._training.inputs()])[0]
        return Point(before, batch, loss.detach().clone(), _copies(self._training.gradients()))


def step_errors(settings: Settings, seed: int, step: int, points: Mapping[str, Point]) -> StepErrors:
    """Compare the gradients of one step. Return the norm of each gradient of the reference, and the norms of the
    differences between this gradient and those of the candidate and the peer. The result also contains losses, and
    digests of parameters and batches. points: name of an arm -> the arm's parameters, batch, loss and gradients in this
    step. A gradient is compared only if candidate, peer and reference all have it, with the same shape."""
    candidate, peer, reference = (
        points[arm].gradients for arm in (settings.candidate, settings.peer, settings.reference)
    )
    names = [
        name
        for name, gradient in candidate.items()
        if all(name in other and other[name].shape == gradient.shape for other in (peer, reference))
    ]
    norms = [
        torch.stack([_norm(reference[name]), *(_norm(arm[name], reference[name]) for arm in (candidate, peer))])
        for name in names
    ]
    return StepErrors(
        seed=seed,
        step=step,
        parameters={arm: _digest(point.parameters) for arm, point in points.items()},
        batches={arm: point.batch for arm, point in points.items()},
        losses={arm: float(point.loss) for arm, point in points.items()},
        tensors=[
            TensorErrors(name=name, reference_norm=norm, candidate_error=ours, peer_error=theirs)
            for name, (norm, ours, theirs) in zip(names, torch.stack(norms).tolist() if norms else [], strict=True)
        ],
    )


def _norm(tensor: Tensor, other: Tensor | None = None) -> Tensor:
    """Return the L2 norm of `tensor` or, if `other` is given, of `tensor - other`. The result is a float64 tensor of
    shape [] on the device of `tensor`."""
    difference = real(tensor).double() if other is None else real(tensor).double() - real(other).double()
    norm: Tensor = torch.linalg.vector_norm(difference)
    return norm


def _copies(tensors: Mapping[str, Tensor]) -> Tensors:
    return {plain_name(name): tensor.detach().clone() for name, tensor in tensors.items()}


def _digest(parameters: Mapping[str, Tensor]) -> str:
    return digest_of_all({plain_name(name): tensor.detach().float() for name, tensor in parameters.items()})
