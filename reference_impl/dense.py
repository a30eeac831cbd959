"""Dense copies of the frozen matrices, in the order in which a forward or backward pass uses them.

Quantized matrices that a pass uses close together form a group: they share one buffer, and one launch dequantizes them.
If there is a second stream, it dequantizes the next group while the main stream computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

import torch
from torch import Tensor

from reference_impl.kernels.nf4.naive import BLOCK
from reference_impl.nf4 import FrozenMatrix, QuantizedMatrix
from reference_impl.streams import StepStreams

Value = TypeVar("Value")

# Number of elements of a quantized matrix whose scales together take 16 bytes. In the buffer of a group, the kernel
# requires that the scales of every matrix begin at a multiple of 16 bytes.
_ALIGNED_ELEMENTS = 4 * BLOCK


class MatrixGroup:
    """Frozen matrices that are dequantized together."""

    def __init__(self, matrices: Sequence[FrozenMatrix]) -> None:
        self.matrices = tuple(matrices)
        self._joined: QuantizedMatrix | None = None
        quantized = [matrix for matrix in matrices if isinstance(matrix, QuantizedMatrix)]
        aligned = all(matrix.rows * matrix.cols % _ALIGNED_ELEMENTS == 0 for matrix in quantized)
        if len(quantized) == len(self.matrices) > 1 and aligned:
            self._join(quantized)

    def _join(self, quantized: list[QuantizedMatrix]) -> None:
        """Copy the codes and scales of all matrices into two buffers. Make each matrix a view of these buffers."""
        codes = torch.cat([matrix.codes for matrix in quantized])
        absmax = torch.cat([matrix.absmax for matrix in quantized])
        self._joined = QuantizedMatrix(codes, absmax, absmax.numel(), BLOCK)
        blocks = [matrix.absmax.numel() for matrix in quantized]
        parts = zip(
            torch.split(codes, [count * BLOCK // 2 for count in blocks]), torch.split(absmax, blocks), strict=True
        )
        self.matrices = tuple(
            QuantizedMatrix(*part, matrix.rows, matrix.cols) for part, matrix in zip(parts, quantized, strict=True)
        )

    def dense(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the matrices of the group, each [rows, cols], in ``dtype``."""
        if self._joined is None:
            return tuple(matrix.dense(dtype) for matrix in self.matrices)
        flat = self._joined.dense(dtype).view(-1)
        shapes = [(matrix.rows, matrix.cols) for matrix in self.matrices if isinstance(matrix, QuantizedMatrix)]
        parts = torch.split(flat, [rows * cols for rows, cols in shapes])
        return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))


class Ahead(Generic[Value]):
    """Values that a forward or backward pass takes one after the other.

    A value is computed when the pass takes it, or earlier on the second stream if the pass calls `ahead`.
    """

    def __init__(self, makers: Iterable[Callable[[], Value]], streams: StepStreams) -> None:
        self._stages = deque(streams.beside(make) for make in makers)

    def ahead(self, count: int) -> None:
        """Start computing the next ``count`` values on the second stream."""
        for stage in islice(self._stages, count):
            stage.start()

    def take(self) -> Value:
        """Return the next value. This object keeps no reference to the value, so the value's memory is freed when the
        caller drops the value."""
        return self._stages.popleft().take()


class DenseWeights(Ahead[tuple[Tensor, ...]]):
    """The dense matrices for a forward or backward pass over the model. Each call of `take` returns the matrices of one
    `MatrixGroup`."""

    def __init__(self, groups: Iterable[MatrixGroup], dtype: torch.dtype, streams: StepStreams) -> None:
        super().__init__((partial(group.dense, dtype) for group in groups), streams)
