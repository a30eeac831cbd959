"""Run a training loop that keeps control (`trainer.train()`, `trainer.fit()`) one step at a time, from outside.

The loop runs as its library wrote it, in its own thread. It stands still where a batch meets the model until the next
step is asked for. Of the two threads only one ever runs.
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

Batch = Any  # as the loader makes it: what `batch_structure` knows
Named = Mapping[str, "Tensor"]


class LoopEndedError(HarnessError):
    """A training loop ended by itself, before the step that was asked for."""


class _Stop(BaseException):
    """Unwinds a loop that nothing needs any more; no `Exception`, which libraries catch."""


class _Arrived(NamedTuple):
    """The loop stands still: after a step with its loss, or before the first one; ended: it gives no more.

    batch: its own, at which it stands.
    """

    loss: Tensor | None = None
    batch: Batch = None
    ended: bool = False
    error: BaseException | None = None


class OwnedLoop:
    """`train` executed in a thread; it calls `take` with each batch of its own and `report` with the loss.

    batch: what the loop has loaded itself for the next step.
    steps: turns so far.
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
        """Let the loop prepare itself, until it has its first batch. Raises what the loop raises."""
        self._thread.start()
        self._wait()

    def step(self, batch: Named) -> Tensor:
        """Run the loop on these tensors up to where the next batch meets the model, and return the 0-d loss.

        Raises what the loop raises, and `LoopEndedError`. What watches the operations of the calling thread watches
        those of the turn.
        """
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        if self._ended:
            raise LoopEndedError(
                "a training loop must go on as long as steps are asked for",
                where=self._name,
                got=f"an end after {self.steps} steps",
                remedy="let it train for more steps than the workload has: timings and observations add some",
            )
        self._given.put((batch, _get_current_dispatch_mode_stack()))
        loss = self._wait()
        self.steps += 1
        if loss is None:
            raise LoopEndedError("a training step must have a loss", where=self._name, got="none for this batch")
        return loss

    def close(self) -> None:
        """End the loop where it stands; do nothing if it has ended."""
        if self._thread.is_alive() and not self._ended:
            self._given.put(None)
        self._ended = True
        if self._thread.ident is not None:
            self._thread.join()

    def take(self, own: Batch) -> Named:
        """End the step before, and return the next tensors when they come. The loop passes the batch it loaded."""
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
        """Note the loss of the batch that the loop took. The loop calls this."""
        self._loss = loss.detach().clone()

    def _execute(self) -> None:
        try:
            self._train()
        except _Stop:
            return
        except BaseException as error:  # a library may raise anything; it is raised in the thread that waits
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
    """Training by an owned loop, never captured. With `capture` asked for, the record says what stands in its way."""

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
            failure = f"{self._owner} keeps control of its loop, so that no step of it can be captured from outside"
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
