"""Products of the MLP in FP8 with SwiGLU in the same kernel, for Hopper; `products/product.cuh` explains the design.

Legend: K: number of terms of a sum. |v|: Euclidean norm of a row v. Operands are e4m3 [rows, K] with a scale for each
row (`fp8_rows`).

    gate_up = x W^T,  act = silu(gate) * up                        `up_swiglu`               act in e4m3
    grad_act = grad W,  grad_gate_up = SwiGLU's backward of grad_act   `down_swiglu_backward`   grad_gate_up in e4m3

A row of a result has up to 17,920 elements, and a program computes tiles of 192 columns. So a program needs the scale
of a row before the whole row is known. The scale is therefore computed from an upper bound of the row's elements, by
the Cauchy-Schwarz inequality |gate| <= |x| |W_gate|. Both factors are known in advance: the kernel that wrote x also
wrote the norms of its rows, and the largest norm of W's rows was computed when W was loaded. Such a bound is about
sqrt(K) times the usual size of gate, and the same holds for up. For K = 1536, the bound of gate * up is about 1536 =
2^10.6 times its usual size. e4m3's normal numbers span a factor of 2^14.8, so usual values lose no bits.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor

from reference_impl.kernels.cuda_parameters import Parameter
from reference_impl.kernels.cuda_source import Address, CudaFunction, TensorMap
from reference_impl.kernels.fp8_rows.kernel import empty_rows
from reference_impl.kernels.products.kernel import CLUSTER, COLUMNS, GROUP, ROWS, SHARED_BYTES, STAGES, WARPS, blocks
from reference_impl.kernels.registry import KernelSpec, Pointer, launch, load, require_shape, torch_dtype
from reference_impl.kernels.target import hopper

_FOLDER = Path(__file__).parent
_DEPTH = 128  # number of elements of a stage in the summed dimension; in e4m3 they take 128 bytes
_TURNED = 32  # number of neighboring rows of a weight whose order is changed together (see `_right`)
_SCALE_BYTES = 2 * COLUMNS + 4 * ROWS  # bytes of shared memory for the scales that one warp group uses
_AHEAD_BYTES = 4 * 4 * 16 * 128  # of what one warp group reads ahead: 4 steps of 4 reads of 16 bytes by 128 threads
# Smallest number of tokens for which the kernels are used. Times on an H100, in us, at 512, 2048 and 8192 tokens:
# `up_swiglu` takes 31, 101 and 415, a library's product followed by `kernels/fp8_swiglu` takes 35, 120 and 473.
# `down_swiglu_backward` takes 26, 74 and 298, the library's product and `kernels/fp8_swiglu` take 33, 111 and 420.
_FROM = 512


def serves(tokens: int, hidden: int, intermediate: int, dtype: torch.dtype) -> bool:
    """Return True if both kernels support these sizes and `dtype`, and are faster than separate kernels."""
    # The copy engine requires rows whose size is a multiple of 16 bytes. A panel (the columns of one tile) must not be
    # wider than the matrix.
    fits = hidden % 16 == 0 and intermediate % _TURNED == 0 and min(hidden, intermediate) >= COLUMNS
    return hopper() and dtype is torch.bfloat16 and tokens >= _FROM and fits


def _spec(
    name: str,
    shape: tuple[int, int, int],
    pointers: tuple[Pointer, ...],
    maps: tuple[Parameter, ...],
    epilogue_bytes: int = 0,
) -> KernelSpec:
    tokens, width, depth = shape
    return KernelSpec(
        op=f"fp8_products.{name}",
        shape=shape,
        dtype="fp8e4nv",
        constants=(("columns", COLUMNS),),
        num_warps=WARPS,
        num_stages=STAGES,
        function=CudaFunction(
            _FOLDER / f"{name}.cu",
            f"fp8_products_{name}",
            (*maps, *(Address(index) for index in range(len(maps), len(pointers)))),
            shared_memory=SHARED_BYTES + 2 * (epilogue_bytes + _SCALE_BYTES),
            cluster=CLUSTER,
        ),
        pointers=pointers,
        constexprs={"M": tokens, "WIDTH": width, "K": depth, "EXTRA": 0, "COLUMNS": COLUMNS, "GROUP": GROUP},
        grid=(blocks(),),
    )


def _left(rows: int, columns: int) -> TensorMap:
    return TensorMap(0, (columns, rows), (columns,), (_DEPTH, ROWS))


def _right(rows: int, columns: int) -> TensorMap:
    """Return a tensor map of a weight. A box has 96 of the 192 rows for a panel, in another order.

    The rows are reordered in groups of 32. Let 8 q + 2 e + b be the number of a row in its group (q < 4, e < 4, b < 2).
    In a box, b varies fastest, then q, then e.
    """
    sizes, strides = (columns, 2, 4, 4, rows // _TURNED), (columns, 8 * columns, 2 * columns, _TURNED * columns)
    return TensorMap(1, sizes, strides, (_DEPTH, 2, 4, 4, COLUMNS // 2 // _TURNED))


@functools.cache
def up_spec(tokens: int, hidden: int, intermediate: int) -> KernelSpec:
    """Return the spec (description) of the kernel that `up_swiglu` launches."""
    return _spec(
        "up_swiglu",
        (tokens, intermediate, hidden),
        (
            *(Pointer(name, "fp8e4nv") for name in ("x", "weight")),
            Pointer("gate_up", "bf16"),
            Pointer("act", "fp8e4nv"),
            *(Pointer(name, "fp32") for name in ("x_scale", "weight_scale", "norms", "limit", "scale")),
        ),
        (_left(tokens, hidden), _right(2 * intermediate, hidden)),
    )


@functools.cache
def down_backward_spec(tokens: int, hidden: int, intermediate: int) -> KernelSpec:
    """Return the spec (description) of the kernel that `down_swiglu_backward` launches."""
    return _spec(
        "down_swiglu_backward",
        (tokens, intermediate, hidden),
        (
            *(Pointer(name, "fp8e4nv") for name in ("grad", "weight")),
            Pointer("gate_up", "bf16"),
            Pointer("grad_gate_up", "fp8e4nv"),
            *(Pointer(name, "fp32") for name in ("grad_scale", "weight_scale", "norms", "input_norms")),
            *(Pointer(name, "fp32") for name in ("limit", "scale")),
        ),
        (_left(tokens, hidden), _right(intermediate, hidden)),
        epilogue_bytes=_AHEAD_BYTES,
    )


def specializations(*, tokens: int, hidden: int, intermediate: int, dtype: str) -> list[KernelSpec]:
    """Return the kernels for the MLP with FP8 products: fused ones if `serves` is True, else those of `fp8_swiglu`."""
    if serves(tokens, hidden, intermediate, torch_dtype(dtype)):
        return [up_spec(tokens, hidden, intermediate), down_backward_spec(tokens, hidden, intermediate)]
    apart: list[KernelSpec] = load("fp8_swiglu").specializations(tokens=tokens, intermediate=intermediate, dtype=dtype)
    return apart


def up_swiglu(
    x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, norms: Tensor, limit: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gate_up bf16 [tokens, 2I], and act = silu(gate) * up as e4m3 data [tokens, I] and scale f32 [tokens].

    I: intermediate size. x [tokens, hidden], weight [2I, hidden] (the rows of gate first): e4m3, with scales x_scale
    f32 [tokens], weight_scale f32 [2I]. norms f32 [tokens]: upper bounds of the Euclidean norms of x's rows. limit f32
    [1]: upper bound of |row i of gate's weight| * |row i of up's weight| for all i < I. act is computed from gate_up
    after gate_up was rounded to bf16.
    """
    (tokens, hidden), intermediate = x.shape, weight.shape[0] // 2
    spec = up_spec(tokens, hidden, intermediate)
    require_shape(spec.op, "weight", weight, (2 * intermediate, hidden))
    gate_up = torch.empty(tokens, 2 * intermediate, dtype=torch.bfloat16, device=x.device)
    data, scale = empty_rows(tokens, intermediate, x)
    launch(spec, x, weight, gate_up, data, x_scale, weight_scale, norms, limit, scale)
    return gate_up, data, scale


def down_swiglu_backward(
    grad: Tensor,
    grad_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    gate_up: Tensor,
    norms: Tensor,
    input_norms: Tensor,
    limit: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of gate_up as e4m3 data [tokens, 2I] and scale f32 [tokens].

    I: intermediate size. grad [tokens, hidden], weight [I, hidden] (W_down transposed): e4m3, with scales grad_scale
    f32 [tokens], weight_scale f32 [I]. gate_up: bf16 [tokens, 2I]. norms f32 [tokens]: upper bounds of the Euclidean
    norms of grad's rows. input_norms f32 [tokens]: the same for the rows x from which gate_up was computed. limit f32
    [1]: upper bound of |row i of weight| * max(1.1 |row i of up's weight|, |row i of gate's weight|) for all i < I.
    """
    (tokens, hidden), intermediate = grad.shape, weight.shape[0]
    spec = down_backward_spec(tokens, hidden, intermediate)
    require_shape(spec.op, "weight", weight, (intermediate, hidden))
    require_shape(spec.op, "gate_up", gate_up, (tokens, 2 * intermediate))
    data, scale = empty_rows(tokens, 2 * intermediate, grad)
    launch(spec, grad, weight, gate_up, data, grad_scale, weight_scale, norms, input_norms, limit, scale)
    return data, scale
