"""Measure the terms that a loss is a sum of: terms that cancel leave a loss near 0 with their own rounding.

They may cancel in a sum over a batch, as advantages do, or before it in each of its elements: a margin that is just
met, an estimate of a divergence.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.weak import WeakTensorKeyDictionary

from harness.system.replay.observer import Observer

_SUMS = {"sum", "mean"}
_FOLLOWED = 1 << 16  # elements: of larger tensors, as activations are, the values count
_ADDITIONS = {"add", "sub", "rsub"}
_SCALINGS = {"mul", "div"}
# `relu` and its like may cut off what rounding left of a sum
_SAME = {
    "relu",
    "clamp",
    "clamp_min",
    "clamp_max",
    "threshold",
    "neg",
    "clone",
    "detach",
    "alias",
    "view",
    "_to_copy",
    "squeeze",
    "unsqueeze",
    "_unsafe_view",
}


class LossTerms(Observer):
    """Within its block, follow the size of numbers: the sum of each one's terms without their signs."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: Any = WeakTensorKeyDictionary()

    def size_of(self, value: Any) -> Any:
        """Return the size of a number, or the absolute values of any other tensor."""
        if not isinstance(value, Tensor):
            return abs(value)
        known = self._sizes.get(value)
        if known is not None:
            return known
        return value.detach().abs() if value.is_floating_point() else value.double().abs()

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        returned = func(*args, **kwargs)
        # a tensor that ranks share is not followed: its sum may need all of them
        plain = type(returned) is Tensor and returned.layout is torch.strided and returned.is_floating_point()
        if plain and returned.numel() <= _FOLLOWED:
            size = None
            with suppress(RuntimeError, TypeError):  # what cannot be followed counts by its value
                size = self._followed(func, args, kwargs)
            if size is not None and size.numel() == returned.numel():
                self._sizes[returned] = size.detach().reshape(returned.shape)
        return returned

    def _followed(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        name = func._schema.name.removeprefix("aten::").removesuffix("_")
        if name in _SUMS and func._schema.is_mutable:
            return None  # into memory of the step's own, which only the step writes to
        if name in _SUMS:
            terms: Tensor = self.size_of(args[0])
            if args[1:]:
                return torch.as_tensor(func(terms, *args[1:], **kwargs))
            return terms.sum(dtype=torch.float64) if name == "sum" else terms.mean(dtype=torch.float64)
        if name in _SAME:
            same: Tensor = self.size_of(args[0])
            return same
        if name not in _ADDITIONS | _SCALINGS:
            return None
        first, second = map(self.size_of, args[:2])
        if name in _ADDITIONS:
            alpha = abs(kwargs.get("alpha", 1))
            first, second = (first * alpha, second) if name == "rsub" else (first, second * alpha)
        return torch.as_tensor(
            first + second if name in _ADDITIONS else first * second if name == "mul" else first / second
        )
