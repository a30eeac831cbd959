"""Each kernel against an fp64 reference, with bounds derived from rounding, on the GPU or in Triton's interpreter.

u is the unit roundoff of fp32, 2^-24. What the bounds rest on:
- one fp32 operation rounds by at most u; `/` may be Triton's division, within 2 ulp = 4u;
- exp(x) is 2^(x * log2 e): the product and the constant round, so its relative error is at most (2|x| + 5)u, with
  2 ulp for the hardware's 2^x (CUDA's programming guide);
- a sum of terms t errs by at most depth * u * sum|t|; no summation tree here is deeper than SUM_DEPTH (numpy sums
  pairwise above 128 terms, a kernel's threads sum at most 32 terms each, then a tree);
- the final rounding to the output's dtype adds its own unit roundoff.

Every output, and every tensor that a kernel writes in place, sits between guard elements and is filled with NaN
before the launch: an element that was not written, or one written past the end, fails the comparison.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from reference_impl.kernels.clip import kernel as clip
from reference_impl.kernels.cross_entropy import kernel as cross_entropy
from reference_impl.kernels.gemm import kernel as gemm
from reference_impl.kernels.lora_gradients import kernel as lora_gradients
from reference_impl.kernels.nf4 import kernel as nf4
from reference_impl.kernels.nf4.naive import CODEBOOK
from reference_impl.kernels.rms_norm import kernel as rms_norm
from reference_impl.kernels.rope import kernel as rope
from reference_impl.kernels.softmax import kernel as softmax
from reference_impl.kernels.swiglu import kernel as swiglu

U = 2.0**-24
SUM_DEPTH = 64
EPS = 1e-6
# A result below fp32's smallest normal number may be flushed to zero.
UNDERFLOW = 2.0**-126
GUARD_ELEMENTS = 64
GUARD_VALUE = 77.0


@dataclass(frozen=True)
class Comparison:
    """A kernel's output, its fp64 reference, and the largest error of each element that rounding allows."""

    name: str
    got: Tensor
    expected: Tensor
    bound: Tensor

    def worst(self) -> float:
        """Largest error as a share of its bound: at most 1 if the kernel is right, infinite if anything is NaN."""
        if self.got.shape != self.expected.shape:
            return math.inf
        error = (self.got.double() - self.expected).abs()
        share = torch.where(error == 0, 0.0, error / self.bound)
        return torch.nan_to_num(share, nan=math.inf).max().item()


class Guards:
    """Allocates tensors filled with NaN between guard elements, and tells whether a guard was overwritten."""

    def __init__(self) -> None:
        self.buffers: list[tuple[Tensor, int]] = []

    def empty(self, *size: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        shape: tuple[int, ...] = size[0] if isinstance(size[0], tuple) else size
        count = math.prod(shape)
        # The front guard keeps 16-byte alignment; the allocation's own start is aligned.
        buffer = torch.full((count + 2 * GUARD_ELEMENTS,), GUARD_VALUE, dtype=dtype, device=device)
        self.buffers.append((buffer, count))
        return buffer[GUARD_ELEMENTS : GUARD_ELEMENTS + count].fill_(torch.nan).view(shape)

    def empty_like(self, tensor: Tensor) -> Tensor:
        return self.empty(tuple(tensor.shape), dtype=tensor.dtype, device=tensor.device)

    def copy(self, tensor: Tensor) -> Tensor:
        return self.empty_like(tensor).copy_(tensor)

    def intact(self) -> bool:
        return all(
            bool((buffer[:GUARD_ELEMENTS] == GUARD_VALUE).all())
            and bool((buffer[GUARD_ELEMENTS + count :] == GUARD_VALUE).all())
            for buffer, count in self.buffers
        )


@contextlib.contextmanager
def guarded_outputs() -> Iterator[Guards]:
    """Every tensor that a wrapper allocates comes from `Guards`; on exit the guards must be intact."""
    guards = Guards()
    with mock.patch("torch.empty", guards.empty), mock.patch("torch.empty_like", guards.empty_like):
        yield guards
    assert guards.intact(), "a kernel wrote outside its output"


def compare(name: str, got: Tensor, expected: Tensor, inner_bound: Tensor) -> Comparison:
    """`inner_bound` holds for fp32 outputs, their rounding included; narrower outputs round once more."""
    extra = 0.0 if got.dtype == torch.float32 else torch.finfo(got.dtype).eps / 2
    return Comparison(name, got, expected, inner_bound + extra * (expected.abs() + inner_bound))


def _random(generator: torch.Generator, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Normal numbers, between NaN: an element read past either end, and used, shows."""
    count = math.prod(shape)
    buffer = torch.full((count + 2 * GUARD_ELEMENTS,), math.nan, dtype=dtype, device=generator.device)
    values = buffer[GUARD_ELEMENTS : GUARD_ELEMENTS + count].view(shape)
    return values.copy_(torch.randn(*shape, generator=generator, device=generator.device) * scale)


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(7)


def check_nf4(device: torch.device, dtype: torch.dtype, rows: int, cols: int) -> list[Comparison]:
    """One fp32 product and one rounding: equal bits, so the bound is 0. Doubly quantized scales: the same."""
    generator = _generator(device)
    blocks = rows * cols // 64
    codes = torch.randint(0, 256, (rows * cols // 2,), generator=generator, device=device, dtype=torch.uint8)
    nibbles = torch.stack((codes >> 4, codes & 15), dim=1).flatten().long()
    absmax = _random(generator, blocks, dtype=torch.float32).abs()
    scale_codes = torch.randint(0, 256, (blocks,), generator=generator, device=device, dtype=torch.uint8)
    levels = _random(generator, 256, dtype=torch.float32)
    scales = _random(generator, -(-blocks // 256), dtype=torch.float32).abs()
    offset = _random(generator, 1, dtype=torch.float32)[0]
    double_absmax = levels[scale_codes.long()] * scales[torch.arange(blocks, device=device) // 256] + offset

    with guarded_outputs() as guards:
        plain = nf4.dequantize(codes, absmax, rows, cols, dtype)
        into = guards.empty(rows, cols, dtype=dtype, device=device)
        assert nf4.dequantize(codes, absmax, rows, cols, dtype, out=into) is into
        double = nf4.dequantize_double(codes, scale_codes, levels, scales, offset, rows, cols, dtype)

    def expected(scale: Tensor) -> Tensor:
        values = CODEBOOK.to(device)[nibbles].view(-1, 64) * scale[:, None]
        return values.to(dtype).double().view(rows, cols)

    zero = torch.zeros((), device=device, dtype=torch.float64)
    return [
        Comparison("dequantize", plain, expected(absmax), zero),
        Comparison("dequantize out=", into, expected(absmax), zero),
        Comparison("dequantize_double", double, expected(double_absmax), zero),
    ]


def check_rms_norm(device: torch.device, dtype: torch.dtype, tokens: int, hidden: int) -> list[Comparison]:
    generator = _generator(device)
    x, residual, grad_y, grad_residual = (_random(generator, tokens, hidden, dtype=dtype) for _ in range(4))
    gain = 1 + _random(generator, hidden, dtype=torch.float32, scale=0.3)
    with guarded_outputs() as guards:
        y, rstd = rms_norm.forward(x, gain, EPS)
        total, sum_y, sum_rstd = rms_norm.add_forward(x, residual, gain, EPS)
        grad_x, grad_gain = rms_norm.backward(grad_y, x, gain, rstd)
        # One element off 16-byte alignment: a gradient may lie anywhere in the flat buffer.
        into = guards.empty(2 * hidden + 1, dtype=torch.float32, device=device)[1:].view(2, hidden)
        grad_x_plus, _ = rms_norm.backward(grad_y, x, gain, rstd, grad_residual, into[0])
        partials = rms_norm.gain_partials(x, 2)
        for partial, grad in zip(partials, (2 * grad_y, grad_y), strict=True):
            rms_norm.backward_to_partials(grad, x, gain, rstd, partial)
        rms_norm.reduce_gains(partials, into)

    def norm(value: Tensor) -> tuple[Tensor, Tensor]:
        value = value.double()
        scale = torch.rsqrt(value.square().mean(dim=1) + EPS)
        return value * scale[:, None] * gain, scale

    # The mean of squares errs by SUM_DEPTH u, its square root halves that; square root, division, two products: 8u.
    relative = (SUM_DEPTH / 2 + 8) * U
    expected_y, expected_rstd = norm(x)
    # The kernel's own rounded sum is its norm's input: an error of the sum shows in the sum.
    expected_sum_y, expected_sum_rstd = norm(total)
    expected_total = (x.float() + residual.float()).to(dtype).double()

    scale = rstd.double()[:, None]
    normed, g = x.double() * scale, grad_y.double() * gain
    mean = (g * normed).mean(dim=1, keepdim=True)
    magnitude = scale * (g.abs() + normed.abs() * (g * normed).abs().mean(dim=1, keepdim=True))
    expected_grad_x = scale * (g - normed * mean)
    products = grad_y.double() * normed
    backward_bound = (SUM_DEPTH + 8) * U * magnitude
    return [
        compare("y", y, expected_y, relative * expected_y.abs()),
        compare("rstd", rstd, expected_rstd, relative * expected_rstd),
        Comparison("total", total, expected_total, torch.zeros_like(expected_total)),
        compare("y of sum", sum_y, expected_sum_y, relative * expected_sum_y.abs()),
        compare("rstd of sum", sum_rstd, expected_sum_rstd, relative * expected_sum_rstd),
        compare("grad_x", grad_x, expected_grad_x, backward_bound),
        compare(
            "grad_x + residual",
            grad_x_plus,
            expected_grad_x + grad_residual.double(),
            backward_bound + 2 * U * (magnitude + grad_residual.double().abs()),
        ),
        compare("grad_gain", grad_gain, products.sum(dim=0), (SUM_DEPTH + 4) * U * products.abs().sum(dim=0)),
        # Doubling is exact, in every dtype.
        Comparison(
            "gains of two norms", into, torch.stack((2 * grad_gain, grad_gain)).double(), torch.zeros_like(into)
        ),
    ]


def check_rope(
    device: torch.device,
    dtype: torch.dtype,
    batch: int,
    seq_len: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    factors: int,
) -> list[Comparison]:
    """A sum of `factors` products and one addend, then two products and a sum, in fp32; rounded once to the dtype."""
    generator = _generator(device)
    tokens, width, rotated = batch * seq_len, (heads + 2 * kv_heads) * head_dim, heads + kv_heads
    qkv = _random(generator, tokens, width, dtype=dtype)
    low_rank, b = _random(generator, tokens, factors, dtype=dtype), _random(generator, width, factors, dtype=dtype)
    angles = torch.rand(seq_len, head_dim // 2, generator=generator, device=device) * 6.3
    cos, sin = angles.cos(), angles.sin()
    with guarded_outputs() as guards:
        got = guards.copy(qkv)
        rope.add_rotate_(got, low_rank, b, cos, sin, seq_len, rotated, head_dim)
    summed = qkv.double() + low_rank.double() @ b.double().t()
    summed_magnitude = qkv.double().abs() + low_rank.double().abs() @ b.double().abs().t()
    split, magnitudes = (
        each.view(batch, seq_len, heads + 2 * kv_heads, 2, head_dim // 2) for each in (summed, summed_magnitude)
    )
    x, y = split.unbind(dim=3)
    x_magnitude, y_magnitude = magnitudes.unbind(dim=3)
    c, s = (table.double()[:, None, :].expand_as(x[0]).clone() for table in (cos, sin))
    c[:, rotated:], s[:, rotated:] = 1.0, 0.0
    expected = torch.stack((x * c - y * s, y * c + x * s), dim=3).reshape(tokens, -1)
    magnitude = torch.stack(
        (x_magnitude * c.abs() + y_magnitude * s.abs(), y_magnitude * c.abs() + x_magnitude * s.abs()), dim=3
    ).reshape(tokens, -1)
    return [compare("qkv", got, expected, (factors + 4) * U * magnitude)]


def check_swiglu(device: torch.device, dtype: torch.dtype, tokens: int, intermediate: int) -> list[Comparison]:
    generator = _generator(device)
    gate_up = _random(generator, tokens, 2 * intermediate, dtype=dtype, scale=3.0)
    grad_act = _random(generator, tokens, intermediate, dtype=dtype)
    gate_only = gate_up[:, :intermediate].contiguous()
    with guarded_outputs() as guards:
        act = swiglu.forward(gate_up)
        grad_gate_up = swiglu.backward(grad_act, gate_up)
        in_place = guards.copy(gate_up)
        swiglu.backward(grad_act, in_place, out=in_place)
        silu = swiglu.silu_forward(gate_only)
        grad_silu = swiglu.silu_backward(grad_act, gate_only)

    gate, up = gate_up.double().chunk(2, dim=1)
    grad = grad_act.double()
    s = torch.sigmoid(gate)
    sigmoid_relative = (2 * gate.abs() + 10) * U  # exp, an addition, a division
    product_bound = sigmoid_relative + 3 * U
    slope = 1 + gate * (1 - s)
    # 1 - s and the addition may cancel: their errors are absolute ones.
    slope_error = gate.abs() * (s * sigmoid_relative + 2 * U) + 2 * U * (1 + gate.abs())
    silu_slope_bound = (s * slope).abs() * (sigmoid_relative + 4 * U) + s * slope_error
    return [
        compare("act", act, gate * s * up, (gate * s * up).abs() * product_bound),
        compare("grad_up", grad_gate_up[:, intermediate:], grad * gate * s, (grad * gate * s).abs() * product_bound),
        compare(
            "grad_gate",
            grad_gate_up[:, :intermediate],
            grad * up * s * slope,
            (grad * up).abs() * silu_slope_bound,
        ),
        Comparison("in place", in_place, grad_gate_up.double(), torch.zeros_like(in_place).double()),
        compare("silu", silu, gate * s, (gate * s).abs() * product_bound),
        compare("grad_silu", grad_silu, grad * s * slope, grad.abs() * silu_slope_bound),
    ]


def check_cross_entropy(
    device: torch.device,
    dtype: torch.dtype,
    tokens: int,
    vocabulary: int,
    *,
    magnitude: float = 3.0,
    shift: float = 0.0,
) -> list[Comparison]:
    """Row 0 is ignored (target -100); the others' targets are spread over the vocabulary, both ends included."""
    generator = _generator(device)
    logits = _random(generator, tokens, vocabulary, dtype=dtype, scale=magnitude)
    logits += shift
    targets = torch.linspace(0, vocabulary - 1, tokens, device=device).long()
    targets[0] = cross_entropy.IGNORED
    scale = torch.tensor(0.37, device=device)
    maxima, totals = statistics(logits)
    with guarded_outputs() as guards:
        gradient, from_statistics = guards.copy(logits), guards.copy(logits)
        losses = cross_entropy.forward_backward_(gradient, targets, scale)
        losses_from_statistics = cross_entropy.from_statistics_(from_statistics, maxima, totals, targets, scale)

    valid = targets != cross_entropy.IGNORED
    index = torch.where(valid, targets, 0)[:, None]
    value = logits.double()
    maximum = value.max(dim=1, keepdim=True).values
    distance = maximum - value
    log_sum = torch.logsumexp(value, dim=1, keepdim=True)
    p = torch.exp(value - log_sum)
    onehot = torch.zeros_like(p).scatter_(1, index, 1.0)
    expected_loss = (log_sum - value.gather(1, index)).squeeze(1)

    # Each exponential rounds its argument (u * distance) and its result; a running maximum that rises rescales the
    # sum, one product and one exponential a step; three additions a step, then a tree.
    exponential = (3 * distance + 5) * U
    constants = cross_entropy.forward_backward_spec(tokens, vocabulary, "fp32").constexprs
    steps = -(-vocabulary // (int(constants["VECTORS"]) * int(constants["VECTOR"])))
    total_relative = (p * exponential).sum(1, keepdim=True) + (
        2 * distance.max(dim=1, keepdim=True).values + 10 * steps + 16
    ) * U
    loss_bound = total_relative + 4 * U * ((log_sum - maximum).abs() + distance.gather(1, index))
    relative = exponential + total_relative + 8 * U
    gradient_bound = scale.double() * (p * relative + 4 * U * (p - onehot).abs() + UNDERFLOW)
    rows = valid[:, None]
    exact_loss = torch.where(valid, expected_loss, 0.0), torch.where(valid, loss_bound.squeeze(1), 0.0)
    exact_gradient = (
        torch.where(rows, scale.double() * (p - onehot), 0.0),
        torch.where(rows, gradient_bound, 0.0),
    )
    return [
        compare("loss", losses, *exact_loss),
        compare("gradient", gradient, *exact_gradient),
        compare("loss from statistics", losses_from_statistics, *exact_loss),
        compare("gradient from statistics", from_statistics, *exact_gradient),
    ]


def statistics(logits: Tensor, width: int = 192) -> tuple[Tensor, Tensor]:
    """Maximum and sum of exponentials of each part of so many columns, by fp64: fp32 [T, P] both."""
    parts = torch.split(logits.double(), width, dim=1)
    maxima = torch.stack([part.amax(dim=1) for part in parts], dim=1)
    totals = [(part - maxima[:, index, None]).exp().sum(dim=1) for index, part in enumerate(parts)]
    return maxima.float(), torch.stack(totals, dim=1).float()


def check_cross_entropy_bad_target(device: torch.device) -> list[Comparison]:
    """A target outside the vocabulary gives a NaN loss and reads nothing; its neighbours are untouched by it."""
    logits = torch.zeros(3, 8, device=device)
    targets = torch.tensor([2, 8, 3], device=device)
    given = statistics(logits, 3)
    with guarded_outputs():
        both = {
            "": cross_entropy.forward_backward_(logits.clone(), targets, 1.0),
            " from statistics": cross_entropy.from_statistics_(logits.clone(), *given, targets, 1.0),
        }
    expected = torch.tensor([0.0, 1.0, 0.0], device=device, dtype=torch.float64)
    uniform = torch.full((2,), math.log(8.0), device=device, dtype=torch.float64)
    return [
        comparison
        for how, losses in both.items()
        for comparison in (
            Comparison(f"loss{how} is NaN", losses.isnan().float(), expected, torch.zeros_like(expected)),
            compare(f"loss{how} beside it", losses[::2], uniform, 8 * U * uniform),
        )
    ]


def check_clip_not_finite(device: torch.device, bad: float, bad_scale: float) -> list[Comparison]:
    """A NaN gradient gives its group a NaN scale, an infinite one the scale 0; the other group is clipped as ever."""
    plan = clip_plan([[4], [4]], device)
    flat = torch.tensor([1.0, bad, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0], device=device)
    partials, norms, scales = (torch.full((2,), math.nan, device=device) for _ in range(3))
    clip.squared_sum_partials(flat, plan.starts, plan.counts, partials)
    clip.clip_scale_reduce(partials, plan.group_starts, 1.0, 0.0, norms, scales)
    expected = torch.tensor([bad_scale, 0.2], device=device, dtype=torch.float64)
    same = torch.isnan(scales) == torch.isnan(expected)
    return [
        Comparison("NaN where expected", same.float(), torch.ones_like(expected), torch.zeros_like(expected)),
        compare("scales", scales.nan_to_num(9.0), expected.nan_to_num(9.0), U * torch.ones_like(expected)),
    ]


def check_softmax(device: torch.device, dtype: torch.dtype, rows: int, columns: int) -> list[Comparison]:
    generator = _generator(device)
    p = torch.softmax(_random(generator, rows, columns, dtype=torch.float32, scale=2.0), dim=1).to(dtype)
    grad_p = _random(generator, rows, columns, dtype=dtype)
    with guarded_outputs():
        got = softmax.backward(grad_p, p)
    products = grad_p.double() * p.double()
    expected = p.double() * (grad_p.double() - products.sum(dim=1, keepdim=True))
    magnitude = p.double() * (grad_p.double().abs() + products.abs().sum(dim=1, keepdim=True))
    return [compare("grad_s", got, expected, (SUM_DEPTH + 4) * U * magnitude)]


@dataclass(frozen=True)
class ClipPlan:
    """Partials of at most 1024 elements over `sizes`' tensors, laid out one after another in a flat buffer."""

    starts: Tensor
    counts: Tensor
    groups: Tensor
    group_starts: Tensor
    total: int


def clip_plan(groups: list[list[int]], device: torch.device) -> ClipPlan:
    """`groups` lists the sizes of each group's tensors; an empty tensor gets no partial."""
    starts, counts, owners, group_starts, offset = [], [], [], [0], 0
    for group, sizes in enumerate(groups):
        for size in sizes:
            for first in range(0, size, clip.BLOCK):
                starts.append(offset + first)
                counts.append(min(clip.BLOCK, size - first))
                owners.append(group)
            offset += size
        group_starts.append(len(starts))

    def tensor(values: list[int], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return ClipPlan(
        starts=tensor(starts, torch.int64),
        counts=tensor(counts, torch.int32),
        groups=tensor(owners, torch.int32),
        group_starts=tensor(group_starts, torch.int32),
        total=offset,
    )


def check_clip(
    device: torch.device, groups: list[list[int]], max_norm: float, *, scale: float = 1.0
) -> list[Comparison]:
    """`scale` is the gradients' magnitude; groups are clipped or not by whether their norm exceeds `max_norm`."""
    plan = clip_plan(groups, device)
    flat = _random(_generator(device), plan.total, dtype=torch.float32, scale=scale)
    with guarded_outputs() as guards:
        got = guards.copy(flat)
        partials = guards.empty(plan.starts.numel(), dtype=torch.float32, device=device)
        norms, scales = (guards.empty(len(groups), dtype=torch.float32, device=device) for _ in range(2))
        clip.squared_sum_partials(got, plan.starts, plan.counts, partials)
        clip.clip_scale_reduce(partials, plan.group_starts, max_norm, EPS, norms, scales)
        clip.scale_apply_(got, scales, plan.starts, plan.counts, plan.groups)

    parts = torch.split(flat.double(), [sum(sizes) for sizes in groups])
    expected_norms = torch.stack([torch.linalg.vector_norm(part) for part in parts])
    expected_scales = (max_norm / (expected_norms + EPS)).clamp(max=1.0)
    expected_flat = torch.cat([part * factor for part, factor in zip(parts, expected_scales, strict=True)])
    relative = (SUM_DEPTH + 8) * U
    return [
        compare("norms", norms, expected_norms, relative * expected_norms),
        compare("scales", scales, expected_scales, relative * expected_scales),
        compare("flat", got, expected_flat, (relative + U) * expected_flat.abs()),
    ]


def check_gemm(
    device: torch.device,
    grad_dtype: torch.dtype,
    weight_dtype: torch.dtype,
    m: int,
    k: int,
    n: int,
    *,
    grad_scale: float = 1.0,
) -> list[Comparison]:
    """A sum of n (or m) products, one fused multiply-add each: the terms' number times u, of their magnitude."""
    generator = _generator(device)
    a = _random(generator, m, k, dtype=grad_dtype)
    b = _random(generator, k, n, dtype=weight_dtype, scale=0.02)
    grad_c = _random(generator, m, n, dtype=grad_dtype, scale=grad_scale)
    base_a, base_b = (_random(generator, *shape, dtype=grad_dtype) for shape in ((m, k), (k, n)))
    with guarded_outputs() as guards:
        grad_a, grad_b = gemm.backward_a(grad_c, b), gemm.backward_b(a, grad_c)
        sum_a, sum_b = guards.copy(base_a), guards.copy(base_b)
        assert gemm.backward_a(grad_c, b, out=sum_a, accumulate=True) is sum_a
        assert gemm.backward_b(a, grad_c, out=sum_b, accumulate=True) is sum_b

    a64, b64, grad64 = a.double(), b.double(), grad_c.double()
    expected_a, expected_b = grad64 @ b64.T, a64.T @ grad64
    bound_a = (n + 2) * U * (grad64.abs() @ b64.abs().T)
    bound_b = (m + 2) * U * (a64.abs().T @ grad64.abs())
    return [
        compare("grad_a", grad_a, expected_a, bound_a),
        compare("grad_b", grad_b, expected_b, bound_b),
        compare("grad_a +=", sum_a, expected_a + base_a, bound_a + 2 * U * (expected_a.abs() + base_a.double().abs())),
        compare("grad_b +=", sum_b, expected_b + base_b, bound_b + 2 * U * (expected_b.abs() + base_b.double().abs())),
    ]


def check_lora_gradients(
    device: torch.device, dtype: torch.dtype, tokens: int, outputs: int, hidden: int, ranks: int, partials: int
) -> list[Comparison]:
    """Sums of `tokens` products and of `partials` terms, each of which rounds once at most, in whatever order."""
    generator = _generator(device)
    grad_qkv, residual = (_random(generator, tokens, width, dtype=dtype) for width in (outputs, hidden))
    low_rank, grad_low_rank = (_random(generator, tokens, ranks, dtype=dtype) for _ in range(2))
    rstd = _random(generator, tokens, dtype=torch.float32).abs()
    gains = _random(generator, 2, partials, hidden, dtype=torch.float32)
    with guarded_outputs() as guards:
        grad_b, grad_a = (
            guards.empty(*shape, dtype=torch.float32, device=device) for shape in ((outputs, ranks), (ranks, hidden))
        )
        # One element off 16-byte alignment: a gradient may lie anywhere in the flat buffer.
        grad_norms = guards.empty(2 * hidden + 1, dtype=torch.float32, device=device)[1:].view(2, hidden)
        lora_gradients.write(grad_qkv, low_rank, grad_low_rank, rstd, residual, gains, grad_b, grad_a, grad_norms)
    scaled = (grad_low_rank.float() * rstd[:, None]).to(dtype).double()
    left, right, x, parts = (each.double() for each in (grad_qkv, low_rank, residual, gains))
    bound = (tokens + 2) * U
    return [
        compare("grad_b", grad_b, left.T @ right, bound * (left.abs().T @ right.abs())),
        compare("grad_a", grad_a, scaled.T @ x, bound * (scaled.abs().T @ x.abs())),
        compare("grad_norms", grad_norms, parts.sum(dim=1), min(partials, SUM_DEPTH) * U * parts.abs().sum(dim=1)),
    ]
