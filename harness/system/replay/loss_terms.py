"""Measure what a loss is a sum of: terms that cancel leave a loss near 0, and its rounding is theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.weak import WeakTensorKeyDictionary

from harness.system.replay.observer import Observer

_SUMS = {"sum", "mean"}
_ADDITIONS = {"add", "sub"}
_SCALINGS = {"mul", "div"}
_SAME = {"neg", "clone", "detach", "alias", "view", "_to_copy", "squeeze", "unsqueeze", "_unsafe_view"}


class LossTerms(Observer):
    """Within its block, follow the size of each single number: the sum of its terms without their signs."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: Any = WeakTensorKeyDictionary()

    def size_of(self, value: Any) -> Any:
        """Return the size of a number; of any other tensor, the absolute values."""
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
        if type(returned) is Tensor and returned.numel() == 1 and returned.is_floating_point():
            size = self._followed(func._schema.name.removeprefix("aten::").removesuffix("_"), args, kwargs)
            if size is not None:
                self._sizes[returned] = size.detach().reshape(())
        return returned

    def _followed(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        if name in _SUMS:
            terms: Tensor = self.size_of(args[0])
            return terms.sum(dtype=torch.float64) if name == "sum" else terms.mean(dtype=torch.float64)
        if name in _SAME:
            same: Tensor = self.size_of(args[0])
            return same
        if name not in _ADDITIONS | _SCALINGS:
            return None
        first, second = map(self.size_of, args[:2])
        if name in _ADDITIONS:
            second = second * abs(kwargs.get("alpha", 1))
        return torch.as_tensor(
            first + second if name in _ADDITIONS else first * second if name == "mul" else first / second
        )
