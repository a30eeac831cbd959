"""Look inside a user-defined operator: a dispatch mode sees the operator, and none of the operators that it calls.

A kernel that is written in Python, or that calls torch, dispatches again; one in C++ that reads memory itself shows
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from harness.system.replay.cpu_as_device import READS, tensors_in
from harness.system.replay.observer import Observer, leaves_the_step

# what their operators wait for is known by name and tag
_OF_TORCH = {"aten", "prims", "c10d", "_c10d_functional", "quantized", "mkldnn", "inductor"}
_UNTAGGED = {torch.ops.aten.is_nonzero.default, torch.ops.aten.multinomial.default}
_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def executed(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return the operator's result, and the inner operators that needed values on the host, one entry per call."""
    if is_of_torch(func):
        return func(*args, **kwargs), []
    given = list(tensors_in([*args, *kwargs.values()]))
    plain = bool(given) and all(_is_plain(tensor) for tensor in given)
    # another mode, which wants to be given the operator, too
    others = not all(map(leaves_the_step, _get_current_dispatch_mode_stack()))
    if not plain or others:
        return func(*args, **kwargs), []
    with _Inside() as inside, _Read(inside.needed):
        # below the mode that is looked from: it would be given the operator itself again
        returned = func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
    return returned, inside.needed


@cache
def is_of_torch(func: OpOverload) -> bool:
    """Return True for an operator of torch. Asked at each operation, so the answer is cached by operator."""
    return func.namespace in _OF_TORCH


def _is_plain(tensor: Tensor) -> bool:
    """Return True if the tensor is in the CPU's memory: a GPU has its own detectors."""
    ordinary = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return ordinary and tensor.device.type == "cpu"


class _Inside(Observer):
    def __init__(self) -> None:
        super().__init__()
        self.needed: list[str] = []

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if _VALUES & {*func.tags} or func in _UNTAGGED:
            self.needed.append(func._schema.name.replace("::", "."))
        return func(*args, **(kwargs or {}))


class _Read(TorchFunctionMode):
    """What reads memory of the CPU without an operator, and copies from a device."""

    def __init__(self, needed: list[str]) -> None:
        super().__init__()
        self._needed = needed

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in READS or (func is Tensor.to and any(map(_is_host, (*args[1:], *kwargs.values())))):
            self._needed.append(f"Tensor.{func.__name__}")
        return func(*args, **kwargs)


def _is_host(value: object) -> bool:
    """Return True for a name or device of the CPU. Looks at nothing else: to print a tensor would read it."""
    return isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cpu"
