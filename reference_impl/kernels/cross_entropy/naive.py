"""Cross-entropy, loss and gradient in one pass, in plain torch; T tokens, V vocabulary, P parts of it."""

from __future__ import annotations

import torch
from torch import Tensor

IGNORED = -100  # a target that is ignored


def forward_backward_(logits: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
    """logits [T, V], targets [T] int64 -> loss of each row [T], float32 (float64 for float64 logits).

    ``logits`` is overwritten by ``scale * (softmax - onehot)``. A row whose target is -100 has loss 0 and gradient 0.
    """
    inner = logits if logits.dtype == torch.float64 else logits.float()
    valid = targets != IGNORED
    index = torch.where(valid, targets, 0)[:, None]
    # the maximum first: of large logits a log-sum-exp keeps too few digits for the difference
    below = inner - inner.amax(dim=1, keepdim=True)
    log_probability = below - torch.logsumexp(below, dim=1, keepdim=True)
    loss = -log_probability.gather(1, index).squeeze(1)
    gradient = log_probability.exp().scatter_add(1, index, torch.full_like(log_probability[:, :1], -1.0))
    logits.copy_(torch.where(valid[:, None], gradient * scale, 0.0))
    return torch.where(valid, loss, 0.0)


def from_statistics_(logits: Tensor, maxima: Tensor, totals: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
    """Do as ``forward_backward_`` does, from known maxima and sums of exp(logit - maximum) of each of P parts of a row.

    maxima, totals: [T, P]. The parts do not overlap, and together they are the row.
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
