"""Compute the gradient of one batch in micro-batches, so that only a part of it passes through the model at one time.

Each micro-batch's loss is divided by the number of tokens of the whole batch. So losses and gradients add up to the
mean over all tokens, even if micro-batches have different numbers of tokens. The backward pass overwrites the flat
gradient buffer, because a kernel that adds would also have to read the buffer, even for callers without micro-batches.
So the sum over micro-batches has a buffer of its own, as large as the trainable parameters, and costs one launch for
each micro-batch.

A capture records the whole step, with all k micro-batches and the update, in one graph. The micro-batches reuse the
same memory of the graph's pool for their activations, so the graph needs no more memory than one micro-batch, and a
step is one launch. A graph of a single micro-batch would need k + 1 launches, and a copy of each micro-batch into
static buffers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.attention import StepShape
from reference_impl.model import Model


class Accumulation:
    """Run forward and backward of ``parts`` micro-batches, one after the other, in each of ``ranks`` processes."""

    def __init__(self, model: Model, parts: int, ranks: int = 1) -> None:
        self.parts, self.ranks = parts, ranks
        self.total = torch.zeros_like(model.trainable.gradient)
        self._model = model

    def gradients(self, tokens: Tensor, targets: Tensor, shape: StepShape) -> Tensor:
        """Run forward and backward of all micro-batches; return this rank's part of the mean loss over all ranks (0-d).

        tokens, targets: int64 [k, B, S]; k micro-batches, B sequences of a micro-batch, S sequence length. Leaves the
        gradient of the returned loss in the flat gradient buffer.
        """
        losses = []
        for number in range(self.parts):
            losses.append(self.micro_batch(tokens, targets, shape, number))
            self.add(number)
        return torch.stack(losses).sum()

    def micro_batch(self, tokens: Tensor, targets: Tensor, shape: StepShape, number: int) -> Tensor:
        """Run forward and backward of micro-batch ``number``; return its part of the mean loss over the whole batch."""
        mean_over = tokens.numel() * self.ranks
        loss, context = self._model.forward(tokens[number], targets[number], shape, mean_over=mean_over)
        self._model.backward(context, shape, consume=True)
        return loss

    def add(self, number: int) -> None:
        """Add the gradient of micro-batch ``number`` to the sum. After the last, write the sum to the flat gradient."""
        gradient = self._model.trainable.gradient
        if number == 0:
            self.total.copy_(gradient)
        elif number < self.parts - 1:
            self.total.add_(gradient)
        else:
            gradient.add_(self.total)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a step changes in addition to the gradient buffer."""
        return {"accumulated_gradients": self.total}
