"""A captured step with a parallel branch computes the same bits as one launched kernel by kernel."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from reference_impl import cuda_graph
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


@pytest.mark.parametrize("scope", ["step", "backward"])
@pytest.mark.parametrize("seq_len", [128, 512])
def test_overlapped_captures_equal_plain_steps(scope: str, seq_len: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "MOST_TOKENS_OVERLAPPED", 4 * seq_len)
    config = dataclasses.replace(CONFIG, seq_len=seq_len)
    overlapped, plain = CapturingTrainer(Trainer(config), scope), CapturingTrainer(Trainer(config), "none")
    for index in range(STEPS):
        assert torch.equal(overlapped.step(index), plain.step(index)), index
    for name, tensor in overlapped.trainer.state_tensors().items():
        assert torch.equal(tensor, plain.trainer.state_tensors()[name]), name
    assert overlapped.record().failure is None


def test_only_captures_of_few_tokens_use_a_second_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    for most in (4 * CONFIG.seq_len - 1, 4 * CONFIG.seq_len):
        monkeypatch.setattr(cuda_graph, "MOST_TOKENS_OVERLAPPED", most)
        arm = CapturingTrainer(Trainer(CONFIG), "step")
        arm.step(0)
        (graph,) = arm.record().graphs.values()
        widths.append(_widest_fork(graph))
    assert widths[0] == 1
    assert widths[1] > 1


def _widest_fork(graph: int) -> int:
    """The most nodes that follow directly on one node of a `cudaGraph_t`."""
    from collections import Counter

    from cuda.bindings import runtime

    _, *counts = runtime.cudaGraphGetEdges(graph, 0)
    error, sources, *_ = runtime.cudaGraphGetEdges(graph, counts[-1])
    assert int(error) == 0
    return max(Counter(int(source) for source in sources).values())
