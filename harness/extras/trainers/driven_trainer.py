"""Run a trainer of a library as a system, with the library's loop or step by step with the library's methods.

| `drive` of an arm | what trains |
| --- | --- |
| `loop` | the library's loop, as users run it; it is suspended between two steps |
| `steps` | the library's methods for one step in the loop's order, without logging; then the schedule advances |

Only `steps` can be captured. The contract must claim that `loop` and `steps` train the same. Batches come from the
trainer's data loader, in its order. Timings and observations may need more steps of a trainer than its workload has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.system.batches import LoaderBatches, replaced
from harness.system.built import StepFunction
from harness.system.capturable import make_capturable
from harness.system.owned_loop import Batch, OwnedLoop, OwnedLoopRun
from harness.system.protocol import Scalar, SystemDescription
from harness.system.step_function_run import StepFunctionRun

if TYPE_CHECKING:
    from torch import Tensor

    from harness.contract.schema import Arm, Workload

DRIVES = ("loop", "steps")


class UnsuitableTrainerError(HarnessError):
    """The trainer of a library cannot be used, because the harness cannot separate or repeat the trainer's steps."""


class DrivenTrainer:
    """A trainer of a library whose loop (such as `train()`) is suspended before its first step.

    A subclass replaces the trainer's training step by `take_and_train` before it calls `prepare`. The loop then calls
    `take_and_train` with each batch. `train` is the loop.
    """

    def __init__(self, train: Callable[[], object], loader: Iterable[Batch], owner: str) -> None:
        """Store the loop and its data loader. owner: the loop's name in messages."""
        self._owner = owner
        self._batches = LoaderBatches(loader)
        self._loop = OwnedLoop(train, owner)

    # Members that a subclass for a library must define.
    libraries: frozenset[str]  # names of the top-level packages of the trainer's library

    def trainer(self) -> Any:
        raise NotImplementedError

    def callbacks(self) -> Sequence[Any]:
        raise NotImplementedError

    def model(self) -> Any:
        raise NotImplementedError

    def optimizer(self) -> Any:
        """Return torch's own optimizer, and not the object in which the library wraps it."""
        raise NotImplementedError

    def optimizers(self) -> list[Any]:
        """Return all optimizers of the trainer."""
        return [self.optimizer()]

    def one_step(self, batch: Batch) -> Tensor:
        """Make one step with the library's methods, without advancing the schedule. Return the loss as a tensor of
        shape []."""
        raise NotImplementedError

    def schedule(self) -> None:
        """Do the work that the host does after each step, such as advancing the learning-rate schedule."""
        raise NotImplementedError

    # Members that a subclass inherits.
    def prepare(self) -> None:
        """Start the loop, and suspend it before its first step."""
        self._loop.start()

    def hand_over(self, own: Batch, training_step: Callable[[Batch], Tensor]) -> Tensor:
        """Train on the harness's batch instead of the loop's batch `own`, and return the loss. The library's loop calls
        this method."""
        loss = training_step(replaced(own, self._loop.take(own)))
        self._loop.report(loss)
        return loss

    def close(self) -> None:
        self._loop.close()

    def run(self, drive: str, capture: str, layers: int) -> OwnedLoopRun | StepFunctionRun:
        """Return a run of this trainer for the harness. drive: `loop` to use the library's loop, `steps` to call the
        library's methods for each step."""
        if drive == "loop":
            parameters = self.parameters()
            return OwnedLoopRun(self._loop, self._batches, parameters, self.state, owner=self._owner, capture=capture)
        if capture != "none":
            make_capturable(self.optimizer())
        # pass the objects as arguments, because the harness looks for training state in the arguments of a step
        step = partial(self._step, **self.roots())
        function = StepFunction(step, self._batches, self.parameters, after=self.schedule)
        return SteppedRun(self, function, capture=capture, layers=layers)

    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters that are trained, by name."""
        return {name: each for name, each in self.model().named_parameters() if each.requires_grad}

    def state(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Return the state of model, optimizers (with learning rates), trainer and callbacks, by category and name. The
        names are equal for `drive: loop` and `drive: steps`."""
        from harness.system.replay.found_state import found_state

        return found_state(self.roots(), parameters=self.parameters())

    def roots(self) -> dict[str, Any]:
        """Return all objects that contain training state, by name.

        User code may keep state in the trainer and in callbacks.
        """
        from harness.system.replay.holders import OwnPart

        callbacks: dict[str, list[Any]] = {}
        for each in self.callbacks():
            callbacks.setdefault(type(each).__name__, []).append(each)
        trainer = OwnPart(self.trainer(), self.libraries)
        return {"trainer": trainer, "model": self.model(), "optimizers": self.optimizers(), "callbacks": callbacks}

    def _step(self, batch: Batch, **_roots: Any) -> Tensor:
        return self.one_step(batch)


class SteppedRun(StepFunctionRun):
    """A training run that calls the library's methods for each step. The library's loop stays suspended."""

    def __init__(self, trainer: DrivenTrainer, function: StepFunction, *, capture: str, layers: int) -> None:
        super().__init__(function, capture=capture, layers=layers)
        self._trainer = trainer

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        self._trainer.close()


class DrivenTrainerSystem:
    """The base class of the systems for trainers of libraries, such as `LightningSystem`. A user writes a subclass of
    the system for one library, and sets the attributes below."""

    name = "a library's trainer"
    summary = "a library's trainer, driven from outside"
    models: Sequence[str] = ()
    arm_options: Mapping[str, Sequence[Scalar] | type] = {"drive": DRIVES}
    workload_options: Mapping[str, Sequence[Scalar] | type] = {}
    layers = 0

    def driven(self, workload: Workload, arm: Arm) -> DrivenTrainer:
        """Return the trainer of an arm, with its loop suspended before the first step."""
        raise NotImplementedError

    def describe(self) -> SystemDescription:
        return SystemDescription(
            name=self.name,
            summary=self.summary,
            models=self.models,
            arm_options=self.arm_options,
            workload_options=self.workload_options,
            capabilities=frozenset({"inputs", "parameters", "capture", "state"}),
            captures=frozenset({"none", "step"}),
        )

    def open(
        self,
        workload: Workload,
        arm: Arm,
        *,
        fault: str | None = None,
        data: str | None = None,
        model_directory: str | None = None,
    ) -> Any:
        if fault is not None or data is not None or model_directory is not None:
            raise ValueError("a library's trainer must be run without planted faults, --data and --model")
        drive = str(arm.settings().get("drive", "loop"))
        return self.driven(workload, arm).run(drive, arm.capture, self.layers)
