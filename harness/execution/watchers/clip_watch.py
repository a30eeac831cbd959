"""Watch some steps of an arm for a clip: what bounds gradients by numbers that were made of gradients.

A clip that no gradient reaches changes nothing, so that its absence shows in no number. It is known by the flow of
data after the backward pass, whatever functions it is written with: a gradient goes into an operator that saturates
(`clamp`, `minimum`, `where`), and what comes out is multiplied into a gradient, or replaces it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from harness.evidence.arm_records import Clip
from harness.system.replay.host_made import tensors_in
from harness.system.replay.observer import Observer

# What keeps a value within a bound, without the marks of forms (`_foreach_`, in place).
_SATURATES = frozenset({"clamp", "clamp_max", "clamp_min", "fmax", "fmin", "hardtanh", "maximum", "minimum", "where"})
_HOOKED = _SATURATES - {"hardtanh", "where"}  # no derivative of torch's runs these: a hook bounds what it is given
TO_THE_HOST = "_local_scalar_dense"


class Operation(NamedTuple):
    """One call that reads gradients, or what was made of them. bounds: it saturates, or reads what did."""

    name: str
    gradients: Sequence[Tensor]  # of what it reads
    read: Sequence[Tensor]
    in_place: Sequence[Tensor]  # that it writes to
    bounds: bool


class ClipWatch(Observer):
    """Collects over all its blocks, a step each, whether gradients are bounded, and whether that changed one."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._parameters, self._compiled_before = list(parameters.values()), _compiled()
        self._operator = ""
        self._updates = self._hidden = False  # if gradients were read at all; if something may bound them unseen
        self.hooked = False  # if a hook may, in the backward pass
        self._norms: list[tuple[Tensor, Tensor]] = []  # of gradients, before they were bounded and after
        self._depth = 0  # the thread of an owned loop enters it again, within the block of the one that waits
        self._begin()

    def _begin(self) -> None:
        self._from_gradients, self._bounding = _Storages(), _Storages()
        self._saturated = ""
        self._may_replace: dict[int, tuple[Tensor, Tensor]] = {}  # by memory of what may become a gradient

    def __enter__(self) -> Self:
        if not self._depth:
            self._begin()
        self._depth += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.rpartition("::")[2].removeprefix("_foreach_").removesuffix("_")
        if torch._C._current_graph_task_id() != -1:  # within the backward pass, which makes gradients
            self.hooked |= name in _HOOKED
            return func(*args, **kwargs)
        read = [*tensors_in([*args, *kwargs.values()])]
        gradients = self._memory_of(each.grad for each in self._parameters)
        of_gradients = [each for each in read if memory_of(each) in gradients]
        if not of_gradients and not self._from_gradients.hold_any(read):
            return func(*args, **kwargs)
        self._updates = True
        self._hidden |= name == TO_THE_HOST
        self._confirm(of_gradients)
        saturates = name in _SATURATES
        bounds = saturates or self._bounding.hold_any(read)
        before = [norm_of(each) for each in of_gradients] if bounds else []
        in_place = _written(func, args, kwargs)
        self.begins(Operation(name, of_gradients, read, in_place, bounds=bounds))
        returned = func(*args, **kwargs)
        updated = self._memory_of(self._parameters)
        made = [each for each in (*tensors_in([returned]), *in_place) if memory_of(each) not in updated]
        self._from_gradients.add(made)
        if bounds:
            self._bounding.add(made)
            self._saturated = func._schema.name if saturates else self._saturated
            self._note(of_gradients, before, in_place, made)
        self.ended(made)
        return returned

    def begins(self, operation: Operation) -> None:
        """Handle an operator before it runs: one after the backward pass that reads gradients, or what they made."""

    def ended(self, made: Sequence[Tensor]) -> None:
        """Handle the end of that operator. made: what it made or wrote to, without parameters."""

    def _note(self, gradients: list[Tensor], before: list[Tensor], in_place: list[Tensor], made: list[Tensor]) -> None:
        """Keep norms of gradients that were bounded in place, and of what may replace them."""
        changed = self._memory_of(in_place)
        others = [each for each in made if memory_of(each) not in changed]
        for gradient, norm in zip(gradients, before, strict=True):
            if memory_of(gradient) in changed:
                self._bounded(norm, norm_of(gradient))
            else:
                alike = (each for each in others if each.shape == gradient.shape)
                self._may_replace |= {number: (norm, norm_of(each)) for each in alike if (number := memory_of(each))}

    def _confirm(self, gradients: list[Tensor]) -> None:
        for number in self._memory_of(gradients) & self._may_replace.keys():
            self._bounded(*self._may_replace.pop(number))

    def _bounded(self, before: Tensor, after: Tensor) -> None:
        self._operator = self._operator or self._saturated
        self._norms.append((before, after))

    @staticmethod
    def _memory_of(tensors: Iterable[Tensor | None]) -> set[int]:
        return {number for each in tensors if each is not None and (number := memory_of(each)) is not None}

    def record(self) -> Clip:
        """Return what was seen. This reads values from the device."""
        acted = any(float(before) != float(after) for before, after in self._norms)
        hidden = not self._updates or self._hidden or self.hooked or _compiled() > self._compiled_before
        return Clip(seen=True if self._norms else None if hidden else False, acted=acted, operator=self._operator)


class _Storages:
    """Memory of tensors, by weak references: what was freed is not held, and no other takes its number."""

    def __init__(self) -> None:
        self._known: dict[int, StorageWeakRef] = {}

    def add(self, tensors: Iterable[Tensor]) -> None:
        for each in tensors:
            if (number := memory_of(each)) is not None:
                self._known.setdefault(number, StorageWeakRef(each.untyped_storage()))  # type: ignore[no-untyped-call]

    def hold_any(self, tensors: Iterable[Tensor]) -> bool:
        return any(memory_of(each) in self._known for each in tensors)


def memory_of(tensor: Tensor) -> int | None:
    """Return the number of a tensor's memory; None for a tensor without memory of its own, such as a sparse one."""
    try:
        number: int = tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None
    return number


def _written(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    places = enumerate(func._schema.arguments)
    named = [
        args[place] if place < len(args) else kwargs.get(each.name)
        for place, each in places
        if each.alias_info is not None and each.alias_info.is_write
    ]
    return [*tensors_in(named)]


def norm_of(tensor: Tensor) -> Tensor:
    """Return the tensor's norm: a bound that acts makes it smaller."""
    with torch.no_grad(), _disable_current_modes():
        values = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
        norm: Tensor = torch.linalg.vector_norm(values)
        return norm


def _compiled() -> int:
    """Return how many frames torch has compiled in this process. None of their operators is seen."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else sum(dynamo.counters["frames"].values())
