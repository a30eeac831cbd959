"""Comparisons for `kernel_match` claims: backward products of linear layers, at the model's shapes and ragged ones.

Legend: C [M, N] = A [M, K] @ B [K, N]. T tokens, H hidden, I intermediate, r rank, QKV = (N + 2 * Nkv) * D with N query
heads, Nkv key/value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.system.protocol import KernelComparison
from reference_impl.config import GemmPath, ModelConfig
from reference_impl.gemm import HALF_TYPES, BackwardGemm
from reference_impl.kernel_table import KernelTable
from reference_impl.kernels.gemm import naive

WEIGHT_SCALE = 2e-2  # standard deviation of weights, as in an upstream project's NaN bug (its issue ALB-076)
# Shapes (M, K, N) whose sizes are not multiples of 16, the tile's size. Some are smaller than 16. One sum is so long
# that the unrolled loop runs twice.
RAGGED = ((17, 33, 70), (5, 20, 3), (33, 18, 20))
_SEED = 76


@dataclass(frozen=True)
class GemmShapes:
    """The shapes (M, K, N) of each operation in a step of the model, and `RAGGED`."""

    model: ModelConfig
    tokens: int
    rank: int

    def of(self, operation: str) -> list[tuple[int, int, int]]:
        """Return the shapes of an operation, with `RAGGED` last. Raises KeyError if there is no such operation."""
        model, tokens, low_rank = self.model, self.tokens, 2 * self.rank
        hidden, intermediate = model.hidden_size, model.intermediate_size
        in_a_step = {
            "gemm.backward_a": [(tokens, hidden, model.query_dim), (tokens, intermediate, hidden)],
            # the gradient through up's projection is added to the one through gate's projection
            "gemm.backward_a_accumulate": [(tokens, hidden, intermediate)],
            "gemm.backward_b": [(tokens, low_rank, hidden), (tokens, model.qkv_dim, low_rank)],
        }
        return [*in_a_step[operation], *RAGGED]


OPERATIONS = ("gemm.backward_a", "gemm.backward_a_accumulate", "gemm.backward_b")


def comparisons(
    table: KernelTable,
    path: GemmPath,
    operation: str,
    shapes: GemmShapes,
    dtypes: Sequence[str],
    magnitudes: Sequence[float],
    device: torch.device,
) -> Iterator[KernelComparison]:
    """Yield one comparison of `operation` for each shape, data type and magnitude of the incoming gradient."""
    for shape in shapes.of(operation):
        for dtype in dtypes:
            for magnitude in magnitudes:
                yield _comparison(table, path, operation, shape, dtype, magnitude, device)


def _comparison(
    table: KernelTable,
    path: GemmPath,
    operation: str,
    shape: tuple[int, int, int],
    dtype: str,
    magnitude: float,
    device: torch.device,
) -> KernelComparison:
    m, k, n = shape
    generator = torch.Generator(device).manual_seed(_SEED)

    def normal(*size: int, scale: float) -> Tensor:
        return torch.randn(size, generator=generator, device=device) * scale

    grad_c = _operand(normal(m, n, scale=magnitude), path, dtype)
    twin: Callable[[Tensor, Tensor, Tensor, bool], Tensor]
    if operation == "gemm.backward_b":
        left, right, out_shape = _operand(normal(m, k, scale=1.0), path, dtype), grad_c, (k, n)
        product, twin, factors = table.backward_b, naive.backward_b, (left.t(), right)
    else:
        left, right, out_shape = grad_c, _weight(normal(k, n, scale=WEIGHT_SCALE), path, dtype), (m, k)
        product, twin, factors = table.backward_a, naive.backward_a, (left, right.t())
    accumulate = operation.endswith("_accumulate")
    # The product is added to this tensor, which stands for an earlier product of the same size.
    start = normal(*out_shape, scale=magnitude * WEIGHT_SCALE * n**0.5) if accumulate else None
    empty = torch.empty(out_shape, dtype=torch.float32, device=device)
    return KernelComparison(
        operation=operation,
        dtype=dtype,
        shape=f"M{m} K{k} N{n}",
        magnitude=magnitude,
        written={} if accumulate else {"product": empty},
        updated={"product": start} if start is not None else {},
        kernel=_call(product, left, right, accumulate=accumulate),
        naive=_call(twin, left, right, accumulate=accumulate),
        reference=lambda: _reference(*factors, start),
    )


def _operand(value: Tensor, path: GemmPath, dtype: str) -> Tensor:
    """Return an operand other than a weight as the path takes it: in fp32 if the path itself rounds operands to fp16 or
    bf16, else in `dtype`."""
    return value if path in HALF_TYPES else value.to(getattr(torch, dtype))


def _weight(value: Tensor, path: GemmPath, dtype: str) -> Tensor:
    return BackwardGemm(path).cache_weight(value) if path in HALF_TYPES else value.to(getattr(torch, dtype))


def _call(
    product: Callable[[Tensor, Tensor, Tensor, bool], Tensor], left: Tensor, right: Tensor, *, accumulate: bool
) -> Callable[[Mapping[str, Tensor]], None]:
    def call(outputs: Mapping[str, Tensor]) -> None:
        product(left, right, outputs["product"], accumulate)

    return call


def _reference(left: Tensor, right: Tensor, start: Tensor | None) -> dict[str, Tensor]:
    product = left.double() @ right.double()
    return {"product": product if start is None else start.double() + product}
