"""Comparisons of the products that are fused with other operations. They need Hopper and bfloat16.

The claim's `magnitude` is the standard deviation of the inputs. Elements of weights have about the size 0.02, as in a
model, so a product of K terms is about as large as its inputs. The terms of an element are computed in fp64 from the
absolute values of all factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from harness.system.protocol import KernelComparison, NotAvailable
from reference_impl.kernels.products import naive
from reference_impl.kernels.target import hopper
from reference_impl.step_cases.inputs import FLUSHED, Inputs, Setting

# Tokens, summed dimension and width of each shape. The first has a single row. The others have whole and incomplete
# tiles of 128 rows and 192 columns, and incomplete stages of 64 terms.
RAGGED = ((1, 192, 192), (300, 200, 264), (130, 1000, 328))
_WEIGHT = 0.02  # the standard deviation of Qwen2's initializer
_LIBRARY = "torch's product, then torch's functions"


def _shapes(setting: Setting, summed: int, width: int) -> Iterator[tuple[int, int, int]]:
    if not hopper() or setting.device.type != "cuda":
        raise NotAvailable("needs a GPU of compute capability 9.0, because these kernels use its instructions")
    yield setting.tokens, summed, width
    yield from RAGGED


def _inputs(setting: Setting, operation: str, *sizes: int) -> tuple[str, Inputs]:
    shape = "T{} K{} N{}".format(*sizes)
    return shape, setting.inputs(operation, shape)


def _silu_terms(gate: Tensor, up: Tensor, gate_terms: Tensor, up_terms: Tensor) -> Tensor:
    """Return the terms of each silu(gate) * up. They include the effects of rounding errors of gate and up."""
    s = gate.sigmoid()
    slope = s * (1 + gate.abs() * (1 - s))
    return slope * up.abs() * gate_terms + (s * gate.abs()) * up_terms + (gate * s * up).abs() + FLUSHED


def up_swiglu(setting: Setting) -> Iterator[KernelComparison]:
    for sizes in _shapes(setting, setting.model.hidden_size, setting.model.intermediate_size):
        shape, inputs = _inputs(setting, "products.up_swiglu", *sizes)
        tokens, summed, width = sizes
        x = inputs.normal(tokens, summed, scale=setting.magnitude)
        yield _up(setting, shape, x, inputs.normal(2 * width, summed, scale=_WEIGHT))


def _up(setting: Setting, shape: str, x: Tensor, weight: Tensor) -> KernelComparison:
    def composed(dtype: torch.dtype) -> dict[str, Tensor]:
        gate_up = x.to(dtype) @ weight.to(dtype).t()
        gate, up = gate_up.chunk(2, dim=1)
        return {"gate_up": gate_up, "act": functional.silu(gate) * up}

    def terms() -> dict[str, Tensor]:
        gate, up = composed(torch.float64)["gate_up"].chunk(2, dim=1)
        sums = x.double().abs() @ weight.double().abs().t()
        return {"gate_up": sums + FLUSHED, "act": _silu_terms(gate, up, *sums.chunk(2, dim=1))}

    tokens, width = x.shape[0], weight.shape[0] // 2
    empty = {name: x.new_empty(tokens, count) for name, count in (("gate_up", 2 * width), ("act", width))}
    return KernelComparison(
        operation="products.up_swiglu",
        dtype=setting.dtype_name,
        shape=shape,
        magnitude=setting.magnitude,
        written=empty,
        updated={},
        kernel=lambda _outputs: dict(zip(empty, setting.table.up_swiglu(x, weight), strict=True)),
        naive=lambda _outputs: dict(zip(empty, naive.up_swiglu(x, weight), strict=True)),
        reference=lambda: composed(torch.float64),
        terms=terms,
        peer=(_LIBRARY, lambda: composed(setting.dtype)),
    )


def down_swiglu_backward(setting: Setting) -> Iterator[KernelComparison]:
    for sizes in _shapes(setting, setting.model.hidden_size, setting.model.intermediate_size):
        shape, inputs = _inputs(setting, "products.down_swiglu_backward", *sizes)
        tokens, summed, width = sizes
        grad = inputs.normal(tokens, summed, scale=setting.magnitude)
        weight, gate_up = inputs.normal(summed, width, scale=_WEIGHT), inputs.normal(tokens, 2 * width, scale=3.0)
        yield _down_backward(setting, shape, grad, weight, gate_up)


def _down_backward(setting: Setting, shape: str, grad: Tensor, weight: Tensor, gate_up: Tensor) -> KernelComparison:
    def by_autograd(dtype: torch.dtype) -> dict[str, Tensor]:
        leaf = gate_up.detach().to(dtype).requires_grad_()
        with torch.enable_grad():
            gate, up = leaf.chunk(2, dim=1)
            act = functional.silu(gate) * up
        [result] = torch.autograd.grad(act, leaf, grad.to(dtype) @ weight.to(dtype))
        return dict.fromkeys(("grad_gate_up", "in_place"), result)

    def terms() -> dict[str, Tensor]:
        gate, up = (part.abs() for part in gate_up.double().chunk(2, dim=1))
        s = gate_up.double()[:, : gate.shape[1]].sigmoid()
        sums = grad.double().abs() @ weight.double().abs()
        slope = s * (1 + gate * (1 - s))
        both = torch.cat((sums * up * slope, sums * gate * s), dim=1)
        return dict.fromkeys(("grad_gate_up", "in_place"), both + FLUSHED)

    def of(function: Callable[..., Tensor], outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        function(grad, weight, outputs["in_place"], outputs["in_place"])
        return {"grad_gate_up": function(grad, weight, gate_up)}

    return KernelComparison(
        operation="products.down_swiglu_backward",
        dtype=setting.dtype_name,
        shape=shape,
        magnitude=setting.magnitude,
        written={"grad_gate_up": torch.empty_like(gate_up)},
        updated={"in_place": gate_up},
        kernel=lambda outputs: of(setting.table.down_swiglu_backward, outputs),
        naive=lambda outputs: of(naive.down_swiglu_backward, outputs),
        reference=lambda: by_autograd(torch.float64),
        terms=terms,
        peer=(_LIBRARY, lambda: by_autograd(setting.dtype)),
    )


def add(setting: Setting) -> Iterator[KernelComparison]:
    for sizes in _shapes(setting, setting.model.intermediate_size, setting.model.hidden_size):
        shape, inputs = _inputs(setting, "products.add", *sizes)
        tokens, summed, width = sizes
        x, residual = (inputs.normal(tokens, count, scale=setting.magnitude) for count in (summed, width))
        given = x, inputs.normal(width, summed, scale=_WEIGHT), residual
        yield _sum(setting, "products.add", shape, _Sum(setting.table.add_product, naive.add, _added, given))


def input_gradient(setting: Setting) -> Iterator[KernelComparison]:
    ranks = 2 * setting.config.rank
    for sizes in _shapes(setting, setting.model.qkv_dim, setting.model.hidden_size):
        shape, inputs = _inputs(setting, "products.input_gradient", *sizes)
        tokens, summed, width = sizes
        grad, extra = (inputs.normal(tokens, count, scale=setting.magnitude) for count in (summed, ranks))
        weight, weight_extra = (inputs.normal(count, width, scale=_WEIGHT) for count in (summed, ranks))
        own = _Sum(setting.table.input_gradient, naive.input_gradient, _both, (grad, weight, extra, weight_extra))
        yield _sum(setting, "products.input_gradient", shape, own)


def _added(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    return x @ weight.t() + residual


def _both(grad: Tensor, weight: Tensor, extra: Tensor, weight_extra: Tensor) -> Tensor:
    return grad @ weight + extra @ weight_extra


@dataclass(frozen=True)
class _Sum:
    """A product plus a tensor or product. Kernel, naive twin and an fp64 formula compute it from the same inputs."""

    kernel: Callable[..., Tensor]
    naive: Callable[..., Tensor]
    formula: Callable[..., Tensor]
    given: tuple[Tensor, ...]

    def exact(self, *, absolute: bool = False) -> Tensor:
        wide = [tensor.double() for tensor in self.given]
        return self.formula(*([tensor.abs() for tensor in wide] if absolute else wide))


def _sum(setting: Setting, operation: str, shape: str, own: _Sum) -> KernelComparison:
    return KernelComparison(
        operation=operation,
        dtype=setting.dtype_name,
        shape=shape,
        magnitude=setting.magnitude,
        written={"out": torch.empty_like(own.formula(*own.given))},
        updated={},
        kernel=lambda _outputs: {"out": own.kernel(*own.given)},
        naive=lambda _outputs: {"out": own.naive(*own.given)},
        reference=lambda: {"out": own.exact()},
        terms=lambda: {"out": own.exact(absolute=True) + FLUSHED},
        peer=(_LIBRARY, lambda: {"out": own.formula(*own.given)}),
    )
