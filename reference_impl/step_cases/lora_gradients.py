"""Comparisons of the gradients of a decoder block's LoRA factors and of its norms' gains, which the same kernels
compute.

The claim's `magnitude` is the size of activations, incoming gradients and the gains' partial sums. The kernel rounds
grad_low_rank * rstd to the data type before it sums over tokens. The reference uses the rounded product, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.system.protocol import KernelComparison
from reference_impl.kernels.lora_gradients import naive
from reference_impl.step_cases.inputs import Setting

# Tokens, outputs, hidden size, ranks and number of partial sums of a gain. A chunk has at least 128 tokens, a tile has
# 64 or 128 columns, and a program handles at most 64 ranks.
RAGGED = ((133, 130, 36, 32, 270), (70, 24, 40, 10, 5), (1, 8, 12, 2, 1), (3, 12, 8, 70, 2))
_PRODUCT = "torch mm, accumulated and stored in float32"


def write(setting: Setting) -> Iterator[KernelComparison]:
    """Yield comparisons at the model's shape and at ragged shapes.

    At the model's shape, the number of partial sums of a gain is the number that a norm of this shape writes.
    """
    config, model, tokens = setting.config, setting.model, setting.tokens
    like = torch.empty(tokens, model.hidden_size, dtype=setting.dtype, device=setting.device)
    count = setting.table.gain_partials(like, 2).shape[1]
    for sizes in ((tokens, model.qkv_dim, model.hidden_size, 2 * config.rank, count), *RAGGED):
        shape = "T{} O{} H{} R{} P{}".format(*sizes)
        inputs, size = setting.inputs("lora_gradients", shape), setting.magnitude
        tokens, outputs, hidden, ranks, count = sizes
        yield _Gradients(
            setting,
            shape,
            inputs.normal(tokens, outputs, scale=size),
            inputs.normal(tokens, ranks, scale=size),
            inputs.normal(tokens, ranks, scale=size),
            inputs.between_nans(inputs.uniform(tokens, below=2.0), torch.float32),
            inputs.normal(tokens, hidden, scale=size),
            inputs.normal(2, count, hidden, scale=size, dtype=torch.float32),
        ).comparison()


@dataclass(frozen=True)
class _Gradients:
    setting: Setting
    shape: str
    grad_qkv: Tensor
    low_rank: Tensor
    grad_low_rank: Tensor
    rstd: Tensor
    residual: Tensor
    gain_partials: Tensor

    def comparison(self) -> KernelComparison:
        (_, outputs), (_, ranks), (_, hidden) = self.grad_qkv.shape, self.low_rank.shape, self.residual.shape
        shapes = {"grad_b": (outputs, ranks), "grad_a": (ranks, hidden), "grad_norms": (2, hidden)}
        return KernelComparison(
            operation="lora_gradients",
            dtype=self.setting.dtype_name,
            shape=self.shape,
            magnitude=self.setting.magnitude,
            written={name: torch.empty(shape, device=self.rstd.device) for name, shape in shapes.items()},
            updated={},
            kernel=lambda outputs: self.setting.table.lora_gradients(*self._given(), *self._into(outputs)),
            naive=lambda outputs: naive.write(*self._given(), *self._into(outputs)),
            reference=lambda: _summed(*self._exact()),
            terms=lambda: _summed(*(each.abs() for each in self._exact())),
            peer=(_PRODUCT, self._peer),
        )

    def _given(self) -> tuple[Tensor, ...]:
        return (self.grad_qkv, self.low_rank, self.grad_low_rank, self.rstd, self.residual, self.gain_partials)

    @staticmethod
    def _into(outputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        return outputs["grad_b"], outputs["grad_a"], outputs["grad_norms"]

    def _handed_on(self) -> Tensor:
        """Return grad_low_rank * rstd, rounded to the data type, as the kernel hands it on to its product."""
        return (self.grad_low_rank.float() * self.rstd[:, None]).to(self.grad_low_rank.dtype)

    def _exact(self) -> Iterator[Tensor]:
        """Yield, in fp64, both factors of grad_b, both factors of grad_a, and the gains' partial sums."""
        factors = (self.grad_qkv, self.low_rank, self._handed_on(), self.residual)
        return (each.double() for each in (*factors, self.gain_partials))

    def _peer(self) -> dict[str, Tensor]:
        return {
            "grad_b": _product(self.grad_qkv.t(), self.low_rank),
            "grad_a": _product(self._handed_on().t(), self.residual),
            "grad_norms": self.gain_partials.sum(dim=1),
        }


def _summed(grad_qkv: Tensor, low_rank: Tensor, scaled: Tensor, residual: Tensor, gains: Tensor) -> dict[str, Tensor]:
    return {"grad_b": grad_qkv.t() @ low_rank, "grad_a": scaled.t() @ residual, "grad_norms": gains.sum(dim=1)}


def _product(left: Tensor, right: Tensor) -> Tensor:
    if left.is_cuda and left.dtype != torch.float32:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
