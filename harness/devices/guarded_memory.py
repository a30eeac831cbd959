"""Give kernels poisoned memory between guards for their outputs: it shows what they did not write, or wrote outside.

The poison is a NaN with bits that no computation gives, so that it differs from a computed NaN. Guards are poison, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Quiet NaNs with payloads that no arithmetic gives, by the integer type of the element's size.
_POISON: dict[torch.dtype, tuple[torch.dtype, int]] = {
    torch.float32: (torch.int32, 0x7FC0DEAD),
    torch.bfloat16: (torch.int16, 0x7FDE),
    torch.float16: (torch.int16, 0x7EAD),
}
# Elements before and behind a tensor. A kernel may demand 16-byte alignment, which this many elements keep.
GUARD_ELEMENTS = 64
_ALLOCATING: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.empty,
        torch.empty_like,
        torch.empty_strided,
        torch.empty_permuted,
        Tensor.new_empty,
        Tensor.new_empty_strided,
    }
)


def bits(tensor: Tensor) -> Tensor:
    """Return the tensor's bits as integers, for comparisons that distinguish one NaN from another."""
    return tensor.view(_POISON[tensor.dtype][0])


def poisoned(tensor: Tensor) -> Tensor:
    """Return a mask of the elements that are poison."""
    return bits(tensor) == _POISON[tensor.dtype][1]


class GuardedMemory(TorchFunctionMode):
    """Within the `with`, what torch allocates without filling it is poisoned and lies between guards."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: list[tuple[Tensor, int]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _ALLOCATING and result.dtype in _POISON and result.is_contiguous():
            return self.poisoned_like(result)
        return result

    def poisoned_like(self, tensor: Tensor) -> Tensor:
        """Return a contiguous tensor of the same shape, type and device between guards, full of its type's poison."""
        integer, pattern = _POISON[tensor.dtype]
        count = math.prod(tensor.shape)
        size = count + 2 * GUARD_ELEMENTS
        buffer = torch.full((size,), pattern, dtype=integer, device=tensor.device).view(tensor.dtype)
        self._buffers.append((buffer, count))
        return buffer[GUARD_ELEMENTS : GUARD_ELEMENTS + count].view(tensor.shape)

    def copy_of(self, tensor: Tensor) -> Tensor:
        """Return a copy of the tensor's values between guards."""
        return self.poisoned_like(tensor).copy_(tensor)

    def overwritten(self) -> int:
        """Return how many elements of the guards were changed."""
        ends = (
            end
            for buffer, count in self._buffers
            for end in (buffer[:GUARD_ELEMENTS], buffer[GUARD_ELEMENTS + count :])
        )
        return sum(GUARD_ELEMENTS - int(poisoned(end).sum()) for end in ends)
