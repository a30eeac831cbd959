"""Which operators a step runs: by them a captured step that runs other kernels than the plain one is told apart.

Libraries ask whether they are captured and then take another way: transformers keeps the causal mask, and attention
runs in another kernel. Both ways are right, and their roundings differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from torch._ops import OpOverload

from harness.system.replay.observer import Observer

# Operators that move or make memory and round nothing: a capture copies its batch, and a plain step need not.
_MOVES = frozenset(
    {
        "_reshape_alias", "_to_copy", "_local_scalar_dense", "_unsafe_view", "alias", "arange",
        "clone", "copy", "copy_", "detach", "empty", "empty_like", "empty_strided", "expand",
        "fill", "fill_", "full", "full_like", "is_same_size", "lift_fresh", "new_empty",
        "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones", "ones_like",
        "resize_", "scalar_tensor", "set_", "zero_", "zeros", "zeros_like",
    }
)  # fmt: skip


def operator_name(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the operator with its optional tensors that are given, or None for one that rounds nothing."""
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


class OperatorWatch(Observer):
    """Collect in `names` the operators that run in its block, but for those within compiled code."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (name := operator_name(func, args, kwargs)) is not None:
            self.names.add(name)
        return func(*args, **kwargs)
