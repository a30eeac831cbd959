"""The hand-written step against transformers + peft + torch.optim.AdamW, in float32 (REF-STEP-001).

Where the bounds come from. Both sides evaluate the same function in float32 and round in another order. By Higham and
Mary's probabilistic analysis (SIAM J. Sci. Comput. 41, 2019) a dot product of K terms is off by about sqrt(K) u,
u = 2^-24, relative to the norms of its factors; an elementwise operator by a few u. Along one path through this model:

- a layer's forward: products over 64 (qkv), 16 and 32 (attention), 64 (output), 64 (gate, up) and 96 (down) terms,
  the roots adding up to 8 + 4 + 5.7 + 8 + 8 + 9.8 = 43.5, and about 30 elementwise roundings (two norms, rotation,
  softmax, SwiGLU, biases, LoRA, residuals): 74 u. The head adds 8 + 16 (softmax over 256) + 10 = 34 u.
- so 3 layers and the head: 256 u for the logits; the backward runs through transposes of the same products and adds as
  much, and sums over 64 tokens (8 u a tensor): 530 u for a gradient. Two sides, each with its own rounding: twice that.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from huggingface_oracle import build_twin, trainable_parameters
from torch import Tensor

from reference_impl.config import TINY_CHECKPOINT, ModelConfig, TrainConfig
from reference_impl.trainer import Trainer

UNIT = 2.0**-24
LOGITS_BOUND = 2 * 256 * UNIT  # relative to the largest logit: 3.1e-5
GRADIENT_BOUND = 2 * 530 * UNIT  # relative to the tensor's norm: 6.3e-5
STEPS = 20

SHAPE = ModelConfig(
    hidden_size=64, intermediate_size=96, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=256
)


@pytest.fixture(autouse=True)
def libraries() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")


def make_trainer(**overrides: Any) -> Trainer:
    """A trainer whose B factors are not zero, so that every gradient is alive in the first step."""
    fields: dict[str, Any] = {"rank": 4, "alpha": 12.0, "learning_rate": 1e-2, "max_norm": 0.08, "steps": STEPS}
    trainer = Trainer(TrainConfig(model=SHAPE, batch_size=2, seq_len=32, device="cpu", **{**fields, **overrides}))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in trainer.parameters().items():
        if "lora_b" in name:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return trainer


def relative_distance(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def flattened(parameters: dict[str, Any]) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in parameters.values()])


@pytest.mark.parametrize("weights", ["nf4", "full"])
def test_logits_match_those_of_huggingface(weights: str) -> None:
    trainer = make_trainer(weights=weights)
    model, _ = build_twin(trainer)
    trainer.prepare(0)
    with torch.no_grad():
        got = trainer.model.logits(trainer.static.tokens, trainer.static.shape)
        expected = model(input_ids=trainer.static.tokens).logits
    assert float((got - expected).abs().max()) <= LOGITS_BOUND * float(expected.abs().max())


@pytest.mark.parametrize("max_norm", [1e6, 0.08], ids=["unclipped", "clipped"])
def test_gradients_match_those_of_huggingface(max_norm: float) -> None:
    trainer = make_trainer(max_norm=max_norm)
    model, twin_step = build_twin(trainer)
    parameters = trainable_parameters(model, SHAPE.num_layers)
    trainer.step(0)
    twin_step(0)
    clipped = trainer.gradient_norms()[1] < 1
    assert bool(clipped.any()) == (max_norm < 1)
    worst: dict[str, float] = {}
    for name, gradient in trainer.gradients().items():
        expected = parameters[name].grad
        assert expected is not None
        worst[name] = relative_distance(gradient, expected)
    assert len(worst) == 6 * SHAPE.num_layers
    assert max(worst.values()) <= GRADIENT_BOUND, worst


def test_the_losses_of_twenty_steps_match_those_of_huggingface() -> None:
    trainer = make_trainer()
    model, twin_step = build_twin(trainer)
    twin_parameters = trainable_parameters(model, SHAPE.num_layers)
    start = flattened(trainer.parameters())
    for index in range(STEPS):
        # Mean-value theorem: parameters that lie `apart` from each other move the loss by |gradient| * apart, and the
        # forward pass adds the rounding of its logits. Norms are those before clipping.
        apart = float((flattened(trainer.parameters()) - flattened(twin_parameters)).norm())
        loss, twin_loss = trainer.step(index), twin_step(index)
        gradient_norm = float(trainer.gradient_norms()[0].norm())
        # The logits of this model stay below 2 in magnitude.
        assert abs(float(loss - twin_loss)) <= 2 * LOGITS_BOUND + gradient_norm * apart, index
        # AdamW's step has the size of its learning rate whatever the gradient, and a relative error of the gradient is
        # one of the step; so the distance is at most the sum of the errors so far, relative to the way travelled.
        travelled = float((flattened(twin_parameters) - start).norm())
        apart = float((flattened(trainer.parameters()) - flattened(twin_parameters)).norm())
        assert apart <= (index + 1) * GRADIENT_BOUND * travelled, index


def test_weight_decay_matches_one_parameter_group_of_huggingface() -> None:
    trainer = make_trainer(weight_decay=0.1)
    model, twin_step = build_twin(trainer)
    for index in range(3):
        trainer.step(index)
        twin_step(index)
    expected = flattened(trainable_parameters(model, SHAPE.num_layers))
    assert relative_distance(flattened(trainer.parameters()), expected) <= 3 * GRADIENT_BOUND


def test_the_tiny_checkpoint_is_read_as_transformers_reads_it() -> None:
    from transformers import Qwen2ForCausalLM

    trainer = Trainer(TrainConfig.preset("tiny", weights="full", device="cpu"))
    model = Qwen2ForCausalLM.from_pretrained(TINY_CHECKPOINT, dtype=torch.float32)
    trainer.prepare(0)
    with torch.no_grad():
        got = trainer.model.logits(trainer.static.tokens, trainer.static.shape)
        expected = model(input_ids=trainer.static.tokens).logits
    # One layer more, and products of twice the length: below twice the bound of the model above.
    assert float((got - expected).abs().max()) <= 2 * LOGITS_BOUND * float(expected.abs().max())
