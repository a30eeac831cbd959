"""Kernels written in CUDA C++ for Hopper. The `KernelSpec` of such a kernel contains a `CudaFunction`.

A source is a `.cu` file with an entry function that is `extern "C"`. The file may include, in quotes, files of its own
folder and `hopper.cuh` (instructions that only Hopper has), but no header of the CUDA toolkit. The values of the spec
are macros in the source: the `constexprs` (a float is rounded to fp32, a bool is 0 or 1), `NUM_WARPS`, `NUM_STAGES` and
`CLUSTER`. The entry function has the parameters of the `CudaFunction`, in the same order. There, an `Address` is a
pointer, and a `TensorMap` is a `const __grid_constant__` value of 128 bytes, aligned to 64 bytes. All shared memory is
dynamic. A launch uses torch's current stream, also in a capture, and never waits for the device. A kernel may start
while the previous kernel runs. Therefore each kernel must call `begin` of `hopper.cuh`, which waits for the previous
kernel's end.
"""

from __future__ import annotations

import ctypes
import math
import re
import threading
from dataclasses import astuple, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from harness.devices.ptx import read_module
from reference_impl.kernels import nvrtc
from reference_impl.kernels.cuda_launch import Launch, load_function
from reference_impl.kernels.cuda_parameters import Address, Parameter, TensorMap, check
from reference_impl.kernels.nvrtc import Binary, CudaSourceError
from reference_impl.kernels.spec import Constant, KernelArgumentError, KernelSpec
from reference_impl.kernels.target import HOPPER

__all__ = ["Address", "CudaFunction", "CudaKernel", "TensorMap", "rebuilt"]

# Compile for sm_90a, because only this target has the instructions wgmma and setmaxnreg. `--minimal` leaves out
# textures and the device's runtime, because no kernel uses them.
_OPTIONS = ("--gpu-architecture=sm_90a", "--std=c++17", "-default-device", "--minimal")
_SHARED_MEMORY_LIMIT = 227 * 1024  # largest number of bytes of shared memory that a block may have on Hopper
_WAIT = "griddepcontrol.wait"
_STATIC_SHARED_MEMORY = re.compile(r"^[ \t]*\.shared\b.*", re.MULTILINE)


class CudaKernel:
    """A compiled kernel, as `KernelFunction` defines it. `function`: the driver's handle, or None before loading."""

    def __init__(self, spec: KernelSpec, source: CudaFunction, binary: Binary) -> None:
        self.asm: dict[str, Any] = {"ptx": binary.ptx, "cubin": binary.cubin}
        self.metadata = SimpleNamespace(name=source.entry, shared=source.shared_memory, num_warps=spec.num_warps)
        self.function: Any = None


@dataclass(frozen=True, slots=True)
class CudaFunction:
    """The kernel `entry` of the file `source`, as a `KernelFunction`.

    shared_memory: bytes for each thread block. cluster: number of blocks in a cluster, along the grid's first axis.
    """

    source: Path
    entry: str
    parameters: tuple[Parameter, ...]
    shared_memory: int
    cluster: int = 1
    # (id of a spec, device) -> launch. The `Launch` keeps the spec alive, so no other spec gets the same id.
    _launches: dict[tuple[int, int], Launch] = field(default_factory=dict, init=False, compare=False, repr=False)

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
        """Launch the kernel. The first launch loads a module, which may fail in a capture, so prewarm the kernel."""
        device = arguments[0].get_device()
        launch = self._launches.get((id(spec), device))
        if launch is None:
            launch = self._launches[id(spec), device] = self._made_ready(spec, device)
        launch(arguments)

    def _made_ready(self, spec: KernelSpec, device: int) -> Launch:
        with torch.cuda.device(device):
            compiled = self.compile_for_device(spec)
            self.load(compiled)
        return Launch(spec, device, compiled.function, self.parameters, self.shared_memory, self.cluster)

    def compile_for_device(self, spec: KernelSpec) -> CudaKernel:
        device, (major, minor) = torch.cuda.current_device(), torch.cuda.get_device_capability()
        # Use text as the key, because (1,), (1.0,) and (True,) are equal tuples, although their kernels differ.
        key = f"{device} {spec.identity!r}"
        with _lock:
            if key not in _on_devices:
                _on_devices[key] = self.compile_for(spec, 10 * major + minor)
            return _on_devices[key]

    def compile_for(self, spec: KernelSpec, sm: int) -> CudaKernel:
        """Compile the kernel for the architecture `sm`, which must be 90.

        Raises CudaSourceError if `sm` is not 90, if the source has errors, or if NVRTC is not installed. Raises
        KernelArgumentError for parameters that the driver would refuse.
        """
        if sm != HOPPER:
            rule = "kernels in CUDA C++ need capability 9.0"
            raise CudaSourceError(spec.op, rule, f"sm_{sm}", "use another kernel if `hopper()` returns False")
        self._check(spec)
        label = f"{self.source.parent.name}/{self.source.name}"
        text, headers = nvrtc.read_source(self.source)
        # Define macros in the source and not by options. Macros from options also apply to NVRTC's own declarations,
        # which have parameters named T.
        defined = "".join(f"#define {name} {value}\n" for name, value in self._macros(spec).items())
        options = _OPTIONS if spec.enable_fp_fusion else (*_OPTIONS, "--fmad=false")
        binary = nvrtc.compile_source(self.entry, label, f'{defined}#line 1 "{label}"\n{text}', headers, options)
        self._check_compiled(label, binary.ptx)
        return CudaKernel(spec, self, binary)

    def _macros(self, spec: KernelSpec) -> dict[str, str]:
        given = {"NUM_WARPS": spec.num_warps, "NUM_STAGES": spec.num_stages, "CLUSTER": self.cluster}
        return {name: _literal(spec.op, name, value) for name, value in (given | dict(spec.constexprs)).items()}

    def _check(self, spec: KernelSpec) -> None:
        if self.shared_memory > _SHARED_MEMORY_LIMIT:
            found = f"{self.shared_memory} bytes"
            raise KernelArgumentError(spec.op, "shared_memory", found, f"use at most {_SHARED_MEMORY_LIMIT} bytes")
        if spec.grid[0] % self.cluster:
            raise KernelArgumentError(
                spec.op, "grid", f"{spec.grid}", f"use a first size that is a multiple of the cluster, {self.cluster}"
            )
        for parameter in self.parameters:
            check(spec, parameter)

    def _check_compiled(self, label: str, ptx: str) -> None:
        entries = read_module(ptx).entries
        if self.entry not in entries:
            rule = f'the source must have an entry extern "C" {self.entry}'
            raise CudaSourceError(label, rule, ", ".join(entries) or "none", "correct the entry's name")
        if _WAIT not in ptx:
            rule = "a kernel must wait for the kernel before it, which may still be running"
            raise CudaSourceError(label, rule, f"no {_WAIT}", "call begin() of hopper.cuh before the first read")
        static = _STATIC_SHARED_MEMORY.search(ptx)
        if static is not None:
            rule = "shared memory must be dynamic, so that the spec states its whole size"
            raise CudaSourceError(label, rule, static[0].strip(), "make the array a part of `extern __shared__`")

    def load(self, compiled: CudaKernel) -> None:
        with _lock:
            if compiled.function is None:
                compiled.function = load_function(self.entry, compiled.asm["cubin"], self.shared_memory)
                nvrtc.report("load", self.entry)


# Text that contains the device and the identity of a spec -> the compiled kernel. The identity does not contain the
# grid, so specs that differ only in their grids share a compiled kernel.
_on_devices: dict[str, CudaKernel] = {}
_lock = threading.RLock()


def rebuilt(description: dict[str, Any]) -> CudaFunction:
    """Return the `CudaFunction` that has this `description`."""
    parameters = tuple(Address(*given) if len(given) == 1 else TensorMap(*given) for given in description["parameters"])
    return CudaFunction(
        Path(description["source"]),
        description["entry"],
        parameters,
        description["shared_memory"],
        description["cluster"],
    )


def _literal(op: str, name: str, value: Constant) -> str:
    """Return a constant as C++ code. A float is rounded to fp32, and written in hexadecimal, which is exact."""
    if isinstance(value, float):
        rounded = ctypes.c_float(value).value
        if not math.isfinite(rounded):
            raise KernelArgumentError(op, name, repr(value), "give a number that float32 can represent")
        return f"({rounded.hex()}f)"
    return f"({int(value)})" if isinstance(value, int) else value
