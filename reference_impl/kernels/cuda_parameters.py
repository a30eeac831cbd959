"""The parameters of kernels in CUDA C++: addresses of tensors, and tensor maps. `check` needs no GPU driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from reference_impl.kernels.nvrtc import CudaSourceError
from reference_impl.kernels.spec import DTYPES, POINTER_ALIGNMENT, KernelArgumentError, KernelSpec

PLACE_BYTES = 128
"""The number of bytes reserved for each parameter: the size of a tensor map, which is also its alignment in CUDA 13."""

# Data type of a pointer -> element type of its tensor map. The copy engine moves bytes without interpreting them.
_ELEMENTS = {
    "fp32": "FLOAT32",
    "fp16": "FLOAT16",
    "bf16": "BFLOAT16",
    "i64": "INT64",
    "i32": "INT32",
    **dict.fromkeys(("u8", "fp8e4nv", "fp8e5"), "UINT8"),
}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


@dataclass(frozen=True, slots=True)
class Address:
    """A parameter that is the address of the tensor at index `pointer` of the spec's pointers."""

    pointer: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A parameter that describes a tensor to the GPU's copy engine, which moves boxes (parts) of the tensor.

    pointer: index of the tensor in the spec's pointers.

    sizes, box: length of each dimension of the tensor and of a box, the innermost first. strides: distance in elements
    from one index to the next, for all dimensions but the innermost. swizzle: width in bytes of the swizzle pattern in
    shared memory, 0 (none), 32, 64 or 128. Parts of a box outside of the tensor are read as zeros, and never written.
    """

    pointer: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128


Parameter = Address | TensorMap
Encoder = Callable[[tuple[int, ...], int], None]
"""A function that writes one parameter. Its arguments: the tensors' addresses, and the host address to write to."""


def check(spec: KernelSpec, parameter: Parameter) -> None:
    """Raise KernelArgumentError for a parameter that the driver would refuse. This finds such errors without a GPU.

    The rules are those of `cuTensorMapEncodeTiled` in the manual of CUDA's driver, for a map that is not interleaved.
    """
    if not 0 <= parameter.pointer < len(spec.pointers):
        raise KernelArgumentError(spec.op, str(parameter), "of no pointer", f"use an index below {len(spec.pointers)}")
    if isinstance(parameter, TensorMap):
        pointer = spec.pointers[parameter.pointer]
        for remedy in _broken_rules(parameter, pointer.aligned, DTYPES[pointer.dtype].itemsize):
            raise KernelArgumentError(spec.op, pointer.name, f"mapped by {parameter}", remedy)


def _broken_rules(given: TensorMap, aligned: bool, itemsize: int) -> Iterator[str]:
    rank, row = len(given.sizes), given.box[0] * itemsize
    strides = [stride * itemsize for stride in given.strides]
    if not 1 <= rank <= 5 or len(given.box) != rank or len(strides) != rank - 1:
        yield "give 1 to 5 dimensions; each needs a size and a box, and all but the innermost need a stride"
    if not all(1 <= size <= 2**32 for size in given.sizes):
        yield "give sizes from 1 to 2^32"
    if not aligned or not all(0 <= stride < 2**40 and stride % POINTER_ALIGNMENT == 0 for stride in strides):
        yield "start the tensor and every row on a 16-byte boundary, with strides below 2^40 bytes"
    if not all(1 <= size <= 256 for size in given.box) or row % 16:
        yield "give a box of 1 to 256 elements in each dimension, whose rows are a multiple of 16 bytes"
    if given.swizzle not in _SWIZZLES or (given.swizzle and row > given.swizzle):
        yield "give a swizzle of 0, 32, 64 or 128 bytes, and a box whose row is no longer than the swizzle"


def encoder(spec: KernelSpec, parameter: Parameter) -> Encoder:
    """Return a function that encodes a parameter of `spec`. On a driver error, it raises CudaSourceError."""
    return _address(parameter) if isinstance(parameter, Address) else _tensor_map(spec, parameter)


def _address(parameter: Address) -> Encoder:
    def write(addresses: tuple[int, ...], place: int) -> None:
        ctypes.c_uint64.from_address(place).value = addresses[parameter.pointer]

    return write


def _tensor_map(spec: KernelSpec, parameter: TensorMap) -> Encoder:
    from cuda.bindings import driver

    # Do not let cuda-bindings encode the tensor map: cuda-bindings does not align the map as the driver requires.
    encode = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    pointer, rank = spec.pointers[parameter.pointer], len(parameter.sizes)
    bytes_of_strides = (stride * DTYPES[pointer.dtype].itemsize for stride in parameter.strides)
    element = int(getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENTS[pointer.dtype]}"))
    form = (
        (ctypes.c_uint64 * rank)(*parameter.sizes),
        (ctypes.c_uint64 * rank)(*bytes_of_strides),
        (ctypes.c_uint32 * rank)(*parameter.box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[parameter.swizzle]}")),
        int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
        int(driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )

    def write(addresses: tuple[int, ...], place: int) -> None:
        address = ctypes.c_void_p(addresses[parameter.pointer])
        result = driver.CUresult(encode(ctypes.c_void_p(place), element, rank, address, *form))
        done("cuTensorMapEncodeTiled", f"{spec.key}: {pointer.name}", (result,))

    return write


def done(call: str, what: str, answer: tuple[Any, ...]) -> Any:
    """Return the value that the driver's `answer` contains after the status, or None if there is no such value. Raises
    CudaSourceError if the status is an error."""
    result, *rest = answer
    if result:
        remedy = (
            "look up the error in the manual of CUDA's driver; if this is a launch in a capture, launch or "
            "prewarm the "
            "kernel before the capture"
        )
        raise CudaSourceError(what, f"{call} succeeds", result.name, remedy)
    return rest[0] if rest else None
