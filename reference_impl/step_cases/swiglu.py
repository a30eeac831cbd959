"""Comparisons of SwiGLU, forward and backward. The backward writes its results to new memory, or over its input.

The claim's `magnitude` is the size of up and of the incoming gradient. Gates of three sizes are mixed: 3, where the
sigmoid is curved; 30, where it is near 0 or 1; and `magnitude`, at which, if large, its exponential overflows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from harness.system.protocol import KernelComparison
from reference_impl.kernels.swiglu import naive
from reference_impl.step_cases.inputs import FLUSHED, FP32_ROUNDOFF, Inputs, Setting

RAGGED = ((3, 100), (2, 1100), (1, 3), (7, 33))  # tokens, intermediate size; a program handles 1024 columns
_SILU = "torch silu"


def _shapes(setting: Setting) -> Iterator[tuple[int, int]]:
    yield setting.tokens, setting.model.intermediate_size
    yield from RAGGED


def _gate_up(inputs: Inputs, tokens: int, width: int, magnitude: float) -> Tensor:
    sizes = torch.tensor([3.0, 3.0, magnitude, 30.0], device=inputs.device).repeat(width // 4 + 1)[:width]
    gate, up = inputs.normal(tokens, width) * sizes, inputs.normal(tokens, width, scale=magnitude)
    return inputs.between_nans(torch.cat((gate, up), dim=1))


def _activation(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=1)
    return functional.silu(gate) * up


def _sigmoid(gate: Tensor, exponent: float) -> tuple[Tensor, Tensor]:
    """Return s = 1 / (1 + exp(-gate)), and a factor: s multiplied by this factor gives the terms of s for error bounds.

    exponent: the weight of the exponent's rounding error (`Setting.exponent`).
    """
    s = gate.sigmoid()
    return s, 1 + exponent * gate.abs() * (1 - s)


def forward(setting: Setting) -> Iterator[KernelComparison]:
    for tokens, width in _shapes(setting):
        shape = f"T{tokens} I{width}"
        gate_up = _gate_up(setting.inputs("swiglu.forward", shape), tokens, width, setting.magnitude)
        yield _forward(setting, shape, gate_up)


def _forward(setting: Setting, shape: str, gate_up: Tensor) -> KernelComparison:
    def terms() -> dict[str, Tensor]:
        gate, up = gate_up.double().chunk(2, dim=1)
        s, amplified = _sigmoid(gate, setting.exponent)
        return {"act": (gate * up).abs() * (s * amplified + FLUSHED) + FLUSHED}

    tokens, width = gate_up.shape
    return KernelComparison(
        operation="swiglu.forward",
        dtype=setting.dtype_name,
        shape=shape,
        magnitude=setting.magnitude,
        written={"act": torch.empty(tokens, width // 2, dtype=gate_up.dtype, device=gate_up.device)},
        updated={},
        kernel=lambda _outputs: {"act": setting.table.swiglu_forward(gate_up)},
        naive=lambda _outputs: {"act": naive.forward(gate_up)},
        reference=lambda: {"act": _activation(gate_up.double())},
        terms=terms,
        peer=(_SILU, lambda: {"act": _activation(gate_up)}),
    )


def backward(setting: Setting) -> Iterator[KernelComparison]:
    for tokens, width in _shapes(setting):
        shape = f"T{tokens} I{width}"
        inputs = setting.inputs("swiglu.backward", shape)
        gate_up = _gate_up(inputs, tokens, width, setting.magnitude)
        yield _backward(setting, shape, gate_up, inputs.normal(tokens, width, scale=setting.magnitude))


def _backward(setting: Setting, shape: str, gate_up: Tensor, grad: Tensor) -> KernelComparison:
    def kernel(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        setting.table.swiglu_backward(grad, outputs["in_place"], outputs["in_place"])
        return {"grad_gate_up": setting.table.swiglu_backward(grad, gate_up)}

    def twin(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        naive.backward(grad, outputs["in_place"], outputs["in_place"])
        return {"grad_gate_up": naive.backward(grad, gate_up)}

    def by_autograd(dtype: torch.dtype) -> dict[str, Tensor]:
        leaf = gate_up.detach().to(dtype).requires_grad_()
        with torch.enable_grad():
            act = _activation(leaf)
        [result] = torch.autograd.grad(act, leaf, grad.to(dtype))
        return {"grad_gate_up": result, "in_place": result}

    def terms() -> dict[str, Tensor]:
        gate, up = (part.abs() for part in gate_up.double().chunk(2, dim=1))
        size, (s, amplified) = grad.double().abs(), _sigmoid(gate_up.double()[:, : gate.shape[1]], setting.exponent)
        # The derivative is s * (1 + gate * (1 - s)). The difference 1 - s has the rounding error of s in fp32. If 1 - s
        # is smaller than this error, no correct digit of 1 - s remains.
        lost = torch.minimum(s, (1 - s) / FP32_ROUNDOFF)
        slope = s * (1 + gate * (1 - s)) * amplified + setting.exponent * gate * s * (lost + (1 - s) * gate * (1 - s))
        both = (size * up * (slope + (1 + gate) * FLUSHED), size * gate * (s * amplified + FLUSHED))
        return dict.fromkeys(("grad_gate_up", "in_place"), torch.cat(both, dim=1) + FLUSHED)

    return KernelComparison(
        operation="swiglu.backward",
        dtype=setting.dtype_name,
        shape=shape,
        magnitude=setting.magnitude,
        written={"grad_gate_up": torch.empty_like(gate_up)},
        updated={"in_place": gate_up},
        kernel=kernel,
        naive=twin,
        reference=lambda: by_autograd(torch.float64),
        terms=terms,
        peer=(_SILU, lambda: by_autograd(setting.dtype)),
    )
