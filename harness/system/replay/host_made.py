"""Distinguish what a device would hold from what the host holds, where a CPU stands in for the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef

LIFT = torch.ops.aten.lift_fresh.default


class HostMade:
    """The memory that a step, while it is watched, made of numbers in its code alone, and did not move to the device.

    All other memory counts as the device's: batches, parameters, state, and what was computed from them.
    recorded: the step is repeated with the numbers that the host has now, so that its state does not count as its own.
    """

    def __init__(self, *, recorded: bool = False) -> None:
        self.recorded = recorded
        self._known: dict[int, StorageWeakRef] = {}  # references keep an address from being given out again

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
        """Return True if the host alone makes what the operator returns."""
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "cpu":
            return False
        return func is LIFT or all(map(self.has, tensors_in([*args, *kwargs.values()])))

    def note(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], returned: Any) -> None:
        """Update what the host holds after an operator was executed."""
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
    """Yield the tensors in an operator's arguments, also within lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)
