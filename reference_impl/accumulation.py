"""The gradient of one batch, taken in micro-batches: what passes through the model at one time is a part of it.

Each micro-batch's loss is divided by the tokens of the whole batch, so that losses and gradients add up to the mean
over all tokens, however many of them a micro-batch has. The backward pass overwrites the flat gradient buffer, because
a kernel that adds would read it, and its callers without micro-batches would pay for that; so the sum has a buffer of
its own, of the size of the trainable parameters, and costs one launch a micro-batch.

A capture holds the whole step, all micro-batches and the update, in one graph. Their activations take turns in the
same memory of its pool, so the graph needs no more of it than one micro-batch's would, and a step stays one launch; a
graph of one micro-batch that is launched k times would need k + 1, and a copy of each micro-batch into place.
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
        """tokens, targets int64 [k, B, S] -> their part of the mean loss over the tokens of all ranks (0-d).

        The gradient of that part is in its buffer.
        """
        losses = []
        for number in range(self.parts):
            losses.append(self.micro_batch(tokens, targets, shape, number))
            self.add(number)
        return torch.stack(losses).sum()

    def micro_batch(self, tokens: Tensor, targets: Tensor, shape: StepShape, number: int) -> Tensor:
        """Forward and backward of one micro-batch; its part of the mean loss."""
        mean_over = tokens.numel() * self.ranks
        loss, context = self._model.forward(tokens[number], targets[number], shape, mean_over=mean_over)
        self._model.backward(context, shape, consume=True)
        return loss

    def add(self, number: int) -> None:
        """Add the gradient of micro-batch ``number`` to those before it; the last one ends with the sum."""
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
