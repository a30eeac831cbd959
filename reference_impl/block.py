"""One decoder block with a hand-written forward and backward.

Legend: B batch size, S sequence length, T = B*S tokens, H hidden, I intermediate, r rank, N query heads, Nkv key/value
heads, D head dimension, QKV = (N + 2*Nkv) * D. A branch is the output of attention or of the MLP, before it is added to
the residual stream. A branch that is not yet added is passed on as a second tensor, and the next norm adds it. There is
no second tensor if the product that computed the branch has already added it to the residual stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impl import attention, ops
from reference_impl.attention import StepShape
from reference_impl.config import ModelConfig
from reference_impl.dense import DenseWeights, MatrixGroup
from reference_impl.lora import LayerTrainable
from reference_impl.nf4 import FrozenMatrix
from reference_impl.streams import Beside, StepStreams


class BlockWeights:
    """The frozen weights of a decoder block. Each matrix is [outputs, inputs]. The matrices of one `MatrixGroup` are
    dequantized together."""

    def __init__(
        self,
        qkv: FrozenMatrix,
        qkv_bias: Tensor | None,
        output: FrozenMatrix,
        gate_up: FrozenMatrix,
        down: FrozenMatrix,
    ) -> None:
        attention_group = MatrixGroup((qkv, output))
        self.qkv, self.output = attention_group.matrices
        self.qkv_bias = qkv_bias
        self.gate_up = gate_up
        self.down = down
        self.forward_groups = (attention_group, MatrixGroup((gate_up,)), MatrixGroup((down,)))
        self.backward_groups = (self.forward_groups[2], self.forward_groups[1], attention_group)


@dataclass(frozen=True)
class BlockContext:
    """The tensors of the forward pass that the backward pass needs. In a captured step these tensors have fixed
    addresses."""

    residual_in: Tensor  # [T, H]: the residual stream before attention
    rstd_in: Tensor  # [T]: rstd of attention's norm
    low_rank: Tensor  # [T, 2r]: product of the normed input and the scaled A factors of q and v
    qkv: Tensor  # [T, QKV], after the rotation
    attended: Tensor  # [T, N*D]: attention's output
    log_sum_exp: Tensor  # [B, N, S]: logarithm of the sum of exponentials of attention's scores
    residual_mid: Tensor  # [T, H]: the residual stream before the MLP
    rstd_mid: Tensor  # [T]: rstd of the MLP's norm
    gate_up: Tensor  # [T, 2I]: input of SwiGLU

    def tensors(self) -> list[Tensor]:
        return [
            self.residual_in,
            self.rstd_in,
            self.low_rank,
            self.qkv,
            self.attended,
            self.log_sum_exp,
            self.residual_mid,
            self.rstd_mid,
            self.gate_up,
        ]


def write_product_(out: Tensor, left: Tensor, right: Tensor) -> None:
    """Compute out [M, N] float32 = left [M, K] @ right [K, N] with torch's matrix product, accumulated in float32."""
    if left.dtype == out.dtype:
        torch.mm(left, right, out=out)
    elif left.device.type == "cuda":
        torch.ops.aten.mm.dtype_out(left, right, out.dtype, out=out)
    else:
        out.copy_(left.to(out.dtype) @ right.to(out.dtype))


class Block:
    """Attention and SwiGLU, each preceded by an RMSNorm and added to the residual stream."""

    def __init__(
        self, config: ModelConfig, weights: BlockWeights, trainable: LayerTrainable, *, adapters: bool = True
    ) -> None:
        self.config = config
        self.adapters = adapters
        self.weights = weights
        self.trainable = trainable
        # If set, this function computes each of LoRA's two backward products. If None, fused kernels compute both at
        # once. `reference_impl.gemm.install` sets this function.
        self.write_product_: Callable[[Tensor, Tensor, Tensor], None] | None = None

    def forward(
        self, residual: Tensor, branch: Tensor | None, shape: StepShape, dense: DenseWeights
    ) -> tuple[Tensor, Tensor | None, BlockContext]:
        """Return the residual stream [T, H] and the branch [T, H] after the block, and the context for `backward`.

        residual [T, H]: the residual stream before the block. branch [T, H]: the previous branch, which must still be
        added to ``residual``, or None. The returned branch is None if it is already added to the returned residual
        stream. dense: the source of the dense weights; its next matrices must be those of this block's
        `BlockWeights.forward_groups`.
        """
        config, trainable = self.config, self.trainable
        gain, eps = trainable.input_norm, config.rms_norm_eps
        if branch is None:
            residual_in = residual
            normed, rstd_in = ops.rms_norm_forward(residual, gain, eps)
        else:
            residual_in, normed, rstd_in = ops.rms_norm_add_forward(branch, residual, gain, eps)
        qkv_weight, output_weight = dense.take()
        qkv, low_rank = self._project(normed, qkv_weight)
        # Attention uses little memory bandwidth. So dequantize the other weights of this block, and the first weights
        # of the next block, while attention runs.
        dense.ahead(3)
        if self.adapters:
            attention.add_rotate_(qkv, low_rank, trainable.b, shape, config)
        else:
            attention.rotate_(qkv, shape, config)
        attended, log_sum_exp = attention.forward(qkv, shape, config)
        adds = ops.adds_products(residual, config.query_dim, config.intermediate_size)
        if adds:
            residual_mid = ops.add_product(attended, output_weight, residual_in)
            normed_mid, rstd_mid = ops.rms_norm_forward(residual_mid, trainable.post_attn_norm, eps)
        else:
            residual_mid, normed_mid, rstd_mid = ops.rms_norm_add_forward(
                attended @ output_weight.t(), residual_in, trainable.post_attn_norm, eps
            )
        gate_up, act = ops.up_swiglu(normed_mid, dense.take()[0])
        context = BlockContext(
            residual_in, rstd_in, low_rank, qkv, attended, log_sum_exp, residual_mid, rstd_mid, gate_up
        )
        down_weight = dense.take()[0]
        if adds:
            return ops.add_product(act, down_weight, residual_mid), None, context
        return residual_mid, act @ down_weight.t(), context

    def _project(self, normed: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return qkv [T, QKV] without LoRA's part, and the low-rank activations [T, 2r].

        normed [T, H]: the normed input of the block. weight [QKV, H].
        """
        bias = self.weights.qkv_bias
        qkv = normed @ weight.t() if bias is None else torch.addmm(bias, normed, weight.t())
        return qkv, normed @ self.trainable.scaled_a.t()

    def backward(
        self,
        grad: Tensor,
        context: BlockContext,
        shape: StepShape,
        dense: DenseWeights,
        streams: StepStreams,
        *,
        consume: bool,
    ) -> tuple[Tensor, Beside[None]]:
        """Return the gradient [T, H] of the block's input, and write the gradients of the block's parameters.

        The second stream may still write the parameters' gradients: they are complete when `take` of the second result
        has returned. LoRA's gradients are in buffers that `reference_impl.lora.Trainable` describes. grad [T, H]: the
        gradient of the block's output. dense: the source of the dense weights; its next matrices must be those of this
        block's `BlockWeights.backward_groups`. consume: if True, the gradient of gate_up (the largest activation)
        overwrites gate_up, so that it needs no buffer of its own.
        """
        trainable = self.trainable
        grad_gate_up = ops.down_swiglu_backward(
            grad, dense.take()[0], context.gate_up, context.gate_up if consume else None
        )
        gain_partials = ops.rms_norm_gain_partials(grad, 2)
        grad_mid = ops.rms_norm_backward_to_partials(
            grad_gate_up @ dense.take()[0],
            context.residual_mid,
            trainable.post_attn_norm,
            context.rstd_mid,
            gain_partials[1],
            grad_residual=grad,
        )
        del grad_gate_up
        qkv_weight, output_weight = dense.take()
        # As in the forward pass, dequantize the weights of the next block early. In the backward pass this is the
        # previous block of the model.
        dense.ahead(3)
        grad_qkv = attention.backward(
            grad_mid @ output_weight, context.qkv, context.attended, context.log_sum_exp, shape, self.config
        )
        grad_low_rank = grad_qkv @ trainable.b
        grad_in = ops.rms_norm_backward_to_partials(
            ops.input_gradient(grad_qkv, qkv_weight, grad_low_rank, trainable.scaled_a),
            context.residual_in,
            trainable.input_norm,
            context.rstd_in,
            gain_partials[0],
            grad_residual=grad_mid,
        )
        read = (grad_qkv, grad_low_rank, context.low_rank, context.rstd_in, context.residual_in)
        return grad_in, streams.branch(lambda: self._trainable_gradients(*read, gain_partials))

    def _trainable_gradients(
        self,
        grad_qkv: Tensor,
        grad_low_rank: Tensor,
        low_rank: Tensor,
        rstd: Tensor,
        residual: Tensor,
        gain_partials: Tensor,
    ) -> None:
        """Write `grad_a`, `grad_b`, `grad_norms` of `LayerTrainable`. Arguments: see `backward` and `BlockContext`."""
        trainable = self.trainable
        write_product_ = self.write_product_
        if write_product_ is None:
            read = (grad_qkv, low_rank, grad_low_rank, rstd, residual, gain_partials)
            ops.lora_gradients(*read, trainable.grad_b, trainable.grad_a, trainable.grad_norms)
            return
        ops.rms_norm_reduce_gains(gain_partials, trainable.grad_norms)
        write_product_(trainable.grad_b, grad_qkv.t(), low_rank)
        # The forward pass did not keep the normed input, which is `residual` * rstd * gain. Therefore multiply
        # `residual` in its place, and `grad_low_rank` by rstd. `finish_gradients` multiplies the gain into the products
        # of all layers, in one launch.
        scaled = torch.mul(grad_low_rank, rstd[:, None], out=torch.empty_like(grad_low_rank))
        write_product_(trainable.grad_a, scaled.t(), residual)
