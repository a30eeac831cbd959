"""Compute the gradient of one batch in micro-batches: only one part of the batch passes through the model at a time.

The sum of a micro-batch's token losses is divided by the number of tokens of the whole batch. The results of all
micro-batches therefore add up to the mean loss over all tokens, and their gradients to the gradient of this mean, even
if micro-batches have different numbers of tokens. The backward pass overwrites the flat gradient buffer (one tensor for
all gradients). (To add to it, a kernel would have to read it in every step, even without micro-batches.) The sum over
micro-batches is therefore kept in a separate buffer, which is as large as the trainable parameters. Each micro-batch
needs one additional launch, which adds the micro-batch's gradient to this buffer.

A capture records the whole step, with all k micro-batches and the update, in one graph, so a replay of a step is one
launch. The activations of all micro-batches use the same memory of the graph's pool. Therefore the graph needs no more
memory than a single micro-batch needs. (If the graph contained only one micro-batch, a step would need k launches for
the micro-batches, one for the update, and copies of each micro-batch into static buffers.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.attention import StepShape
from reference_impl.model import Model


class Accumulation:
    """The forward and backward of a batch in ``parts`` micro-batches, one after the other.

    ``ranks``: the number of processes that train together. Each process runs its own ``parts`` micro-batches.
    """

    def __init__(self, model: Model, parts: int, ranks: int = 1) -> None:
        self.parts, self.ranks = parts, ranks
        self.total = torch.zeros_like(model.trainable.gradient)
        self._model = model

    def gradients(self, tokens: Tensor, targets: Tensor, shape: StepShape) -> Tensor:
        """Run forward and backward of all micro-batches. Return this rank's part of the mean loss over all ranks (0-d).

        tokens, targets: int64 [k, B, S] for k micro-batches of B sequences of length S. The method writes the gradient
        of the returned loss to the flat gradient buffer.
        """
        losses = []
        for number in range(self.parts):
            losses.append(self.micro_batch(tokens, targets, shape, number))
            self.add(number)
        return torch.stack(losses).sum()

    def micro_batch(self, tokens: Tensor, targets: Tensor, shape: StepShape, number: int) -> Tensor:
        """Run forward and backward of micro-batch ``number``. Return its part of the batch's mean loss."""
        mean_over = tokens.numel() * self.ranks
        loss, context = self._model.forward(tokens[number], targets[number], shape, mean_over=mean_over)
        self._model.backward(context, shape, consume=True)
        return loss

    def add(self, number: int) -> None:
        """Add the gradient of micro-batch ``number`` to the sum of the previous ones. After the last micro-batch, write
        the sum to the flat gradient buffer."""
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
