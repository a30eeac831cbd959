"""Name the operators that a step runs, to detect a captured step that runs other kernels than the plain one.

Libraries ask whether they are captured and then take another way: transformers keeps the causal mask, and attention
runs in another kernel. Both ways are right, and their roundings differ. A kernel that drops out draws other random
numbers, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from harness.system.replay.host_made import tensors_in
from harness.system.replay.observer import Observer

# Operators that move or make memory and round nothing: a capture copies its batch, and a plain step need not.
_MOVES = frozenset(
    {
        "_reshape_alias", "_to_copy", "_local_scalar_dense", "_unsafe_view", "alias", "arange",
        "clone", "copy", "copy_", "detach", "empty", "empty_like", "empty_strided", "expand",
        "fill", "fill_", "full", "full_like", "is_pinned", "is_same_size", "lift_fresh", "new_empty",
        "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones", "ones_like",
        "resize_", "scalar_tensor", "set_", "zero_", "zeros", "zeros_like",
    }
)  # fmt: skip


def operator_name(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the operator, with the optional tensors it was given, or None for an operator that rounds nothing."""
    name, optional = _known(func)
    if name is None or not optional:
        return name
    given = [each for place, each in optional if (args[place] if place < len(args) else kwargs.get(each)) is not None]
    return f"{name} with {', '.join(given)}" if given else name


@cache
def _known(func: OpOverload) -> tuple[str | None, tuple[tuple[int, str], ...]]:
    name = func._schema.name.replace("::", ".")
    if func.is_view or name.removeprefix("aten.") in _MOVES:
        return None, ()
    arguments = enumerate(func._schema.arguments)
    return name, tuple((place, each.name) for place, each in arguments if str(each.type) == "Optional[Tensor]")


# Arguments of operators that draw only where this one is neither 0 nor False.
_DRAWS_BY = frozenset({"dropout", "dropout_p", "p", "train", "training"})


def drawn_by(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], returned: object) -> str | None:
    """Return an operator that draws random numbers, with what it draws for, or None if it draws none.

    Which element gets which number depends on data types, shapes and order in memory. The form of
    an operator (in place, `out`, `_like`) does not change what it draws.
    """
    name, read = _drawing(func)
    if name is None:
        return None
    given = {each: args[place] if place < len(args) else kwargs.get(each, default) for each, place, default in read}
    tensors = [*tensors_in([*args, *kwargs.values()]), *tensors_in([returned])]
    if not tensors or any(given.get(each) in (0, False) for each in _DRAWS_BY if _is_number(given.get(each))):
        return None
    if name == "aten.native_dropout" and tensors[0].device.type == "cpu":
        name, tensors = "aten.bernoulli", tensors[:1]  # which its kernel there calls
    own = " from its own generator" if given.get("generator") is not None else ""
    return f"{name} of {', '.join(dict.fromkeys(map(_layout, tensors)))}{own}"


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)


@cache
def _drawing(func: OpOverload) -> tuple[str | None, tuple[tuple[str, int, Any], ...]]:
    """Return the name of an operator that may draw, None for others, and the arguments that decide whether it does."""
    arguments, read = [*enumerate(func._schema.arguments)], {*_DRAWS_BY, "generator"}
    drops_out = any(each.name == "dropout_p" for _, each in arguments)  # so do kernels of packages, without the tag
    if not drops_out and torch.Tag.nondeterministic_seeded not in func.tags:
        return None, ()
    name = func._schema.name.replace("::", ".").removesuffix("_").removesuffix("_functional").removesuffix("_like")
    return name, tuple((each.name, place, each.default_value) for place, each in arguments if each.name in read)


def _layout(tensor: Tensor) -> str:
    form = f"{str(tensor.dtype).removeprefix('torch.')} {'x'.join(map(str, tensor.shape)) or 'number'}"
    strided = tensor.layout is torch.strided and not tensor.is_contiguous()
    return f"{form} in strides {'x'.join(map(str, tensor.stride()))}" if strided else form


class OperatorWatch(Observer):
    """Collect the operators that run in its block: in `names` each once but for those within compiled code, in `draws`
    those that draw random numbers, in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.draws: list[str] = []
        self._form = hashlib.sha256()

    @property
    def form(self) -> str:
        """Return the digest of all operators in order, with types, shapes and strides of what they read and return."""
        return self._form.hexdigest()[:16]

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (name := operator_name(func, args, kwargs)) is not None:
            self.names.add(name)
        returned = func(*args, **kwargs)
        layouts = map(_layout, tensors_in([*args, *kwargs.values(), returned]))
        self._form.update(f"{func} {'; '.join(layouts)}\n".encode())
        if (drawn := drawn_by(func, args, kwargs, returned)) is not None:
            self.draws.append(drawn)
        return returned
