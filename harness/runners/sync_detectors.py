"""Detectors of host syncs: each executes something and answers where the host waited for the device, and how often.

Dispatch mode and fake pass read the operators that need a value on the host; profiler and sync-debug mode see
the waiting itself. Neither pair shares a mechanism, so that one can check the other.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

from harness.runners.profiling import profiler
from harness.system.replay.frames import Place, innermost, of_current_stack, of_traceback

Execute = Callable[[], object]


class Sync(NamedTuple):
    """One place that waits, and by what."""

    place: Place
    operation: str


Syncs = Counter[Sync]

# Operators that need values of a device tensor on the host: a scalar, or an output shape.
_VALUE_OPERATORS = {
    "_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
    "equal", "bincount", "multinomial",
}  # fmt: skip
_PROFILED_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
_PAGEABLE_COPY = "Memcpy DtoH (Device -> Pageable)"
_WINDOW = "harness.observed_steps"
_FRAME = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): ")


def needs_value(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], device: str) -> bool:
    """Whether this call makes the host wait for a tensor on `device` ("cuda", or "cpu" as its stand-in)."""
    name = func._schema.name.removeprefix("aten::")
    tensors = [argument for argument in args if isinstance(argument, Tensor)]
    on_device = any(tensor.device.type == device for tensor in tensors)
    if name in _VALUE_OPERATORS:
        return on_device
    if name == "repeat_interleave":
        return on_device and func._overloadname == "Tensor" and kwargs.get("output_size") is None
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
        filled = name != "index" and args[2].numel() == 1  # a mask with one value becomes masked_fill
        return on_device and bool(masks) and not filled
    if name in ("copy_", "_to_copy"):
        return device == "cuda" and _is_blocking_copy(name, args, kwargs)
    return False


def _is_blocking_copy(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """A copy between host and device, in either direction, that is not asked to be asynchronous."""
    source = args[1] if name == "copy_" else args[0]
    target = args[0].device if name == "copy_" else torch.device(kwargs.get("device") or source.device)
    asynchronous = kwargs.get("non_blocking", args[2] if name == "copy_" and len(args) > 2 else False)
    return {source.device.type, target.type} == {"cpu", "cuda"} and not asynchronous


class DispatchWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the ATen operations that reach the dispatcher, and those among them that make the host wait."""

    def __init__(self, device: str, *, stand_in: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device, self._stand_in = device, stand_in
        self.operations = 0
        self.seen: Syncs = Counter()

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.operations += 1
        if needs_value(func, args, kwargs, self._device):
            operation = func._schema.name.replace("::", ".")
            self.seen[Sync(of_current_stack(), operation)] += 1
            if self._stand_in:
                return _stand_in(func, args, kwargs)
        return func(*args, **kwargs)


def _stand_in(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A plausible answer for a value that fake tensors do not have: one, true, and masks that select everything."""
    name = func._schema.name.removeprefix("aten::")
    if name == "_local_scalar_dense":
        return 1.0 if args[0].is_floating_point() else args[0].dtype == torch.bool or 1
    if name == "equal":
        return True
    if name == "nonzero":
        return _everything(args[0])
    if name == "masked_select":
        return args[0].new_empty(args[1].numel())
    if name == "index":
        indices: list[Tensor | None] = []
        for index in args[1]:
            is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
            indices += list(_everything(index).unbind(1)) if is_mask else [index]
        return func(args[0], indices)
    return func(*args, **kwargs)  # no stand-in known: the pass ends here


def _everything(mask: Tensor) -> Tensor:
    return torch.zeros(mask.numel(), mask.dim(), dtype=torch.int64, device=mask.device)


def by_dispatch_mode(execute: Execute, device: str) -> Syncs:
    """Really execute under a dispatch mode. Sees backward functions too; not other libraries, nor replays.

    On a CPU `.tolist()` and `.numpy()` read memory without an operator; the fake pass sees them there.
    """
    with DispatchWatch(device) as mode:
        execute()
    return Syncs(mode.seen)


def by_fake_pass(execute: Execute, device: str) -> Syncs:
    """Execute on fake tensors, counting each wanted value and giving a stand-in for it.

    Where no stand-in is known (an output whose shape depends on values) the pass ends at the last counted sync.
    The caller undoes what fake tensors were left behind.
    """
    with FakeTensorMode(allow_non_fake_inputs=True), DispatchWatch(device, stand_in=True) as mode:
        try:
            execute()
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            if not mode.seen:
                mode.seen[Sync(of_traceback(error.__traceback__), str(error.func))] += 1
    return Syncs(mode.seen)


def by_profiler(execute: Execute) -> Syncs:
    """Execute under the profiler and count waiting CUDA calls, and copies to pageable memory, which wait as well."""
    torch.cuda.synchronize()
    with profiler(stacks=True) as profile:
        with torch.profiler.record_function(_WINDOW):
            execute()
        torch.cuda.synchronize()
    return syncs_of_profile(list(profile.events() or []), _PROFILED_WAITS)


def syncs_of_profile(events: Sequence[Any], waits: Sequence[str]) -> Syncs:
    """Count the calls named in `waits` within the observed window, by the user's line that made them."""
    windows = [event.time_range for event in events if event.name == _WINDOW and str(event.device_type).endswith("CPU")]
    inside = [
        event for event in events if any(window.start <= event.time_range.start <= window.end for window in windows)
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
    """From the Python stack (innermost first) of the operator that made a runtime call.

    Runtime calls may carry another thread's number than their operator, and then have no parent: the shortest
    operator around the call in time is taken.
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
    """Execute with torch's own warnings of synchronizing calls; blind to `torch.cuda.synchronize()` and events."""
    with sync_warnings() as seen:
        execute()
    return seen


@contextmanager
def sync_warnings() -> Iterator[Syncs]:
    """Within the block, count torch's warnings of synchronizing calls by the user's line."""
    seen: Syncs = Counter()

    def note(message: Warning | str, *_args: object, **_kwargs: object) -> None:
        if "synchronizing CUDA operation" in str(message):
            seen[Sync(of_current_stack(), "synchronizing CUDA operation")] += 1

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield seen
        finally:
            torch.cuda.set_sync_debug_mode(before)


# what torch's Python calls go through, wherever a user imported them from
_WAITING_CALLS: tuple[tuple[Any, str], ...] = (
    (torch._C, "_cuda_synchronize"),
    (torch.cuda.Stream, "synchronize"),
    (torch.cuda.Event, "synchronize"),
)


@contextmanager
def waiting_calls() -> Iterator[Syncs]:
    """Within the block, count explicit waits for a device, a stream or an event: torch warns of none of them."""
    seen: Syncs = Counter()

    def counted(call: Callable[..., object], operation: str) -> Callable[..., object]:
        def wait(*arguments: object, **keywords: object) -> object:
            seen[Sync(of_current_stack(), operation)] += 1
            return call(*arguments, **keywords)

        return wait

    replaced = [(owner, name, getattr(owner, name)) for owner, name in _WAITING_CALLS if hasattr(owner, name)]
    for owner, name, call in replaced:
        setattr(owner, name, counted(call, f"{owner.__name__}.{name}"))
    try:
        yield seen
    finally:
        for owner, name, call in replaced:
            setattr(owner, name, call)
