"""What an optimizer keeps for each parameter, or under a name of its own, and the way back to it.

Most keep a tensor under a name for each parameter. Some keep lists of them (Shampoo's statistics), and some a count for
all parameters together (MADGRAD's), which lies beside the entries of parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from harness.errors import HarnessError
from harness.system.replay.first_values import FirstValues
from harness.system.replay.writing import copy_into, writing_to
from harness.system.shards import local

# torch's own whose lazily created tensors start at zero, so that "not created yet" and "zero" train alike.
_STARTS_AT_ZERO = (
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.Adadelta, torch.optim.RMSprop),
    *(torch.optim.RAdam, torch.optim.SGD),
)
_WHOLE = object()  # in the place of a name: the entry is no dictionary of a parameter's
Slot = tuple[Any, Any]  # a parameter and a name; or a name of the optimizer's own and `_WHOLE`


class StateError(HarnessError):
    """A trial execution created optimizer state whose first value the harness does not know."""


class UnknownStartError(StateError):
    """The same, of an execution in which nobody saw what that state was made of."""


def slots_of(optimizer: Optimizer) -> dict[Slot, Any]:
    """Everything that it keeps now, by where it lies."""
    found: dict[Slot, Any] = {}
    for owner, entry in optimizer.state.items():
        of_parameter = isinstance(owner, Tensor) and isinstance(entry, dict)
        found |= {(owner, name): value for name, value in entry.items()} if of_parameter else {(owner, _WHOLE): entry}
    return found


def restore(
    optimizer: Optimizer,
    known: Mapping[Slot, tuple[Any, Any]],
    *,
    keep_created: bool,
    first_values: FirstValues | None,
) -> None:
    """Bind what was `known` again, with its values; what came to be goes away, or begins anew (`keep_created`)."""
    for slot, value in slots_of(optimizer).items():
        if slot in known:
            continue
        holder, name = _holder(optimizer, slot)
        if keep_created:
            _rewind(optimizer, str(name), value, first_values)
        else:
            del holder[name]
    for slot, (original, value) in known.items():
        holder, name = _holder(optimizer, slot)
        if isinstance(original, Tensor):
            copy_into(original, value)
        holder[name] = original
    of_nothing = [owner for owner, entry in optimizer.state.items() if isinstance(entry, dict) and not entry]
    for owner in of_nothing:
        del optimizer.state[owner]


def _holder(optimizer: Optimizer, slot: Slot) -> tuple[dict[Any, Any], Any]:
    """The dictionary that has the slot, and its key there."""
    owner, name = slot
    state: Any = optimizer.state
    return (state, owner) if name is _WHOLE else (state.setdefault(owner, {}), name)


def _rewind(optimizer: Optimizer, name: str, value: Any, first_values: FirstValues | None) -> None:
    """Give what was made lazily the value that it began with."""
    parts = list(_parts(value))
    dampened = any(group.get("dampening", 0) for group in optimizer.param_groups)
    if type(optimizer) in _STARTS_AT_ZERO and not dampened and all(isinstance(part, Tensor) for part in parts):
        for part in parts:
            with writing_to(part):
                local(part).zero_()
        return
    numbers = [part for part in parts if not isinstance(part, Tensor)]
    if numbers or first_values is None or not all(first_values.put_back(part) for part in parts):
        raise (UnknownStartError if first_values is None else StateError)(
            "a captured optimizer must have its state before the first step",
            where=type(optimizer).__name__,
            got=f"state {name!r} created lazily, {_described(numbers)}",
            remedy="keep it in a tensor: a captured step reads no Python number anew"
            if numbers
            else "create the optimizer's state when building the trainer, and change it in place",
        )


def _described(numbers: list[Any]) -> str:
    kinds = ", ".join(sorted({type(each).__name__ for each in numbers}))
    return f"of what is no tensor: {kinds}" if numbers else "with an unknown first value"


def _parts(value: Any) -> Iterator[Any]:
    """Tensors and whatever else is in a value, within lists and dictionaries; what is absent (None) is no part."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _parts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _parts(each)
    elif value is not None:
        yield value
