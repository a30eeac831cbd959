"""Test whether replays compute a captured step's outputs: make replays without the step, and the step without replays.

The test begins after the arm's end, when all other evidence is recorded. Before each of the following executions, the
trainable parameters and the optimizer's state are restored to those at the arm's end:
1. the replays of the last step alone, on the batch that the step left in its buffers;
2. a step on another batch with the same replays (called `other`), and then its replays alone;
3. `other` again, and then the last step without its replays. If the capture contains the whole step, parameters do not
change, and the loss is that of `other`, because the replays of `other` left it in their buffers.

If a step without its replays gives different outputs, as with an optimizer outside of the graph, a second test follows.
It makes `other` twice with its replays and then once without, each time from the same state, with the buffers and
gradients of another batch. If an output is the same both times, and also without replays, the replays do not compute
it. If an output differs between the two times, the replays compute it if without them it equals the output for the
other batch. If all steps have the same batch, the buffers and gradients come from a later state. A loss that is the
same then does not come from replays, but parameters may be the same because of rounding.
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

NAMED = 20  # largest number of outputs that are named
# largest number of rounds of replays without a step; with gradient accumulation only some rounds change parameters
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

    others: steps that made the same replays. The first of them that has another batch is used. heartbeat: called after
    each step and each round of replays. silence: seconds between two heartbeats after which the test ends, because a
    step may wait forever for a batch.
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
    except BaseException as error:  # a system may refuse a step after its last step, or even exit the process
        look.found["failure"] = message_of(error)
    finally:
        attempts.left_out, attempts.replayed = False, None
    return GhostReplay(**look.found)


class SilentError(BaseException):
    """A step of the test takes too long. This is not an `Exception`, because the step could catch an `Exception`."""


@contextmanager
def _heard(heartbeat: Callable[[], object], silence: float) -> Iterator[Callable[[], object]]:
    """Yield a heartbeat function. If it is not called for `silence` seconds, SilentError is raised in the block.

    Nothing is raised outside of the main thread, or if user code handles SIGALRM itself.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if silence == inf or not is_main or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield heartbeat
        return

    def ended(*_: object) -> None:
        raise SilentError(f"a step did not report for {silence:g} s")

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
    """The test of one arm. found: fields of the record of its result."""

    guard: StateGuard
    heartbeat: Callable[[], object]

    def __init__(self, training: AnnouncedSteps, attempts: CaptureAttempts) -> None:
        self._training, self._attempts = training, attempts
        self._replays = [*(attempts.replayed or ())]  # the replays of the last step
        self.found: dict[str, Any] = {"replays": len(self._replays)}

    def kept(self, *categories: str) -> dict[str, Tensor]:
        """Return the state tensors of these categories (default: parameters and optimizer), which the test restores."""
        state = watched_state(self._training)
        return {
            f"{category} {name}": tensor
            for category in categories or ("parameters", "optimizer")
            for name, tensor in state[category].items()
        }

    def look(self, last: int, others: Sequence[int]) -> None:
        if not self._replays and self._attempts.count:
            raise LookupError("torch began a capture, but no replay called torch's own method")
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
        """Make step `index` twice with replays and once without, always from the same state. Record which outputs
        agree.

        In this state, gradients and buffers are those of step `last`. A step without replays would read them.
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
                    raise LookupError("a step after the last one returns no loss, and changes no parameter")
                outside = sorted(name for name in known if without.get(name) == first[name])
                # Without another batch, equal parameters prove nothing: other gradients may round to the same update.
                if not is_other:
                    trained = known - {LOSS_OUTPUT}
                    self.found["alike"] = len(trained) if trained <= {*outside} else 0
                    outside = [name for name in outside if name == LOSS_OUTPUT]
                anew = {name for name in first if without.get(name) not in [each.get(name) for each in stale]}
                self.found |= {"outside": len(outside), "named": outside[:NAMED], "unsure": len(anew - repeated)}

    def _other(self, others: Sequence[int]) -> tuple[int, _Outputs]:
        """Find a step with the last step's replays, if possible on another batch. Return its index and its outputs."""
        batch, known = self._batch(), None
        for index in others:
            outputs = self._step(index)
            if [*map(id, self._attempts.replayed or ())] == [*map(id, self._replays)]:
                known = index, outputs
                if self._batch() != batch:
                    break
        if known is None:
            raise LookupError("no other step has the same replays as the last step")
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
            # A learning-rate schedule may refuse a step after the last one. The parameters are already updated when it
            # does.
            loss = {}
        if not all(bool(local(each).isfinite().all()) for each in loss.values()):
            # NaN stays NaN on every batch and with or without replays, so equal outputs would prove nothing.
            raise ArithmeticError("a step after the last one returns a loss that is not finite")
        self._attempts.left_out = False
        self.heartbeat()
        return self._parameters() | digests(loss)

    def _alone(self) -> _Outputs:
        """Make the last step's replays without the step, in several rounds, and return the parameters after them.

        The rounds end when a later round changes the parameters of the first. The first round alone proves nothing,
        because a replay that only copies the step's result copies the same result again.
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
    """After the block, restore the gradients from copies that are kept in the host's memory."""
    kept = [(each, each.grad) for each in parameters.values() if each.is_leaf and each.grad is not None]
    values = [local(gradient).detach().to("cpu", copy=True) for _, gradient in kept]
    yield
    with torch.no_grad():
        for (parameter, gradient), value in zip(kept, values, strict=True):
            parameter.grad = gradient
            local(gradient).copy_(value)
