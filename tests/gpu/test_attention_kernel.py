"""Attention on the GPU: within rounding of fp64 at real and ragged lengths, and equal bits from run to run."""

from __future__ import annotations

import pytest
import torch
from attention_oracle import check_attention
from torch import Tensor

from reference_impl.kernels import registry
from reference_impl.kernels.rope.naive import tables

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
# batch, seq_len, heads, kv_heads, head_dim
RAGGED = [(3, 32, 4, 2, 32), (2, 48, 12, 2, 128), (2, 100, 3, 1, 24), (2, 65, 2, 2, 64), (2, 5, 2, 1, 8)]
LONG = [(4, 128, 12, 2, 128), (4, 512, 12, 2, 128), (1, 2048, 6, 1, 128)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("sizes", [*RAGGED, *LONG], ids=str)
def test_attention_is_within_rounding_of_fp64(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    shares = {comparison.name: comparison.worst() for comparison in check_attention(CUDA, dtype, *sizes)}
    assert set(shares) == {"output", "log_sum_exp", "grad_qkv"}
    assert {name: share for name, share in shares.items() if not share <= 1} == {}


@pytest.mark.parametrize("seq_len", [100, 512, 2048])
def test_two_runs_give_the_same_bits(seq_len: int) -> None:
    sizes = (2, seq_len, 12, 2, 128)
    attention = registry.load("attention")
    torch.manual_seed(5)
    qkv = torch.randn(2 * seq_len, 16 * 128, device=CUDA, dtype=torch.bfloat16)
    grad = torch.randn(2 * seq_len, 12 * 128, device=CUDA, dtype=torch.bfloat16)
    cos, sin = tables(seq_len, 128, 1e6, CUDA)

    def run() -> tuple[Tensor, Tensor, Tensor]:
        output, log_sum_exp = attention.forward(qkv, *sizes)
        return output, log_sum_exp, attention.backward(grad, qkv, output, log_sum_exp, cos, sin, *sizes)

    first = run()
    assert first[2].abs().max().item() > 0
    for _ in range(5):
        assert [torch.equal(left, right) for left, right in zip(run(), first, strict=True)] == [True] * 3


def test_sequences_of_a_batch_do_not_mix() -> None:
    attention = registry.load("attention")
    torch.manual_seed(6)
    qkv = torch.randn(2 * 100, 16 * 128, device=CUDA, dtype=torch.bfloat16)
    grad = torch.randn(2 * 100, 12 * 128, device=CUDA, dtype=torch.bfloat16)
    cos, sin = tables(100, 128, 1e6, CUDA)
    output, log_sum_exp = attention.forward(qkv, 2, 100, 12, 2, 128)
    whole = attention.backward(grad, qkv, output, log_sum_exp, cos, sin, 2, 100, 12, 2, 128)
    for element in range(2):
        rows = slice(100 * element, 100 * (element + 1))
        alone, alone_sum = attention.forward(qkv[rows], 1, 100, 12, 2, 128)
        assert torch.equal(alone, output[rows])
        grad_alone = attention.backward(grad[rows], qkv[rows], alone, alone_sum, cos, sin, 1, 100, 12, 2, 128)
        assert torch.equal(grad_alone, whole[rows])
