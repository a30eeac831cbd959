"""Detect host syncs. Each detector executes a function, and returns where and how often the host waited for the device.

The dispatch mode and the fake pass (an execution on tensors without data) find operators that need a value on the host.
The profiler and the sync-debug mode find the waits of the host. The first two are independent of the last two, so a
detector of one pair can check a detector of the other pair.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from harness.devices.device import synchronize
from harness.devices.host_waits import OUTSIDE, SyncWarnings, is_after
from harness.devices.profiler import PLANTED, WAITS, planted_sync, profiler, raw_events, span
from harness.system.replay.cpu_as_device import HostMade, as_on_a_device
from harness.system.replay.fake_step import on_fake_tensors
from harness.system.replay.observer import Observer
from harness.system.replay.operations import is_repeated
from harness.system.replay.placement import executed
from harness.system.replay.sites import Place, innermost, of_current_stack, of_traceback
from harness.system.users_code import message_of

Execute = Callable[[], object]


class Sync(NamedTuple):
    """A host sync: the place in the code where the host waits, and the operation by which it waits."""

    place: Place
    operation: str


Syncs = Counter[Sync]


class FakePassError(Exception):
    """A step fails on fake tensors (tensors without data) but not on real tensors. A possible cause is an operator that
    does not support fake tensors."""


# Operators that need values of a device tensor on the host, as a scalar or for the shape of their output.
_VALUE_OPERATORS = {
    "_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
    "equal", "bincount", "multinomial",
}  # fmt: skip
# Operators that need values of a device tensor on the host only with some arguments. `needs_value` examines only the
# operators in this set and in the set above.
_VALUE_OPERATORS_AT_TIMES = {
    "repeat_interleave", "index", "index_put", "index_put_", "_index_put_impl_", "copy_", "_to_copy",
}  # fmt: skip
_PAGEABLE_COPY = "Memcpy DtoH (Device -> Pageable)"
_WINDOW = "harness.observed_steps"
_FRAME = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): ")


@cache
def never_waits(func: OpOverload) -> bool:
    """Return True if no call of the operator needs values of a device tensor on the host. The results are cached."""
    return func._schema.name.removeprefix("aten::") not in {*_VALUE_OPERATORS, *_VALUE_OPERATORS_AT_TIMES}


def needs_value(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], device: str) -> bool:
    """Return True if this call makes the host wait for a tensor on `device`. On a machine without a GPU, `device` is
    "cpu", and CPU tensors are treated as if they were on a GPU."""
    if never_waits(func):
        return False
    name = func._schema.name.removeprefix("aten::")
    tensors = [argument for argument in args if isinstance(argument, Tensor)]
    on_device = any(tensor.device.type == device for tensor in tensors)
    if name in _VALUE_OPERATORS:
        return on_device
    if name == "repeat_interleave":
        return on_device and func._overloadname == "Tensor" and kwargs.get("output_size") is None
    if name.removesuffix("_") in ("index", "index_put", "_index_put_impl"):
        return on_device and _indexing_waits(name, args, kwargs)
    return device == "cuda" and _is_blocking_copy(name, args, kwargs)


def _indexing_waits(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return True if this indexing makes the host wait, either to find the positions that a mask selects, or to copy an
    index to the device.

    If a single mask selects the positions, and a single value on the host is assigned to them, torch fills the
    positions and the host does not wait. If the value is added instead (`accumulate`), the host waits.
    """
    indices = [index for index in args[1] if index is not None]
    masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
    if name != "index" and len(masks) == len(indices) == 1 and masks[0].device == args[0].device:
        value, adds_up = args[2], args[3] if len(args) > 3 else kwargs.get("accumulate", False)
        if value.numel() == 1 and value.device.type == "cpu" and not adds_up:
            return False
    return bool(masks) or any(index.device != args[0].device for index in indices)


def _is_blocking_copy(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return True if the call copies between host and device, in either direction, without `non_blocking`."""
    source = args[1] if name == "copy_" else args[0]
    target = args[0].device if name == "copy_" else torch.device(kwargs.get("device") or source.device)
    asynchronous = kwargs.get("non_blocking", args[2] if name == "copy_" and len(args) > 2 else False)
    return {source.device.type, target.type} == {"cpu", "cuda"} and not asynchronous


class DispatchWatch(Observer):
    """Counts the ATen operations that reach torch's dispatcher, and finds the operations that make the host wait.

    replayed: number of operations while `replaying()` was true. after: number of operations after the step had
    returned. If the `with` block is entered again, the counts continue. `restart` sets them to 0. stand_in: True in a
    fake pass (on tensors without data), to replace each value that the host needs.
    """

    def __init__(self, device: str, *, stand_in: bool = False, replaying: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self._device, self._stand_in, self._replaying = device, stand_in, replaying
        self.host = HostMade() if device == "cpu" else None
        self.restart()

    def restart(self) -> None:
        self.operations = self.replayed = self.after = 0
        self.seen: Syncs = Counter()

    def execute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.operations += 1
        self.replayed += self._replaying()
        self.after += is_after()
        if is_repeated():
            return func(*args, **kwargs)
        if needs_value(func, args, kwargs, self._device) and not (self.host and self.host.alone(func, args, kwargs)):
            operation = func._schema.name.replace("::", ".")
            self.seen[Sync(of_current_stack(), operation)] += 1
            if self._stand_in:
                return _stand_in(func, args, kwargs)
        returned, needed = executed(func, args, kwargs)
        if self.host is not None:
            self.host.note(func, args, kwargs, returned)
        for inner in needed:
            self.seen[Sync(of_current_stack(), f"{func._schema.name.replace('::', '.')}, by {inner} within")] += 1
        return returned

    def read(self, tensor: Tensor, called: str) -> Tensor:
        """Count that the host reads the value of a device tensor. Return the tensor or, in a fake pass (on tensors
        without data), a tensor of ones."""
        if self.host is None or self.host.has(tensor):
            return tensor
        self.seen[Sync(of_current_stack(), called)] += 1
        return torch.ones(tensor.shape, dtype=tensor.dtype) if self._stand_in else tensor


def _stand_in(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return a plausible result for a call that needs a value of a fake tensor (without data): 1, True, or the result
    of a mask that selects everything."""
    name = func._schema.name.removeprefix("aten::")
    if name == "_local_scalar_dense":
        return 1.0 if args[0].is_floating_point() else args[0].dtype == torch.bool or 1
    known: dict[str, Callable[[], Any]] = {
        "equal": lambda: True,
        "nonzero": lambda: _everything(args[0]),
        "masked_select": lambda: args[0].new_empty(args[1].numel()),
        "multinomial": lambda: _drawn(*args, **kwargs),
    }
    if name in known:
        return known[name]()
    if name == "index":
        indices: list[Tensor | None] = []
        for index in args[1]:
            is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
            indices += list(_everything(index).unbind(1)) if is_mask else [index]
        return func(args[0], indices)
    # no plausible result is known; on fake tensors (without data) this call raises an error
    return func(*args, **kwargs)


def _everything(mask: Tensor) -> Tensor:
    return torch.zeros(mask.numel(), mask.dim(), dtype=torch.int64, device=mask.device)


def _drawn(chances: Tensor, num_samples: int, *_args: Any, **_kwargs: Any) -> Tensor:
    return chances.new_zeros((*chances.shape[:-1], num_samples), dtype=torch.int64)


def by_dispatch_mode(execute: Execute, device: str) -> Syncs:
    """Call `execute` on real tensors with a dispatch mode, and return the host syncs. The dispatch mode observes the
    backward pass, but not what libraries and replays do."""
    with DispatchWatch(device) as mode, as_on_a_device() if device == "cpu" else nullcontext():
        execute()
    return Syncs(mode.seen)


def by_fake_pass(execute: Execute, device: str) -> Syncs:
    """Call `execute` on fake tensors (without data), and return its host syncs: the places where the host needs a value
    of a tensor.

    Each such value is replaced by a plausible one. The pass ends early if no plausible value is known, as for an output
    whose shape depends on values. It also ends early if the step fails after a host sync, because a replaced value may
    cause errors. (NAdam, for example, divides by the value minus 1.) The host syncs before such an end count. Raises
    `FakePassError` if the step fails before any host sync. The caller must undo the changes that this pass makes to the
    state.
    """
    with on_fake_tensors() as fake, DispatchWatch(device, stand_in=True) as mode, as_on_a_device():
        try:
            execute()
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            if not mode.seen:
                mode.seen[Sync(of_traceback(error.__traceback__), str(error.func))] += 1
        except Exception as error:
            if not mode.seen:
                raise FakePassError(message_of(error)) from error
    if fake.refusal and not mode.seen:
        raise FakePassError(fake.refusal)
    return Syncs(mode.seen)


def counted_by_profiler(execute: Execute) -> tuple[int, bool]:
    """Call `execute` with the profiler. Return how often the host waited, and True if the profiler also saw a host sync
    that the harness planted.

    Stacks are not recorded here, because they take much time. `by_profiler` finds the lines of code that wait.
    """
    synchronize()
    with profiler() as profile:
        with span(_WINDOW):
            execute()
        synchronize()
        with span(PLANTED):
            planted_sync("cuda")
    events = raw_events(profile)
    return waits_within(_WINDOW, events, WAITS), waits_within(PLANTED, events, WAITS) >= 1


def waits_within(window: str, events: Sequence[Any], waits: Sequence[str]) -> int:
    """Return how many calls named in `waits` began within ranges named `window`, in the raw events of a profile. Copies
    to pageable memory count too. Work of the harness does not count. Both rules also hold in `syncs_of_profile`."""
    within, outside = (
        [
            (event.start_ns(), event.start_ns() + event.duration_ns())
            for event in events
            if event.name() == name and str(event.device_type()).endswith("CPU")
        ]
        for name in (window, OUTSIDE)
    )
    inside = Counter(
        event.name()
        for event in events
        if any(start <= event.start_ns() <= end for start, end in within)
        and not any(start <= event.start_ns() <= end for start, end in outside)
    )
    return max(sum(inside[name] for name in waits), inside[_PAGEABLE_COPY])


def by_profiler(execute: Execute) -> Syncs:
    """Call `execute` with the profiler, and return the host syncs: CUDA calls that wait, and copies to pageable memory,
    which wait too."""
    synchronize()
    with profiler(stacks=True) as profile:
        with span(_WINDOW):
            execute()
        synchronize()
    return syncs_of_profile(list(profile.events() or []), WAITS)


def syncs_of_profile(events: Sequence[Any], waits: Sequence[str]) -> Syncs:
    """Return the host syncs in a profile: how often each line of user code made calls named in `waits` in the observed
    steps. The work of the harness between the steps is left out."""
    within, outside = (
        [event.time_range for event in events if event.name == name and str(event.device_type).endswith("CPU")]
        for name in (_WINDOW, OUTSIDE)
    )
    inside = [
        event
        for event in events
        if any(each.start <= event.time_range.start <= each.end for each in within)
        and not any(each.start <= event.time_range.start <= each.end for each in outside)
    ]
    operators = [event for event in inside if event.stack]
    seen: Syncs = Counter(
        Sync(_place_of_event(event, operators), event.name) for event in inside if event.name in waits
    )
    copies = sum(event.name == _PAGEABLE_COPY for event in inside)
    unseen = copies - sum(seen.values())
    if unseen > 0:
        seen[Sync(Place("?", 0), _PAGEABLE_COPY)] += unseen
    return seen


def _place_of_event(event: Any, operators: Sequence[Any]) -> Place:
    """Return the line of user code that made a CUDA runtime call, from the Python stack of the operator that made the
    call.

    If the profiler recorded another thread number for the call than for its operator, the call has no parent. Then use
    the shortest of the `operators` that ran at the time of the call.
    """
    start = event.time_range.start
    around = [each for each in operators if each.time_range.start <= start <= each.time_range.end]
    around.sort(key=lambda each: each.time_range.end - each.time_range.start)
    for owner in (event, event.cpu_parent, *around):
        matches = [match for match in map(_FRAME.match, (owner.stack if owner else None) or []) if match]
        if matches:
            return innermost((match["file"], int(match["line"])) for match in reversed(matches))
    return Place("?", 0)


def by_sync_debug_mode(execute: Execute) -> Syncs:
    """Call `execute` while torch warns about calls that wait for the device, and return the host syncs in these
    warnings. Torch does not warn about `torch.cuda.synchronize()` and waits for events."""
    with SyncWarnings(sync_here) as seen:
        execute()
    return seen


def sync_here(operation: str) -> Sync:
    """Return a `Sync` for the operation `operation`, at the line of user code that is running now."""
    return Sync(of_current_stack(), operation)
