"""Correct programs of other people's that break what upstream claims: the refuted rows of docs/upstream-claims.md."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as nn

PROMPT, LENGTH, IGNORED = 6, 12, -100


@pytest.fixture(scope="module")
def lora() -> torch.nn.Module:
    """A small Qwen2 of transformers' with LoRA of peft's on queries and values; B begins at zero."""
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
    )
    adapters = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    model: torch.nn.Module = peft.get_peft_model(transformers.Qwen2ForCausalLM(config), adapters)
    return model


def gradients(model: torch.nn.Module, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Of every trainable tensor, for tokens and labels [1, LENGTH]."""
    model.zero_grad()
    model(input_ids=tokens, labels=labels).loss.backward()
    return {name: tensor.grad.clone() for name, tensor in model.named_parameters() if tensor.grad is not None}


def masked(tokens: Tensor) -> Tensor:
    """Labels of which only those of the response count."""
    return torch.cat([torch.full((1, PROMPT), IGNORED), tokens[:, PROMPT:]], dim=1)


def test_gradients_change_with_the_order_of_the_prompt_although_its_loss_is_masked(lora: torch.nn.Module) -> None:
    """The upstream claim FALSIFY-QT-003 requires unchanged gradients. But the response attends to the prompt."""
    tokens = torch.arange(10, 10 + LENGTH).view(1, LENGTH)
    permuted = torch.cat([tokens[:, :PROMPT].flip(1), tokens[:, PROMPT:]], dim=1)
    labels = masked(tokens)
    assert torch.equal(labels, masked(permuted))
    one, other = gradients(lora, tokens, labels), gradients(lora, permuted, labels)
    changes = [((one[name] - other[name]).norm() / one[name].norm()).item() for name in one if "lora_B" in name]
    assert len(changes) == 4
    assert min(changes) > 0.05


def test_a_correct_mask_keeps_the_prompts_labels_out_of_the_loss(lora: torch.nn.Module) -> None:
    """The loss has no gradient at the prompt's positions, and a gradient at all others, so the mask of the
    counterexample is correct.
    """
    tokens = torch.arange(10, 10 + LENGTH).view(1, LENGTH)
    logits = lora(input_ids=tokens).logits.detach().requires_grad_()
    loss = nn.cross_entropy(logits[0, :-1], masked(tokens)[0, 1:], ignore_index=IGNORED)
    [gradient] = torch.autograd.grad(loss, logits)
    counted = gradient[0].abs().sum(dim=1) > 0
    assert counted.tolist() == [False] * (PROMPT - 1) + [True] * (LENGTH - PROMPT) + [False]


def test_while_loras_b_is_zero_the_gradient_of_loras_a_is_zero(lora: torch.nn.Module) -> None:
    """The upstream claim FALSIFY-QT-008 requires a gradient of both in the first step, but FALSIFY-QT-002 has B start
    at zero.
    """
    tokens = torch.arange(10, 10 + LENGTH).view(1, LENGTH)
    norms = {name: gradient.norm().item() for name, gradient in gradients(lora, tokens, tokens).items()}
    assert {norm for name, norm in norms.items() if "lora_A" in name} == {0.0}
    assert min(norm for name, norm in norms.items() if "lora_B" in name) > 0


def test_a_gradient_clipped_by_torch_does_not_have_exactly_the_threshold_as_its_norm() -> None:
    weight = Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3e-3, 4e-3])
    torch.nn.utils.clip_grad_norm_([weight], 1e-3)
    assert weight.grad.norm().item() == pytest.approx(1e-3 * 5e-3 / (5e-3 + 1e-6), rel=1e-6)
    assert weight.grad.norm().item() < 0.9999 * 1e-3


def test_adams_bias_correction_becomes_exactly_one_in_floating_point() -> None:
    """The upstream claim FALSIFY-AW-003 requires it to be above 1 for t up to 10000."""
    assert 1 / (1 - 0.9**10000) == 1.0
    assert (1 / (1 - torch.tensor(0.9) ** 200)).item() == 1.0


def stepped(*gradients: float) -> tuple[float, torch.optim.AdamW, Parameter]:
    """The last change of a parameter over steps of torch's AdamW with these gradients, at a learning rate of 0.01."""
    weight = Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([weight], lr=0.01, weight_decay=0.1)
    before = weight.item()
    for gradient in gradients:
        before = weight.item()
        weight.grad = torch.tensor([gradient])
        optimizer.step()
    return weight.item() - before, optimizer, weight


def test_a_zero_gradient_still_moves_parameters_by_their_momentum() -> None:
    """The upstream claim FALSIFY-AW-006 requires that only weight decay moves them, which is true only in the first
    step.
    """
    first, _, _ = stepped(0.0)
    assert first == pytest.approx(-0.01 * 0.1, rel=1e-3)
    later, _, _ = stepped(1.0, 0.0)
    assert later < 5 * first


def test_a_second_moment_overflows_at_a_finite_gradient() -> None:
    """The third obligation of upstream's AdamW requires finite moments for finite gradients.

    The parameter stays finite.
    """
    _, optimizer, weight = stepped(1e30)
    assert optimizer.state[weight]["exp_avg_sq"].isinf().all()
    assert weight.isfinite().all()


def test_rms_norm_with_an_epsilon_is_not_scale_invariant() -> None:
    values = torch.tensor([1.0, -2.0, 2.0])
    usual, small = (nn.rms_norm(scale * values, (3,), eps=1e-6) for scale in (1.0, 1e-4))
    assert usual.square().mean().item() == pytest.approx(1.0, abs=1e-5)
    assert small.square().mean().item() == pytest.approx(3e-8 / (3e-8 + 1e-6), rel=1e-4)
    assert nn.rms_norm(torch.zeros(3), (3,), eps=1e-6).tolist() == [0.0] * 3


def test_silu_has_equal_values_at_neighbouring_inputs() -> None:
    """The upstream claim FALSIFY-SI-003 requires SiLU(x) > SiLU(y) for all x > y > 0."""
    inputs = torch.linspace(0.01, 2.0, 10_000)
    neighbours = torch.nextafter(inputs, torch.tensor(10.0))
    assert bool((neighbours > inputs).all())
    assert int((nn.silu(neighbours) <= nn.silu(inputs)).sum()) > 100


def test_a_softmax_can_underflow_to_zero_and_reach_one() -> None:
    """Upstream requires that every value is strictly between 0 and 1, and that the order of all inputs is kept."""
    assert torch.softmax(torch.tensor([200.0, 0.0, -1.0]), dim=0).tolist() == [1.0, 0.0, 0.0]
