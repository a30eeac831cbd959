"""A small kernel of CUDA C++: out = factor * x, which the copy engine brings to shared memory; its twin in torch."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from reference_impl.kernels.cuda_source import Address, CudaFunction, TensorMap
from reference_impl.kernels.spec import KernelSpec, Pointer

FOLDER = Path(__file__).parent / "scaled_copy_source"
BOX_ROWS, BOX_COLUMNS = 8, 32
SHARED_MEMORY = 4 * BOX_ROWS * BOX_COLUMNS + 8  # a box and a barrier


def scaled_copy_spec(
    rows: int, columns: int, factor: float = 0.1, *, swizzle: int = 128, cluster: int = 1, num_warps: int = 4
) -> KernelSpec:
    """Kernel of out = factor * x, both fp32 [rows, columns]; blocks, i32 [1]: those of a cluster."""
    function = CudaFunction(
        FOLDER / "scaled_copy.cu",
        "scaled_copy",
        parameters=(
            TensorMap(0, sizes=(columns, rows), strides=(columns,), box=(BOX_COLUMNS, BOX_ROWS), swizzle=swizzle),
            Address(1),
            Address(2),
        ),
        shared_memory=SHARED_MEMORY,
        cluster=cluster,
    )
    across = -(-columns // BOX_COLUMNS)
    return KernelSpec(
        op="scaled_copy",
        shape=(rows, columns),
        dtype="fp32",
        constants=(("factor", factor),),
        num_warps=num_warps,
        num_stages=1,
        function=function,
        pointers=(Pointer("x", "fp32"), Pointer("out", "fp32"), Pointer("blocks", "i32", aligned=False)),
        constexprs={
            "ROWS": rows,
            "COLUMNS": columns,
            "FACTOR": factor,
            "BOX_ROWS": BOX_ROWS,
            "BOX_COLUMNS": BOX_COLUMNS,
            "SWIZZLE": swizzle,
        },
        grid=(-(-across // cluster) * cluster, -(-rows // BOX_ROWS)),
    )


def scaled(x: Tensor, factor: float = 0.1) -> Tensor:
    """The twin: fp32 throughout, so equal to the bit."""
    return x * x.new_tensor(factor)
