"""Cross-entropy whose gradient is in FP8, in plain torch.

softmax - onehot is in [-1, 1] for all logits. So the scale of the FP8 numbers can be a constant, 2^-15. The smallest
number that e5m2 represents, 2^-16, then means a probability of 2^-31. e4m3 with its best constant scale could not
represent probabilities below 2^-18. With a vocabulary of 151,936 tokens, most probabilities are smaller than 2^-18.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.kernels.cross_entropy import naive

FACTOR = 32768.0
"""The factor on softmax - onehot before rounding. The largest result is 2^15. The largest number of e5m2 is 57344."""


def forward_backward(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss f32 [T] and FACTOR * (softmax - onehot) in e5m2 [T, V]; logits [T, V], targets int64 [T].

    T tokens, V vocabulary. A target of -100 gives loss 0 and gradient 0.
    """
    gradient = logits.to(torch.float32, copy=True)
    losses = naive.forward_backward_(gradient, targets, FACTOR)
    return losses, gradient.to(torch.float8_e5m2)
