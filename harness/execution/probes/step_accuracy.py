"""The step_accuracy probe: three implementations train the same, and their gradients are compared at the same points.

The candidate trains first, with every seed. Then the reference and after it the peer train, each opened once and begun
anew for each seed, on batches and from first parameters of their own, which digests show to be equal. At chosen steps
both evaluate the candidate's parameters too. What is kept between the arms stays on the device: the trained parameters
before the chosen steps, and the gradients there. Differences are reduced on the device, in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from harness.evidence.plan_records import Run
from harness.evidence.run_records import StepErrors, TensorErrors
from harness.execution.arm import ArmLife
from harness.execution.recorder import Recorder, batch_digests
from harness.execution.watchers.reductions import digest_of_all, real
from harness.system.protocol import (
    HasCheckpoint,
    HasGradients,
    HasInputs,
    HasParameters,
    NotAvailable,
    ServesAsPeer,
    TrainingRun,
)
from harness.system.replay.found_state import plain_name
from harness.system.resolve import resolve

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Settings:
    """What the claim asks of the probe."""

    candidate: str
    peer: str
    reference: str
    gradient_seeds: list[int]
    gradient_steps: list[int]
    loss_seeds: list[int]

    @property
    def seeds(self) -> list[int]:
        """Return every seed, in the order in which each arm is executed."""
        return sorted({*self.gradient_seeds, *self.loss_seeds})


@dataclass
class Point:
    """One step of one arm: what it began with and read, its loss, and the clipped gradients of it."""

    parameters: Tensors
    batch: str  # digest
    loss: Tensor
    gradients: Tensors


Points = dict[tuple[int, int], Point]  # by seed and step


def execute(run: Run, recorder: Recorder) -> None:
    """Execute the candidate, the reference and the peer. Raises `NotAvailable` if one of them lacks a capability."""
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
        arms = {
            settings.candidate: point,
            settings.peer: peers[seed, step],
            settings.reference: references[seed, step],
        }
        recorder.write(step_errors(settings, seed, step, arms))


def _train(run: Run, settings: Settings, seed: int, replica: int, recorder: Recorder) -> Points:
    """Train the candidate with one seed: all steps if its losses are compared, else as far as gradients are."""
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
    """Train another arm with every seed, and return what it makes of the candidate's parameters at its points."""
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
    """Copies of what a run shows. Raises `NotAvailable` for a run that lacks a capability."""

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
        """Return the step that was just made, from the parameters `before`."""
        batch = batch_digests([self._training.inputs()])[0]
        return Point(before, batch, loss.detach().clone(), _copies(self._training.gradients()))


def step_errors(settings: Settings, seed: int, step: int, points: Mapping[str, Point]) -> StepErrors:
    """Reduce the gradients of one step, by arm, to norms, with digests of what they were computed from.

    A tensor is left out if some arm has no gradient of it, or one of another shape: it was not compared.
    """
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
    """Return the L2 norm of a tensor, or of its difference from another, in float64 on the tensor's device; 0-d."""
    difference = real(tensor).double() if other is None else real(tensor).double() - real(other).double()
    norm: Tensor = torch.linalg.vector_norm(difference)
    return norm


def _copies(tensors: Mapping[str, Tensor]) -> Tensors:
    return {plain_name(name): tensor.detach().clone() for name, tensor in tensors.items()}


def _digest(parameters: Mapping[str, Tensor]) -> str:
    return digest_of_all({plain_name(name): tensor.detach().float() for name, tensor in parameters.items()})
