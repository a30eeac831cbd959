"""Each naive operator in float64 against autograd through the textbook formula; rounding in lower precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from reference_impl.kernels.attention import naive as attention
from reference_impl.kernels.cross_entropy import naive as cross_entropy
from reference_impl.kernels.gemm import naive as gemm
from reference_impl.kernels.lora_gradients import naive as lora_gradients
from reference_impl.kernels.rms_norm import naive as rms_norm
from reference_impl.kernels.rope import naive as rope
from reference_impl.kernels.softmax import naive as softmax
from reference_impl.kernels.swiglu import naive as swiglu

EPS = 1e-6
TIGHT = 1e-12  # float64: a few thousand roundings of 1.1e-16


def random(*shape: int, seed: int = 0, grad: bool = False) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.requires_grad_(grad)


def assert_equal(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=TIGHT, atol=TIGHT)


def test_naive_rms_norm_equals_torch_rms_norm_forward_and_backward() -> None:
    x, gain, grad = random(5, 12, grad=True), random(12, seed=1, grad=True), random(5, 12, seed=2)
    expected = functional.rms_norm(x, (12,), gain, EPS)
    expected_grads = torch.autograd.grad(expected, (x, gain), grad)
    y, rstd = rms_norm.forward(x.detach(), gain.detach(), EPS)
    assert_equal(y, expected.detach())
    grad_x, grad_gain = rms_norm.backward(grad, x.detach(), gain.detach(), rstd)
    assert_equal(grad_x, expected_grads[0])
    assert_equal(grad_gain, expected_grads[1])


def test_rms_norm_backward_adds_the_residual_gradient() -> None:
    x, gain, grad, residual = random(5, 12), random(12, seed=1), random(5, 12, seed=2), random(5, 12, seed=3)
    _, rstd = rms_norm.forward(x, gain, EPS)
    plain, _ = rms_norm.backward(grad, x, gain, rstd)
    with_residual, _ = rms_norm.backward(grad, x, gain, rstd, residual)
    assert_equal(with_residual, plain + residual)


def test_backward_operators_write_into_a_given_output() -> None:
    x, gain, grad = random(5, 12), random(12, seed=1), random(5, 12, seed=2)
    _, rstd = rms_norm.forward(x, gain, EPS)
    given = torch.full_like(gain, 2.0)
    assert rms_norm.backward(grad, x, gain, rstd, grad_gain=given)[1] is given
    assert_equal(given, rms_norm.backward(grad, x, gain, rstd)[1])
    partials, gains = rms_norm.gain_partials(x, 2), torch.empty(2, 12, dtype=torch.float64)
    for partial, factor in zip(partials, (1.0, 3.0), strict=True):
        rms_norm.backward_to_partials(factor * grad, x, gain, rstd, partial)
    rms_norm.reduce_gains(partials, gains)
    assert_equal(gains, torch.stack((given, 3.0 * given)))
    gate_up, grad_act = random(5, 14), random(5, 7, seed=1)
    expected = swiglu.backward(grad_act, gate_up)
    assert swiglu.backward(grad_act, gate_up, out=gate_up) is gate_up
    assert_equal(gate_up, expected)


def test_naive_rms_norm_of_a_sum_equals_torch_rms_norm() -> None:
    x, residual, gain = random(5, 12), random(5, 12, seed=1), random(12, seed=2)
    total, y, _ = rms_norm.add_forward(x, residual, gain, EPS)
    assert_equal(total, x + residual)
    assert_equal(y, functional.rms_norm(x + residual, (12,), gain, EPS))


def test_rms_norm_rounds_bf16_once() -> None:
    x, gain = random(5, 64).bfloat16(), random(64, seed=1).float()
    y, _ = rms_norm.forward(x, gain, EPS)
    exact = functional.rms_norm(x.double(), (64,), gain.double(), EPS)
    # Rounding the normed value before the gain is applied changes about a third of these 320 elements.
    assert torch.equal(y, exact.bfloat16())


def test_naive_rope_equals_a_rotation_of_complex_numbers() -> None:
    seq_len, heads, head_dim, theta = 6, 3, 8, 1e4
    cos, sin = rope.tables(seq_len, head_dim, theta, torch.device("cpu"))
    qkv = random(2 * seq_len, 4 * head_dim)
    before = qkv.clone()
    rope.apply_(qkv, cos, sin, seq_len, heads, head_dim, inverse=False)
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(seq_len, dtype=torch.float64)[:, None, None] * frequency
    split = before.view(2, seq_len, 4, 2, head_dim // 2)
    turned = torch.complex(split[..., 0, :], split[..., 1, :]) * torch.polar(torch.ones_like(angle), angle)
    expected = torch.cat((turned.real, turned.imag), dim=-1)
    # The tables are float32: an angle below 6 rad is off by 2^-22 at most.
    torch.testing.assert_close(qkv.view(2, seq_len, 4, head_dim)[:, :, :3], expected[:, :, :3], rtol=0, atol=4e-6)
    assert torch.equal(qkv[:, 3 * head_dim :], before[:, 3 * head_dim :])  # the value head stays


def test_naive_rope_adds_lora_before_the_rotation() -> None:
    cos, sin = rope.tables(6, 8, 1e4, torch.device("cpu"))
    qkv, low_rank, b = random(12, 32), random(12, 4, seed=1), random(32, 4, seed=2)
    expected = qkv + low_rank @ b.t()
    rope.apply_(expected, cos, sin, 6, 3, 8, inverse=False)
    rope.add_rotate_(qkv, low_rank, b, cos, sin, 6, 3, 8)
    assert_equal(qkv, expected)


def test_the_inverse_of_naive_rope_is_its_transpose() -> None:
    cos, sin = rope.tables(6, 8, 1e4, torch.device("cpu"))
    x, grad = random(12, 16), random(12, 16, seed=1)
    rotated, pulled_back = x.clone(), grad.clone()
    rope.apply_(rotated, cos, sin, 6, 2, 8, inverse=False)
    rope.apply_(pulled_back, cos, sin, 6, 2, 8, inverse=True)
    assert_equal((rotated * grad).sum(), (x * pulled_back).sum())


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 1), (2, 2)])
def test_naive_attention_equals_torch_attention(heads: int, kv_heads: int) -> None:
    batch, seq_len, head_dim = 2, 6, 8
    sizes = (batch, seq_len, heads, kv_heads, head_dim)
    cos, sin = rope.tables(seq_len, head_dim, 1e4, torch.device("cpu"))
    flat, grad = random(batch * seq_len, (heads + 2 * kv_heads) * head_dim), random(12, heads * head_dim, seed=1)
    parts = torch.split(flat.view(batch, seq_len, -1, head_dim).transpose(1, 2), [heads, kv_heads, kv_heads], dim=1)
    query, key, value = (part.detach().requires_grad_() for part in parts)
    expected = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    expected = expected.transpose(1, 2).reshape(batch * seq_len, -1)
    grads = torch.autograd.grad(expected, (query, key, value), grad)
    expected_grad = torch.cat([part.transpose(1, 2).reshape(batch * seq_len, -1) for part in grads], dim=1)
    rope.apply_(expected_grad, cos, sin, seq_len, heads + kv_heads, head_dim, inverse=True)
    output, log_sum_exp = attention.forward(flat, *sizes)
    assert_equal(output, expected.detach())
    # The first position sees itself alone: its log-sum-exp is its one score.
    own = (parts[0] * parts[1].repeat_interleave(heads // kv_heads, dim=1))[:, :, 0].sum(dim=2) * head_dim**-0.5
    assert_equal(log_sum_exp[:, :, 0], own)
    assert_equal(attention.backward(grad, flat, output, log_sum_exp, cos, sin, *sizes), expected_grad)


def test_naive_swiglu_equals_torch_silu_times_up() -> None:
    gate_up, grad = random(5, 14, grad=True), random(5, 7, seed=1)
    expected = functional.silu(gate_up[:, :7]) * gate_up[:, 7:]
    (expected_grad,) = torch.autograd.grad(expected, gate_up, grad)
    assert_equal(swiglu.forward(gate_up.detach()), expected.detach())
    assert_equal(swiglu.backward(grad, gate_up.detach()), expected_grad)


def test_naive_silu_equals_torch_silu() -> None:
    x, grad = random(5, 7, grad=True), random(5, 7, seed=1)
    expected = functional.silu(x)
    (expected_grad,) = torch.autograd.grad(expected, x, grad)
    assert_equal(swiglu.silu_forward(x.detach()), expected.detach())
    assert_equal(swiglu.silu_backward(grad, x.detach()), expected_grad)


def test_naive_cross_entropy_ignores_a_masked_row() -> None:
    logits, targets = random(4, 9, grad=True), torch.tensor([3, -100, 0, 8])
    expected = functional.cross_entropy(logits, targets, reduction="none", ignore_index=-100)
    (expected_grad,) = torch.autograd.grad(expected.sum() * 0.25, logits)
    buffer = logits.detach().clone()
    assert_equal(cross_entropy.forward_backward_(buffer, targets, 0.25), expected.detach())
    assert_equal(buffer, expected_grad)
    assert buffer[1].abs().max().item() == 0.0


def test_cross_entropy_of_large_logits_stays_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]])
    loss = cross_entropy.forward_backward_(logits, torch.tensor([1]), 1.0)
    assert loss.item() == 2e4
    assert logits.tolist() == [[1.0, -1.0, 0.0]]


def test_naive_softmax_backward_equals_autograd() -> None:
    scores, grad = random(6, 5, grad=True), random(6, 5, seed=1)
    probabilities = scores.softmax(dim=1)
    (expected,) = torch.autograd.grad(probabilities, scores, grad)
    assert_equal(softmax.backward(grad, probabilities.detach()), expected)


@pytest.mark.parametrize("accumulate", [False, True])
def test_naive_gemm_backward_equals_autograd(accumulate: bool) -> None:
    a, b, grad_c = random(3, 4, grad=True), random(4, 5, seed=1, grad=True), random(3, 5, seed=2)
    expected = torch.autograd.grad(a @ b, (a, b), grad_c)
    calls: list[tuple[Callable[..., Tensor], Tensor, Tensor, Tensor]] = [
        (gemm.backward_a, grad_c, b.detach(), expected[0]),
        (gemm.backward_b, a.detach(), grad_c, expected[1]),
    ]
    for function, left, right, product in calls:
        out = torch.full_like(product, 2.0)
        assert function(left, right, out, accumulate) is out
        assert_equal(out, product + 2.0 if accumulate else product)
        assert_equal(function(left, right), product)


def test_naive_lora_gradients_equal_autograd() -> None:
    """The forward pass is qkv = n A^T B^T with n = x * rstd. The sums for the gains of RMSNorm are compared as well."""
    grad_qkv, x, rstd = random(5, 7), random(5, 12, seed=1), random(5, seed=2).abs()
    a, b = random(4, 12, seed=3, grad=True), random(7, 4, seed=4, grad=True)
    low_rank = (x * rstd[:, None]) @ a.t()
    expected_a, expected_b = torch.autograd.grad(low_rank @ b.t(), (a, b), grad_qkv)
    gains, found = random(2, 3, 12, seed=5), [torch.empty(shape, dtype=x.dtype) for shape in ((7, 4), (4, 12), (2, 12))]
    lora_gradients.write(grad_qkv, low_rank.detach(), grad_qkv @ b.detach(), rstd, x, gains, *found)
    for got, expected in zip(found, (expected_b, expected_a, gains.sum(dim=1)), strict=True):
        assert_equal(got, expected)


def test_lora_gradients_of_bf16_are_float32_and_round_the_scaled_factor_once() -> None:
    grad_qkv, low_rank, grad_low_rank, x = (
        random(5, width, seed=seed).bfloat16() for seed, width in enumerate((7, 4, 4, 12))
    )
    rstd, gains = random(5, seed=4).abs().float(), random(2, 1, 12, seed=5).float()
    grad_b, grad_a, grad_norms = torch.empty(7, 4), torch.empty(4, 12), torch.empty(2, 12)
    lora_gradients.write(grad_qkv, low_rank, grad_low_rank, rstd, x, gains, grad_b, grad_a, grad_norms)
    scaled = (grad_low_rank.float() * rstd[:, None]).bfloat16()
    assert torch.equal(grad_b, grad_qkv.float().t() @ low_rank.float())
    assert torch.equal(grad_a, scaled.float().t() @ x.float())
