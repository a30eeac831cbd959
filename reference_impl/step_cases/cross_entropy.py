"""Comparisons of cross-entropy, loss and gradient. The claim's `magnitude` is the logits' standard deviation.

Targets are random, and the last one is the last token of the vocabulary. With more than two tokens, the first target
marks a token without a loss, and the second is the first token of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from harness.system.protocol import KernelComparison
from reference_impl.kernels.cross_entropy import naive
from reference_impl.kernels.products.naive import PANEL
from reference_impl.step_cases.inputs import FLUSHED, Inputs, Setting

# Tokens and vocabulary of each shape. A row of the first needs less than one pass of the kernel's loop. The second has
# a single row with an incomplete last pass. The third has two logits in each row. The fourth needs many passes.
RAGGED = ((4, 37), (1, 1030), (7, 2), (3, 18001))
_PART = 16  # number of columns in a part of a ragged row; the last part may be shorter
_SCALE = float(torch.tensor(0.37))  # factor by which the gradient is multiplied, rounded to fp32


def forward_backward(setting: Setting) -> Iterator[KernelComparison]:
    operation = "cross_entropy.forward_backward"
    loss_, twin_ = setting.table.cross_entropy_forward_backward_, naive.forward_backward_
    for logits, targets, scale in _inputs(setting, operation):
        yield _comparison(
            setting,
            operation,
            logits,
            targets,
            lambda gradient, targets=targets, scale=scale: loss_(gradient, targets, scale),  # type: ignore[misc]
            lambda gradient, targets=targets, scale=scale: twin_(gradient, targets, scale),  # type: ignore[misc]
        )


def from_statistics(setting: Setting) -> Iterator[KernelComparison]:
    """Compare the loss from statistics: each part's maximum and sum of exponentials, computed in fp64 and rounded."""
    operation = "cross_entropy.from_statistics"
    loss_, twin_ = setting.table.cross_entropy_from_statistics_, naive.from_statistics_
    for logits, targets, scale in _inputs(setting, operation):
        given = (*_statistics(logits, PANEL if logits.shape[1] == setting.model.vocab_size else _PART), targets, scale)
        yield _comparison(
            setting,
            operation,
            logits,
            targets,
            lambda gradient, given=given: loss_(gradient, *given),  # type: ignore[misc]
            lambda gradient, given=given: twin_(gradient, *given),  # type: ignore[misc]
        )


def _inputs(setting: Setting, operation: str) -> Iterator[tuple[Tensor, Tensor, Tensor | float]]:
    chunk = min(setting.config.chunk_tokens, setting.tokens)
    for index, (tokens, vocabulary) in enumerate(((chunk, setting.model.vocab_size), *RAGGED)):
        inputs = setting.inputs(operation, _name(tokens, vocabulary))
        logits = inputs.normal(tokens, vocabulary, scale=setting.magnitude)
        # The scale may be a tensor, as in the trainer, or a float. Compare both.
        scale = torch.tensor(_SCALE, device=setting.device) if index % 2 == 0 else _SCALE
        yield logits, _targets(inputs, tokens, vocabulary), scale


def _statistics(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the maximum and the sum of exponentials of each part (`width` columns) of a row, fp32 [tokens, parts]."""
    parts = torch.split(logits.double(), width, dim=1)
    maxima = torch.stack([part.amax(dim=1) for part in parts], dim=1)
    totals = [(part - maxima[:, index, None]).exp().sum(dim=1) for index, part in enumerate(parts)]
    return maxima.float(), torch.stack(totals, dim=1).float()


def _name(tokens: int, vocabulary: int) -> str:
    return f"T{tokens} V{vocabulary}"


def _targets(inputs: Inputs, tokens: int, vocabulary: int) -> Tensor:
    drawn = inputs.integers(tokens, below=vocabulary, dtype=torch.int64)
    drawn[-1] = vocabulary - 1
    if tokens > 2:
        drawn[0], drawn[1] = naive.IGNORED, 0
    return drawn


def _by_autograd(logits: Tensor, targets: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return torch's losses, computed in `dtype`, and the gradient of the logits, by name.

    The gradient has the data type of the logits, or fp64 if `dtype` is fp64.
    """
    leaf = logits.detach().to(torch.float64 if dtype == torch.float64 else logits.dtype).requires_grad_()
    with torch.enable_grad():
        losses = functional.cross_entropy(leaf.to(dtype), targets, ignore_index=naive.IGNORED, reduction="none")
    [gradient] = torch.autograd.grad(losses, leaf, torch.full_like(losses, _SCALE))
    return {"gradient": gradient, "losses": losses.detach()}


def _terms(logits: Tensor, targets: Tensor, exponent: float) -> dict[str, Tensor]:
    value, valid = logits.double(), (targets != naive.IGNORED).double()
    index = torch.where(targets == naive.IGNORED, 0, targets)[:, None]
    maximum = value.amax(dim=1, keepdim=True)
    distance, p = maximum - value, value.softmax(dim=1)
    mean = (p * distance).sum(dim=1, keepdim=True)  # mean of the distances, which bounds the error of the sum
    sizes = p * (1 + exponent * (distance + mean))
    sizes.scatter_add_(1, index, torch.ones_like(mean))
    of_loss = 1 + mean + value.logsumexp(dim=1, keepdim=True) - maximum + distance.gather(1, index)
    return {"gradient": _SCALE * (sizes + FLUSHED) * valid[:, None], "losses": of_loss.squeeze(1) * valid}


def _comparison(
    setting: Setting,
    operation: str,
    logits: Tensor,
    targets: Tensor,
    loss_: Callable[[Tensor], Tensor],
    twin_: Callable[[Tensor], Tensor],
) -> KernelComparison:
    """Return the comparison of the kernel `loss_` with its naive twin `twin_`. Both overwrite the logits."""
    return KernelComparison(
        operation=operation,
        dtype=setting.dtype_name,
        shape=_name(*logits.shape),
        magnitude=setting.magnitude,
        written={"losses": torch.empty(logits.shape[0], device=logits.device)},
        updated={"gradient": logits},
        kernel=lambda outputs: {"losses": loss_(outputs["gradient"])},
        naive=lambda outputs: {"losses": twin_(outputs["gradient"])},
        reference=lambda: _by_autograd(logits, targets, torch.float64),
        terms=lambda: _terms(logits, targets, setting.exponent),
        # transformers converts the logits to fp32 before it computes the loss
        peer=("torch cross_entropy", lambda: _by_autograd(logits, targets, torch.float32)),
    )
