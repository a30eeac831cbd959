"""A step with a second stream computes the same bits as one without, uncaptured and captured."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from reference_impl.config import ModelConfig, TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.trainer import Trainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

# Wide and shallow: kernels long enough that a missing wait shows.
SHAPE = ModelConfig(
    hidden_size=1536, intermediate_size=8960, num_layers=4, num_heads=12, num_kv_heads=2, head_dim=128, vocab_size=256
)
CONFIG = TrainConfig(model=SHAPE, device="cuda", seq_len=128, max_norm=0.05, steps=20)
STEPS = 20


def assert_same_run(one: CapturingTrainer, other: CapturingTrainer) -> None:
    for index in range(STEPS):
        assert torch.equal(one.step(index), other.step(index)), index
    for name, tensor in one.trainer.state_tensors().items():
        assert torch.equal(tensor, other.trainer.state_tensors()[name]), name


def arm(scope: str, *, overlap: bool) -> CapturingTrainer:
    return CapturingTrainer(Trainer(dataclasses.replace(CONFIG, overlap=overlap)), scope)


@pytest.mark.parametrize("scope", ["none", "step", "backward"])
def test_overlapped_steps_equal_plain_ones(scope: str) -> None:
    overlapped = arm(scope, overlap=True)
    assert_same_run(overlapped, arm("none", overlap=False))
    assert overlapped.record().failure is None


def test_overlapped_steps_keep_their_memory() -> None:
    trainer = Trainer(dataclasses.replace(CONFIG, overlap=True))
    peaks = []
    for first in (0, 5):
        torch.cuda.reset_peak_memory_stats()
        for index in range(first, first + 5):
            trainer.step(index)
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] >= peaks[1]
