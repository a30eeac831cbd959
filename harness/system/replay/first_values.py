"""Remember the first value of tensors that were created from constants, and write to tensors outside of a step.

Optimizers make their state in the first step and change it there, and a capture begins before that step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.weak import WeakTensorKeyDictionary

from harness.system.replay.cpu_as_device import tensors_in
from harness.system.replay.observer import Observer
from harness.system.sharded_tensors import local

_SMALL = 64  # elements; so large a tensor of other values than one number is remembered as it is
_aten = torch.ops.aten
# By what makes a tensor of one number: which number, of its arguments.
_FILLED: dict[Any, Callable[[Sequence[Any]], Any]] = {
    **dict.fromkeys((_aten.zeros, _aten.zeros_like, _aten.new_zeros), lambda _arguments: 0),
    **dict.fromkeys((_aten.ones, _aten.ones_like, _aten.new_ones), lambda _arguments: 1),
    _aten.scalar_tensor: lambda arguments: arguments[0],
    _aten.full: lambda arguments: arguments[1],
    _aten.full_like: lambda arguments: arguments[1],
    _aten.new_full: lambda arguments: arguments[2],
}
_EMPTY = {_aten.empty, _aten.empty_like, _aten.new_empty, _aten.empty_strided, _aten.new_empty_strided}
_FILLS: dict[Any, Callable[[Sequence[Any]], Any]] = {_aten.zero_: lambda _: 0, _aten.fill_: lambda given: given[1]}
_SAME = {_aten.clone, _aten.detach, _aten._to_copy, _aten.alias, _aten.view, _aten.expand, _aten.unsqueeze}
_LIFTED = {_aten.lift_fresh, _aten.lift_fresh_copy}


class FirstValues(Observer):
    """Within its block, remembers the first value of each tensor that numbers alone made."""

    def __init__(self) -> None:
        super().__init__()
        self._values: Any = WeakTensorKeyDictionary()  # one number, or a small tensor's values on the host
        self._empty: Any = WeakTensorKeyDictionary()
        self._changed: Any = WeakTensorKeyDictionary()

    def put_back(self, tensor: Tensor) -> bool:
        """Give the tensor its first value again. Return False if that value is unknown."""
        if tensor not in self._values:
            return False
        value = self._values[tensor]
        with writing_to(tensor):
            _ = local(tensor).copy_(value) if isinstance(value, Tensor) else local(tensor).fill_(value)
        return True

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name, returned = func.overloadpacket, func(*args, **kwargs)
        if name in _FILLED:
            self._values[returned] = _FILLED[name](args)
        elif name in _LIFTED and returned.numel() <= _SMALL:
            self._values[returned] = returned.detach().to("cpu", copy=True)
        elif name in _EMPTY:
            self._empty[returned] = True
        elif name in _FILLS and args[0] in self._empty and not isinstance(_FILLS[name](args), Tensor):
            del self._empty[args[0]]
            self._values[args[0]] = _FILLS[name](args)
        elif name in _SAME and args[0] in self._values and args[0] not in self._changed:
            self._values[returned] = self._values[args[0]]
        elif func._schema.is_mutable:
            for tensor in tensors_in([*args, *kwargs.values()]):
                self._changed[tensor] = True
        return returned


def writing_to(tensor: Tensor) -> AbstractContextManager[object]:
    """Allow in-place changes of the tensor in the block: torch lets only inference mode write to inference tensors."""
    return torch.inference_mode() if tensor.is_inference() else nullcontext()


def copy_into(tensor: Tensor, value: Tensor) -> None:
    """Copy a value into a tensor; if ranks share the tensor, into this rank's part."""
    with writing_to(tensor):
        local(tensor).copy_(value)
