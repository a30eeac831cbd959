"""A small kernel of CUDA C++: out = factor * x, brought to shared memory by the copy engine."""

from __future__ import annotations

from pathlib import Path

from reference_impl.kernels.cuda_source import Address, CudaFunction, TensorMap
from reference_impl.kernels.spec import KernelSpec, Pointer

FOLDER = Path(__file__).parent / "cuda_fixture"
BOX_ROWS, BOX_COLUMNS = 8, 32
TILE_BYTES = BOX_ROWS * BOX_COLUMNS * 4
BARRIER_BYTES = 8


def scaled_copy_spec(
    rows: int, columns: int, factor: float, *, box_rows: int = BOX_ROWS, cluster: int = 1
) -> KernelSpec:
    """Kernel of out = factor * x, both fp32 [rows, columns], the grid in whole clusters."""
    function = CudaFunction(
        FOLDER / "scaled_copy.cu",
        "scaled_copy",
        parameters=(TensorMap(0, (columns, rows), (columns,), (BOX_COLUMNS, box_rows), swizzle=0), Address(1)),
        shared_memory=box_rows * BOX_COLUMNS * 4 + BARRIER_BYTES,
        cluster=cluster,
    )
    blocks = -(-columns // BOX_COLUMNS)
    return KernelSpec(
        op="scaled_copy",
        shape=(rows, columns),
        dtype="fp32",
        constants=(("factor", factor),),
        num_warps=4,
        num_stages=1,
        function=function,
        pointers=(Pointer("x", "fp32"), Pointer("out", "fp32")),
        constexprs={
            "ROWS": rows,
            "COLUMNS": columns,
            "FACTOR": factor,
            "ROWS_OF_A_BOX": box_rows,
            "COLUMNS_OF_A_BOX": BOX_COLUMNS,
        },
        grid=(-(-blocks // cluster) * cluster, -(-rows // box_rows)),
    )
