"""Attention's backward in two kernels for Hopper, without atomics. `kernel.py` has the legend and the formulas.

`dq.cu` writes dQ, and delta = rowsum(dO * O) for the second kernel. `dkdv.cu` writes dK and dV, summed over the query
heads of a key head. Both kernels compute the probabilities P and their gradient dP. For a tile of queries and a tile of
keys, the two kernels together compute 7 matrix products, while one kernel with atomics would need 5. In return, one
program writes each element of a gradient, and sums have a fixed order. Hopper's copy engine loads the operands into a
ring of stages in shared memory, and two warp groups multiply. P and dS are rounded to bf16 before they are multiplied.
Sums are in fp32. dK and dV are rounded once, after the sum over the query heads of a key head. (The kernels of
`kernel.py` round the dK and dV of each query head before this sum.) The rotary embedding of dQ and dK is undone in
fp32, before rounding.

On an H100, these two kernels take 300 us for 4 sequences of 2048 tokens (4 x 2048), where the three kernels of
`kernel.py` take 392 us. For other sizes: 106 and 123 us at 4 x 1024, 1055 and 1694 us at 4 x 4096, 1060 and 1353 us at
1 x 8192.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor

from reference_impl.kernels.cuda_source import Address, CudaFunction, TensorMap
from reference_impl.kernels.registry import Constant, KernelSpec, Pointer, launch, multiprocessors
from reference_impl.kernels.target import hopper

_FOLDER = Path(__file__).parent
_WARPS = 12  # number of warps: one warp group loads, and two warp groups multiply
_HEAD_DIM = 128
_ROWS = 64  # number of rows (queries or keys) in a tile
_TILE_BYTES = 2 * _ROWS * _HEAD_DIM
# Number of query heads for each key head that these kernels accept. The `.cu` files also support any other number that
# is at least the number of thread blocks in a cluster, but no other number was tested.
_GROUP = 6
# _FROM: smallest sequence length for which these kernels are used. _PAIR: number of tokens in a pair of key tiles. The
# kernels support only sequences of whole pairs.
_FROM = 1024
_PAIR = 256
# Largest number of thread blocks in a cluster. The blocks of a cluster share the work of one pair of key tiles, so that
# each multiprocessor has about one block. For 4 sequences of 1024 tokens, the kernel for dK and dV took 87 us with two
# blocks in a cluster, 66 us with three, and 118 us with four.
_CLUSTER_AT_MOST = 3
# These kernels are used only if at least this many tenths of the multiprocessors get a thread block. Otherwise the
# kernels of `kernel.py`, with their many small programs, use the GPU better.
_TENTHS = 7
_DQ_STAGES = 3  # number of stages of the first kernel's ring; four stages took the same time
# Used if several thread blocks share a pair of key tiles: up to this sequence length, the second kernel has as many
# stages as fit, for longer sequences two. With 1 x 8192 tokens, it took 1058 us with two stages, 1077 us with three.
_THREE_STAGES_TO = 4096


def serves(batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int, dtype: str) -> bool:
    """Return True if these kernels support attention of these sizes and are faster than those of `kernel.py`."""
    fits = head_dim == _HEAD_DIM and heads == _GROUP * kv_heads and seq_len % _PAIR == 0
    if not (hopper() and dtype == "bf16" and fits and seq_len >= _FROM):
        return False
    pairs = _pairs(batch, seq_len, kv_heads)
    return 10 * pairs * _cluster(pairs) >= _TENTHS * multiprocessors()


def _pairs(batch: int, seq_len: int, kv_heads: int) -> int:
    return batch * kv_heads * seq_len // _PAIR


def _cluster(pairs: int) -> int:
    """Return how many blocks share a pair of key tiles: up to three, as long as the blocks of all pairs run at once."""
    return max(1, min(_CLUSTER_AT_MOST, multiprocessors() // max(1, pairs)))


def _stages(seq_len: int, cluster: int) -> int:
    """Return the number of stages of the second kernel's ring: as many as fit into shared memory (2 to 4), or only 2 if
    3 stages are slower."""
    return 2 if cluster > 1 and seq_len > _THREE_STAGES_TO else 5 - cluster


@functools.cache
def dq_spec(batch: int, seq_len: int, heads: int, kv_heads: int) -> KernelSpec:
    """Return the spec (description) of the first kernel. It writes dQ into the packed gradient, and delta into an fp32
    tensor [batch, query heads, sequence length]."""
    tokens = batch * seq_len
    names = ("qkv", "grad_output", "output")
    shared_memory = (6 + 2 * _DQ_STAGES) * _TILE_BYTES + 8 * (2 * _DQ_STAGES + 2)
    return KernelSpec(
        op="attention.dq",
        shape=(batch, seq_len, heads, kv_heads, _HEAD_DIM),
        dtype="bf16",
        constants=(),
        num_warps=_WARPS,
        num_stages=_DQ_STAGES,
        function=CudaFunction(
            _FOLDER / "dq.cu",
            "attention_dq",
            (
                _tiles(0, tokens, heads + 2 * kv_heads),
                _tiles(1, tokens, heads),
                _tiles(2, tokens, heads),
                *(Address(index) for index in range(3, 8)),
            ),
            shared_memory,
        ),
        pointers=(
            *(Pointer(name, "bf16") for name in names),
            *(Pointer(name, "fp32") for name in ("log_sum_exp", "delta", "cos", "sin")),
            Pointer("grad_qkv", "bf16"),
        ),
        constexprs={"BATCH": batch, **_sizes(seq_len, heads, kv_heads, shared_memory)},
        grid=(multiprocessors(),),
    )


@functools.cache
def dkdv_spec(batch: int, seq_len: int, heads: int, kv_heads: int) -> KernelSpec:
    """Return the spec (description) of the second kernel, which writes dK and dV into the packed gradient."""
    tokens, pairs = batch * seq_len, _pairs(batch, seq_len, kv_heads)
    cluster = _cluster(pairs)
    stages = _stages(seq_len, cluster)
    # Bytes that a thread block receives from the other blocks of its cluster for the sums of one tile. The sums are 16
    # units. A unit is 8 fp32 registers of each of 256 threads. Each block receives its share of the units from each
    # other block.
    exchange = (cluster - 1) * -(-16 // cluster) * 8 * 256 * 4
    ring = stages * (2 * _TILE_BYTES + 2 * 4 * _ROWS)
    shared_memory = 4 * _TILE_BYTES + ring + exchange + 8 * (2 * stages + 4)
    return KernelSpec(
        op="attention.dkdv",
        shape=(batch, seq_len, heads, kv_heads, _HEAD_DIM),
        dtype="bf16",
        constants=(("cluster", cluster),),
        num_warps=_WARPS,
        num_stages=stages,
        function=CudaFunction(
            _FOLDER / "dkdv.cu",
            "attention_dkdv",
            (
                _tiles(0, tokens, heads + 2 * kv_heads),
                _tiles(1, tokens, heads),
                *(Address(index) for index in range(2, 7)),
            ),
            shared_memory,
            cluster,
        ),
        pointers=(
            *(Pointer(name, "bf16") for name in ("qkv", "grad_output")),
            *(Pointer(name, "fp32") for name in ("log_sum_exp", "delta", "cos", "sin")),
            Pointer("grad_qkv", "bf16"),
        ),
        constexprs=_sizes(seq_len, heads, kv_heads, shared_memory),
        grid=(pairs * cluster,),
    )


def _tiles(pointer: int, tokens: int, heads: int) -> TensorMap:
    """Return the tensor map of a matrix [tokens, heads * head_dim]. A box has half of a tile's columns, so that a row
    of the box has 128 bytes."""
    columns = heads * _HEAD_DIM
    return TensorMap(pointer, (columns, tokens), (columns,), (_HEAD_DIM // 2, _ROWS))


def _sizes(seq_len: int, heads: int, kv_heads: int, shared_memory: int) -> dict[str, Constant]:
    return {"S": seq_len, "HEADS": heads, "KV_HEADS": kv_heads, "SHARED_MEMORY": shared_memory}


def specializations(batch: int, seq_len: int, heads: int, kv_heads: int) -> list[KernelSpec]:
    """Return both kernels of the backward, for sizes for which `serves` is True."""
    return [spec(batch, seq_len, heads, kv_heads) for spec in (dq_spec, dkdv_spec)]


def backward(
    grad_output: Tensor,
    qkv: Tensor,
    output: Tensor,
    log_sum_exp: Tensor,
    cos: Tensor,
    sin: Tensor,
    sizes: tuple[int, int, int, int],
) -> Tensor:
    """Do the same as `kernel.backward`, for sizes that `serves` accepts. sizes: batch, seq_len, heads, kv_heads."""
    delta, grad_qkv = torch.empty_like(log_sum_exp), torch.empty_like(qkv)
    launch(dq_spec(*sizes), qkv, grad_output, output, log_sum_exp, delta, cos, sin, grad_qkv)
    launch(dkdv_spec(*sizes), qkv, grad_output, log_sum_exp, delta, cos, sin, grad_qkv)
    return grad_qkv
