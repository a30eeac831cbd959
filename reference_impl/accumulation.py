"""Compute the gradient of one batch in micro-batches, so that only a part of it passes through the model at one time.

Each micro-batch's loss is divided by the tokens of the whole batch. So losses and gradients add up to the mean over all
tokens, however many tokens each micro-batch has. The backward pass overwrites the flat gradient buffer: a kernel that
adds would have to read it, also for callers without micro-batches. So the sum has its own buffer, of the size of the
trainable parameters, and costs one launch a micro-batch.

A capture holds the whole step, with all micro-batches and the update, in one graph. The micro-batches reuse the same
memory of the graph's pool for their activations, so the graph needs no more than one micro-batch does, and a step is
one launch. A graph of one micro-batch would need k + 1 launches, and a copy of each micro-batch into place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.attention import StepShape
from reference_impl.model import Model


class Accumulation:
    """Forward and backward of ``parts`` micro-batches, one after the other, in each of ``ranks`` processes."""

    def __init__(self, model: Model, parts: int, ranks: int = 1) -> None:
        self.parts, self.ranks = parts, ranks
        self.total = torch.zeros_like(model.trainable.gradient)
        self._model = model

    def gradients(self, tokens: Tensor, targets: Tensor, shape: StepShape) -> Tensor:
        """Compute tokens, targets int64 [k, B, S] -> their part of the mean loss over the tokens of all ranks (0-d).

        The gradient of that part is in the gradient buffer.
        """
        losses = []
        for number in range(self.parts):
            losses.append(self.micro_batch(tokens, targets, shape, number))
            self.add(number)
        return torch.stack(losses).sum()

    def micro_batch(self, tokens: Tensor, targets: Tensor, shape: StepShape, number: int) -> Tensor:
        """Run forward and backward of one micro-batch; return its part of the mean loss."""
        mean_over = tokens.numel() * self.ranks
        loss, context = self._model.forward(tokens[number], targets[number], shape, mean_over=mean_over)
        self._model.backward(context, shape, consume=True)
        return loss

    def add(self, number: int) -> None:
        """Add the gradient of micro-batch ``number`` to those before it; the last call leaves the whole sum."""
        gradient = self._model.trainable.gradient
        if number == 0:
            self.total.copy_(gradient)
        elif number < self.parts - 1:
            self.total.add_(gradient)
        else:
            gradient.add_(self.total)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return what a step changes beside the gradients."""
        return {"accumulated_gradients": self.total}
