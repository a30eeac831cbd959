"""Load and launch kernels in CUDA C++. Data that all launches of a kernel share is computed only once."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reference_impl.kernels.cuda_parameters import PLACE_BYTES, Parameter, done, encoder
from reference_impl.kernels.spec import WARP_THREADS, KernelSpec

# Number of different launches of each kernel whose encoded parameters are kept. Later launches with the same addresses
# use them again; the tensors of a step often have the same addresses as in the previous step.
_KEPT = 1024


def load_function(name: str, cubin: bytes, shared_memory: int) -> Any:
    """Load the module `cubin` on the current device. Return the module's function `name`, which may use `shared_memory`
    bytes of dynamic shared memory for each thread block."""
    from cuda.bindings import driver

    _make_context_current()
    module = done("cuModuleLoadData", name, driver.cuModuleLoadData(cubin))
    function = done("cuModuleGetFunction", name, driver.cuModuleGetFunction(module, name.encode()))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    done("cuFuncSetAttribute", name, driver.cuFuncSetAttribute(function, attribute, shared_memory))
    return function


def _make_context_current() -> None:
    """Make the device's CUDA context current if none is. A prewarm needs a context before torch's first use."""
    from cuda.bindings import driver

    if not int(done("cuCtxGetCurrent", "context", driver.cuCtxGetCurrent())):
        device = done("cuDeviceGet", "context", driver.cuDeviceGet(torch.cuda.current_device()))
        context = done("cuDevicePrimaryCtxRetain", "context", driver.cuDevicePrimaryCtxRetain(device))
        done("cuCtxSetCurrent", "context", driver.cuCtxSetCurrent(context))


class Launch:
    """A callable that launches one spec's kernel on one device. Thread-safe. `function`: result of `load_function`."""

    __slots__ = (
        *("_cluster", "_configurations", "_current_stream", "_device", "_encoders", "_function", "_kept"),
        *("_launch", "_lock", "_shared_memory", "_spec"),
    )

    def __init__(
        self,
        spec: KernelSpec,
        device: int,
        function: Any,
        parameters: Sequence[Parameter],
        shared_memory: int,
        cluster: int,
    ) -> None:
        from cuda.bindings import driver

        self._spec, self._device, self._function = spec, device, function
        self._shared_memory, self._cluster = shared_memory, cluster
        self._encoders = [encoder(spec, parameter) for parameter in parameters]
        self._current_stream = torch._C._cuda_getCurrentRawStream
        self._launch = driver.cuLaunchKernelEx
        self._configurations: dict[int, Any] = {}
        self._kept: dict[tuple[int, ...], tuple[int, object]] = {}
        self._lock = threading.Lock()

    def __call__(self, arguments: tuple[Tensor, ...]) -> None:
        """Launch the kernel on torch's current stream of the device. Raises CudaSourceError on a driver error."""
        stream = self._current_stream(self._device)
        configuration = self._configurations.get(stream)
        if configuration is None:
            configuration = self._configurations[stream] = self._configured(stream)
        addresses = tuple([argument.data_ptr() for argument in arguments])
        parameters = self._kept.get(addresses)
        if parameters is None:
            parameters = self._encoded(addresses)
        (result,) = self._launch(configuration, self._function, parameters[0], 0)
        if result:
            done("cuLaunchKernelEx", self._spec.key, (result,))

    def _configured(self, stream: int) -> Any:
        from cuda.bindings import driver

        configuration = driver.CUlaunchConfig()
        configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ = (*self._spec.grid, 1, 1)[:3]
        configuration.blockDimX = WARP_THREADS * self._spec.num_warps
        configuration.blockDimY = configuration.blockDimZ = 1
        configuration.sharedMemBytes = self._shared_memory
        configuration.hStream = stream
        early = driver.CUlaunchAttribute()
        early.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        attributes = [early]
        if self._cluster > 1:
            clusters = driver.CUlaunchAttribute()
            clusters.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = clusters.value.clusterDim
            size.x, size.y, size.z = self._cluster, 1, 1
            attributes.append(clusters)
        configuration.attrs, configuration.numAttrs = attributes, len(attributes)
        return configuration

    def _encoded(self, addresses: tuple[int, ...]) -> tuple[int, object]:
        """Return the host address of an array of pointers to the kernel's parameters, and the owners of its memory."""
        memory = (ctypes.c_char * (PLACE_BYTES * (len(self._encoders) + 1)))()
        start = -(-ctypes.addressof(memory) // PLACE_BYTES) * PLACE_BYTES
        places = [start + PLACE_BYTES * index for index in range(len(self._encoders))]
        for encode, place in zip(self._encoders, places, strict=True):
            encode(addresses, place)
        array = (ctypes.c_void_p * len(places))(*places)
        encoded = (ctypes.addressof(array), (array, memory))
        with self._lock:
            while len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[addresses] = encoded
        return encoded
