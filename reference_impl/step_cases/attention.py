"""Comparisons of attention, forward and backward. The backward also undoes the rotary embedding.

The claim's `magnitude` m is the size of values and incoming gradients. Queries have size m and keys 1/m, or queries 1/m
and keys m. The size of scores (query times key) therefore does not depend on m. Scores have size 1, or size 1000 in a
shape that is `peaked`. The exponentials of peaked scores are infinite unless the row's maximum is subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from harness.system.protocol import KernelComparison
from reference_impl.kernels.attention import naive
from reference_impl.kernels.target import hopper
from reference_impl.step_cases.heads import Heads
from reference_impl.step_cases.inputs import FLUSHED, Inputs, Setting

# A tile has 32 rows in fp32 and 64 rows in bf16. The first shape is far smaller than a tile. The second shape has one
# row more than a tile in fp32. A key head has two query heads in the first shape and three in the second.
RAGGED = (Heads(2, 5, 2, 1, 8), Heads(1, 33, 3, 1, 24))
# Triton's interpreter takes 0.02 s for each program, so longer sequences are used only for compiled kernels.
_SMALL, _LONGER = Heads(1, 9, 1, 1, 16), Heads(1, 65, 6, 2, 8)
# Sizes with a sequence so long that, for data types of two bytes, its tiles are read by descriptor.
_LONG = Heads(1, 1024, 2, 1, 128)
# A number of sequences and a sequence length with which the backward in bfloat16 uses the kernels for Hopper.
_OF_HOPPER = (4, 1024)
_PEAKED = 1000.0**0.5
_SDPA = "torch scaled_dot_product_attention"


@dataclass(frozen=True)
class _Shape:
    heads: Heads
    large_keys: bool = False
    peaked: bool = False

    @property
    def name(self) -> str:
        keys = " large keys" if self.large_keys else ""
        return self.heads.name + keys + (" peaked" if self.peaked else "")


def _shapes(setting: Setting) -> Iterator[_Shape]:
    model, config = setting.model, setting.config
    own = model.num_heads, model.num_kv_heads, model.head_dim
    yield _Shape(Heads(config.batch_size, config.seq_len, *own))
    compiled = setting.device.type != "cpu"
    if compiled and hopper() and setting.dtype is torch.bfloat16:
        yield _Shape(Heads(*_OF_HOPPER, *own))
    for index, heads in enumerate((*RAGGED, _LONGER, _LONG) if compiled else RAGGED):
        yield _Shape(heads, large_keys=index % 2 == 1)
    yield _Shape(_LONGER if compiled else _SMALL, peaked=True)


def _qkv(inputs: Inputs, shape: _Shape, magnitude: float) -> Tensor:
    heads = shape.heads
    size = _PEAKED if shape.peaked else 1.0
    key_size = magnitude if shape.large_keys else 1 / magnitude
    parts = ((heads.query, size / key_size), (heads.key_value, size * key_size), (heads.key_value, magnitude))
    drawn = [inputs.normal(heads.tokens, count * heads.dim, scale=scale) for count, scale in parts]
    return inputs.between_nans(torch.cat(drawn, dim=1))


@dataclass(frozen=True)
class _Softmax:
    """Log-sum-exp and probabilities in fp64. exponents: for each probability, a bound (to first order) on the error
    that rounding errors of its exponent cause, divided by the unit roundoff."""

    log_sum_exp: Tensor
    probability: Tensor
    exponents: Tensor

    @classmethod
    def of(cls, query: Tensor, key: Tensor) -> _Softmax:
        scale = query.shape[-1] ** -0.5
        later = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).triu(1)
        scores = (query @ key.transpose(-1, -2) * scale).masked_fill(later, -torch.inf)
        probability = scores.softmax(dim=-1)
        log_sum_exp = scores.logsumexp(dim=-1)
        # Sum of the absolute values of a score's terms. If each term has a relative error u, the exponent changes by at
        # most u * sum.
        terms = query.abs() @ key.abs().transpose(-1, -2) * scale
        mean = (probability * terms).sum(dim=-1, keepdim=True)
        return cls(log_sum_exp, probability, probability * (terms + mean + log_sum_exp.abs()[..., None]))

    def terms(self, exponent: float) -> Tensor:
        """Return each probability's terms, for error bounds. exponent: weight of `exponents` (`Setting.exponent`)."""
        # Probabilities above the diagonal are zero (later keys) and are not computed, so their error is zero.
        return (self.probability + exponent * self.exponents + FLUSHED).tril()


def forward(setting: Setting) -> Iterator[KernelComparison]:
    for shape in _shapes(setting):
        yield _forward(setting, shape)


def _forward(setting: Setting, shape: _Shape) -> KernelComparison:
    heads = shape.heads
    qkv = _qkv(setting.inputs("attention.forward", shape.name), shape, setting.magnitude)

    def reference() -> dict[str, Tensor]:
        query, key, value = heads.split(qkv.double())
        output = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return {"output": heads.packed(output), "log_sum_exp": _Softmax.of(query, key).log_sum_exp}

    def terms() -> dict[str, Tensor]:
        query, key, value = heads.split(qkv.double())
        softmax = _Softmax.of(query, key)
        return {
            "output": heads.packed(softmax.terms(setting.exponent) @ value.abs()),
            "log_sum_exp": softmax.terms(1.0).sum(dim=-1),
        }

    def peer() -> dict[str, Tensor]:
        output = functional.scaled_dot_product_attention(*heads.split(qkv), is_causal=True)
        return {"output": heads.packed(output)}

    output = torch.empty(heads.tokens, heads.query * heads.dim, dtype=setting.dtype, device=setting.device)
    sums = torch.empty(heads.batch, heads.query, heads.seq_len, dtype=torch.float32, device=setting.device)
    names = ("output", "log_sum_exp")
    return KernelComparison(
        operation="attention.forward",
        dtype=setting.dtype_name,
        shape=shape.name,
        magnitude=setting.magnitude,
        written={"output": output, "log_sum_exp": sums},
        updated={},
        kernel=lambda _outputs: dict(zip(names, setting.table.attention_forward(qkv, *heads.sizes), strict=True)),
        naive=lambda _outputs: dict(zip(names, naive.forward(qkv, *heads.sizes), strict=True)),
        reference=reference,
        terms=terms,
        peer=(_SDPA, peer),
    )


def backward(setting: Setting) -> Iterator[KernelComparison]:
    for shape in _shapes(setting):
        yield _backward(setting, shape)


@dataclass(frozen=True)
class _Saved:
    """The inputs of a backward pass: exact forward results, incoming gradient, and rotary embedding's cos and sin."""

    heads: Heads
    qkv: Tensor
    grad_output: Tensor
    output: Tensor
    log_sum_exp: Tensor
    cos: Tensor
    sin: Tensor

    @classmethod
    def draw(cls, setting: Setting, shape: _Shape) -> _Saved:
        heads, inputs = shape.heads, setting.inputs("attention.backward", shape.name)
        qkv = _qkv(inputs, shape, setting.magnitude)
        grad = inputs.normal(heads.tokens, heads.query * heads.dim, scale=setting.magnitude)
        angles = inputs.uniform(heads.seq_len, heads.dim // 2, below=6.3)
        query, key, value = heads.split(qkv.double())
        output = heads.packed(functional.scaled_dot_product_attention(query, key, value, is_causal=True))
        sums = inputs.between_nans(_Softmax.of(query, key).log_sum_exp, torch.float32)
        tables = (inputs.between_nans(table, torch.float32) for table in (angles.cos(), angles.sin()))
        return cls(heads, qkv, grad, inputs.between_nans(output), sums, *tables)

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return self.grad_output, self.qkv, self.output, self.log_sum_exp, self.cos, self.sin

    def by_autograd(self, dtype: torch.dtype) -> Tensor:
        """Return the gradient of qkv in `dtype`, computed by torch's attention and transformers' rotary embedding."""
        rotated = self.qkv.detach().to(dtype).requires_grad_()
        with torch.enable_grad():
            output = functional.scaled_dot_product_attention(*self.heads.split(rotated), is_causal=True)
        [grad] = torch.autograd.grad(self.heads.packed(output), rotated, self.grad_output.to(dtype))
        return self.heads.rotated_back(grad, self.cos, self.sin)

    def terms(self, exponent: float) -> Tensor:
        heads = self.heads
        query, key, value = (part.abs() for part in heads.split(self.qkv.double()))
        grad, output = (heads.unpacked(each.double()).abs() for each in (self.grad_output, self.output))
        amplified = _Softmax.of(*heads.split(self.qkv.double())[:2]).terms(exponent)
        # Add `FLUSHED`: small probabilities' scores have gradients (and sums of them) that may be flushed to zero.
        of_scores = amplified * (grad @ value.transpose(-1, -2) + (grad * output).sum(dim=-1, keepdim=True))
        of_scores += FLUSHED
        scale = heads.dim**-0.5
        parts = (
            scale * of_scores @ key,
            heads.shared(scale * of_scores.transpose(-1, -2) @ query),
            heads.shared(amplified.transpose(-1, -2) @ grad),
        )
        terms = torch.cat([heads.packed(part) for part in parts], dim=1)
        return heads.rotated_terms(terms, self.cos, self.sin) + FLUSHED


def _backward(setting: Setting, shape: _Shape) -> KernelComparison:
    saved = _Saved.draw(setting, shape)

    def kernel(_outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"grad_qkv": setting.table.attention_backward(*saved.arguments, *saved.heads.sizes)}

    def twin(_outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        grad_output, qkv, output, sums, cos, sin = saved.arguments
        return {"grad_qkv": naive.backward(grad_output, qkv, output, sums, cos, sin, *saved.heads.sizes)}

    return KernelComparison(
        operation="attention.backward",
        dtype=setting.dtype_name,
        shape=shape.name,
        magnitude=setting.magnitude,
        written={"grad_qkv": torch.empty_like(saved.qkv)},
        updated={},
        kernel=kernel,
        naive=twin,
        reference=lambda: {"grad_qkv": saved.by_autograd(torch.float64)},
        terms=lambda: {"grad_qkv": saved.terms(setting.exponent)},
        peer=(f"{_SDPA}, rotated as transformers does", lambda: {"grad_qkv": saved.by_autograd(setting.dtype)}),
    )
