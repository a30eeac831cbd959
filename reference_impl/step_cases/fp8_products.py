"""Comparisons of the MLP's FP8 products with fused SwiGLU, which only Hopper can run.

The exact result is computed in fp64 from the operands in FP8. The error of a product has two parts. Rounding to
bfloat16 causes an error of 2^-8 of the value. The tensor cores sum with 14 bits, which causes an error of about 2^-13
of the sum of all terms' sizes. The terms of the error bound are therefore the value's size and 2^-5 of this sum. A
value that is written in FP8 has an error of 2^-4 of its size, or of 2^-10 of the scale. The scale is less than (upper
bound of the row) / 224. The terms of this value are therefore the value's size, 2^-13 of the row's upper bound, and at
most 2^-4 of the product's terms, for the product's error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from harness.system.protocol import KernelComparison, NotAvailable
from reference_impl.kernels.fp8_products import naive
from reference_impl.kernels.fp8_rows import naive as rows
from reference_impl.kernels.target import hopper
from reference_impl.step_cases.inputs import FLUSHED, Inputs, Setting

# Tokens, summed dimension and width of each shape. The first has a single row. The others have whole and incomplete
# tiles of 128 rows and 192 columns, and incomplete stages of 128 terms.
RAGGED = ((1, 192, 192), (300, 208, 288), (130, 1008, 352))
_WEIGHT = 0.02  # the standard deviation of Qwen2's initializer
# Margin of a limit for four roundings, as in `reference_impl.fp8`, which rounds rows after it has computed their norms.
_ROUNDED = 1.07**4
_OF_SUMS, _OF_BOUND, _OF_PRODUCT = 2.0**-5, 2.0**-13, 2.0**-4


class _Rows:
    """A random matrix as e4m3 data and scales, its exact value in fp64, and the norms of its rows.

    Every second row is multiplied by 0.3, so that neighboring rows have different scales.
    """

    def __init__(self, inputs: Inputs, count: int, cols: int, *, scale: float) -> None:
        sizes = torch.tensor([1.0, 0.3], device=inputs.device).repeat(count)[:count, None]
        data, scales = rows.quantize(inputs.normal(count, cols, scale=scale) * sizes)
        self.data = inputs.between_nans(data, torch.float8_e4m3fn)
        self.scale = inputs.between_nans(scales, torch.float32)
        self.exact = data.double() * scales.double()[:, None]
        self.norm = inputs.between_nans(self.exact.norm(dim=1).float(), torch.float32)


def _shapes(setting: Setting) -> Iterator[tuple[int, int, int]]:
    if not hopper() or setting.device.type != "cuda":
        raise NotAvailable("needs a GPU of compute capability 9.0, because these kernels use its instructions")
    yield setting.tokens, setting.model.hidden_size, setting.model.intermediate_size
    yield from RAGGED


def _inputs(setting: Setting, operation: str, sizes: tuple[int, int, int]) -> tuple[str, Inputs]:
    shape = "T{} K{} N{}".format(*sizes)
    return shape, setting.inputs(operation, shape)


def _limit(inputs: Inputs, largest: Tensor) -> Tensor:
    return inputs.between_nans(largest.mul(_ROUNDED).float().reshape(1), torch.float32)


def _value(data: Tensor, scale: Tensor) -> Tensor:
    return data.float() * scale[:, None]


def gate_up(setting: Setting) -> Iterator[KernelComparison]:
    """Compare the bfloat16 results `gate_up` of `up_swiglu`."""
    for case in _up_cases(setting, "fp8_products.gate_up"):
        yield case.comparison("gate_up", case.exact_gate_up, case.gate_up_terms)


def act(setting: Setting) -> Iterator[KernelComparison]:
    """Compare the FP8 results `act` of `up_swiglu`."""
    for case in _up_cases(setting, "fp8_products.act"):
        yield case.comparison("act", case.exact_act, case.act_terms)


def _up_cases(setting: Setting, operation: str) -> Iterator[_Up]:
    for sizes in _shapes(setting):
        shape, inputs = _inputs(setting, operation, sizes)
        tokens, summed, width = sizes
        x = _Rows(inputs, tokens, summed, scale=setting.magnitude)
        weight = _Rows(inputs, 2 * width, summed, scale=_WEIGHT)
        gate_norms, up_norms = weight.norm.chunk(2)
        yield _Up(setting, operation, shape, x, weight, _limit(inputs, (gate_norms * up_norms).amax()))


@dataclass(frozen=True)
class _Up:
    """One case of `up_swiglu`, with its inputs and exact results."""

    setting: Setting
    operation: str
    shape: str
    x: _Rows
    weight: _Rows
    limit: Tensor

    def exact_gate_up(self) -> Tensor:
        return self.x.exact @ self.weight.exact.t()

    def exact_act(self) -> Tensor:
        gate, up = self.exact_gate_up().chunk(2, dim=1)
        return functional.silu(gate) * up

    def gate_up_terms(self) -> Tensor:
        sums = self.x.exact.abs() @ self.weight.exact.abs().t()
        return self.exact_gate_up().abs() + _OF_SUMS * sums + FLUSHED

    def act_terms(self) -> Tensor:
        (gate, up), (of_gate, of_up) = self.exact_gate_up().chunk(2, dim=1), self.gate_up_terms().chunk(2, dim=1)
        s = gate.sigmoid()
        slope = s * (1 + gate.abs() * (1 - s))
        moved = _OF_PRODUCT * (slope * up.abs() * of_gate + s * gate.abs() * of_up)
        bound = (self.x.norm.square() * self.limit).double()[:, None]
        return (gate * s * up).abs() + _OF_BOUND * bound + moved + FLUSHED

    def comparison(self, name: str, exact: Callable[[], Tensor], terms: Callable[[], Tensor]) -> KernelComparison:
        x, weight = self.x, self.weight

        def of(function: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> dict[str, Tensor]:
            product, data, scale = function(x.data, x.scale, weight.data, weight.scale, x.norm, self.limit)
            return {name: product if name == "gate_up" else _value(data, scale)}

        tokens, width = x.data.shape[0], weight.data.shape[0]
        sizes, dtype = ((tokens, width), torch.bfloat16) if name == "gate_up" else ((tokens, width // 2), torch.float32)
        return KernelComparison(
            operation=self.operation,
            dtype=self.setting.dtype_name,
            shape=self.shape,
            magnitude=self.setting.magnitude,
            written={name: torch.empty(sizes, dtype=dtype, device=self.setting.device)},
            updated={},
            kernel=lambda _outputs: of(self.setting.table.fp8_up_swiglu),
            naive=lambda _outputs: of(naive.up_swiglu),
            reference=lambda: {name: exact()},
            terms=lambda: {name: terms()},
            peer=None,
        )


def grad_gate_up(setting: Setting) -> Iterator[KernelComparison]:
    """Compare the FP8 results of `down_swiglu_backward`."""
    for sizes in _shapes(setting):
        shape, inputs = _inputs(setting, "fp8_products.grad_gate_up", sizes)
        tokens, summed, width = sizes
        grad = _Rows(inputs, tokens, summed, scale=setting.magnitude)
        weight = _Rows(inputs, width, summed, scale=_WEIGHT)
        yield _down(setting, shape, inputs, (grad, weight), inputs.normal(tokens, 2 * width, scale=3.0))


def _down(
    setting: Setting, shape: str, inputs: Inputs, operands: tuple[_Rows, _Rows], gate_up: Tensor
) -> KernelComparison:
    grad, weight = operands
    # Choose norms and a limit as if gate_up came from inputs with these norms and weight rows of norm 1.
    input_norm = inputs.between_nans(gate_up.float().abs().amax(dim=1), torch.float32)
    limit = _limit(inputs, 1.1 * weight.norm.amax())

    def exact() -> dict[str, Tensor]:
        leaf = gate_up.double().requires_grad_()
        with torch.enable_grad():
            gate, up = leaf.chunk(2, dim=1)
            act = functional.silu(gate) * up
        [result] = torch.autograd.grad(act, leaf, grad.exact @ weight.exact.t())
        return {"value": result}

    def terms() -> dict[str, Tensor]:
        gate, up = gate_up.double().chunk(2, dim=1)
        s = gate.sigmoid()
        slope = s * (1 + gate.abs() * (1 - s))
        product, sums = (grad.exact @ weight.exact.t()).abs(), grad.exact.abs() @ weight.exact.abs().t()
        of_product = _OF_PRODUCT * (product + _OF_SUMS * sums)
        bound = (grad.norm * input_norm * limit).double()[:, None]
        moved = torch.cat((of_product * up.abs() * slope, of_product * gate.abs() * s), dim=1)
        return {"value": exact()["value"].abs() + _OF_BOUND * bound + moved + FLUSHED}

    def of(function: Callable[..., tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        read = (grad.data, grad.scale, weight.data, weight.scale, gate_up, grad.norm, input_norm, limit)
        return {"value": _value(*function(*read))}

    return KernelComparison(
        operation="fp8_products.grad_gate_up",
        dtype=setting.dtype_name,
        shape=shape,
        magnitude=setting.magnitude,
        written={"value": torch.empty(gate_up.shape, device=setting.device)},
        updated={},
        kernel=lambda _outputs: of(setting.table.fp8_down_swiglu_backward),
        naive=lambda _outputs: of(naive.down_swiglu_backward),
        reference=exact,
        terms=terms,
        peer=None,
    )
