"""Test which outputs of a captured step are computed by its replays. The outputs are the loss and the trainable
parameters.

The test makes replays without running the step's code, and runs the step's code without making its replays. It begins
after the arm's end, when all other evidence is recorded. Before each of the following executions, the trainable
parameters and the optimizer's state are set back to their values at the arm's end:
1. only the replays of the last step, on the batch that the step left in its buffers;
2. a step on another batch with the same replays (called `other`), and then only its replays;
3. `other` again, and then the last step without its replays. If the capture contains the whole step, the parameters do
not change, and the loss is that of `other`, because the replays of `other` left their loss in the graph's buffers.

A second test follows if execution 3 changes a parameter or gives another loss, for example because the optimizer is
outside of the graph. It also follows if the replays of executions 1 and 2 give equal parameters. The second test
executes `other` twice with its replays and once without them. Each time the parameters and the optimizer's state are as
at the arm's end, but buffers and gradients are those that the last step left on its own batch. If an output is equal
all three times, the replays do not compute it. If an output differs between the two times with replays, the replays
count as computing it if its value without replays is one that belongs to the last step.

If all steps have the same batch, the buffers and gradients are those of a later state. An equal loss then still shows
that no replay computes the loss. Equal parameters show nothing, because they may be equal after rounding.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

import torch
from torch import Tensor

from harness.evidence.arm_records import LOSS_OUTPUT, GhostReplay
from harness.execution.opening import AnnouncedSteps
from harness.execution.watchers.capture_attempts import CaptureAttempts
from harness.execution.watchers.reductions import digests
from harness.execution.watchers.state_watch import named_parameters, watched_state
from harness.system.protocol import HasInputs, HasStateRoots
from harness.system.replay.state import StateGuard
from harness.system.sharded_tensors import local
from harness.system.users_code import message_of

NAMED = 20  # largest number of outputs that are listed by name
# Largest number of rounds in which the step's replays are made without the step's code. With gradient accumulation,
# only some of the rounds change parameters.
AGAIN = 5
_Outputs = Mapping[str, str]  # name -> digest: for each trainable parameter, and for the loss if the step returned one


def ghost_replay(
    training: AnnouncedSteps,
    attempts: CaptureAttempts,
    last: int,
    others: Sequence[int],
    heartbeat: Callable[[], object] = lambda: None,
    silence: float = inf,
) -> GhostReplay:
    """Test what the replays of step `last` compute. Return the result, or the error that ended the test.

    others: steps that made the same replays as step `last`. The first of these steps that has another batch is used.
    heartbeat: called after each step and after each round of replays. silence: if this many seconds pass without a
    heartbeat, the test ends, because a step may wait forever for a batch.
    """
    look = _Look(training, attempts)
    try:
        with StateGuard(look.kept) as start:
            look.guard = start
            try:
                with _heard(heartbeat, silence) as look.heartbeat:
                    look.look(last, others)
            finally:
                start.restore()
    except BaseException as error:  # after its last step, a system may raise any error in a step, even SystemExit
        look.found["failure"] = message_of(error)
    finally:
        attempts.left_out, attempts.replayed = False, None
    return GhostReplay(**look.found)


class SilentError(BaseException):
    """A step of the test takes too long. This is no subclass of `Exception`, which the step's code could catch."""


@contextmanager
def _heard(heartbeat: Callable[[], object], silence: float) -> Iterator[Callable[[], object]]:
    """Yield a function that calls `heartbeat`. If the yielded function is not called for `silence` seconds, SilentError
    is raised in the `with` block. Outside of the main thread, or if user code has set a handler for SIGALRM,
    SilentError is never raised."""
    is_main = threading.current_thread() is threading.main_thread()
    if silence == inf or not is_main or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield heartbeat
        return

    def ended(*_: object) -> None:
        raise SilentError(f"an extra step, made after the training to test its replays, took longer than {silence:g} s")

    def beat() -> None:
        heartbeat()
        signal.setitimer(signal.ITIMER_REAL, silence)

    signal.signal(signal.SIGALRM, ended)
    try:
        beat()
        yield beat
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


class _Look:
    """The test of one arm. found: the results so far, as fields of the record `GhostReplay`."""

    guard: StateGuard
    heartbeat: Callable[[], object]

    def __init__(self, training: AnnouncedSteps, attempts: CaptureAttempts) -> None:
        self._training, self._attempts = training, attempts
        self._replays = [*(attempts.replayed or ())]  # the replays of the last step
        self.found: dict[str, Any] = {"replays": len(self._replays)}

    def kept(self, *categories: str) -> dict[str, Tensor]:
        """Return the tensors of the state in `categories`, by name. Without categories, return the parameters and the
        optimizer's state, which the test restores."""
        state = watched_state(self._training)
        return {
            f"{category} {name}": tensor
            for category in categories or ("parameters", "optimizer")
            for name, tensor in state[category].items()
        }

    def look(self, last: int, others: Sequence[int]) -> None:
        if not self._replays and self._attempts.count:
            raise LookupError("torch began a capture, but no replay was made by torch's method `CUDAGraph.replay`")
        start, alone = self._parameters(), self._alone()
        batch, (index, outputs) = self._batch(), self._other(others)
        alone_on_other = self._alone()
        self.found["moves"] = any(outputs[name] != digest for name, digest in start.items())
        if self._batch() != batch:
            self.found["alone_reads"] = alone_on_other != alone
        if self._replays:
            outputs = self._step(index)
            self.found["stays"] = self._step(last, left_out=True) == {**outputs, **start}
        if not self.found.get("stays") or self.found.get("alone_reads") is False:
            self._compare(index, last)

    def _compare(self, index: int, last: int) -> None:
        """Make step `index` twice with replays and once without, each time from the same state. Record which outputs
        are equal all three times.

        In this state, gradients and buffers are those of step `last`. Without its replays, step `index` therefore reads
        gradients and buffers of step `last`, unless code outside of the replays computes new ones.
        """
        self._step(index)
        batch, left = self._batch(), self._step(last)
        is_other = self._batch() != batch
        if not is_other:
            left = self._step(last, restored=False)
        with _gradients_kept(named_parameters(self._training)):
            self.guard.restore()
        start = self._parameters()
        roots = self._training.state_roots() if isinstance(self._training, HasStateRoots) else [self._training]
        with StateGuard(lambda: self.kept("parameters", "buffers", "optimizer"), roots) as self.guard:
            first, again, other = self._step(index), self._step(index), self._step(last)
            if is_other and LOSS_OUTPUT in first:
                self.found["reads"] = first != other
            if not is_other:
                other = self._step(last, restored=False)
            if self._replays:
                without = self._step(index, left_out=True)
                stale = [other, left, {**left, **start}]
                repeated = {name for name in first if first[name] == again[name]}
                known = {name for name in repeated if first[name] not in [each.get(name) for each in stale]}
                if not known and LOSS_OUTPUT not in first:
                    raise LookupError(
                        "one more step, run after the training, returned no loss and changed no parameter"
                    )
                outside = sorted(name for name in known if without.get(name) == first[name])
                # If step `last` has the same batch as step `index`, equal parameters prove nothing, because slightly
                # different gradients may give the same parameters after rounding.
                if not is_other:
                    trained = known - {LOSS_OUTPUT}
                    self.found["alike"] = len(trained) if trained <= {*outside} else 0
                    outside = [name for name in outside if name == LOSS_OUTPUT]
                anew = {name for name in first if without.get(name) not in [each.get(name) for each in stale]}
                self.found |= {"outside": len(outside), "named": outside[:NAMED], "unsure": len(anew - repeated)}

    def _other(self, others: Sequence[int]) -> tuple[int, _Outputs]:
        """Find a step in `others` whose batch differs from the batch of the last step. If there is none, use a step
        with the same batch. Return the step's index and its outputs."""
        batch, known = self._batch(), None
        for index in others:
            outputs = self._step(index)
            if [*map(id, self._attempts.replayed or ())] == [*map(id, self._replays)]:
                known = index, outputs
                if self._batch() != batch:
                    break
        if known is None:
            raise LookupError("no other step of the training replays the same graphs as the last step")
        return known

    def _step(self, index: int, *, left_out: bool = False, restored: bool = True) -> _Outputs:
        if restored:
            self.guard.restore()
        self._attempts.replayed, self._attempts.left_out = [], left_out
        try:
            loss = {LOSS_OUTPUT: self._training.once_more(index).detach()}
        except Exception:
            if not self._attempts.replayed:
                raise
            # In a step after the last planned step, a learning-rate schedule may raise an error. It does so after the
            # parameters were updated, so only the loss is missing.
            loss = {}
        if not all(bool(local(each).isfinite().all()) for each in loss.values()):
            # NaN stays NaN on every batch, with and without replays, so equal outputs would prove nothing.
            raise ArithmeticError("an extra step after the training returns a loss that is not finite")
        self._attempts.left_out = False
        self.heartbeat()
        return self._parameters() | digests(loss)

    def _alone(self) -> _Outputs:
        """Make the last step's replays several times without the step's code, and return the parameters afterwards.

        Stop as soon as the parameters differ from their values after the first round of replays. One round alone proves
        nothing: a replay that only copies the step's result writes the same parameters in each round.
        """
        self.guard.restore()
        given = list[_Outputs]()
        while len(given) < AGAIN and (len(given) < 2 or given[-1] == given[0]):
            for each in self._replays:
                each.replay()
            given.append(self._parameters())
            self.heartbeat()
        self.found["moves_alone"] = self.found.get("moves_alone", False) or given[-1] != given[0]
        return given[-1]

    def _batch(self) -> _Outputs:
        return digests(self._training.inputs()) if isinstance(self._training, HasInputs) else {}

    def _parameters(self) -> dict[str, str]:
        return {f"parameters {name}": each for name, each in digests(named_parameters(self._training)).items()}


@contextmanager
def _gradients_kept(parameters: Mapping[str, Tensor]) -> Iterator[None]:
    """Copy the gradients into the host's memory. After the `with` block, restore the gradients from these copies."""
    kept = [(each, each.grad) for each in parameters.values() if each.is_leaf and each.grad is not None]
    values = [local(gradient).detach().to("cpu", copy=True) for _, gradient in kept]
    yield
    with torch.no_grad():
        for (parameter, gradient), value in zip(kept, values, strict=True):
            parameter.grad = gradient
            local(gradient).copy_(value)
