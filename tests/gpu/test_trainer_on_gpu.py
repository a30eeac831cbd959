"""The trainer on CUDA: it agrees with the CPU in float32, repeats bit for bit in bfloat16, and never waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from reference_impl.config import ClipMode, ModelConfig, TrainConfig
from reference_impl.trainer import Trainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SHAPE = ModelConfig(
    hidden_size=256, intermediate_size=384, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=64, vocab_size=256
)


def make_trainer(device: str, **overrides: Any) -> Trainer:
    """The tiny checkpoint, whose weights are the same on every device."""
    return Trainer(TrainConfig.preset("tiny", device=device, steps=10, **overrides))


@pytest.fixture
def sync_mode_restored() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_float32_losses_and_gradients_agree_with_the_cpu() -> None:
    gpu, cpu = make_trainer("cuda", dtype="float32"), make_trainer("cpu", dtype="float32")
    for index in range(5):
        # Four layers on both sides: the rounding bound of test_against_huggingface is 6.3e-5 for three.
        assert abs(gpu.step(index).item() - cpu.step(index).item()) <= 1e-4
    for name, gradient in gpu.gradients().items():
        distance = (gradient.cpu() - cpu.gradients()[name]).norm() / cpu.gradients()[name].norm()
        assert distance.item() <= 1e-3, name  # five steps of drift on top


def test_bfloat16_gradients_stay_close_to_float32_gradients() -> None:
    low, high = make_trainer("cuda", dtype="bfloat16"), make_trainer("cuda", dtype="float32")
    low.step(0)
    high.step(0)
    distance = (low.trainable.gradient - high.trainable.gradient).norm() / high.trainable.gradient.norm()
    assert distance.item() <= 40 * 2**-8  # ten values a layer, four layers, each rounded by 2^-8 at most


@pytest.mark.parametrize("clip_mode", ["fused", "synchronizing"])
def test_two_runs_with_the_same_seed_are_bitwise_equal(clip_mode: ClipMode) -> None:
    one, other = (
        Trainer(TrainConfig(model=SHAPE, device="cuda", clip_mode=clip_mode, max_norm=0.05)) for _ in range(2)
    )
    for index in range(10):
        assert torch.equal(one.step(index), other.step(index)), index
    for name, tensor in one.state_tensors().items():
        assert torch.equal(tensor, other.state_tensors()[name]), name


def test_a_step_split_into_forward_and_backward_equals_the_unsplit_step() -> None:
    whole, split = (Trainer(TrainConfig(model=SHAPE, device="cuda")) for _ in range(2))
    for index in range(5):
        expected = whole.step(index)
        split.prepare(index)
        assert torch.equal(split.forward_body(), expected)
        split.backward_body()
    assert torch.equal(whole.trainable.flat, split.trainable.flat)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.usefixtures("sync_mode_restored")
def test_a_step_never_waits_for_the_device() -> None:
    trainer = make_trainer("cuda")
    trainer.step(0)
    torch.cuda.set_sync_debug_mode("error")
    trainer.step(1)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.usefixtures("sync_mode_restored")
def test_the_synchronizing_clip_waits_for_the_device() -> None:
    trainer = make_trainer("cuda", clip_mode="synchronizing")
    trainer.step(0)
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchroniz"):
        trainer.step(1)
