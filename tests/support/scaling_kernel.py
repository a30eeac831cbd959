"""A Triton kernel with a pointer to a table among its arguments, as a clip has."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def scale(source, target, table, size: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """Write source[i] * table[0] to target[i]."""
    offsets = tl.arange(0, size)
    tl.store(target + offsets, tl.load(source + offsets) * tl.load(table))
