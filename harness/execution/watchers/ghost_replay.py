"""Look whether replays compute what a captured step gives: make them without a step, and leave them out of a step.

The look begins when an arm has ended and all else is recorded, so it touches nothing that is judged. Each execution
starts from the trainable parameters and the optimizer's state at the arm's end, which are put back:

1. the replays of the last step alone, on the batch that it left;
2. `other`, a step that makes the same replays on another batch, and its replays alone;
3. `other` again, and the last step with its replays left out. Where all is captured, the parameters stay, and the loss
   is that of `other`, which the replays left in their buffers.

Where a step gives something else without its replays, as with an optimizer outside the graph, `other` is made twice as
it is, then without its replays, from one and the same state, in which buffers and gradients are those of another batch.
An output that repeats and that comes out alike without the replays was never computed by them. One that does not repeat
comes from them if without them it is that of the other batch. Where all steps have one batch, buffers and gradients are
those of a later state: a loss that is alike is none of the replays', and parameters may be alike by rounding.
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

NAMED = 20  # outputs, at most
AGAIN = 5  # replays alone, at most: a step that sums up gradients changes parameters in some of them
_Outputs = Mapping[str, str]  # digests of the trainable parameters, by name, and of the loss if the step returned one


def ghost_replay(
    training: AnnouncedSteps,
    attempts: CaptureAttempts,
    last: int,
    others: Sequence[int],
    heartbeat: Callable[[], object] = lambda: None,
    silence: float = inf,
) -> GhostReplay:
    """Return what the replays of step `last` compute, or what ended the look.

    others: steps that made the same replays, in the order in which one with another batch is looked for.
    heartbeat: called after each step and each round of replays. silence: seconds between two of these that end the
    look, as a step may wait for a batch that nothing sends any more.
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
    except BaseException as error:  # a system may refuse a step beyond its last, and end its process there
        look.found["failure"] = message_of(error)
    finally:
        attempts.left_out, attempts.replayed = False, None
    return GhostReplay(**look.found)


class SilentError(BaseException):
    """A step of the look takes too long; not an `Exception`, which the step could handle."""


@contextmanager
def _heard(heartbeat: Callable[[], object], silence: float) -> Iterator[Callable[[], object]]:
    """Yield `heartbeat`, and raise SilentError in the block once it was not called for `silence` seconds.

    Nothing is raised outside of the main thread, nor where the step has a use of its own for the alarm.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if silence == inf or not is_main or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield heartbeat
        return

    def ended(*_: object) -> None:
        raise SilentError(f"nothing was heard of a step for {silence:g} s")

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
    """The look at one arm. `found` are the fields of its record."""

    guard: StateGuard
    heartbeat: Callable[[], object]

    def __init__(self, training: AnnouncedSteps, attempts: CaptureAttempts) -> None:
        self._training, self._attempts = training, attempts
        self._replays = [*(attempts.replayed or ())]  # of the last step
        self.found: dict[str, Any] = {"replays": len(self._replays)}

    def kept(self, *categories: str) -> dict[str, Tensor]:
        """Return the tensors of these categories of state, or what a replay trains; its input buffers are neither."""
        state = watched_state(self._training)
        return {
            f"{category} {name}": tensor
            for category in categories or ("parameters", "optimizer")
            for name, tensor in state[category].items()
        }

    def look(self, last: int, others: Sequence[int]) -> None:
        if not self._replays and self._attempts.count:
            raise LookupError("torch began a capture, and no replay went through torch's own method")
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
        """Make a step as it is, once more and without its replays, from one state, and keep which outputs are alike.

        That state has what a step `last` left in gradients and buffers, which a step without replays finds there.
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
                    raise LookupError("a step beyond the last one gives no loss, and changes no parameter")
                outside = sorted(name for name in known if without.get(name) == first[name])
                if not is_other:  # the update may round other gradients to the same one
                    trained = known - {LOSS_OUTPUT}
                    self.found["alike"] = len(trained) if trained <= {*outside} else 0
                    outside = [name for name in outside if name == LOSS_OUTPUT]
                anew = {name for name in first if without.get(name) not in [each.get(name) for each in stale]}
                self.found |= {"outside": len(outside), "named": outside[:NAMED], "unsure": len(anew - repeated)}

    def _other(self, others: Sequence[int]) -> tuple[int, _Outputs]:
        """Make steps until one makes the last step's replays, on another batch if there is one; and what it gives."""
        batch, known = self._batch(), None
        for index in others:
            outputs = self._step(index)
            if [*map(id, self._attempts.replayed or ())] == [*map(id, self._replays)]:
                known = index, outputs
                if self._batch() != batch:
                    break
        if known is None:
            raise LookupError("no other step makes the replays of the last one")
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
            loss = {}  # a schedule refuses a step beyond its last, once the parameters are updated
        self._attempts.left_out = False
        self.heartbeat()
        return self._parameters() | digests(loss)

    def _alone(self) -> _Outputs:
        """Make the replays of the step that was made last, without the step, until more than the first ones change
        parameters: what only copies the result of a step copies it again.
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
    """Put the gradients back as they were before the block; their copies are in the host's memory."""
    kept = [(each, each.grad) for each in parameters.values() if each.is_leaf and each.grad is not None]
    values = [local(gradient).detach().to("cpu", copy=True) for _, gradient in kept]
    yield
    with torch.no_grad():
        for (parameter, gradient), value in zip(kept, values, strict=True):
            parameter.grad = gradient
            local(gradient).copy_(value)
