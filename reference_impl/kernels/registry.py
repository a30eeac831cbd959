"""Find and launch all kernels, in Triton and in CUDA C++. No other module launches kernels.

A `KernelSpec` contains everything that decides the machine code of one kernel and its grid: operation, shape, dtype,
constants, warps, stages. The functions in `kernels/<op>/kernel.py` build a spec from their tensors and call `launch`.
The function `specializations(...)` of the same module builds the same specs from shapes, without tensors. Therefore the
plan of a prewarm and the launches of a run use the same code to name kernels. Two specs have the same `KernelSpec.key`
if and only if they describe the same kernel.

Only the spec decides the machine code. Sizes are compiled in, and no kernel has an integer argument. `launch` refuses
tensors for which Triton would compile another variant, because of their dtype, strides or alignment.

This module can be imported on machines without Triton. The kernel modules themselves import Triton: import them only if
a CUDA device is used or a kernel is compiled. This module also re-exports the names that kernel modules need.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from harness.system.replay import launches
from reference_impl.kernels.spec import (
    DTYPES,
    POINTER_ALIGNMENT,
    Constant,
    KernelArgumentError,
    KernelSpec,
    Pointer,
    dtype_name,
    torch_dtype,
)
from reference_impl.kernels.triton_source import device_function, kernel

__all__ = [
    "KERNELS",
    "Constant",
    "KernelArgumentError",
    "KernelSpec",
    "Launcher",
    "Pointer",
    "add_launcher",
    "compile_for_device",
    "current_launcher",
    "device_function",
    "dtype_name",
    "jit_launch",
    "kernel",
    "launch",
    "launching_by",
    "load",
    "load_compiled",
    "multiprocessors",
    "offline_compile",
    "remove_launcher",
    "require_shape",
    "shared_memory_bytes",
    "torch_dtype",
]

Launcher = Callable[["KernelSpec", tuple[Tensor, ...]], None]

KERNELS: dict[str, str] = {
    op: f"reference_impl.kernels.{op}.kernel"
    for op in (
        *("nf4", "rms_norm", "rope", "attention", "swiglu", "cross_entropy", "softmax", "clip", "gemm", "products"),
        "lora_gradients",
        *("fp8_rows", "fp8_norm", "fp8_swiglu", "fp8_nf4", "fp8_loss", "fp8_products"),
    )
}
"""Operation -> name of its kernel module. Each module has a function `specializations(...) -> list[KernelSpec]`."""


def load(op: str) -> ModuleType:
    """Import and return the kernel module of `op` (a key of `KERNELS`), which imports Triton."""
    return importlib.import_module(KERNELS[op])


@functools.cache
def shared_memory_bytes() -> int:
    """Return how many bytes of shared memory a block may have on the current CUDA device; without a device, Hopper's
    227 KiB."""
    if not torch.cuda.is_available():
        return 227 * 1024
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    return int(properties.shared_memory_per_block_optin)


@functools.cache
def multiprocessors() -> int:
    """Return the number of the CUDA device's multiprocessors; without a device, 132 as on an H100 SXM or H200."""
    if not torch.cuda.is_available():
        return 132
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    return int(properties.multi_processor_count)


def require_shape(op: str, argument: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise KernelArgumentError unless `tensor` has exactly `shape`. A kernel could read beyond a smaller tensor."""
    if tensor.shape != shape:
        raise KernelArgumentError(
            op, argument, f"of shape {list(tensor.shape)}", f"pass a tensor of shape {list(shape)}"
        )


def jit_launch(spec: KernelSpec, arguments: tuple[Tensor, ...]) -> None:
    """Launch a kernel by Triton's launcher, or by the one of CUDA C++. The first launch compiles the kernel."""
    spec.function.launch(spec, arguments)


_launchers: list[Launcher] = [jit_launch]


def add_launcher(launcher: Launcher) -> None:
    """Make later launches call `launcher(spec, arguments)`, until it is removed or another one is added."""
    _launchers.append(launcher)


def remove_launcher(launcher: Launcher) -> None:
    """Remove a launcher, even if another launcher was added after it. Raises ValueError if the launcher was not
    added."""
    _launchers.remove(launcher)


def current_launcher() -> Launcher:
    """Return the launcher that calls of `launch` use now."""
    return _launchers[-1]


@contextmanager
def launching_by(launcher: Launcher) -> Iterator[None]:
    """Make launches inside the `with` call `launcher`."""
    add_launcher(launcher)
    try:
        yield
    finally:
        remove_launcher(launcher)


def _address(tensor: Tensor) -> int:
    # A fake tensor has no address. Use the tensor's offset in its storage instead, because every storage starts at an
    # aligned address.
    return tensor.data_ptr() if type(tensor) is Tensor else int(tensor.storage_offset() * tensor.element_size())


def launch(spec: KernelSpec, *arguments: Tensor) -> None:
    """Launch one kernel on the current stream, without a host sync. The launch can be captured.

    Raises KernelArgumentError if a tensor does not have the dtype or the alignment of the spec, or is not contiguous.
    If the grid is empty, nothing is launched.
    """
    if len(arguments) != len(spec.pointers):
        raise KernelArgumentError(
            spec.op, "*", f"{len(arguments)} tensors", f"pass {[pointer.name for pointer in spec.pointers]}"
        )
    for pointer, tensor in zip(spec.pointers, arguments, strict=True):
        if tensor.dtype is not DTYPES[pointer.dtype]:
            raise KernelArgumentError(spec.op, pointer.name, str(tensor.dtype), f"pass {pointer.dtype}")
        if not tensor.is_contiguous():
            raise KernelArgumentError(
                spec.op, pointer.name, f"not contiguous (strides {tensor.stride()})", "pass a contiguous tensor"
            )
        if pointer.aligned and _address(tensor) % POINTER_ALIGNMENT:
            raise KernelArgumentError(
                spec.op, pointer.name, "not 16-byte aligned", "pass a tensor that starts on a 16-byte boundary"
            )
    if 0 in spec.grid:
        return
    if launches.is_watched():
        launch = functools.partial(_launchers[-1], spec, arguments)
        launches.announced(spec.op, arguments, dict(spec.constants), launch)
    else:
        _launchers[-1](spec, arguments)


def compile_for_device(spec: KernelSpec) -> Any:
    """Compile a kernel for the current CUDA device into the cache that `jit_launch` uses. Do not load or launch it.

    Returns a compiled kernel as `KernelFunction` defines it. `load_compiled` loads it.
    """
    return spec.function.compile_for_device(spec)


def load_compiled(spec: KernelSpec, compiled: Any) -> None:
    """Load a kernel from `compile_for_device` on the current device, as its first launch would."""
    spec.function.load(compiled)


def offline_compile(spec: KernelSpec, sm: int) -> Any:
    """Compile the kernel of `spec` for the architecture `sm` (90 is Hopper) without a GPU or a driver. Return a
    compiled kernel as `compile_for_device` does."""
    return spec.function.compile_for(spec, sm)
