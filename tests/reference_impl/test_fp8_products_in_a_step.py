"""Steps whose SwiGLU is made within the MLP's products in FP8, by their twins: lengths that change, micro-batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reference_impl import ops
from reference_impl.config import ModelConfig, TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.trainer import Trainer

SERVED = 128  # tokens of a block from which on the twins serve here, as the kernels do from 512
TINY = TrainConfig.preset("tiny", device="cpu", dtype="float32", precision="fp8", steps=8)
BLOCKS = 4
# Recorded faster than the checkpoint, whose MLP has a say in its loss.
_SMALL = ModelConfig(
    hidden_size=64, intermediate_size=192, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=32, vocab_size=256
)
LENGTHS = (64, 31, 48)  # 256, 124 and 192 tokens of four sequences


@pytest.fixture(autouse=True)
def made_within(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every product within which SwiGLU was made."""
    made: list[int] = []
    up, down = ops.fp8_up_swiglu, ops.fp8_down_swiglu_backward

    def counted_up(x: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made.append(x.shape[0])
        return up(x, *rest)

    def counted_down(grad: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        made.append(grad.shape[0])
        return down(grad, *rest)

    monkeypatch.setattr(ops, "fp8_up_swiglu", counted_up)
    monkeypatch.setattr(ops, "fp8_down_swiglu_backward", counted_down)
    monkeypatch.setattr(ops, "fp8_serves", lambda x, _intermediate, _dtype: x.shape[0] >= SERVED)
    return made


def gradient(trainer: Trainer, index: int) -> Tensor:
    trainer.prepare(index)
    trainer.gradients_body()
    return trainer.trainable.gradient.clone()


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_a_recorded_fp8_step_of_micro_batches_equals_the_plain_step_over_changing_lengths(
    made_within: list[int],
) -> None:
    ends: list[Tensor] = []
    for scope in ("none", "step"):
        capturing = CapturingTrainer(Trainer(replace(TINY, model=_SMALL, micro_batches=2)), scope)
        made_within.clear()
        losses: list[Tensor] = []
        for index, length in enumerate((64, 31, 64)):
            capturing.trainer.set_shape(length)
            losses.append(capturing.step(index).clone())
        assert capturing.record().failure is None
        assert set(made_within) == {128}
        ends.append(torch.cat((torch.stack(losses), capturing.trainer.trainable.flat)))
        capturing.close()
    assert torch.equal(*ends)


def test_fp8_gradients_are_close_to_float32_gradients_at_every_sequence_length(made_within: list[int]) -> None:
    plain, trainer = Trainer(replace(TINY, precision="dtype")), Trainer(TINY)
    for index in range(3):
        plain.step(index)
    trainer.trainable.flat.copy_(plain.trainable.flat)
    for length in LENGTHS:
        made_within.clear()
        for each in (plain, trainer):
            each.set_shape(length)
        # As where SwiGLU is apart; rows that saturate, or another length's norms, lie far beyond.
        assert 0.02 < distance(gradient(trainer, 3), gradient(plain, 3)) < 0.2
        assert made_within == ([4 * length] * (2 * BLOCKS) if 4 * length >= SERVED else [])


def test_micro_batches_in_fp8_have_the_gradient_of_the_whole_batch(made_within: list[int]) -> None:
    """The scale of a row depends only on this row, so only the order of sums in fp32 differs."""
    whole, parts = (Trainer(replace(TINY, micro_batches=each)) for each in (1, 2))
    for index in range(3):
        whole.step(index)
    parts.trainable.flat.copy_(whole.trainable.flat)
    made_within.clear()
    assert distance(gradient(parts, 3), gradient(whole, 3)) < 1e-5
    assert made_within == [128] * (2 * 2 * BLOCKS) + [256] * (2 * BLOCKS)
