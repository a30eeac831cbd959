"""Record a whole training step as ATen operators, and replay it bit for bit, without CUDA.

The step is executed several times before the first replay, and each execution is undone before the next one. First the
step runs on fake tensors, which have no values (the fake pass). There a host sync raises an error. If the step created
state in the fake pass, or waited for the device, the step is executed on real tensors to create this state. If the step
waited, a second fake pass follows. A wait that only the first execution needs is allowed, because the warm-up of a CUDA
graph would also execute it before the capture. Last, the step is executed and recorded (`operations`). A replay runs
the recorded operators on the same tensors. A replay is not a CUDA graph. It shows errors that would break a capture,
but nothing about speed, memory or loading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from harness.errors import HarnessError
from harness.numbers import counted
from harness.system.replay.cpu_as_device import OnADevice
from harness.system.replay.fake_step import no_fake_tensors_left, on_fake_tensors
from harness.system.replay.followed_numbers import HostNumber, can_follow, follow
from harness.system.replay.generators import noted_generator_states
from harness.system.replay.launches import as_captured, as_written
from harness.system.replay.operations import Operations, record
from harness.system.replay.reachable import reach
from harness.system.replay.sites import called_at, made_to_wait, of_traceback
from harness.system.replay.snapshots import HostChanges, KeptUp, keep_up
from harness.system.replay.state import State, StateError, StateGuard, StaticAddresses
from harness.system.sharded_tensors import is_distributed
from harness.system.users_code import text_of

# Matches the error that torch raises if memory without values (device "meta") is assigned to a real tensor.
_ON_META = re.compile(r"type '?meta\b|two devices, .*\bmeta\b")
OF_THE_CAPTURE = "replaced by another tensor: each replay reads the tensor of the capture"
_ASSIGNED_MEMORY = "change tensors in place, with `copy_`, because no replay repeats an assignment to their `.data`"
Body = Callable[[], Tensor]
Result = TypeVar("Result")


_preparations = 0  # number of `preparing` blocks that are running now


@contextmanager
def preparing() -> Iterator[None]:
    """Make `is_prepared` return True within the `with` block."""
    global _preparations  # noqa: PLW0603
    _preparations += 1
    try:
        yield
    finally:
        _preparations -= 1


def is_prepared() -> bool:
    """Return True while a step runs to prepare a capture or to be recorded. The harness will undo this execution."""
    return _preparations > 0


class HostSyncError(HarnessError):
    """The step's body reads a value on the host and waits for the device, so the body cannot be captured."""

    def __init__(self, operation: str, file: str, line: int, called: str = "") -> None:
        self.operation, self.file, self.line = operation, file, line
        super().__init__(
            "a captured step must not wait for the device",
            where=f"{file}:{line}",
            got=f"host sync by {operation}{called}",
            remedy="keep the value on the device (no `.item()`, `float()` or `if` on it), or read it after the step",
        )


class NotTraceableError(HarnessError):
    """The step's body cannot be recorded, for another reason than a host sync."""


class TracedStep:
    """A step that was recorded and can be replayed.

    body: does the device work of one step, and returns the 0-d loss.
    state: returns tensors that the body changes. Those reachable from `roots` may be missing (see `StateGuard`).
    static: returns the buffers whose addresses the recording holds.
    outputs: called after the body while recording. Every replay computes the tensors that `outputs` returned, such as
    gradients and metrics. These tensors are in `self.outputs`, and in the attributes in which the step itself keeps
    them.

    Recording does not change the state, so step 0 is replayed like every other step.
    """

    def __init__(
        self,
        body: Body,
        state: State,
        outputs: State | None = None,
        *,
        static: State = dict,
        roots: Sequence[object] = (),
        under: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Prepare a recording. under: returns a context manager around the body. The operators that the context manager
        calls are recorded as well."""
        self._body, self._state, self._roots, self._under = body, state, roots, under
        self.buffers = StaticAddresses(static)
        self._read_outputs: State = outputs or dict
        self._recorded: Operations | None = None
        self._output_names: list[str] = []
        self._kept: KeptUp = []
        self._replaced: list[tuple[str, Tensor]] = []
        self.host_changes: list[str] = []
        self.host_numbers: list[HostNumber] | None = None
        self.asked_whether_captured: list[str] = []
        self.as_written: list[str] = []
        self.unseen_operators: list[str] = []
        self.outputs: Mapping[str, Tensor] = {}
        self.fake_pass_clean: bool | None = None
        self.operations, self.operators, self.draws = 0, set[str](), list[str]()
        self.replays = 0

    def record(self) -> None:
        """Run the fake pass, then record the step. If the fake pass or the recording fails, restore the state and
        raise `HostSyncError` or `NotTraceableError`."""
        with preparing():
            self._record()

    def _record(self) -> None:
        self._require_whole()
        self.fake_pass_clean = False
        try:
            if self._created_in_fake_pass():
                self._create_state()
        except HostSyncError as waits:
            try:
                self._create_state()
            except Exception as error:
                raise waits from error
            self._created_in_fake_pass()
        self.fake_pass_clean = None if self.unseen_operators else True
        try:
            recorded = self._execute_and_undo(lambda: record(self._body_and_outputs))
        except RuntimeError as error:
            place = of_traceback(error.__traceback__)
            raise NotTraceableError(
                "the harness must be able to record the step as ATen operators",
                where=f"{place.file}:{place.line}",
                got=f"{type(error).__name__}: {_first_line(error)}{called_at(error)}{made_to_wait(error)}",
                remedy="use the fused or functional form of the operation, or do it after the step: "
                "`StepFunction(…, after=…)`",
            ) from error
        self._require_waits(recorded)
        self.operations, self.operators, self.draws = len(recorded), recorded.names(), recorded.draws
        if self.operations == 0:
            raise NotTraceableError(
                "the step must execute at least one operation", got="a recording without an operation"
            )
        self._recorded = recorded
        self.host_changes += [f"{path} ({OF_THE_CAPTURE})" for path, was in self._replaced if recorded.reads(was)]
        if can_follow():
            self.host_numbers = self._execute_and_undo(self._follow_numbers) if self._changes_numbers else []
        self.buffers.remember()

    def _require_whole(self) -> None:
        """Raise `NotTraceableError` if tensors are divided among ranks, because a fake pass would leave FSDP2's buffers
        without values."""
        named = {id(tensor): (name, tensor) for name, tensor in [*self._registered(), *self._state().items()]}
        spread = [name for name, tensor in named.values() if is_distributed(tensor)]
        if spread:
            raise NotTraceableError(
                "a step can be recorded only if one rank holds each tensor whole",
                where=spread[0],
                got=f"{counted(len(spread), 'tensor')} divided among ranks (DTensor)",
                remedy="leave the step uncaptured on this machine, because a recording does not contain the gathered "
                "tensors",
            )

    def _require_waits(self, recorded: Operations) -> None:
        """Raise `NotTraceableError` if Python code, and not an operator, waits for a collective of the step. A replay
        executes no Python, so it would read an unfinished result."""
        unawaited = sorted(name for name in recorded.names() if name.startswith("c10d."))
        if unawaited:
            raise NotTraceableError(
                "a step can be recorded only if operators wait for its collectives",
                got=f"{', '.join(unawaited)}, for which Python code waits",
                remedy="call the collectives of `torch.distributed._functional_collectives`, or capture the step on "
                "GPUs",
            )

    def _registered(self) -> list[tuple[str, Tensor]]:
        modules = reach(*self._roots).modules.values()
        return [each for module in modules for each in module.named_parameters()]

    def _created_in_fake_pass(self) -> bool:
        try:
            done = fake_pass(self._body, self._state, self._roots)
        except HarnessError:
            raise
        except Exception as error:  # the step cannot run on fake tensors, or the step itself raises an error
            place = of_traceback(error.__traceback__)
            raise NotTraceableError(
                "the step must run on tensors without values",
                where=f"{place.file}:{place.line}",
                got=f"{type(error).__name__}: {_first_line(error)}{called_at(error)}",
                remedy=_ASSIGNED_MEMORY
                if _ON_META.search(text_of(error))
                else "keep values on the device, and read them after the step",
            ) from error
        self.unseen_operators = done.unseen
        return done.created_state

    def replay(self) -> Tensor:
        """Execute the recorded operators once. Return a copy of the 0-d loss."""
        if self._recorded is None:
            self.record()
        self.buffers.check()
        loss, *outputs = cast("Operations", self._recorded)()
        self.outputs = dict(zip(self._output_names, outputs, strict=True))
        keep_up(self._kept, self.outputs)
        self.replays += 1
        return torch.clone(loss)

    def _body_and_outputs(self) -> list[Tensor]:
        changes = HostChanges(self._roots, of_device=False)
        with (
            OnADevice(),
            as_written() as self.as_written,
            as_captured() as self.asked_whether_captured,
            noted_generator_states() as states_set,
            self._under(),
        ):
            loss = self._body()
        outputs = self._read_outputs()
        self._output_names = list(outputs)
        kept = changes.kept_up(outputs)
        set_anew = [f"torch's generator ({how})" for how in states_set]
        self.host_changes = [*changes.found(kept), *set_anew]
        self._changes_numbers = bool(changes.numbers(kept))
        self._kept, self._replaced = kept, changes.replaced(kept)
        return [loss.detach(), *(tensor.detach() for tensor in outputs.values())]

    def _follow_numbers(self) -> list[HostNumber]:
        with as_written(), as_captured():
            self._body()
            return follow(self._body, self._roots, of_device=False)

    def _create_state(self) -> None:
        """Create, before recording, the state that only the step's first execution creates. Raise `NotTraceableError`
        if the first values of this state are unknown."""
        try:
            self._execute_twice()
        except StateError as error:
            raise NotTraceableError(error.rule, where=error.where, got=error.got, remedy=error.remedy) from error

    def _execute_twice(self) -> None:
        """Execute the body twice. The second execution shows whether the body changes state that the first execution
        created."""
        with StateGuard(self._state, self._roots) as guard:
            with as_written():
                with guard.first_execution():
                    self._body()
                self._body()
            guard.restore(keep_created=True)

    def _execute_and_undo(self, execute: Callable[[], Result]) -> Result:
        with StateGuard(self._state, self._roots):
            return execute()


class FakePass(NamedTuple):
    """The result of a fake pass (an execution on tensors without values).

    created_state: True if an optimizer or the body created state.
    unseen: the user-defined operators that were executed on zeros (see `FakeStepMode`).
    """

    created_state: bool
    unseen: list[str]


@no_fake_tensors_left()
def fake_pass(body: Body, state: State, roots: Sequence[object] = ()) -> FakePass:
    """Run `body` on fake tensors, undo its effects, and return a `FakePass`.

    Raise `HostSyncError` with the file and line at which the body needs a real value. The function detects `.item()`,
    `.tolist()`, `bool(tensor)` and operators whose output shape depends on values. It does not detect `print(tensor)`.
    """
    with StateGuard(state, roots) as guard:
        try:
            with on_fake_tensors() as mode, OnADevice(), as_captured():
                body()
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            called = f"{called_at(error)}{made_to_wait(error)}"
            raise HostSyncError(str(error.func), *of_traceback(error.__traceback__), called) from error
        return FakePass(guard.created_state, mode.unseen)


def _first_line(error: BaseException) -> str:
    return (text_of(error).strip().splitlines() or [""])[0]
