"""The decoder: embedding, blocks, final norm and head. Forward and backward are written by hand, without autograd.

B batch size, S sequence length, T = B*S tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impl import ops
from reference_impl.attention import StepShape
from reference_impl.block import Block, BlockContext, BlockWeights
from reference_impl.checkpoint import EMBEDDING, FINAL_NORM, HEAD, WeightSource
from reference_impl.config import ModelConfig, TrainConfig, WeightFormat
from reference_impl.dense import DenseWeights
from reference_impl.lora import Trainable
from reference_impl.nf4 import FrozenMatrix, FullMatrix, QuantizedMatrix
from reference_impl.streams import Beside, StepStreams


@dataclass(frozen=True)
class ModelContext:
    """The tensors of the forward pass that the backward pass needs. The forward pass also computes the gradient through
    the head, so the backward pass begins at the final norm."""

    blocks: list[BlockContext]
    residual_out: Tensor  # [T, H]: input of the final norm
    rstd_out: Tensor  # [T]: rstd of the final norm
    grad_final: Tensor  # [T, H]: gradient of the mean loss with respect to the final norm's output

    def tensors(self) -> list[Tensor]:
        own = [self.residual_out, self.rstd_out, self.grad_final]
        return [tensor for block in self.blocks for tensor in block.tensors()] + own


def _matrix(parts: list[Tensor], weight_format: WeightFormat, dtype: torch.dtype) -> FrozenMatrix:
    weight = torch.cat(parts) if len(parts) > 1 else parts[0]
    match weight_format:
        case "nf4":
            return QuantizedMatrix.from_dense(weight)
        case "nf4_dense":
            return FullMatrix.of_nf4(weight, dtype)
        case "full":
            return FullMatrix(weight.to(dtype))


def _block_weights(
    config: ModelConfig, source: WeightSource, layer: int, weight_format: WeightFormat, dtype: torch.dtype
) -> BlockWeights:
    prefix = f"model.layers.{layer}"

    def matrix(*names: str) -> FrozenMatrix:
        return _matrix([source.tensor(f"{prefix}.{name}.weight") for name in names], weight_format, dtype)

    projections = [f"self_attn.{name}_proj" for name in "qkv"]
    bias = None
    if config.attention_bias:
        bias = torch.cat([source.tensor(f"{prefix}.{name}.bias") for name in projections]).to(dtype)
    return BlockWeights(
        qkv=matrix(*projections),
        qkv_bias=bias,
        output=matrix("self_attn.o_proj"),
        gate_up=matrix("mlp.gate_proj", "mlp.up_proj"),
        down=matrix("mlp.down_proj"),
    )


class Model:
    """A Qwen2-style decoder whose LoRA factors and norm gains are trained."""

    def __init__(
        self,
        model_config: ModelConfig,
        config: TrainConfig,
        source: WeightSource,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.config = model_config
        self.dtype = dtype
        self.streams = StepStreams(device)
        self._chunk = config.chunk_tokens
        self.trainable = Trainable(model_config, config.rank, config.alpha, config.seed, device, dtype)
        self._load_gains(source)
        self.embedding = source.tensor(EMBEDDING).to(dtype)
        self.head = self.embedding if model_config.tie_word_embeddings else source.tensor(HEAD).to(dtype)
        self.final_gain = source.tensor(FINAL_NORM).float()
        self.blocks = [
            Block(
                model_config,
                _block_weights(model_config, source, layer, config.weights, dtype),
                self.trainable.layer(layer),
                adapters=config.adapters,
            )
            for layer in range(model_config.num_layers)
        ]

    def _load_gains(self, source: WeightSource) -> None:
        parameters = self.trainable.parameters()
        for layer in range(self.config.num_layers):
            prefix = f"model.layers.{layer}"
            parameters[f"layers.{layer}.input_norm"].copy_(source.tensor(f"{prefix}.input_layernorm.weight"))
            parameters[f"layers.{layer}.post_attn_norm"].copy_(
                source.tensor(f"{prefix}.post_attention_layernorm.weight")
            )

    def forward(
        self, tokens: Tensor, targets: Tensor, shape: StepShape, *, mean_over: int | None = None
    ) -> tuple[Tensor, ModelContext]:
        """Return the mean loss over all B*S tokens (0-d float32) and the context for `backward`.

        tokens, targets: int64 [B, S]. If ``mean_over`` is given, the sum of token losses is divided by it instead of
        B*S. For a micro-batch, pass the number of tokens of the whole batch, so that losses and gradients add up.
        """
        self.trainable.refresh_compute_copies()
        hidden, contexts = self._forward_blocks(tokens, shape)
        final, rstd_out = ops.rms_norm_forward(hidden, self.final_gain, self.config.rms_norm_eps)
        loss, grad_final = self._loss(final, targets.view(-1), mean_over or targets.numel())
        return loss, ModelContext(contexts, hidden, rstd_out, grad_final)

    def _forward_blocks(self, tokens: Tensor, shape: StepShape) -> tuple[Tensor, list[BlockContext]]:
        residual = torch.nn.functional.embedding(tokens.view(-1), self.embedding)
        branch: Tensor | None = None
        contexts: list[BlockContext] = []
        groups = [group for block in self.blocks for group in block.weights.forward_groups]
        dense = DenseWeights(groups, self.dtype, self.streams)
        for block in self.blocks:
            residual, branch, context = block.forward(residual, branch, shape, dense)
            contexts.append(context)
        return residual if branch is None else residual + branch, contexts

    def _loss(self, final: Tensor, targets: Tensor, mean_over: int) -> tuple[Tensor, Tensor]:
        """Return the sum of the tokens' losses divided by ``mean_over`` (0-d), and the gradient of ``final``.

        final [T, H]: the last norm's output, for T tokens. targets [T]: the next tokens. The gradient [T, H] overwrites
        ``final`` chunk by chunk, so that logits exist for one chunk of tokens at a time.
        """
        tokens = targets.numel()
        scale = torch.full((), 1.0 / mean_over, dtype=torch.float32, device=final.device)
        # Use one buffer for all chunks. If each chunk had a new buffer, two buffers would exist at the same time.
        buffer = final.new_empty(min(self._chunk, tokens), self.head.shape[0])
        losses: list[Tensor] = []
        for start in range(0, tokens, self._chunk):
            rows = slice(start, min(start + self._chunk, tokens))
            gradient = buffer[: rows.stop - start]
            losses.append(ops.head_loss(final[rows], self.head, targets[rows], scale, gradient))
            torch.mm(gradient, self.head, out=final[rows])
        return torch.cat(losses).sum() * scale, final

    def backward(self, context: ModelContext, shape: StepShape, *, consume: bool) -> None:
        """Write every trainable gradient into the flat gradient buffer.

        With ``consume``, the activations of each block are freed or overwritten as soon as they have been used.
        """
        grad, _ = ops.rms_norm_backward(context.grad_final, context.residual_out, self.final_gain, context.rstd_out)
        remaining = context.blocks if consume else list(context.blocks)
        groups = [group for block in reversed(self.blocks) for group in block.weights.backward_groups]
        dense = DenseWeights(groups, self.dtype, self.streams)
        writing: Beside[None] | None = None
        for block in reversed(self.blocks):
            before = writing
            grad, writing = block.backward(grad, remaining.pop(), shape, dense, self.streams, consume=consume)
            if before is not None:
                before.take()
        if writing is not None:
            writing.take()
        self.trainable.finish_gradients()

    def logits(self, tokens: Tensor, shape: StepShape) -> Tensor:
        """Return all logits [B, S, V] in the compute dtype; tokens int64 [B, S]. Use this only for small models and
        tests."""
        self.trainable.refresh_compute_copies()
        hidden, _ = self._forward_blocks(tokens, shape)
        final, _ = ops.rms_norm_forward(hidden, self.final_gain, self.config.rms_norm_eps)
        return (final @ self.head.t()).view(*tokens.shape, -1)

    def frozen_tensors(self) -> dict[str, Tensor]:
        """Return every tensor that training must not change."""
        tensors = {"embedding": self.embedding, "head": self.head, "final_norm": self.final_gain}
        for layer, block in enumerate(self.blocks):
            weights = block.weights
            if weights.qkv_bias is not None:
                tensors[f"layers.{layer}.qkv_bias"] = weights.qkv_bias
            for kind in ("qkv", "output", "gate_up", "down"):
                matrix: FrozenMatrix = getattr(weights, kind)
                for part, tensor in matrix.tensors().items():
                    tensors[f"layers.{layer}.{kind}.{part}"] = tensor
        return tensors
