"""Check what an adapter's `batch(index)` returns, and refuse it in its author's terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.system.adapter_checks import AdapterError, describe_value, difference_of_names
from harness.system.batch_structure import Structure, leaves, odd_key, structure_of
from harness.system.users_code import return_place

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLE = "for example `return x, y`"


def require_batch(
    batch: object, index: int, function: Callable[..., Any], first: Structure | None = None
) -> dict[str, Tensor]:
    """Return the tensors of what `batch(index)` returned, by name. Raises `AdapterError` for anything but tensors.

    first: the structure of the first batch, which all later batches must have; None for the first batch itself.
    """
    import torch

    same = dict[str, Any]()
    like_the_first = first is not None and first.same_leaves(batch, same)
    if like_the_first and all(isinstance(each, torch.Tensor) and not each.is_meta for each in same.values()):
        return same
    tensors = _checked(batch, index, function)
    if first is not None:
        _require_same_structure(batch, index, function, first)
    return tensors


def _checked(batch: object, index: int, function: Callable[..., Any]) -> dict[str, Tensor]:
    import torch

    found = list(leaves(batch))
    odd = odd_key(batch)
    if odd is not None:
        raise _wrong_batch(function, f"the name {odd!r:.100}", "names are strings")
    if not found:
        raise _wrong_batch(function, f"{describe_value(batch)} at index {index}", EXAMPLE)
    for name, value in found:
        if not isinstance(value, torch.Tensor):
            if value is batch:
                raise _wrong_batch(function, f"{describe_value(value)} at index {index}", EXAMPLE)
            raise _wrong_batch(function, f"{describe_value(value)} under `{name}`", _entry_remedy(value))
        if value.is_meta:
            got = f"`{name}` on the device meta, which has no values"
            raise _wrong_batch(function, got, "make it on the CPU or on the model's device")
    tensors = dict(found)
    if len(tensors) < len(found):
        twice = next(name for name, _ in found if [each for each, _ in found].count(name) > 1)
        raise _wrong_batch(function, f"two tensors under `{twice}`", "give each a name of its own")
    return tensors


def _require_same_structure(batch: object, index: int, function: Callable[..., Any], first: Structure) -> None:
    structure = structure_of(batch)
    if structure.form() == first.form():
        return
    ours, theirs = structure.names(), first.names()
    if set(ours) != set(theirs):
        raise _wrong_batch(
            function,
            difference_of_names(ours, theirs, f"at index {index}", "at index 0"),
            "shapes may change from step to step, names may not: fill what is absent with zeros",
        )
    got = f"the same tensors in another structure at index {index} than at index 0"
    raise _wrong_batch(function, got, "return tuples, lists and dictionaries at the same places for every index")


def _wrong_batch(function: Callable[..., Any], found: str, remedy: str) -> AdapterError:
    rule = "batch(index) returns tensors: one, a tuple or list of them, or a dictionary of them by name"
    return AdapterError(rule, where=return_place(function), got=found, remedy=remedy)


def _entry_remedy(value: object) -> str:
    if type(value).__module__ == "numpy":
        return "turn it into a tensor with `torch.from_numpy`"
    if isinstance(value, bool | int | float):
        return f"turn it into a tensor with `torch.tensor`: a captured step reads no Python {type(value).__name__} anew"
    return "leave it out, or turn it into a tensor"
