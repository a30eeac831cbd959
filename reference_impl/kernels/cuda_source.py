"""Kernels written in CUDA C++ for Hopper: what stands for `triton.jit` in a `KernelSpec`, and how they are launched.

A source is a `.cu` file with an entry that is `extern "C"`. It includes with quotes what lies beside it, and no header
of the toolkit. What it knows of the spec are macros: the `constexprs` (a float as the fp32 number that it rounds to, a
bool as 0 or 1), `NUM_WARPS`, `NUM_STAGES` and `CLUSTER`. The entry's parameters are those of the `CudaFunction`, in
order: an address is a pointer, a tensor map is 128 bytes, aligned to 64 and `const __grid_constant__`. Shared memory is
dynamic, all of it. A launch is on torch's current stream, captured or not, and never waits for the device.
"""

from __future__ import annotations

import ctypes
import math
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from harness.ptx import read_module
from reference_impl.kernels import nvrtc
from reference_impl.kernels.nvrtc import Binary, CudaSourceError
from reference_impl.kernels.spec import DTYPES, Constant, KernelArgumentError, KernelSpec
from reference_impl.kernels.target import HOPPER

_OPTIONS = ("--gpu-architecture=sm_90a", "--std=c++17", "-default-device", "--minimal")
_WARP_THREADS = 32
_SHARED_MEMORY_LIMIT = 227 * 1024  # bytes that a block may have on Hopper
_STATIC_SHARED_MEMORY = re.compile(r"^\s*\.shared\b.*", re.MULTILINE)

# Element types of tensor maps, by the dtype of their pointer: the copy engine moves bytes, and makes no number of them.
_ELEMENTS = {
    "fp32": "FLOAT32",
    "fp16": "FLOAT16",
    "bf16": "BFLOAT16",
    "i64": "INT64",
    "i32": "INT32",
    **dict.fromkeys(("u8", "fp8e4nv", "fp8e5"), "UINT8"),
}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
# A tensor map's size, and the alignment that CUDA 13 gives it; an address has a place as large.
_PARAMETER_BYTES = 128
# Launches whose arguments are kept encoded, a kernel: a step's tensors lie where they lay in the step before.
_KEPT_ARGUMENTS = 1024


@dataclass(frozen=True, slots=True)
class Address:
    """A parameter that is the address of the tensor at index `pointer` of the spec's pointers."""

    pointer: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A parameter by which the copy engine moves boxes of the tensor at index `pointer`, which may overlap its ends.

    sizes, box: of each dimension, the innermost first. strides: elements from one index to the next, of all dimensions
    but the innermost. swizzle: bytes of the pattern in shared memory, 0, 32, 64 or 128.
    """

    pointer: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128


Parameter = Address | TensorMap


class CudaKernel:
    """A compiled kernel, as `KernelFunction` says; `handle` is the driver's, once it is loaded."""

    def __init__(self, spec: KernelSpec, function: CudaFunction, binary: Binary) -> None:
        self.asm = {"ptx": binary.ptx, "cubin": binary.cubin}
        self.metadata = SimpleNamespace(name=function.entry, shared=function.shared_memory, num_warps=spec.num_warps)
        self.handle: Any = None


@dataclass(frozen=True, slots=True)
class CudaFunction:
    """The kernel `entry` of a source, as a `KernelFunction`.

    source: the `.cu` file. shared_memory: dynamic, in bytes. cluster: blocks of a cluster, along the grid's first axis.
    """

    source: Path
    entry: str
    parameters: tuple[Parameter, ...]
    shared_memory: int
    cluster: int = 1
    _launches: dict[tuple[int, int], _Launch] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.entry

    @property
    def identity(self) -> tuple[object, ...]:
        return (str(self.source), self.entry, self.parameters, self.shared_memory, self.cluster)

    @property
    def description(self) -> dict[str, Any]:
        return {
            "language": "cuda",
            "source": str(self.source),
            "entry": self.entry,
            "parameters": [astuple(parameter) for parameter in self.parameters],
            "shared_memory": self.shared_memory,
            "cluster": self.cluster,
        }

    def launch(self, spec: KernelSpec, arguments: tuple[Tensor, ...]) -> None:
        """Launch on torch's current stream of the arguments' device; the first launch of a kernel loads its module.

        That the driver may refuse within a capture: launch once before it, or prewarm.
        """
        device = arguments[0].get_device()
        launch = self._launches.get((id(spec), device))
        if launch is None:
            launch = self._launches[id(spec), device] = self._prepared(spec, device)
        launch(arguments)

    def _prepared(self, spec: KernelSpec, device: int) -> _Launch:
        with torch.cuda.device(device):
            compiled = self.compile_for_device(spec)
            self.load(compiled)
        return _Launch(spec, self, device, compiled.handle)

    def compile_for_device(self, spec: KernelSpec) -> CudaKernel:
        device, (major, minor) = torch.cuda.current_device(), torch.cuda.get_device_capability()
        key = (device, spec.identity)
        with _lock:
            if key not in _on_devices:
                _on_devices[key] = self.compile_for(spec, 10 * major + minor)
            return _on_devices[key]

    def compile_for(self, spec: KernelSpec, sm: int) -> CudaKernel:
        """CudaSourceError for another target than Hopper, for what NVRTC refuses, and where it is missing.

        KernelArgumentError for a tensor map that the driver would refuse.
        """
        if sm != HOPPER:
            rule = "kernels in CUDA C++ are for capability 9.0 alone"
            raise CudaSourceError(spec.op, rule, f"sm_{sm}", "plan another kernel where `hopper()` is false")
        _check(spec, self)
        label = f"{self.source.parent.name}/{self.source.name}"
        text, headers = nvrtc.read_source(self.source)
        macros = {"NUM_WARPS": spec.num_warps, "NUM_STAGES": spec.num_stages, "CLUSTER": self.cluster}
        defined = "".join(
            f"#define {name} {_literal(spec.op, name, value)}\n"
            for name, value in (macros | dict(spec.constexprs)).items()
        )
        options = _OPTIONS if spec.enable_fp_fusion else (*_OPTIONS, "--fmad=false")
        binary = nvrtc.compile_source(self.entry, label, f'{defined}#line 1 "{label}"\n{text}', headers, options)
        self._check_compiled(label, binary.ptx)
        return CudaKernel(spec, self, binary)

    def _check_compiled(self, label: str, ptx: str) -> None:
        entries = read_module(ptx).entries
        if self.entry not in entries:
            rule = f'the source has an entry extern "C" {self.entry}'
            raise CudaSourceError(label, rule, ", ".join(entries) or "none", "correct the name")
        static = _STATIC_SHARED_MEMORY.search(ptx)
        if static is not None:
            rule = "shared memory is dynamic, so that the spec says all of it"
            raise CudaSourceError(label, rule, static[0].strip(), "declare it as a part of `extern __shared__`")

    def load(self, compiled: CudaKernel) -> None:
        from cuda.bindings import driver

        with _lock:
            if compiled.handle is not None:
                return
            _make_context_current()
            module = _done("cuModuleLoadData", self.entry, driver.cuModuleLoadData(compiled.asm["cubin"]))
            handle = _done("cuModuleGetFunction", self.entry, driver.cuModuleGetFunction(module, self.entry.encode()))
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _done("cuFuncSetAttribute", self.entry, driver.cuFuncSetAttribute(handle, attribute, self.shared_memory))
            compiled.handle = handle
            nvrtc.report("load", self.entry)


def rebuilt(description: dict[str, Any]) -> CudaFunction:
    """The function of a `CudaFunction.description`."""
    parameters = tuple(Address(*given) if len(given) == 1 else TensorMap(*given) for given in description["parameters"])
    return CudaFunction(
        Path(description["source"]),
        description["entry"],
        parameters,
        description["shared_memory"],
        description["cluster"],
    )


# Kernels of the devices of this process, by device and the spec's identity: one module serves every grid.
_on_devices: dict[tuple[int, tuple[object, ...]], CudaKernel] = {}
_lock = threading.RLock()


Encoder = Callable[[tuple[int, ...], int], None]
"""Writes a parameter, made of the tensors' addresses, at an address of the host's memory."""


class _Launch:
    """One kernel on one device, with all of a launch made ready that no argument changes. Thread-safe."""

    __slots__ = ("_configurations", "_current_stream", "_device", "_encoders", "_handle", "_kept", "_launch", "_spec")

    def __init__(self, spec: KernelSpec, function: CudaFunction, device: int, handle: Any) -> None:
        from cuda.bindings import driver

        self._spec = spec  # kept, so that its id stays its own
        self._device, self._handle = device, handle
        self._encoders = [_encoder(spec, parameter) for parameter in function.parameters]
        self._current_stream = torch._C._cuda_getCurrentRawStream
        self._launch = driver.cuLaunchKernelEx
        self._configurations: dict[int, Any] = {}
        self._kept: dict[tuple[int, ...], tuple[int, object]] = {}

    def __call__(self, arguments: tuple[Tensor, ...]) -> None:
        stream = self._current_stream(self._device)
        configuration = self._configurations.get(stream)
        if configuration is None:
            configuration = self._configurations[stream] = _configuration(self._spec, stream)
        addresses = tuple([argument.data_ptr() for argument in arguments])
        encoded = self._kept.get(addresses)
        if encoded is None:
            encoded = self._encoded(addresses)
        (result,) = self._launch(configuration, self._handle, encoded[0], 0)
        if result:
            _done("cuLaunchKernelEx", self._spec.key, (result,))

    def _encoded(self, addresses: tuple[int, ...]) -> tuple[int, object]:
        """The array of pointers to parameters that a launch takes, as its address, and what must live as long."""
        memory = (ctypes.c_char * (_PARAMETER_BYTES * (len(self._encoders) + 1)))()
        start = -(-ctypes.addressof(memory) // _PARAMETER_BYTES) * _PARAMETER_BYTES
        places = [start + _PARAMETER_BYTES * index for index in range(len(self._encoders))]
        for encode, place in zip(self._encoders, places, strict=True):
            encode(addresses, place)
        array = (ctypes.c_void_p * len(places))(*places)
        encoded = (ctypes.addressof(array), (array, memory))
        with _lock:
            while len(self._kept) >= _KEPT_ARGUMENTS:
                del self._kept[next(iter(self._kept))]
            self._kept[addresses] = encoded
        return encoded


def _configuration(spec: KernelSpec, stream: int) -> Any:
    from cuda.bindings import driver

    function: Any = spec.function
    configuration = driver.CUlaunchConfig()
    configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ = (*spec.grid, 1, 1)[:3]
    configuration.blockDimX, configuration.blockDimY, configuration.blockDimZ = _WARP_THREADS * spec.num_warps, 1, 1
    configuration.sharedMemBytes = function.shared_memory
    configuration.hStream = stream
    if function.cluster > 1:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster = attribute.value.clusterDim
        cluster.x, cluster.y, cluster.z = function.cluster, 1, 1
        configuration.attrs, configuration.numAttrs = [attribute], 1
    return configuration


def _encoder(spec: KernelSpec, parameter: Parameter) -> Encoder:
    from cuda.bindings import driver

    pointer = parameter.pointer
    if isinstance(parameter, Address):

        def write_address(addresses: tuple[int, ...], place: int) -> None:
            ctypes.c_uint64.from_address(place).value = addresses[pointer]

        return write_address
    # Not through cuda-bindings, whose tensor maps begin where Python puts an object: the driver wants them aligned.
    encode = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    dtype, rank = spec.pointers[pointer].dtype, len(parameter.sizes)
    element = getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENTS[dtype]}")
    form = (
        (ctypes.c_uint64 * rank)(*parameter.sizes),
        (ctypes.c_uint64 * rank)(*(stride * DTYPES[dtype].itemsize for stride in parameter.strides)),
        (ctypes.c_uint32 * rank)(*parameter.box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[parameter.swizzle]}")),
        int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
        int(driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )

    def write_tensor_map(addresses: tuple[int, ...], place: int) -> None:
        result = encode(ctypes.c_void_p(place), int(element), rank, ctypes.c_void_p(addresses[pointer]), *form)
        _done("cuTensorMapEncodeTiled", f"{spec.key}: {spec.pointers[pointer].name}", (driver.CUresult(result),))

    return write_tensor_map


def _done(call: str, what: str, answer: tuple[Any, ...]) -> Any:
    """What a call of the driver returned beside its result; CudaSourceError where that is an error."""
    result, *rest = answer
    if result:
        remedy = "where it is within a capture, launch the kernel once before it, or prewarm"
        raise CudaSourceError(what, f"{call} succeeds", result.name, remedy)
    return rest[0] if rest else None


def _make_context_current() -> None:
    """torch makes the device's context at its first allocation or launch, which a prewarm comes before."""
    from cuda.bindings import driver

    if not int(_done("cuCtxGetCurrent", "context", driver.cuCtxGetCurrent())):
        device = _done("cuDeviceGet", "context", driver.cuDeviceGet(torch.cuda.current_device()))
        context = _done("cuDevicePrimaryCtxRetain", "context", driver.cuDevicePrimaryCtxRetain(device))
        _done("cuCtxSetCurrent", "context", driver.cuCtxSetCurrent(context))


def _literal(op: str, name: str, value: Constant) -> str:
    """A constant in C++. A float is rounded to fp32 here, once, and written in base 16, which is exact."""
    if isinstance(value, float):
        rounded = ctypes.c_float(value).value
        if not math.isfinite(rounded):
            raise KernelArgumentError(op, name, repr(value), "give a number that fp32 holds")
        return f"({rounded.hex()}f)"
    return f"({int(value)})" if isinstance(value, int) else value


def _check(spec: KernelSpec, function: CudaFunction) -> None:
    """KernelArgumentError for a launch or a tensor map that the driver would refuse, which no CPU would meet else.

    The rules of `cuTensorMapEncodeTiled` (CUDA Driver API), those of a map that is tiled and not interleaved.
    """
    if function.shared_memory > _SHARED_MEMORY_LIMIT:
        found = f"{function.shared_memory} bytes"
        raise KernelArgumentError(spec.op, "shared_memory", found, f"a block has {_SHARED_MEMORY_LIMIT} at most")
    if spec.grid[0] % function.cluster:
        raise KernelArgumentError(spec.op, "grid", f"{spec.grid}", f"pass whole clusters of {function.cluster}")
    for parameter in function.parameters:
        if isinstance(parameter, TensorMap):
            pointer = spec.pointers[parameter.pointer]
            for broken in _broken_rules(parameter, pointer.aligned, DTYPES[pointer.dtype].itemsize):
                raise KernelArgumentError(spec.op, pointer.name, f"mapped by {parameter}", broken)


def _broken_rules(given: TensorMap, aligned: bool, itemsize: int) -> Iterator[str]:
    rank, row = len(given.sizes), given.box[0] * itemsize
    if not 1 <= rank <= 5 or len(given.box) != rank or len(given.strides) != rank - 1:
        yield "give 1 to 5 dimensions, each with a size and a box, each but the innermost with a stride"
    if not all(1 <= size <= 2**32 for size in given.sizes):
        yield "give sizes from 1 to 2^32"
    if not aligned or any(stride * itemsize % 16 or not 0 <= stride * itemsize < 2**40 for stride in given.strides):
        yield "let the tensor and each stride be aligned to 16 bytes, strides below 2^40 bytes"
    if not all(1 <= size <= 256 for size in given.box) or row % 16:
        yield "give a box of 1 to 256 elements each way, and a multiple of 16 bytes in a row"
    if given.swizzle not in _SWIZZLES or (given.swizzle and row > given.swizzle):
        yield "give a swizzle of 0, 32, 64 or 128 bytes, and a box whose row is no longer"
