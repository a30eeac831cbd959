"""Split batches into tensors, check what an adapter's `batch(index)` returns, and read a data loader by index."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.system.adapter_checks import AdapterError, describe_value, difference_of_names
from harness.system.users_code import return_place

if TYPE_CHECKING:
    from torch import Tensor

# A trainer's batch is a tensor, or a tuple, list or dictionary of tensors. Containers may be nested.
#
# The harness gives each tensor of a batch a name. In a dictionary the name is the tensor's key. In a tuple or a list it
# is the tensor's position. In nested containers it is the path (`inputs.tokens`, `0`, `1.mask`). A step gets its batch
# in the same structure that `batch(index)` returned.

ALONE = "batch"  # the name of the tensor, if the batch is a single tensor


@dataclass(frozen=True)
class Structure:
    """The nesting of a batch's tensors. kind: the type of the container; None for a single tensor. name: the name of
    the single tensor, or the path of the container."""

    kind: type | None
    name: str = ""
    entries: tuple[tuple[Any, Structure], ...] = ()

    def filled(self, tensors: Mapping[str, Any]) -> Any:
        """Return a batch of this structure with the given tensors. Each mapping becomes a plain dictionary."""
        if self.kind is None:
            return tensors[self.name]
        if self.kind is type(None):
            return None
        values = {key: each.filled(tensors) for key, each in self.entries}
        if issubclass(self.kind, Mapping):
            return values
        return _sequence(self.kind, list(values.values()))

    def same_leaves(self, batch: Any, found: dict[str, Any]) -> bool:
        """Return True if the batch has exactly this structure, and add the batch's leaves (tensors) to `found`, by
        name.

        The time of this function counts in each timed step. The function takes 2 us for two tensors. A comparison by
        `leaves` and `form` took 16 us.
        """
        if self.kind is None:
            found[self.name] = batch
            return True
        if type(batch) is not self.kind:
            return False
        if self.kind is type(None):
            return True
        values: Any = batch
        if len(values) != len(self.entries):
            return False
        try:
            return all(each.same_leaves(values[key], found) for key, each in self.entries)
        except KeyError:
            return False

    def names(self) -> list[str]:
        """Return the names of the batch's tensors."""
        return [self.name] if self.kind is None else [name for _, each in self.entries for name in each.names()]

    def form(self) -> object:
        """Return a value for comparisons: two structures have equal values if a step cannot distinguish the nesting of
        their batches. For example, the order of a dictionary's keys makes no difference."""
        kind = Mapping if self.kind is not None and issubclass(self.kind, Mapping) else self.kind
        return kind, frozenset((key, each.form()) for key, each in self.entries)


def structure_of(batch: object, name: str = "") -> Structure:
    """Return the structure of a batch. A value that is not a dictionary, tuple, list or None is a leaf."""
    entries = _entries(batch)
    if entries is None:
        return Structure(None, name or ALONE)
    return Structure(type(batch), name, tuple((key, structure_of(each, _joined(name, key))) for key, each in entries))


def leaves(batch: object, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, leaf) for every leaf of a batch, in order. The name is the path of keys and indices, joined with
    dots."""
    entries = _entries(batch)
    if entries is None:
        yield name or ALONE, batch
        return
    for key, each in entries:
        yield from leaves(each, _joined(name, key))


def replaced(batch: object, tensors: Mapping[str, Any]) -> Any:
    """Return a copy of the batch in which each leaf that `tensors` names is replaced by the tensor of that name."""
    return structure_of(batch).filled({**dict(leaves(batch)), **tensors})


def tensors_alone(batch: Any) -> Any:
    """Return the batch without each dictionary entry that holds anything except tensors and arrays, such as the text
    from which tokens were made."""
    if isinstance(batch, Mapping):
        kept = {key: tensors_alone(each) for key, each in batch.items()}
        return {key: each for key, each in kept.items() if all(hasattr(leaf, "dtype") for _, leaf in leaves(each))}
    if isinstance(batch, tuple | list):
        return _sequence(type(batch), [tensors_alone(each) for each in batch])
    return batch


def odd_key(batch: object) -> object | None:
    """Return a key of the batch, or of a container inside the batch, that is not a string. Return None if all keys are
    strings."""
    odd = (key for key, _ in _entries(batch) or () if isinstance(batch, Mapping) and not isinstance(key, str))
    within = (odd_key(each) for _, each in _entries(batch) or ())
    return next((key for each in (odd, within) for key in each if key is not None), None)


def _sequence(kind: type, entries: list[Any]) -> Any:
    if hasattr(kind, "_fields"):  # `kind` is a named tuple
        return kind(*entries)
    return entries if issubclass(kind, list) else tuple(entries)


def _entries(value: object) -> list[tuple[Any, Any]] | None:
    """Return (key, value) of each entry of a container. Return None for a leaf. Return [] for the value None, which is
    not a leaf and has no entries."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, tuple | list) else None


def _joined(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


EXAMPLE = "for example `return x, y`"


def require_batch(
    batch: object, index: int, function: Callable[..., Any], first: Structure | None = None
) -> dict[str, Tensor]:
    """Return the tensors in the result of `batch(index)`, by name. Raise `AdapterError` if a leaf is not a tensor.

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
    wrong_name = odd_key(batch)
    if wrong_name is not None:
        raise _wrong_batch(function, f"the name {wrong_name!r:.100}", "give each tensor a string as its name")
    if not found:
        raise _wrong_batch(function, f"{describe_value(batch)} at index {index}", EXAMPLE)
    for name, value in found:
        if not isinstance(value, torch.Tensor):
            if value is batch:
                raise _wrong_batch(function, f"{describe_value(value)} at index {index}", EXAMPLE)
            raise _wrong_batch(function, f"{describe_value(value)} under `{name}`", _entry_remedy(value))
        if value.is_meta:
            tensor_on_meta = f"`{name}` on the device meta, which has no values"
            raise _wrong_batch(function, tensor_on_meta, "create the tensor on the CPU or on the model's device")
    tensors = dict(found)
    if len(tensors) < len(found):
        twice = next(name for name, _ in found if [each for each, _ in found].count(name) > 1)
        raise _wrong_batch(function, f"two tensors under `{twice}`", "give each tensor its own name")
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
            "shapes may change from step to step, but names must not: fill absent tensors with zeros",
        )
    other_structure = f"a different structure of the same tensors at index {index} than at index 0"
    raise _wrong_batch(
        function, other_structure, "return tuples, lists and dictionaries at the same places for every index"
    )


def _wrong_batch(function: Callable[..., Any], found: str, remedy: str) -> AdapterError:
    rule = (
        "batch(index) must return tensors: one tensor, a tuple or list of tensors, or a dictionary of tensors by name"
    )
    return AdapterError(rule, where=return_place(function), got=found, remedy=remedy)


def _entry_remedy(value: object) -> str:
    if type(value).__module__ == "numpy":
        return "convert the array to a tensor with `torch.from_numpy`"
    if isinstance(value, bool | int | float):
        return (
            "convert the value to a tensor with `torch.tensor`, because a captured step never reads a new Python "
            f"{type(value).__name__}"
        )
    return "leave the value out, or convert it to a tensor"


class BatchesEndedError(HarnessError):
    """The data loader has no batch for a requested step."""


class LoaderBatches:
    """Provides a data loader's batches by index, in the loader's order, epoch after epoch. Keeps all batches that were
    read.

    Each read starts with the generator states that the previous read left. Therefore a data set that draws noise or
    crops draws new numbers in each read. After a read, all generators get back the states that they had before the
    read. Reading is not part of the step, so dispatch modes that watch the step do not see the reading.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self._batches = _endless(loader)
        self._kept: list[Any] = []
        held = (getattr(loader, "generator", None), getattr(getattr(loader, "sampler", None), "generator", None))
        self._of_loader = {str(id(each)): each for each in held if each is not None}
        self._states: dict[str, Any] = {key: each.get_state() for key, each in self._of_loader.items()}

    def __call__(self, index: int) -> Any:
        from harness.devices.host_waits import not_of_the_step

        if len(self._kept) <= index:
            with not_of_the_step(), self._own_generators():
                while len(self._kept) <= index:
                    self._kept.append(next(self._batches))
        return self._kept[index]

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        """Within the `with` block, give all generators the states that the previous read left. At the end, restore the
        states that they had before the `with` block."""
        from harness.system.replay.generators import accessors_of, host_generators, restore, states

        of_loader = {key: accessors_of(each) for key, each in self._of_loader.items()}
        drawn = host_generators() | {key: each for key, each in of_loader.items() if each is not None}
        theirs = states(drawn)
        restore(drawn, self._states)
        try:
            yield
        finally:
            self._states = states(drawn)
            restore(drawn, theirs)


def _endless(loader: Iterable[Any]) -> Iterator[Any]:
    for epoch in itertools.count():
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        empty = True
        for batch in loader:
            empty = False
            yield tensors_alone(batch)
        if empty:
            raise BatchesEndedError(
                "a loader must give batches for all requested steps, epoch after epoch",
                where=type(loader).__name__,
                got=f"no batch in epoch {epoch}",
                remedy="return the loader itself, which can be read again, and not an iterator over it",
            )


def shuffled_by_the_process(loader: Any) -> bool:
    """Return True if the loader shuffles with the process's global generator, because its random sampler has no
    generator.

    Other code also draws from the global generator, and this changes the order of the batches.
    """
    # Only random samplers have this attribute; its value None stands for the process's global generator.
    return getattr(getattr(loader, "sampler", None), "generator", 0) is None


OWN_ORDER = "use DataLoader(…, shuffle=True, generator=torch.Generator().manual_seed(seed))"
