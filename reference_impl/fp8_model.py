"""The decoder whose products with frozen weights, those of the decoder blocks and of the head, run in FP8.

H hidden size, V vocabulary size. The head is not NF4, so it is not converted to FP8 at each use. Instead, two FP8
copies of the head, one of them transposed, are kept in addition to the embedding (together 2 * V * H bytes). All
elements of the head have the same scale.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from reference_impl import ops
from reference_impl.attention import StepShape
from reference_impl.block import BlockContext
from reference_impl.checkpoint import WeightSource
from reference_impl.config import ModelConfig, TrainConfig
from reference_impl.dense import Ahead
from reference_impl.errors import ReferenceImplError
from reference_impl.fp8 import Fp8Products, ScaledRows
from reference_impl.fp8_block import Fp8Block, Fp8Context, Gradient
from reference_impl.kernels.fp8_loss.naive import FACTOR
from reference_impl.kernels.fp8_rows.naive import power_of_two_scale
from reference_impl.model import Model, ModelContext
from reference_impl.streams import Beside


class Fp8Head:
    """The head [vocabulary, hidden] and its transpose [hidden, vocabulary] in e4m3, with one scale for all elements."""

    def __init__(self, head: Tensor) -> None:
        scale, inverse = power_of_two_scale(head.abs().amax().float())
        data = (head * inverse.to(head.dtype)).to(torch.float8_e4m3fn)
        self.rows = ScaledRows(data, scale.expand(head.shape[0]).contiguous())
        self.transposed = ScaledRows(data.t().contiguous(), scale)


class Fp8Model(Model):
    """A `Model` made of `Fp8Block`s, used when `TrainConfig.precision` is "fp8"."""

    blocks: list[Fp8Block]  # type: ignore[assignment]

    def __init__(
        self,
        model_config: ModelConfig,
        config: TrainConfig,
        source: WeightSource,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        if device.type == "cuda" and dtype != torch.bfloat16:
            raise ReferenceImplError(
                "precision",
                f"fp8 with {dtype} on CUDA",
                "choose bfloat16, because FP8 products with row scales return only bfloat16",
            )
        super().__init__(model_config, config, source, device, dtype)
        self.products = Fp8Products(dtype)
        self.blocks = [
            Fp8Block(model_config, block.weights, block.trainable, self.products, adapters=block.adapters)
            for block in self.blocks
        ]
        self.fp8_head = Fp8Head(self.head)

    def forward(
        self, tokens: Tensor, targets: Tensor, shape: StepShape, *, mean_over: int | None = None
    ) -> tuple[Tensor, ModelContext]:
        """Do the same as `Model.forward`, with FP8 products."""
        self.trainable.refresh_compute_copies()
        residual, branch, contexts = self._forward_fp8(tokens, shape)
        hidden, final, rstd_out = self._final_norm(residual, branch)
        loss, grad_final = self._loss_fp8(final, targets.view(-1), mean_over or targets.numel())
        return loss, ModelContext(list[BlockContext](contexts), hidden, rstd_out, grad_final)

    def _forward_fp8(self, tokens: Tensor, shape: StepShape) -> tuple[Tensor, Tensor | None, list[BlockContext]]:
        residual = torch.nn.functional.embedding(tokens.view(-1), self.embedding)
        branch: Tensor | None = None
        contexts: list[BlockContext] = []
        weights = Ahead([make for block in self.blocks for make in block.in_forward], self.streams)
        for block in self.blocks:
            residual, branch, context = block.forward_fp8(residual, branch, shape, weights)
            contexts.append(context)
        return residual, branch, contexts

    def _final_norm(self, residual: Tensor, branch: Tensor | None) -> tuple[Tensor, ScaledRows, Tensor]:
        """Return the residual stream [T, H] after all blocks, its RMSNorm in FP8, and the norm's rstd [T]; T tokens."""
        first, added = (residual, None) if branch is None else (branch, residual)
        eps = self.config.rms_norm_eps
        hidden, _, data, scale, rstd, _ = ops.fp8_norm_add_forward(first, added, self.final_gain, eps, keep=False)
        return hidden, ScaledRows(data, scale), rstd

    def _loss_fp8(self, final: ScaledRows, targets: Tensor, mean_over: int) -> tuple[Tensor, Tensor]:
        """Do the same as `Model._loss`, for the final norm's output in FP8. The gradient is a new tensor."""
        tokens, multiply = targets.numel(), self.products.multiply
        device = targets.device
        scale = torch.full((), 1.0 / mean_over, dtype=torch.float32, device=device)
        gradient_scale = torch.full((), 1.0 / (mean_over * FACTOR), dtype=torch.float32, device=device)
        grad_final = torch.empty(tokens, self.config.hidden_size, dtype=self.dtype, device=device)
        buffer = torch.empty(min(self._chunk, tokens), self.head.shape[0], dtype=self.dtype, device=device)
        losses: list[Tensor] = []
        for start in range(0, tokens, self._chunk):
            chunk = slice(start, min(start + self._chunk, tokens))
            part = ScaledRows(final.data[chunk], final.scale[chunk])
            logits = multiply(part, self.fp8_head.rows, out=buffer[: chunk.stop - start])
            loss, gradient = ops.fp8_loss_forward_backward(logits, targets[chunk])
            losses.append(loss)
            multiply(ScaledRows(gradient, gradient_scale), self.fp8_head.transposed, out=grad_final[chunk])
        return torch.cat(losses).sum() * scale, grad_final

    def backward(self, context: ModelContext, shape: StepShape, *, consume: bool) -> None:
        """Do the same as `Model.backward`, with FP8 products."""
        partials = ops.rms_norm_gain_partials(context.residual_out, 1)
        value, data, scale, norm = ops.fp8_norm_backward_to_partials(
            context.grad_final, context.residual_out, self.final_gain, context.rstd_out, partials[0]
        )
        grad = Gradient(value, ScaledRows(data, scale, norm))
        remaining = context.blocks if consume else list(context.blocks)
        weights = Ahead([make for block in reversed(self.blocks) for make in block.in_backward], self.streams)
        writing: Beside[None] | None = None
        for block in reversed(self.blocks):
            before = writing
            # `forward` of this class created the list, so all entries are contexts of FP8 blocks
            kept = cast("Fp8Context", remaining.pop())
            grad, writing = block.backward_fp8(grad, kept, shape, weights, self.streams)
            if before is not None:
                before.take()
        if writing is not None:
            writing.take()
        self.trainable.finish_gradients()

    def logits(self, tokens: Tensor, shape: StepShape) -> Tensor:
        """Return the same logits as `Model.logits`, with FP8 products."""
        self.trainable.refresh_compute_copies()
        residual, branch, _ = self._forward_fp8(tokens, shape)
        _, final, _ = self._final_norm(residual, branch)
        return self.products.multiply(final, self.fp8_head.rows).view(*tokens.shape, -1)
