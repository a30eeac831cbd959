"""The head's product with a softmax's statistics, and the loss that reads them, on Hopper."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from reference_impl import ops
from reference_impl.kernels import registry
from reference_impl.kernels.products.naive import PANEL
from reference_impl.kernels.target import hopper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or not hopper(), reason="needs a GPU of capability 9.0"),
]

CUDA = torch.device("cuda")
# Tokens, hidden, vocabulary: the model's, ragged tiles of rows, panels and stages, one row.
SIZES = [(512, 1536, 151936), (300, 1536, 32000), (129, 200, 1160), (1, 192, 1000)]


def inputs(tokens: int, hidden: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator(CUDA).manual_seed(tokens)
    x = torch.randn(tokens, hidden, generator=generator, device=CUDA).bfloat16()
    head = (torch.randn(vocabulary, hidden, generator=generator, device=CUDA) * (3 / hidden**0.5)).bfloat16()
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator, device=CUDA)
    targets[-1] = vocabulary - 1
    if tokens > 2:
        targets[0], targets[1] = -100, 0
    return x, head, targets


def between_nans(tokens: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """A buffer [T, V] of NaN, and all of it with as many around."""
    whole = torch.full((tokens + 2, vocabulary), torch.nan, device=CUDA, dtype=torch.bfloat16)
    return whole[1:-1], whole


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_head_logits_are_rounded_once_and_statistics_belong_to_the_rounded_logits(sizes: tuple[int, int, int]) -> None:
    tokens, hidden, vocabulary = sizes
    x, head, _ = inputs(*sizes)
    out, whole = between_nans(tokens, vocabulary)
    maxima, totals = registry.load("products").head_logits(x, head, out)
    assert whole[0].isnan().all()
    assert whole[-1].isnan().all()
    step = 256  # rows at a time: fp64 of all would be gigabytes
    for first in range(0, tokens, step):
        rows = slice(first, first + step)
        exact = x[rows].double() @ head.double().t()
        sums = x[rows].double().abs() @ head.double().abs().t()
        bound = 2.0**-8 * exact.abs() + 2.0**-24 * hidden**0.5 * sums
        assert bool(((out[rows].double() - exact).abs() <= bound).all())
        panels = functional.pad(out[rows].double(), (0, -vocabulary % PANEL), value=-torch.inf)
        panels = panels.view(len(exact), -1, PANEL)
        assert torch.equal(maxima[rows].double(), panels.amax(dim=2))
        expected = (panels - panels.amax(dim=2, keepdim=True)).exp().sum(dim=2)
        assert ((totals[rows] - expected).abs() / expected).max().item() < 2e-6


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_fused_head_loss_and_gradient_match_two_separate_passes(sizes: tuple[int, int, int]) -> None:
    """The fused head adds in a different order, which changes some elements of the gradient by one rounding."""
    x, head, targets = inputs(*sizes)
    scale = torch.tensor(0.37, device=CUDA)
    out = torch.empty(sizes[0], sizes[2], device=CUDA, dtype=torch.bfloat16)
    maxima, totals = registry.load("products").head_logits(x, head, out)
    gradient = out.clone()
    losses = ops.cross_entropy_forward_backward_(gradient, targets, scale)
    torch.testing.assert_close(ops.cross_entropy_from_statistics_(out, maxima, totals, targets, scale), losses)
    torch.testing.assert_close(out, gradient, rtol=2.0**-7, atol=1e-9)
    assert (out != gradient).float().mean().item() < 1e-2
    assert out[0].abs().max().item() == 0 or sizes[0] <= 2


def test_fifty_runs_of_the_head_loss_give_the_same_bits() -> None:
    x, head, targets = inputs(*SIZES[0])
    scale = torch.tensor(0.37, device=CUDA)

    def run() -> tuple[Tensor, Tensor]:
        out, _ = between_nans(512, 151936)
        return ops.head_loss(x, head, targets, scale, out), out

    losses, gradient = run()
    for _ in range(50):
        again, gradient_again = run()
        assert torch.equal(again, losses)
        assert torch.equal(gradient_again, gradient)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_non_finite_input_affects_only_the_loss_of_its_row(bad: float) -> None:
    x, head, targets = inputs(300, 1536, 32000)
    x[7, 3] = bad
    losses = ops.head_loss(x, head, targets, 1.0, x.new_empty(300, 32000))
    assert losses[7].isnan()
    assert losses.isfinite().sum().item() == 299


def test_the_fused_head_loss_replays_from_a_cuda_graph() -> None:
    x, head, targets = inputs(512, 1536, 32000)
    scale, out = torch.tensor(0.37, device=CUDA), x.new_empty(512, 32000)
    eager = ops.head_loss(x, head, targets, scale, out).clone()
    gradient = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.head_loss(x, head, targets, scale, out)
    out.zero_()
    captured.zero_()
    graph.replay()
    assert torch.equal(captured, eager)
    assert torch.equal(out, gradient)
