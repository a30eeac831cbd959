"""The description ("spec") of a kernel: everything that decides its machine code and its grid.

This module does not depend on the language of a kernel. A `KernelFunction` compiles and launches the kernel of a spec.
`triton_source` has the `KernelFunction` for Triton, and `cuda_source` has the one for CUDA C++.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

Constant = int | float | bool | str

WARP_THREADS = 32
# Alignment in bytes. For pointers that are multiples of 16, Triton compiles a kernel with 16-byte loads. For other
# pointers it compiles another kernel.
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
    """An argument does not fit the kernel. The message names the operation, the argument, its value and a remedy."""

    def __init__(self, op: str, argument: str, found: str, remedy: str) -> None:
        super().__init__(f"{op}: argument {argument!r} is {found}; {remedy}")
        self.op = op
        self.argument = argument


@dataclass(frozen=True, slots=True)
class Pointer:
    """A tensor argument of a kernel: its name, its element type (`fp32`, `bf16`, …) and its alignment.

    aligned: True if the kernel is compiled for addresses that are multiples of 16 bytes. False for arguments of which a
    kernel reads only one element for each row; a slice that starts at any address may then be passed. tile: None, or
    the shape of a tile. With a tile, the kernel gets a descriptor of the tensor, and reads and writes whole tiles.
    Hopper's copy engine moves the tiles. On older architectures the kernel uses plain loads and stores.
    """

    name: str
    dtype: str
    aligned: bool = True
    tile: tuple[int, ...] | None = None


class KernelFunction(Protocol):
    """The source of a kernel, with methods that compile, load and launch the kernel of a spec.

    A compiled kernel has Triton's attributes: `.asm["ptx"]` is the PTX, `.asm["cubin"]` the binary, `.metadata.name`
    the entry, `.metadata.shared` the bytes of shared memory, `.metadata.num_warps` x 32 the threads of a block.
    """

    @property
    def name(self) -> str:
        """Return the kernel's name, as profilers show it."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Return a value that is equal for two functions only if they have the same source."""

    @property
    def description(self) -> dict[str, Any]:
        """Return plain values from which another process can rebuild the function. One of them is the `language`."""

    def launch(self, spec: KernelSpec, arguments: tuple[Tensor, ...]) -> None:
        """Launch the kernel of `spec` on torch's current stream. The first launch compiles and loads it."""

    def compile_for_device(self, spec: KernelSpec) -> Any:
        """Compile the kernel of `spec` for the current CUDA device, into the cache that `launch` uses."""

    def compile_for(self, spec: KernelSpec, sm: int) -> Any:
        """Compile the kernel of `spec` for the architecture `sm` (90 is Hopper), without a GPU or a driver."""

    def load(self, compiled: Any) -> None:
        """Load a result of `compile_for_device` on the current device, as the first launch would do."""


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """The description of one compiled kernel and its grid. Two specs are equal if the fields in their `key` are equal.

    op: operation and direction, such as `rms_norm.forward`. shape: sizes such as (tokens, hidden), in an order that the
    operation's module chooses. dtype: Triton's name of the data type. constants: other compiled-in values that change
    results (eps, accumulate, …). function: the kernel's source. pointers: the kernel's tensor arguments, in order.
    constexprs: the kernel's other arguments, which are compiled in.
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
    # True: the compiler may fuse a multiplication and an addition, with one rounding. False: the results of both are
    # rounded, which is necessary if the kernel's results must equal torch's in every bit.
    enable_fp_fusion: bool = True

    @property
    def key(self) -> str:
        """Return a readable key such as `rms_norm.forward/512x1536/bf16/eps=1e-06/w4s1`.

        The key ends with `u` if `enable_fp_fusion` is False.
        """
        constants = ",".join(f"{name}={value}" for name, value in self.constants) or "-"
        sizes = "x".join(map(str, self.shape))
        fusion = "" if self.enable_fp_fusion else "u"
        return f"{self.op}/{sizes}/{self.dtype}/{constants}/w{self.num_warps}s{self.num_stages}{fusion}"

    @property
    def identity(self) -> tuple[object, ...]:
        """Return everything that affects the machine code. Two specs with different identities are different kernels,
        even if their keys are equal."""
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
        """Return the options with which the kernel is compiled."""
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
