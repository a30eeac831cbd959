"""Cross-entropy in plain torch, loss and gradient in one pass; T tokens, V vocabulary, P parts of the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

IGNORED = -100  # the target value that marks a token without a loss


def forward_backward_(logits: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
    """Return the loss of each row [tokens] in float32 (float64 for float64 logits), and overwrite ``logits`` with their
    gradient ``scale * (softmax - onehot)``.

    logits [tokens, vocabulary], targets int64 [tokens]. A row whose target is -100 has loss 0 and gradient 0.
    """
    inner = logits if logits.dtype == torch.float64 else logits.float()
    valid = targets != IGNORED
    index = torch.where(valid, targets, 0)[:, None]
    # Subtract the maximum first, because the log-sum-exp of large logits is a large number with few decimals.
    below = inner - inner.amax(dim=1, keepdim=True)
    log_probability = below - torch.logsumexp(below, dim=1, keepdim=True)
    loss = -log_probability.gather(1, index).squeeze(1)
    gradient = log_probability.exp().scatter_add(1, index, torch.full_like(log_probability[:, :1], -1.0))
    logits.copy_(torch.where(valid[:, None], gradient * scale, 0.0))
    return torch.where(valid, loss, 0.0)


def from_statistics_(logits: Tensor, maxima: Tensor, totals: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
    """Do the same as ``forward_backward_``, but read statistics of the parts of each row instead of computing them.

    maxima, totals: [tokens, parts], the maximum and the sum of exp(logit - maximum) of each part. The parts do not
    overlap, and together they contain the whole row.
    """
    inner = logits if logits.dtype == torch.float64 else logits.float()
    valid = targets != IGNORED
    index = torch.where(valid, targets, 0)[:, None]
    maximum = maxima.amax(dim=1, keepdim=True)
    total = (totals * (maxima - maximum).exp()).sum(dim=1, keepdim=True)
    below = inner - maximum
    loss = (total.log() - below.gather(1, index)).squeeze(1)
    gradient = (below.exp() / total).scatter_add(1, index, torch.full_like(below[:, :1], -1.0))
    logits.copy_(torch.where(valid[:, None], gradient * scale, 0.0))
    return torch.where(valid, loss, 0.0)
