"""Run a training loop of a library (`trainer.train()`, `trainer.fit()`) one step at a time.

The loop runs unchanged, in its own thread. Whenever the loop has loaded a batch, it pauses until the harness requests
the next step. Only one of the two threads, the loop's or the harness's, runs at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from harness.errors import HarnessError
from harness.system.batches import require_batch, tensors_alone
from harness.system.protocol import CaptureRecord, Scalar

if TYPE_CHECKING:
    from torch import Tensor

Batch = Any  # what the loader yields, in a structure that the module `batches` can split
Named = Mapping[str, "Tensor"]


class LoopEndedError(HarnessError):
    """A training loop ended before it made the requested step."""


class _Stop(BaseException):
    """Raised in the loop's thread to end a loop that is no longer needed. This class is not an `Exception`, because a
    library would catch an `Exception`."""


class _Arrived(NamedTuple):
    """The report of the loop's thread when the loop pauses or has ended. The loop pauses before its first step, and
    after each step.

    batch: the batch that the loop has loaded for its next step.
    """

    loss: Tensor | None = None
    batch: Batch = None
    ended: bool = False
    error: BaseException | None = None


class OwnedLoop:
    """Executes `train` in a thread. `train` must call `take` with each batch that it loads, and `report` with each
    loss.

    batch: the batch that the loop has loaded for the next step.
    steps: how many steps were executed.
    """

    batch: Batch = None
    steps = 0

    def __init__(self, train: Callable[[], object], name: str) -> None:
        self._train, self._name = train, name
        self._given: SimpleQueue[tuple[Named, list[Any]] | None] = SimpleQueue()
        self._arrived: SimpleQueue[_Arrived] = SimpleQueue()
        self._loss: Tensor | None = None
        self._watching = ExitStack()
        self._ended = False
        self._thread = threading.Thread(target=self._execute, name=name, daemon=True)

    def start(self) -> None:
        """Start the loop, and wait until the loop has its first batch. Raise any exception of the loop."""
        self._thread.start()
        self._wait()

    def step(self, batch: Named) -> Tensor:
        """Let the loop train on these tensors until the loop has loaded its next batch, and return the 0-d loss.

        Raise `LoopEndedError`, or any exception of the loop. The dispatch modes of the calling thread are also active
        in the loop's thread during the step.
        """
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        if self._ended:
            raise LoopEndedError(
                "a training loop must continue for as long as steps are requested",
                where=self._name,
                got=f"a loop that ended after {self.steps} steps",
                remedy="let the loop train for more steps than the workload has, because the harness executes further "
                "steps, for example for timings",
            )
        self._given.put((batch, _get_current_dispatch_mode_stack()))
        loss = self._wait()
        self.steps += 1
        if loss is None:
            raise LoopEndedError("a training step must return a loss", where=self._name, got="no loss for this batch")
        return loss

    def close(self) -> None:
        """End the loop while it pauses; do nothing if the loop has ended."""
        if self._thread.is_alive() and not self._ended:
            self._given.put(None)
        self._ended = True
        if self._thread.ident is not None:
            self._thread.join()

    def take(self, own: Batch) -> Named:
        """Report that the previous step has ended, and wait for the next step. Return the tensors to train on.

        own: the batch that the loop has loaded. The loop must train on the returned tensors instead.
        """
        self._watching.close()
        self._arrived.put(_Arrived(self._loss, tensors_alone(own)))
        self._loss = None
        given = self._given.get()
        if given is None:
            raise _Stop
        batch, watches = given
        for watch in watches:
            self._watching.enter_context(watch)
        from harness.system.replay.cpu_as_device import as_on_a_device

        if all(tensor.device.type == "cpu" for tensor in batch.values()):
            self._watching.enter_context(as_on_a_device())
        return batch

    def report(self, loss: Tensor) -> None:
        """Record the loss of the last batch. The loop calls this function."""
        self._loss = loss.detach().clone()

    def _execute(self) -> None:
        try:
            self._train()
        except _Stop:
            return
        except BaseException as error:
            # The code of a library may raise any exception. `_wait` raises this exception again in the thread of the
            # harness.
            self._watching.close()
            self._arrived.put(_Arrived(ended=True, error=error))
            return
        self._watching.close()
        self._arrived.put(_Arrived(self._loss, ended=True))

    def _wait(self) -> Tensor | None:
        arrived = self._arrived.get()
        self._ended, self.batch = arrived.ended, arrived.batch
        if arrived.error is not None:
            raise arrived.error
        return arrived.loss


class OwnedLoopRun:
    """A run whose steps an `OwnedLoop` executes. The steps are never captured. If the arm requests a capture, the
    record of the capture says why nothing is captured."""

    def __init__(
        self,
        loop: OwnedLoop,
        batch: Callable[[int], Batch],
        parameters: Mapping[str, Tensor],
        state: Callable[[], Mapping[str, Mapping[str, Tensor]]],
        *,
        owner: str,
        capture: str,
    ) -> None:
        self._loop, self._batch, self._parameters, self._state = loop, batch, parameters, state
        self._owner = owner
        self._device = next(iter(parameters.values())).device
        self._inputs: dict[str, Tensor] = {}
        self._waits: Any = None
        if capture != "none":
            from harness.system.replay.cpu_as_device import Waits

            self._waits = Waits(self._device)

    def step(self, index: int) -> Tensor:
        own = self._loop.batch if index == self._loop.steps else None
        batch = require_batch(self._batch(index) if own is None else own, index, self._batch)
        given = {name: tensor.to(self._device) for name, tensor in batch.items()}
        self._inputs = {name: tensor.clone() for name, tensor in given.items()}
        with self._waits or nullcontext():
            return self._loop.step(given)

    def facts(self) -> Mapping[str, Scalar]:
        trained = sum(parameter.numel() for parameter in self._parameters.values())
        return {"device": str(self._device), "trainable_parameters": trained}

    def inputs(self) -> Mapping[str, Tensor]:
        return self._inputs

    def parameters(self) -> Mapping[str, Tensor]:
        return self._parameters

    def frozen(self) -> Mapping[str, Tensor]:
        return {}

    def state(self) -> Mapping[str, Mapping[str, Tensor]]:
        return self._state()

    def capture_record(self) -> CaptureRecord:
        requested = self._waits is not None
        failure = None
        if requested:
            failure = f"{self._owner} keeps control of its loop, so its steps cannot be captured from outside"
            failure += self._waits.sentence()
        return CaptureRecord(
            mechanism=("cuda_graph" if self._device.type == "cuda" else "traced") if requested else None,
            requested=requested,
            captured=False,
            failure=failure,
            captures=0,
            warmup_steps=0,
            replays=0,
            uncaptured_steps=self._loop.steps,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._loop.close()
