"""Kernels written in Triton: the decorators of their functions, and how Triton compiles and launches a spec.

Triton is imported when a function is decorated or a kernel is compiled, so this module can be imported without Triton.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reference_impl.kernels.spec import KernelSpec, Pointer, torch_dtype
from reference_impl.kernels.target import device_starts_early, starts_early


class TritonFunction:
    """A `triton.jit` function as a `KernelFunction`. The attribute `jit` is the function."""

    def __init__(self, jit: Any) -> None:
        self.jit = jit

    @property
    def name(self) -> str:
        name: str = self.jit.__name__
        return name

    @property
    def identity(self) -> tuple[object, ...]:
        return (f"{self.jit.__module__}.{self.jit.__name__}",)

    @property
    def description(self) -> dict[str, Any]:
        return {"language": "triton", "module": self.jit.fn.__module__, "name": self.jit.fn.__name__}

    def launch(self, spec: KernelSpec, arguments: tuple[Tensor, ...]) -> None:
        """Launch the kernel of `spec` by Triton's launcher, which keeps compiled kernels in its cache."""
        pdl = device_starts_early()
        self.jit[spec.grid](*_as_compiled(spec, arguments), **spec.constexprs, PDL=pdl, **spec.options, launch_pdl=pdl)

    def compile_for_device(self, spec: KernelSpec) -> Any:
        """Compile the kernel of `spec` for the current device, into the cache of Triton's launcher."""
        arguments = [_stand_in(pointer) for pointer in spec.pointers]
        pdl = device_starts_early()
        return self.jit.warmup(*arguments, grid=spec.grid, **spec.constexprs, PDL=pdl, **spec.options, launch_pdl=pdl)

    def compile_for(self, spec: KernelSpec, sm: int) -> Any:
        """Compile the kernel for the architecture `sm`. This is not possible in a process with TRITON_INTERPRET=1."""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        pdl = starts_early(sm)
        signature, constants = spec.signature | {"PDL": "constexpr"}, {**spec.constexprs, "PDL": pdl}
        source = ASTSource(self.jit, signature, constants, spec.attributes)
        return triton.compile(source, target=GPUTarget("cuda", sm, 32), options=spec.options | {"launch_pdl": pdl})

    def load(self, compiled: Any) -> None:
        compiled._init_handles()


def rebuilt(description: dict[str, Any]) -> TritonFunction:
    """Import and return the `TritonFunction` that has this `description`."""
    function: TritonFunction = getattr(importlib.import_module(description["module"]), description["name"])
    return function


def _as_compiled(spec: KernelSpec, arguments: tuple[Tensor, ...]) -> list[Any]:
    """Return the arguments of a compiled kernel: each tensor itself or, if the tensor's `Pointer` in `spec` has a tile,
    a descriptor of the tensor."""
    return [
        tensor if pointer.tile is None else _descriptor(tensor, pointer.tile)
        for pointer, tensor in zip(spec.pointers, arguments, strict=True)
    ]


def _descriptor(tensor: Any, tile: tuple[int, ...]) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(tensor, list(tile))


def _stand_in(pointer: Pointer) -> Any:
    """Return a substitute for a tensor argument, with which a launch can be compiled without a tensor."""
    from triton.runtime.jit import MockTensor
    from triton.tools.tensor_descriptor import TensorDescriptor

    tensor = MockTensor(torch_dtype(pointer.dtype))
    if pointer.tile is None:
        return tensor
    # A launch passes a tensor's sizes as arguments, even with a descriptor, so these sizes do not affect machine code.
    *outer, inner = pointer.tile
    return TensorDescriptor(tensor, [*outer, inner], [inner] * len(outer) + [1], list(pointer.tile))


def device_function(function: Callable[..., Any]) -> Any:
    """Apply `triton.jit` to a function that kernels call."""
    import triton

    return triton.jit(function)


@functools.cache
def _read_loop_bounds_of_one_element() -> None:
    """Make computed loop bounds work in Triton 3.6's interpreter. In the interpreter, such a bound is an array of one
    element, and numpy 2.4 refuses to convert this array with `int`."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_tensor


@functools.cache
def _round_to_fp8_as_a_gpu() -> None:
    """Make interpreted kernels round fp32 to FP8 as a GPU's `cvt.rn.satfinite` does. Triton's interpreter truncates."""
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


def kernel(*unaligned: str) -> Callable[[Callable[..., Any]], TritonFunction]:
    """Return a decorator that turns a function into a `TritonFunction`.

    unaligned: names of pointers that need not be aligned. For these, Triton compiles one kernel for all addresses.
    """
    import triton

    if os.environ.get("TRITON_INTERPRET") == "1":
        _read_loop_bounds_of_one_element()
        _round_to_fp8_as_a_gpu()

    def decorate(function: Callable[..., Any]) -> TritonFunction:
        return TritonFunction(triton.jit(function, do_not_specialize_on_alignment=unaligned))

    return decorate
