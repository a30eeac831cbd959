"""The one place where Triton kernels are described, compiled and launched.

A `KernelSpec` is everything that decides the machine code of one kernel and the grid it runs on: operation,
shape, dtype, constants, warps, stages. Wrappers (`kernels/<op>/kernel.py`) build a spec for the tensors they are
given and call `launch`; `specializations(...)` of the same module builds the same specs from shapes alone. A
prewarm plan and a run therefore name their kernels by the same code, and `KernelSpec.key` is equal exactly when
the kernel is.

Nothing but the spec may select machine code: sizes are `constexpr`, no kernel takes a run-time integer, and
`launch` refuses tensors (dtype, contiguity, 16-byte alignment) for which Triton would compile another variant.

Triton is imported only when a kernel is compiled, so this module loads on machines without it. The kernel
modules themselves import Triton: import them only where a CUDA device is used, or a kernel is compiled.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

Constant = int | float | bool | str
Launcher = Callable[["KernelSpec", tuple[Tensor, ...]], None]

KERNELS: dict[str, str] = {
    op: f"reference_impl.kernels.{op}.kernel"
    for op in (
        *("nf4", "rms_norm", "rope", "attention", "swiglu", "cross_entropy", "softmax", "clip", "gemm"),
        *("fp8_rows", "fp8_norm", "fp8_swiglu", "fp8_nf4", "fp8_loss"),
    )
}
"""Kernel module of each operation: `load(op)` imports it; each offers `specializations(...) -> list[KernelSpec]`."""

# Bytes. Triton compiles a pointer that is a multiple of 16 into 16-byte loads and any other into another kernel.
POINTER_ALIGNMENT = 16

_DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
}
_DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in _DTYPE_NAMES.items()}


class KernelArgumentError(ValueError):
    """An argument that no kernel was built for; names the operation, the argument, what was found and the remedy."""

    def __init__(self, op: str, argument: str, found: str, remedy: str) -> None:
        super().__init__(f"{op}: argument {argument!r} is {found}; {remedy}")
        self.op = op
        self.argument = argument


@dataclass(frozen=True, slots=True)
class Pointer:
    """A tensor argument of a kernel: its name, element type (`fp32`, `bf16`, …) and whether 16-byte alignment is
    compiled in. Arguments that are read one element a row are left unaligned, so that any slice may be passed.

    With `tile` the kernel gets a descriptor of the tensor, which is read and written in tiles of that shape: Hopper's
    copy engine moves them without a thread's help. Architectures before it compile them into plain loads and stores.
    """

    name: str
    dtype: str
    aligned: bool = True
    tile: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One compiled kernel and its grid. Equality and hash are those of `key`'s fields.

    op: operation and direction, as in `rms_norm.forward`. shape: sizes, as the operation's legend names them.
    dtype: of the data. constants: what else is compiled in and changes results (eps, direction, accumulate, …).
    function: the `triton.jit` function. pointers: its tensor arguments, in order; constexprs: its other arguments.
    """

    op: str
    shape: tuple[int, ...]
    dtype: str
    constants: tuple[tuple[str, Constant], ...]
    num_warps: int
    num_stages: int
    function: Any = field(compare=False, repr=False)
    pointers: tuple[Pointer, ...] = field(compare=False, repr=False)
    constexprs: Mapping[str, Constant] = field(compare=False, repr=False)
    grid: tuple[int, ...] = field(compare=False)
    # Contracting a multiplication and an addition into one rounding is off where a kernel must equal torch bit for bit.
    enable_fp_fusion: bool = True

    @property
    def key(self) -> str:
        """Readable key, e.g. `rms_norm.forward/512x1536/bf16/eps=1e-06/w4s1`; it ends in `u` without fp fusion."""
        constants = ",".join(f"{name}={value}" for name, value in self.constants) or "-"
        sizes = "x".join(map(str, self.shape))
        fusion = "" if self.enable_fp_fusion else "u"
        return f"{self.op}/{sizes}/{self.dtype}/{constants}/w{self.num_warps}s{self.num_stages}{fusion}"

    @property
    def identity(self) -> tuple[object, ...]:
        """All that the compiler reads: two specs of one key and another identity are two kernels under one name."""
        function = self.function
        return (
            f"{function.__module__}.{function.__name__}",
            self.pointers,
            tuple(self.constexprs.items()),
            tuple(self.options.items()),
        )

    @property
    def signature(self) -> dict[str, str]:
        """Argument types as `triton.compiler.ASTSource` takes them, in the kernel's argument order."""
        pointers = {
            pointer.name: f"*{pointer.dtype}"
            if pointer.tile is None
            else f"tensordesc<{pointer.dtype}{[*pointer.tile]}>"
            for pointer in self.pointers
        }
        return pointers | dict.fromkeys(self.constexprs, "constexpr")

    @property
    def attributes(self) -> dict[tuple[int], list[list[Any]]]:
        """The alignment attributes that Triton's launcher would derive from aligned tensors, by argument index."""
        return {
            (index,): [["tt.divisibility", POINTER_ALIGNMENT]]
            for index, pointer in enumerate(self.pointers)
            if pointer.aligned and pointer.tile is None
        }

    @property
    def options(self) -> dict[str, Any]:
        """Compile options beside the source."""
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": self.enable_fp_fusion,
        }


def device_function(function: Callable[..., Any]) -> Any:
    """`triton.jit` for a function that kernels call."""
    import triton

    return triton.jit(function)


@functools.cache
def _read_loop_bounds_of_one_element() -> None:
    """Let an interpreted loop have a computed bound: Triton 3.6 takes `int` of an array, which numpy 2.4 refuses."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_tensor


@functools.cache
def _round_to_fp8_as_a_gpu() -> None:
    """Let an interpreted kernel round fp32 to FP8 as `cvt.rn.satfinite` does: Triton's interpreter cuts bits off."""
    import numpy as np
    from triton.runtime import interpreter

    types = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
    convert = interpreter._convert_float

    def converted(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source.name != "fp32" or target.name not in types:
            return convert(values, source, target, rounding)
        largest = torch.finfo(types[target.name]).max
        wide = torch.from_numpy(np.ascontiguousarray(values)).clamp(-largest, largest)
        return wide.to(types[target.name]).view(torch.uint8).numpy()

    interpreter._convert_float = converted


def kernel(*unaligned: str) -> Callable[[Callable[..., Any]], Any]:
    """`triton.jit` for a kernel; `unaligned` names the pointers whose alignment must not select another variant."""
    import triton

    if os.environ.get("TRITON_INTERPRET") == "1":
        _read_loop_bounds_of_one_element()
        _round_to_fp8_as_a_gpu()

    def decorate(function: Callable[..., Any]) -> Any:
        return triton.jit(function, do_not_specialize_on_alignment=unaligned)

    return decorate


def load(op: str) -> ModuleType:
    """Import the kernel module of `op` (a key of `KERNELS`); imports Triton."""
    return importlib.import_module(KERNELS[op])


@functools.cache
def shared_memory_bytes() -> int:
    """What one block may have of shared memory: of the current CUDA device; without one, of Hopper (227 KiB)."""
    if not torch.cuda.is_available():
        return 227 * 1024
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    return int(properties.shared_memory_per_block_optin)


def dtype_name(op: str, argument: str, dtype: torch.dtype) -> str:
    """Triton's name of a dtype; KernelArgumentError for one that no kernel takes (fp64, …)."""
    try:
        return _DTYPE_NAMES[dtype]
    except KeyError:
        remedy = f"use one of {', '.join(map(str, _DTYPE_NAMES))}"
        raise KernelArgumentError(op, argument, str(dtype), remedy) from None


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of Triton's name; KeyError for an unknown one."""
    return _DTYPES[name]


def require_shape(op: str, argument: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """KernelArgumentError unless `tensor` has exactly `shape`: a kernel would read past its end."""
    if tensor.shape != shape:
        raise KernelArgumentError(op, argument, f"of shape {list(tensor.shape)}", f"pass shape {list(shape)}")


def jit_launch(spec: KernelSpec, arguments: tuple[Tensor, ...]) -> None:
    """Launch through Triton's own JIT cache, compiling on first use."""
    spec.function[spec.grid](*_as_compiled(spec, arguments), **spec.constexprs, **spec.options)


def _as_compiled(spec: KernelSpec, arguments: tuple[Tensor, ...]) -> list[Any]:
    """What the kernel takes for its tensors: the tensor itself, or its descriptor."""
    return [
        tensor if pointer.tile is None else _descriptor(tensor, pointer.tile)
        for pointer, tensor in zip(spec.pointers, arguments, strict=True)
    ]


def _descriptor(tensor: Any, tile: tuple[int, ...]) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(tensor, list(tile))


_launchers: list[Launcher] = [jit_launch]


def add_launcher(launcher: Launcher) -> None:
    """Route every later launch through `launcher(spec, arguments)`, until it is removed or another one is added."""
    _launchers.append(launcher)


def remove_launcher(launcher: Launcher) -> None:
    """Take a launcher out again, in whatever order they came; ValueError if it was not added."""
    _launchers.remove(launcher)


def current_launcher() -> Launcher:
    """What launches go through now."""
    return _launchers[-1]


@contextmanager
def launching_by(launcher: Launcher) -> Iterator[None]:
    """Route the launches inside the `with` through `launcher`."""
    add_launcher(launcher)
    try:
        yield
    finally:
        remove_launcher(launcher)


def _address(tensor: Tensor) -> int:
    # a fake tensor has no address: its offset stands for it, because every allocation starts aligned
    return tensor.data_ptr() if type(tensor) is Tensor else int(tensor.storage_offset() * tensor.element_size())


def launch(spec: KernelSpec, *arguments: Tensor) -> None:
    """Launch one kernel on the current stream; no host sync, capture-safe.

    KernelArgumentError if a tensor does not have the spec's dtype, is not contiguous, or is not aligned as compiled.
    An empty grid (no tokens, no elements) launches nothing.
    """
    if len(arguments) != len(spec.pointers):
        raise KernelArgumentError(
            spec.op, "*", f"{len(arguments)} tensors", f"pass {[pointer.name for pointer in spec.pointers]}"
        )
    for pointer, tensor in zip(spec.pointers, arguments, strict=True):
        if tensor.dtype is not _DTYPES[pointer.dtype]:
            raise KernelArgumentError(spec.op, pointer.name, str(tensor.dtype), f"pass {pointer.dtype}")
        if not tensor.is_contiguous():
            raise KernelArgumentError(
                spec.op, pointer.name, f"not contiguous (strides {tensor.stride()})", "pass a contiguous tensor"
            )
        if pointer.aligned and _address(tensor) % POINTER_ALIGNMENT:
            raise KernelArgumentError(
                spec.op, pointer.name, "not 16-byte aligned", "pass a tensor that starts on a 16-byte boundary"
            )
    if 0 not in spec.grid:
        _launchers[-1](spec, arguments)


def compile_for_device(spec: KernelSpec) -> Any:
    """Compile for the current CUDA device into the JIT cache that `jit_launch` uses, without loading or launching it.

    Returns Triton's `CompiledKernel` (`.asm["ptx"]`, `.metadata`); `load_compiled` puts its module on the device.
    """
    from triton.runtime.jit import MockTensor
    from triton.tools.tensor_descriptor import TensorDescriptor

    def stand_in(pointer: Pointer) -> Any:
        tensor = MockTensor(_DTYPES[pointer.dtype])
        if pointer.tile is None:
            return tensor
        # Sizes of a described tensor are arguments of the launch: no number here reaches the machine code.
        *outer, inner = pointer.tile
        return TensorDescriptor(tensor, [*outer, inner], [inner] * len(outer) + [1], list(pointer.tile))

    arguments = [stand_in(pointer) for pointer in spec.pointers]
    return spec.function.warmup(*arguments, grid=spec.grid, **spec.constexprs, **spec.options)


def load_compiled(compiled: Any) -> None:
    """Load the module of a kernel from `compile_for_device` on the current device, as its first launch would."""
    compiled._init_handles()


def offline_compile(spec: KernelSpec, sm: int) -> Any:
    """Compile for `sm` (90 is Hopper) without a GPU or a driver; returns Triton's `CompiledKernel`.

    `.asm["ptx"]` is the PTX, `.asm["cubin"]` the binary, `.metadata.shared` the bytes of shared memory,
    `.metadata.num_warps` x 32 the threads of a block.
    Not in a process that runs with TRITON_INTERPRET=1: such a process cannot compile.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(spec.function, spec.signature, dict(spec.constexprs), spec.attributes)
    return triton.compile(source, target=GPUTarget("cuda", sm, 32), options=spec.options)
