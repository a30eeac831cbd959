"""Execute arms up to a step, and record digests of each step, or the operators of the last step (probe `where`).

The run's settings for all arms: `last` is the last step. If `observed` is true, a second execution records the
operators of this last step. If `deterministic` is true, torch uses deterministic algorithms for every operator that has
one. `limit_s` is the time limit of the whole run, in seconds.

The settings for each arm: with `evaluate: n` the arm is evaluated after every n steps. `resume` lists numbers of steps
after which the arm is saved, opened again and loaded. `values` lists numbers of operators whose results are recorded.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from harness.devices.torch_settings import deterministic_algorithms
from harness.evidence.plan_records import Run
from harness.evidence.run_records import GRADIENT, OBSERVED, UNOBSERVED, ObservedStep
from harness.execution.opening import opened
from harness.execution.recorder import Recorder
from harness.execution.watchers.reductions import digests
from harness.execution.watchers.state_watch import watched_state
from harness.execution.watchers.step_operators import ObservedCaptures, StepOperators
from harness.system.protocol import HasGradients, HasInputs, HasStateRoots, TrainingRun
from harness.system.replay.launches import triton_announced
from harness.system.replay.reachable import reach
from harness.system.replay.sites import SiteFinder, names_of_modules, sites_noted


def execute(run: Run, recorder: Recorder) -> None:
    """Execute each arm up to the last step. If the run records operators, execute each arm a second time, and record
    the operators of the last step."""
    until = monotonic() + float(str(run.settings["limit_s"]))
    repeats = deterministic_algorithms(is_strict=False) if run.settings.get("deterministic") else nullcontext()
    with repeats:
        for arm in run.arms:
            for replica in (UNOBSERVED, OBSERVED) if run.settings["observed"] else (UNOBSERVED,):
                if monotonic() > until:
                    return
                recorder.phase(f"{arm}.{replica}: locate")
                with ExitStack() as stack:
                    _Execution(run, arm, replica, recorder, stack, until).train()


class _Execution:
    """One execution of an arm. Between steps it saves, loads or evaluates the arm where the settings require this."""

    def __init__(self, run: Run, arm: str, replica: int, recorder: Recorder, stack: ExitStack, until: float) -> None:
        self._run, self._arm, self._replica, self._recorder, self._stack = run, arm, replica, recorder, stack
        self._last = int(str(run.settings["last"]))
        self._every: int | None = _of_arm(run, "evaluate", arm)
        self._saved_after: list[int] = _of_arm(run, "resume", arm) or []
        self._values: list[int] = _of_arm(run, "values", arm) or []
        self._until, self._began = until, monotonic()
        self._finder = SiteFinder({})

    def train(self) -> None:
        """Make the steps. Record each step or, if the run records operators, only the last step."""
        self._open()
        for step in range(self._last + 1):
            if monotonic() > self._until:
                return
            is_recorded = step == self._last or not self._run.settings["observed"]
            if step == self._last and self._replica == OBSERVED:
                observer = StepOperators(self._finder, self._values, until=self._until)
                observed = self._record(step, observer)
                if observer.is_cut:
                    return
                found = observer.operators({**_gradients(self.training), **_state(self.training)})
                size = observer.bytes + self._captures.bytes
                more = {"operators": found, "unseen": observer.unseen, "bytes": size}
                self._recorder.write(observed.model_copy(update=more))
            elif is_recorded:
                self._recorder.write(self._record(step))
            else:
                self._between(step)
                self.training.step(step)

    def _open(self) -> None:
        if self._replica == OBSERVED:
            captures = ObservedCaptures(lambda: self._finder, self._values, self._until)
            self._captures = self._stack.enter_context(captures)
            self._stack.enter_context(triton_announced())
            # Run the backward pass in the calling thread. In a thread of autograd, the stack contains no user code, and
            # autograd numbers the nodes of its graph from 0 again.
            self._stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        self.training: TrainingRun = self._stack.enter_context(opened(self._run, self._arm))
        roots = self.training.state_roots() if isinstance(self.training, HasStateRoots) else [self.training]
        self._finder = SiteFinder(names_of_modules(reach(*roots).modules))
        if self._replica == OBSERVED:
            self._stack.enter_context(sites_noted(self._finder))

    def _record(self, step: int, observer: StepOperators | None = None) -> ObservedStep:
        with observer or ExitStack():
            self._between(step)
        before = _digests_of_state(self.training)
        if observer is not None:
            observer.begin(self._finder, _state(self.training))
            self._captures.step = observer
        with observer or ExitStack():
            loss = self.training.step(step)
        training = self.training
        return ObservedStep(
            arm=self._arm,
            replica=self._replica,
            step=step,
            before=before,
            batch=digests(dict(training.inputs())) if isinstance(training, HasInputs) else {},
            loss=digests({"loss": loss.detach()})["loss"],
            gradients=digests(_gradients(training)),
            after=_digests_of_state(training),
            seconds=monotonic() - self._began,
        )

    def _between(self, steps: int) -> None:
        """Evaluate the arm, or save and load it, if the run's settings require this after `steps` steps."""
        if self._every and steps and steps % self._every == 0:
            training: Any = self.training
            training.evaluate()
        if steps in self._saved_after:
            with tempfile.TemporaryDirectory() as folder:
                saving: Any = self.training
                saving.save(Path(folder) / "saved")
                self._stack.close()
                self._open()
                loading: Any = self.training
                loading.load(Path(folder) / "saved")


def _of_arm(run: Run, setting: str, arm: str) -> Any:
    by_arm: Any = run.settings.get(setting, {})
    return by_arm.get(arm)


def _state(training: TrainingRun) -> dict[str, Tensor]:
    state = watched_state(training)
    return {f"{category} {name}": each for category, tensors in state.items() for name, each in tensors.items()}


def _gradients(training: TrainingRun) -> dict[str, Tensor]:
    found = training.gradients() if isinstance(training, HasGradients) else {}
    return {f"{GRADIENT} {name}": each for name, each in found.items()}


def _digests_of_state(training: TrainingRun) -> dict[str, str]:
    return digests(_state(training))
