"""The description of a kernel: everything that decides its machine code and its grid.

This module does not depend on the language of a kernel. A `KernelFunction` compiles and launches a spec: for Triton it
is in `triton_source`, for CUDA C++ in `cuda_source`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

Constant = int | float | bool | str

WARP_THREADS = 32
# Bytes. If a pointer is a multiple of 16, Triton compiles 16-byte loads for it. For any other pointer it compiles
# another kernel.
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
DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in _DTYPE_NAMES.items()}


class KernelArgumentError(ValueError):
    """An argument does not fit the kernel. The message has the operation, the argument, its value and a remedy."""

    def __init__(self, op: str, argument: str, found: str, remedy: str) -> None:
        super().__init__(f"{op}: argument {argument!r} is {found}; {remedy}")
        self.op = op
        self.argument = argument


@dataclass(frozen=True, slots=True)
class Pointer:
    """A tensor argument of a kernel: its name, its element type (`fp32`, `bf16`, …) and its alignment.

    If `aligned`, the kernel is compiled for addresses that are multiples of 16 bytes. Arguments of which a kernel reads
    one element for each row are not `aligned`, so that any slice may be passed. With `tile` the kernel gets a
    descriptor of the tensor, and reads and writes tiles of that shape. Hopper's copy engine moves the tiles; older
    architectures use plain loads and stores.
    """

    name: str
    dtype: str
    aligned: bool = True
    tile: tuple[int, ...] | None = None


class KernelFunction(Protocol):
    """The source of a kernel, and how its language compiles and launches a spec.

    A compiled kernel has Triton's attributes: `.asm["ptx"]` is the PTX, `.asm["cubin"]` the binary, `.metadata.name`
    the entry, `.metadata.shared` the bytes of shared memory, `.metadata.num_warps` x 32 the threads of a block.
    """

    @property
    def name(self) -> str:
        """Return the kernel's name, as profilers show it."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Return a value that is equal for two functions only if their sources are the same."""

    @property
    def description(self) -> dict[str, Any]:
        """Return plain values, among them the `language`, from which the function can be rebuilt in another process."""

    def launch(self, spec: KernelSpec, arguments: tuple[Tensor, ...]) -> None:
        """Launch on torch's current stream; compile and load at the first launch."""

    def compile_for_device(self, spec: KernelSpec) -> Any:
        """Compile for the current CUDA device into the cache that `launch` uses, without loading."""

    def compile_for(self, spec: KernelSpec, sm: int) -> Any:
        """Compile for `sm` (90 is Hopper) without a GPU or a driver."""

    def load(self, compiled: Any) -> None:
        """Load a kernel from `compile_for_device` on the current device, as its first launch would."""


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One compiled kernel and its grid. Two specs are equal if the fields that `key` contains are equal.

    op: operation and direction, such as `rms_norm.forward`. shape: sizes, in the order of the operation's legend.
    dtype: of the data. constants: other compiled-in values that change results (eps, direction, accumulate, …).
    function: the source. pointers: its tensor arguments, in order. constexprs: its other arguments.
    """

    op: str
    shape: tuple[int, ...]
    dtype: str
    constants: tuple[tuple[str, Constant], ...]
    num_warps: int
    num_stages: int
    function: KernelFunction = field(compare=False, repr=False)
    pointers: tuple[Pointer, ...] = field(compare=False, repr=False)
    constexprs: Mapping[str, Constant] = field(compare=False, repr=False)
    grid: tuple[int, ...] = field(compare=False)
    # True: a multiplication and an addition may be fused into one rounding. It is False where a kernel must equal torch
    # bit for bit.
    enable_fp_fusion: bool = True

    @property
    def key(self) -> str:
        """Return a readable key such as `rms_norm.forward/512x1536/bf16/eps=1e-06/w4s1`, plus `u` without fp fusion."""
        constants = ",".join(f"{name}={value}" for name, value in self.constants) or "-"
        sizes = "x".join(map(str, self.shape))
        fusion = "" if self.enable_fp_fusion else "u"
        return f"{self.op}/{sizes}/{self.dtype}/{constants}/w{self.num_warps}s{self.num_stages}{fusion}"

    @property
    def identity(self) -> tuple[object, ...]:
        """Return all that affects the machine code. Specs with one key but two identities are different kernels."""
        return (
            self.function.identity,
            self.pointers,
            tuple(self.constexprs.items()),
            tuple(self.options.items()),
        )

    @property
    def signature(self) -> dict[str, str]:
        """Return the argument types as `triton.compiler.ASTSource` expects them, in the kernel's argument order."""
        pointers = {
            pointer.name: f"*{pointer.dtype}"
            if pointer.tile is None
            else f"tensordesc<{pointer.dtype}{[*pointer.tile]}>"
            for pointer in self.pointers
        }
        return pointers | dict.fromkeys(self.constexprs, "constexpr")

    @property
    def attributes(self) -> dict[tuple[int], list[list[Any]]]:
        """Return the alignment attributes that Triton's launcher derives from aligned tensors, by argument index."""
        return {
            (index,): [["tt.divisibility", POINTER_ALIGNMENT]]
            for index, pointer in enumerate(self.pointers)
            if pointer.aligned and pointer.tile is None
        }

    @property
    def options(self) -> dict[str, Any]:
        """Return the compile options."""
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": self.enable_fp_fusion,
        }


def dtype_name(op: str, argument: str, dtype: torch.dtype) -> str:
    """Return Triton's name of a dtype. Raises KernelArgumentError for a dtype that no kernel supports (fp64, …)."""
    try:
        return _DTYPE_NAMES[dtype]
    except KeyError:
        remedy = f"use one of {', '.join(map(str, _DTYPE_NAMES))}"
        raise KernelArgumentError(op, argument, str(dtype), remedy) from None


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype for Triton's name. Raises KeyError for an unknown name."""
    return DTYPES[name]
