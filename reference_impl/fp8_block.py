"""A decoder block whose products with frozen weights run in FP8, in the forward pass and for the input gradients.

T tokens, H hidden, I intermediate, r rank. The kernels of norms and SwiGLU write their results in FP8, forward and
backward, as operands of the next product. Attention's output and its gradient are quantized by a separate kernel,
because a program of the attention kernels computes only a part of a row. LoRA, attention, norms, the residual stream
and `reference_impl.block.BlockContext` stay in the compute dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from reference_impl import attention, ops
from reference_impl.attention import StepShape
from reference_impl.block import Block, BlockContext, BlockWeights
from reference_impl.config import ModelConfig
from reference_impl.dense import Ahead
from reference_impl.fp8 import Fp8Matrix, Fp8Products, MlpLimits, ScaledRows
from reference_impl.lora import LayerTrainable
from reference_impl.streams import Beside, StepStreams


@dataclass(frozen=True)
class Fp8Context(BlockContext):
    """A `BlockContext` with ``norm_mid`` f32 [tokens]: Euclidean norms of the rows from which gate_up is computed."""

    norm_mid: Tensor

    def tensors(self) -> list[Tensor]:
        return [*super().tensors(), self.norm_mid]


@dataclass(frozen=True)
class Gradient:
    """The gradient [tokens, hidden] of the residual stream: ``value`` in the compute dtype, ``rows`` in FP8."""

    value: Tensor
    rows: ScaledRows


class Fp8Block(Block):
    """A `Block` whose products with frozen weights run in FP8, for `reference_impl.fp8_model`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: BlockWeights,
        trainable: LayerTrainable,
        products: Fp8Products,
        *,
        adapters: bool,
    ) -> None:
        super().__init__(config, weights, trainable, adapters=adapters)
        self.products = products
        matrices = [Fp8Matrix.of(each) for each in (weights.qkv, weights.output, weights.gate_up, weights.down)]
        self.in_forward = [matrix.rows for matrix in matrices]
        qkv, output, gate_up, down = matrices
        self.in_backward = [matrix.transposed for matrix in (down, gate_up, output, qkv)]
        self.limits = MlpLimits.of(gate_up.source, down.source)

    def forward_fp8(
        self, residual: Tensor, branch: Tensor | None, shape: StepShape, weights: Ahead[ScaledRows]
    ) -> tuple[Tensor, Tensor, Fp8Context]:
        """Do the same as `Block.forward`, with products of frozen weights in FP8. weights: the source of these weights;
        its next values must be those that the functions in this block's `in_forward` make."""
        config, trainable, multiply = self.config, self.trainable, self.products.multiply
        eps = config.rms_norm_eps
        first, added = (residual, None) if branch is None else (branch, residual)
        residual_in, normed, data, scale, rstd_in, _ = ops.fp8_norm_add_forward(
            first, added, trainable.input_norm, eps, keep=True
        )
        qkv = multiply(ScaledRows(data, scale), weights.take(), self.weights.qkv_bias)
        # With `keep=True` the kernel returns the normed input, so `normed` is never None here.
        low_rank = cast("Tensor", normed) @ trainable.scaled_a.t()
        weights.ahead(4)
        if self.adapters:
            attention.add_rotate_(qkv, low_rank, trainable.b, shape, config)
        else:
            attention.rotate_(qkv, shape, config)
        attended, log_sum_exp = attention.forward(qkv, shape, config)
        residual_mid, _, data, scale, rstd_mid, norm_mid = ops.fp8_norm_add_forward(
            multiply(ScaledRows.of(attended), weights.take()), residual_in, trainable.post_attn_norm, eps, keep=False
        )
        gate_up, act = self.products.up_swiglu(ScaledRows(data, scale, norm_mid), weights.take(), self.limits)
        branch_out = multiply(act, weights.take())
        context = Fp8Context(
            residual_in, rstd_in, low_rank, qkv, attended, log_sum_exp, residual_mid, rstd_mid, gate_up, norm_mid
        )
        return residual_mid, branch_out, context

    def backward_fp8(
        self,
        grad: Gradient,
        context: Fp8Context,
        shape: StepShape,
        weights: Ahead[ScaledRows],
        streams: StepStreams,
    ) -> tuple[Gradient, Beside[None]]:
        """Do the same as `Block.backward`, with products of frozen weights in FP8. weights: returns one weight at each
        call of `take`; the functions in this block's `in_backward` must make these weights, in this order."""
        trainable, multiply = self.trainable, self.products.multiply
        grad_gate_up = self.products.down_swiglu_backward(
            grad.rows, weights.take(), context.gate_up, context.norm_mid, self.limits
        )
        gain_partials = ops.rms_norm_gain_partials(grad.value, 2)
        grad_mid, data, scale, _ = ops.fp8_norm_backward_to_partials(
            multiply(grad_gate_up, weights.take()),
            context.residual_mid,
            trainable.post_attn_norm,
            context.rstd_mid,
            gain_partials[1],
            grad_residual=grad.value,
        )
        del grad_gate_up
        grad_attended = multiply(ScaledRows(data, scale), weights.take())
        weights.ahead(4)
        grad_qkv = attention.backward(
            grad_attended, context.qkv, context.attended, context.log_sum_exp, shape, self.config
        )
        grad_low_rank = grad_qkv @ trainable.b
        grad_normed = multiply(ScaledRows.of(grad_qkv), weights.take())
        value, data, scale, norm = ops.fp8_norm_backward_to_partials(
            grad_normed.addmm_(grad_low_rank, trainable.scaled_a),
            context.residual_in,
            trainable.input_norm,
            context.rstd_in,
            gain_partials[0],
            grad_residual=grad_mid,
        )
        read = (grad_qkv, grad_low_rank, context.low_rank, context.rstd_in, context.residual_in)
        beside = streams.branch(lambda: self._trainable_gradients(*read, gain_partials))
        return Gradient(value, ScaledRows(data, scale, norm)), beside
