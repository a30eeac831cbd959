"""Attention on the GPU: within rounding of fp64 at real and ragged lengths, and equal bits from run to run.

Hopper's own backward is held against fp64 where that fits, else against Triton's, which serves all lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from attention_oracle import check_attention
from kernel_oracles import guarded_outputs
from torch import Tensor

from reference_impl.kernels import registry
from reference_impl.kernels.registry import KernelSpec
from reference_impl.kernels.rope.naive import tables
from reference_impl.kernels.target import planning_for

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
def test_two_runs_of_a_kernel_give_the_same_bits(seq_len: int) -> None:
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


def test_attention_does_not_mix_sequences_of_a_batch() -> None:
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


ON_HOPPER = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)
# Three, two, one and two blocks a pair of key tiles, with 2, 3, 4 and 2 stages; then longer ones, the last with more
# blocks than multiprocessors.
OF_HOPPER = [(4, 1024), (8, 1024), (12, 1024), (1, 8192), (2, 2048), (4, 2048), (4, 4096), (9, 4096)]


@contextmanager
def launches() -> Iterator[list[str]]:
    """The operations that are launched inside the `with`."""
    found: list[str] = []

    def launch(spec: KernelSpec, arguments: tuple[Tensor, ...]) -> None:
        found.append(spec.op)
        registry.jit_launch(spec, arguments)

    with registry.launching_by(launch):
        yield found


def inputs_of_a_backward(batch: int, seq_len: int) -> tuple[Tensor, ...]:
    """grad_output, qkv, output, log_sum_exp, cos, sin of Qwen2-1.5B's heads."""
    torch.manual_seed(seq_len)
    qkv = torch.randn(batch * seq_len, 16 * 128, device=CUDA, dtype=torch.bfloat16)
    grad = torch.randn(batch * seq_len, 12 * 128, device=CUDA, dtype=torch.bfloat16)
    return (
        grad,
        qkv,
        *registry.load("attention").forward(qkv, batch, seq_len, 12, 2, 128),
        *tables(seq_len, 128, 1e6, CUDA),
    )


def on_hopper(batch: int, seq_len: int) -> tuple[tuple[Tensor, ...], Callable[[], Tensor]]:
    """Inputs of a backward, and the backward, whose outputs lie in NaN between guards."""
    given = inputs_of_a_backward(batch, seq_len)

    def run() -> Tensor:
        with guarded_outputs(), launches() as launched:
            grad_qkv: Tensor = registry.load("attention").backward(*given, batch, seq_len, 12, 2, 128)
        assert launched == ["attention.dq", "attention.dkdv"]
        return grad_qkv

    return given, run


@ON_HOPPER
def test_the_hopper_attention_backward_is_within_rounding_of_fp64() -> None:
    with launches() as launched:
        shares = {each.name: each.worst() for each in check_attention(CUDA, torch.bfloat16, 4, 1024, 12, 2, 128)}
    assert launched == ["attention.forward", "attention.dq", "attention.dkdv"]
    assert {name: share for name, share in shares.items() if not share <= 1} == {}


@ON_HOPPER
@pytest.mark.parametrize("sizes", OF_HOPPER, ids=str)
def test_the_hopper_attention_backward_equals_the_triton_backward_within_rounding(sizes: tuple[int, int]) -> None:
    given, run = on_hopper(*sizes)
    with planning_for("sm_80"), launches() as launched:
        expected = registry.load("attention").backward(*given, *sizes, 12, 2, 128)
    assert "attention.reduce" in launched
    # Heads of queries, of keys, of values. Triton rounds each head's share of the last two.
    widths = [12 * 128, 2 * 128, 2 * 128]
    parts = zip(torch.split(run(), widths, 1), torch.split(expected, widths, 1), (1e-3, 5e-3, 5e-3), strict=True)
    for found, wanted, bound in parts:
        assert (found.double() - wanted.double()).norm() <= bound * wanted.double().norm()


@ON_HOPPER
@pytest.mark.parametrize("sizes", OF_HOPPER, ids=str)
def test_the_hopper_attention_backward_repeats_its_bits_and_writes_every_element(sizes: tuple[int, int]) -> None:
    _, run = on_hopper(*sizes)
    first = run()
    assert bool(first.isfinite().all())
    for _ in range(20):
        assert torch.equal(run(), first)


@ON_HOPPER
def test_hopper_attention_backward_in_a_graph_reads_the_current_tensor_values() -> None:
    attention, sizes = registry.load("attention"), (4, 1024, 12, 2, 128)
    given = inputs_of_a_backward(4, 1024)
    later = [tensor.clone() for tensor in given]
    attention.backward(*given, *sizes)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attention.backward(*given, *sizes)
    later[0].mul_(-2)
    expected = attention.backward(*later, *sizes)
    for tensor, values in zip(given, later, strict=True):
        tensor.copy_(values)
    captured.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, expected)


@ON_HOPPER
def test_hopper_attention_does_not_mix_sequences_of_a_batch() -> None:
    given, run = on_hopper(4, 1024)
    whole = run()
    given[1][1024:2048] = 0  # the second sequence's
    changed = run()
    others = torch.arange(4096, device=CUDA) // 1024 != 1
    assert torch.equal(changed[others], whole[others])
    assert not torch.equal(changed[~others], whole[~others])
