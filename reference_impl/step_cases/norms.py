"""Comparisons of RMSNorm forward and backward, without and with the fused addition of a residual or its gradient.

The claim's `magnitude` is the size of activations and incoming gradients. At 1e-4 the mean of squares is a hundredth of
the norm's epsilon. In ragged shapes the middle row is zero, because the row of a padding token may be zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from harness.system.protocol import KernelComparison
from reference_impl.kernels.rms_norm import naive
from reference_impl.step_cases.inputs import Inputs, Setting

# Tokens and hidden size of each shape. The hidden size is a multiple of four, because the partial sums of a decoder
# block's second norm must begin at a multiple of 16 bytes.
RAGGED = ((5, 36), (1, 20), (9, 12))
_RMS_NORM = "torch rms_norm"


def _shapes(setting: Setting) -> Iterator[tuple[int, int, bool]]:
    """Yield (tokens, hidden, zero) for each shape; the middle row of the input is zero if `zero` is True."""
    yield setting.tokens, setting.model.hidden_size, False
    for tokens, hidden in RAGGED:
        yield tokens, hidden, tokens > 2


def _name(tokens: int, hidden: int) -> str:
    return f"T{tokens} H{hidden}"


def _rows(inputs: Inputs, tokens: int, hidden: int, size: float, *, zero: bool) -> Tensor:
    rows = inputs.normal(tokens, hidden, scale=size)
    if zero:
        rows[tokens // 2].zero_()
    return rows


def _scale(x: Tensor, eps: float) -> Tensor:
    """Return rstd = 1 / sqrt(mean(x^2) + eps) of each row of x, in fp64."""
    return (x.double().square().mean(dim=1) + eps).rsqrt()


def _normed(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, (x.shape[1],), gain.to(x.dtype), eps)


def forward(setting: Setting) -> Iterator[KernelComparison]:
    for tokens, hidden, zero in _shapes(setting):
        inputs = setting.inputs("rms_norm.forward", _name(tokens, hidden))
        x = _rows(inputs, tokens, hidden, setting.magnitude, zero=zero)
        yield _forward(setting, x, inputs.gain(hidden))


def _forward(setting: Setting, x: Tensor, gain: Tensor) -> KernelComparison:
    eps, names = setting.model.rms_norm_eps, ("y", "rstd")

    def reference() -> dict[str, Tensor]:
        return {"y": _normed(x.double(), gain, eps), "rstd": _scale(x, eps)}

    return KernelComparison(
        operation="rms_norm.forward",
        dtype=setting.dtype_name,
        shape=_name(*x.shape),
        magnitude=setting.magnitude,
        written={"y": torch.empty_like(x), "rstd": torch.empty(x.shape[0], device=x.device)},
        updated={},
        kernel=lambda _outputs: dict(zip(names, setting.table.rms_norm_forward(x, gain, eps), strict=True)),
        naive=lambda _outputs: dict(zip(names, naive.forward(x, gain, eps), strict=True)),
        reference=reference,
        terms=lambda: {name: value.abs() for name, value in reference().items()},
        peer=(_RMS_NORM, lambda: {"y": _normed(x, gain, eps)}),
    )


def add_forward(setting: Setting) -> Iterator[KernelComparison]:
    for tokens, hidden, zero in _shapes(setting):
        inputs = setting.inputs("rms_norm.add_forward", _name(tokens, hidden))
        x, residual = (_rows(inputs, tokens, hidden, setting.magnitude, zero=zero) for _ in range(2))
        yield _add_forward(setting, x, residual, inputs.gain(hidden))


def _add_forward(setting: Setting, x: Tensor, residual: Tensor, gain: Tensor) -> KernelComparison:
    eps, names = setting.model.rms_norm_eps, ("total", "y", "rstd")
    exact = x.double() + residual.double()
    # The norm reads the sum after it was rounded to the data type, as in the decoder layer of transformers.
    handed_on = (x + residual).double()

    def norm_of_total() -> dict[str, Tensor]:
        return {"y": _normed(handed_on, gain, eps), "rstd": _scale(handed_on, eps)}

    def terms() -> dict[str, Tensor]:
        sizes = {name: value.abs() for name, value in norm_of_total().items()}
        return {"total": x.double().abs() + residual.double().abs(), **sizes}

    def peer() -> dict[str, Tensor]:
        total = x + residual
        return {"total": total, "y": _normed(total, gain, eps)}

    return KernelComparison(
        operation="rms_norm.add_forward",
        dtype=setting.dtype_name,
        shape=_name(*x.shape),
        magnitude=setting.magnitude,
        written={
            "total": torch.empty_like(x),
            "y": torch.empty_like(x),
            "rstd": torch.empty(x.shape[0], device=x.device),
        },
        updated={},
        kernel=lambda _outputs: dict(
            zip(names, setting.table.rms_norm_add_forward(x, residual, gain, eps), strict=True)
        ),
        naive=lambda _outputs: dict(zip(names, naive.add_forward(x, residual, gain, eps), strict=True)),
        reference=lambda: {"total": exact, **norm_of_total()},
        terms=terms,
        peer=(_RMS_NORM, peer),
    )


def backward(setting: Setting) -> Iterator[KernelComparison]:
    """Yield comparisons for two norms, because a decoder block has two. Here both norms have the same input.

    The backward of the second norm also adds the gradient of the residual stream.
    """
    for tokens, hidden, zero in _shapes(setting):
        inputs, size = setting.inputs("rms_norm.backward", _name(tokens, hidden)), setting.magnitude
        x = _rows(inputs, tokens, hidden, size, zero=zero)
        grads = [inputs.normal(tokens, hidden, scale=size) for _ in range(2)]
        gains = [inputs.gain(hidden) for _ in range(2)]
        beside = inputs.normal(tokens, hidden, scale=size)
        rstd = inputs.between_nans(_scale(x, setting.model.rms_norm_eps), torch.float32)
        yield _Backward(setting, x, grads, gains, beside, rstd).comparison()


@dataclass(frozen=True)
class _Backward:
    setting: Setting
    x: Tensor
    grads: list[Tensor]
    gains: list[Tensor]
    beside: Tensor
    rstd: Tensor

    def comparison(self) -> KernelComparison:
        x = self.x
        return KernelComparison(
            operation="rms_norm.backward",
            dtype=self.setting.dtype_name,
            shape=_name(*x.shape),
            magnitude=self.setting.magnitude,
            written={
                "grad_x": torch.empty_like(x),
                "grad_x_added": torch.empty_like(x),
                "grad_gains": torch.empty(2, x.shape[1], device=x.device),
            },
            updated={},
            kernel=self._kernel,
            naive=self._naive,
            reference=lambda: self._by_autograd(torch.float64),
            terms=self._terms,
            peer=(_RMS_NORM, lambda: self._by_autograd(self.setting.dtype)),
        )

    def _kernel(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        table = self.setting.table
        partials = table.gain_partials(self.x, 2)
        given = [(self.grads[i], self.x, self.gains[i], self.rstd, partials[i]) for i in range(2)]
        grad_x = table.backward_to_partials(*given[0])
        added = table.backward_to_partials(*given[1], self.beside)
        table.reduce_gains(partials, outputs["grad_gains"])
        return {"grad_x": grad_x, "grad_x_added": added}

    def _naive(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        into = outputs["grad_gains"]
        (first, second), (gain, other) = self.grads, self.gains
        grad_x, _ = naive.backward(first, self.x, gain, self.rstd, None, into[0])
        added, _ = naive.backward(second, self.x, other, self.rstd, self.beside, into[1])
        return {"grad_x": grad_x, "grad_x_added": added}

    def _by_autograd(self, dtype: torch.dtype) -> dict[str, Tensor]:
        found = []
        for grad, gain in zip(self.grads, self.gains, strict=True):
            x, weight = (each.detach().to(dtype).requires_grad_() for each in (self.x, gain))
            with torch.enable_grad():
                y = functional.rms_norm(x, (x.shape[1],), weight, self.setting.model.rms_norm_eps)
            found.append(torch.autograd.grad(y, (x, weight), grad.to(dtype)))
        (grad_x, first), (second_x, second) = found
        added = second_x + self.beside.to(dtype)
        return {"grad_x": grad_x, "grad_x_added": added, "grad_gains": torch.stack((first, second))}

    def _terms(self) -> dict[str, Tensor]:
        scale = _scale(self.x, self.setting.model.rms_norm_eps)[:, None]
        normed = (self.x.double() * scale).abs()
        sizes, gains = [], []
        for grad, gain in zip(self.grads, self.gains, strict=True):
            g = (grad.double() * gain).abs()
            sizes.append(scale * (g + normed * (g * normed).mean(dim=1, keepdim=True)))
            gains.append((grad.double().abs() * normed).sum(dim=0))
        added = sizes[1] + self.beside.double().abs()
        return {"grad_x": sizes[0], "grad_x_added": added, "grad_gains": torch.stack(gains)}
