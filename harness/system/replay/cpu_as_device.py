"""Treat a CPU as a device: find the tensors that would be on a device, and the reads that would wait for the device.

The step is executed on real tensors, and its reads on the host are recorded.
"""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any, Self

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer
from torch.optim.optimizer import _get_capturable_supported_devices, register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from harness.system.replay.launches import as_written, standing_in
from harness.system.replay.observer import Interceptor, Observer, leaves_the_step
from harness.system.replay.sites import Place, of_current_stack

LIFT = torch.ops.aten.lift_fresh.default


class HostMade:
    """The host's memory: tensors that a watched step created only from numbers in its code, and left on the host.

    All other memory counts as the device's memory: batches, parameters, state, and everything computed from these.
    recorded: True if the step is recorded for replays. Step counters then also count as the device's memory, because
    replays must repeat their changes.
    """

    def __init__(self, *, recorded: bool = False) -> None:
        self.recorded = recorded
        # address of the host's memory -> a reference to the memory, so that the address is not used again
        self._known: dict[int, StorageWeakRef] = {}

    def has(self, tensor: Tensor) -> bool:
        return bool(self._known) and torch._C._has_storage(tensor) and _reference(tensor).cdata in self._known

    def add(self, tensor: Tensor) -> None:
        if torch._C._has_storage(tensor):
            reference = _reference(tensor)
            self._known[reference.cdata] = reference

    def remove(self, tensor: Tensor) -> None:
        if torch._C._has_storage(tensor):
            self._known.pop(_reference(tensor).cdata, None)

    def alone(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return True if the operator computes a tensor on the host, and reads only the host's memory."""
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "cpu":
            return False
        return func is LIFT or all(map(self.has, tensors_in([*args, *kwargs.values()])))

    def note(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], returned: Any) -> None:
        """Update the set of the host's memory after an operator was called. If `alone` is True for the operator, add
        the tensors that the operator returned. Otherwise remove the tensors that it changed."""
        if self.alone(func, args, kwargs):
            for tensor in tensors_in(returned):
                self.add(tensor)
        elif self._known and func._schema.is_mutable:
            for place, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for tensor in tensors_in(args[place] if place < len(args) else kwargs.get(argument.name)):
                        self.remove(tensor)


def _reference(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in an operator's arguments, including those in lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)


MOVES = {Tensor.to, Tensor.cuda, Tensor.type_as}


def names_a_device(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    frame: FrameType,
    is_on_device: Callable[[Tensor], bool | None],
) -> bool | None:
    """Return True if a call places its result on the device, False if the call places its result on the host, and None
    if the call names no device.

    frame: the caller's frame.
    is_on_device: returns True for a tensor on the device; used if the call names a tensor instead of a device.
    """
    if func is Tensor.cuda:
        return True
    named = kwargs.get("device", args[0] if func is Tensor.new_tensor else None)
    if func in MOVES:
        given = (*args[1:], kwargs.get("other"))
        places = (each for each in given if isinstance(each, str | torch.device | Tensor) or type(each) is int)
        named = next(places, named)
    if isinstance(named, Tensor):
        return is_on_device(named)
    return None if named is None else not _means_the_host(named, frame)


def caller() -> FrameType:
    """Return the frame of the code that called a torch function. Skip frames of function modes, which only pass the
    call on."""
    frame = sys._getframe(2)
    while (back := frame.f_back) is not None and "__torch_function__" in _names(frame, back):
        frame = back
    return frame


def _names(frame: FrameType, back: FrameType) -> tuple[str, str]:
    """Return the name of the frame's function, and a second name. If the function is an interceptor's `execute`, the
    second name is that of the function that called `execute`. Otherwise the second name is ""."""
    name = frame.f_code.co_name
    return name, back.f_code.co_name if name == "execute" else ""


def is_of_an_optimizer(frame: FrameType) -> bool:
    """Return True for a frame of torch's own optimizers. In a captured step, the state of these optimizers is on the
    device."""
    return str(frame.f_globals.get("__name__", "")).startswith("torch.optim")


def _means_the_host(device: object, frame: FrameType) -> bool:
    """Return True if the call in `frame` names the device by the literal "cpu". A variable that has the value "cpu"
    here would have the value "cuda" on a machine with a GPU."""
    if str(device) != "cpu":
        return False
    if is_of_an_optimizer(frame):
        return isinstance(device, str)
    first, last, *_ = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    numbers = range(first or frame.f_lineno, (last or frame.f_lineno) + 1)
    call = "".join(linecache.getline(frame.f_code.co_filename, number) for number in numbers)
    return ('"cpu"' in call or "'cpu'" in call) and "cuda" not in call


# Execute a step on a CPU as if on a device. A read counts as a wait only if the host would wait at the same read on a
# device.
#
# A dispatch mode that watches the step may have two attributes. `host` (a `HostMade`) stores which memory is the host's
# memory. `read` is called when the host reads a tensor without an operator, and returns the tensor to read.

# name of torch's function that lists the devices for which optimizers accept `capturable=True`
_DEVICES = "_get_capturable_supported_devices"
_OPTIMIZERS = [
    each for name, each in sys.modules.items() if name.startswith("torch.optim.") and hasattr(each, _DEVICES)
]
_update_parameters = AveragedModel.update_parameters
READS = {Tensor.numpy, Tensor.tolist, Tensor.cpu, Tensor.__array__, Tensor.__format__, Tensor.__repr__}


class OnADevice(Interceptor):
    """Within the `with` block, shows to dispatch modes on a CPU the calls that they would see on a device.

    On a device, `one_hot` with a given number of classes reads no value. On a CPU, torch's `one_hot` reads the smallest
    and the largest class to check them; this read is avoided. A function that reads the CPU's memory without calling an
    operator is reported as a read. Memory that is moved to a device counts as the device's memory. Counters of torch's
    optimizers and averages count as the host's memory.
    """

    def execute(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.nn.functional.one_hot:
            return _one_hot(*args, **kwargs)
        if func in READS:
            return _read(func, *args, **kwargs)
        hosts = _hosts()
        named = names_a_device(func, args, kwargs, caller(), partial(_is_on_device, hosts)) if hosts else None
        if named is False and func in MOVES:
            return _read(func, *args, **kwargs)
        returned = func(*args, **kwargs)
        return _on_device(hosts, returned, tensors_in([*args, *kwargs.values()])) if named else returned

    def __enter__(self) -> Self:
        self._counted = ExitStack()
        self._counted.callback(register_optimizer_step_pre_hook(_know_counters).remove)
        self._counted.enter_context(standing_in([AveragedModel], "update_parameters", _update_average))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._counted.close()


@contextmanager
def as_on_a_device() -> Iterator[None]:
    """Execute the `with` block so that a dispatch mode on a CPU sees the calls that it would see on a device.

    In the `with` block, torch's optimizers accept `capturable=True` on a CPU. Nothing else changes if the `with` block
    is inside another such `with` block, or if no active dispatch mode distinguishes host and device. In these two cases
    no function mode is used. A function mode would be called at every operation and every read of a tensor's attribute,
    and would make torch.compile compile again.
    """
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    on_a_device = any(isinstance(mode, OnADevice) for mode in modes)
    with standing_in(_OPTIMIZERS, _DEVICES, _devices_and_cpu):
        if on_a_device or all(map(leaves_the_step, _get_current_dispatch_mode_stack())):
            yield
            return
        with as_written(), OnADevice():
            yield


def _devices_and_cpu(supports_xla: bool = True) -> list[str]:
    """Return the devices for which torch allows `capturable=True`, plus the CPU."""
    return [*_get_capturable_supported_devices(supports_xla), "cpu"]


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:  # torch then reads the largest class from the tensor; on a GPU, this read waits, too
        return torch.nn.functional.one_hot(tensor, num_classes)
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).long()


def _read(func: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    hosts = _hosts()
    if not hosts or not _is_on_device(hosts, tensor):
        return func(tensor, *args, **kwargs)
    for mode in reversed(_get_current_dispatch_mode_stack()):
        if hasattr(mode, "read"):
            tensor = mode.read(tensor, f"Tensor.{func.__name__}")
    tensor = tensor.clone()  # a read from a device gives a copy, so a read on the CPU must give one, too
    for host in hosts:
        host.add(tensor)
    return func(tensor, *args, **kwargs)


def _is_on_device(hosts: Sequence[HostMade], tensor: Tensor) -> bool:
    return not hosts or not hosts[-1].has(tensor)  # the last mode decides, because only this mode sees every call


def _on_device(hosts: Sequence[HostMade], returned: Any, given: Iterable[Tensor]) -> Any:
    """Mark a result as the device's memory, and return it. If the result is one of the `given` tensors, return a copy,
    because the given tensor stays in the host's memory."""
    if not isinstance(returned, Tensor) or _is_on_device(hosts, returned):
        return returned
    returned = returned.clone() if any(returned is each for each in given) else returned
    for host in hosts:
        host.remove(returned)
    return returned


def _update_average(average: AveragedModel, *given: Any, **named: Any) -> None:
    """Update an `AveragedModel`. Its count of updates is on the host, unless user code moved it."""
    _know([average.n_averaged])
    _update_parameters(average, *given, **named)


def _know_counters(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
    """Mark an optimizer's 0-d state, such as step counters, as the host's memory, unless the update is fused or
    capturable."""
    for group in optimizer.param_groups:
        if group.get("capturable") or group.get("fused"):
            continue
        for parameter in group["params"]:
            kept = optimizer.state.get(parameter, {}).values()
            _know(value for value in kept if isinstance(value, Tensor) and value.dim() == 0)


def _know(counts: Iterable[Tensor]) -> None:
    """Mark tensors as the host's memory. In a recording, do nothing, because replays must repeat changes of these
    tensors."""
    hosts = [each for each in _hosts() if not each.recorded]
    for count in counts:
        for host in hosts:
            host.add(count)


def _hosts() -> list[HostMade]:
    hosts = [getattr(mode, "host", None) for mode in _get_current_dispatch_mode_stack()]
    return [host for host in hosts if host is not None]


_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_SHOWN = 8


class Waits(Observer):
    """Counts, for each line of code, the operations in the `with` block that read values of tensors on `device`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device, self.host = device, HostMade()
        self.seen: Counter[Place] = Counter()

    def read(self, tensor: Tensor, _called: str) -> Tensor:
        """Count a read of the device's memory that happens without an operator."""
        if not self.host.has(tensor):
            self.seen[of_current_stack()] += 1
        return tensor

    def execute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _READS.isdisjoint(func.tags) and any(
            isinstance(value, Tensor) and value.device.type == self._device.type and not self.host.has(value)
            for value in args
        ):
            self.seen[of_current_stack()] += 1
        returned = func(*args, **kwargs)
        if self._device.type == "cpu":
            self.host.note(func, args, kwargs, returned)
        return returned

    def sentence(self) -> str:
        """Return `; its steps read values on the host at FILE:LINE (N times), …`, or "" if no read was seen."""
        if not self.seen:
            return ""
        places = [f"{place.file}:{place.line} ({count} times)" for place, count in self.seen.most_common()]
        more = f", and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        return f"; its steps read values on the host at {', '.join(places[:_SHOWN])}{more}"
