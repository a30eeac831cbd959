"""Planted faults of operators and of their inputs, in the captured and the plain step alike. Importable without torch.

With these faults and those of `plain_step`, both steps give equal results, and both results are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reference_impl.faults.expected import errs
from reference_impl.faults.registry import STEP, fault

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from reference_impl.trainer import Trainer

# Index of an NF4 code and its wrong value. The correct value is 0.4407…; in the wrong value two digits are swapped.
WRONG_CODE, WRONG_VALUE = 12, 0.40470982913434
WRONG_EPSILON = 1e-3  # a thousand times the norms' epsilon in the checkpoint


ALL_GRADIENTS = errs("median_gradient_ratio")
ONE_GRADIENT = errs("gradient_ratio")


def _with_operators(trainer: Trainer, **changed: Callable[..., Any]) -> None:
    """Replace operators of `reference_impl.ops` by `changed` during the steps of this trainer, and only then."""
    from reference_impl import ops

    def within(body: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            own = {name: getattr(ops, name) for name in changed}
            for name, function in changed.items():
                setattr(ops, name, function)
            try:
                return body()
            finally:
                for name, function in own.items():
                    setattr(ops, name, function)

        return call

    for name in ("body", "forward_body", "backward_body"):
        setattr(trainer, name, within(getattr(trainer, name)))


@fault(STEP, "attention's scores are scaled by 1/d instead of 1/sqrt(d)", ALL_GRADIENTS)
def wrong_attention_scale(trainer: Trainer) -> None:
    from reference_impl import ops

    rotate, backward, model = ops.rope_add_rotate_, ops.attention_backward, trainer.model_config
    queries = slice(0, model.query_dim)

    def rotate_and_scale(qkv: Tensor, *arguments: Any) -> None:
        rotate(qkv, *arguments)
        qkv[:, queries].mul_(model.head_dim**-0.5)

    def backward_scaled(*arguments: Any) -> Tensor:
        gradient = backward(*arguments)
        gradient[:, queries].mul_(model.head_dim**-0.5)
        return gradient

    _with_operators(trainer, rope_add_rotate_=rotate_and_scale, attention_backward=backward_scaled)


@fault(STEP, "the norms' epsilon is not the checkpoint's", ALL_GRADIENTS)
def wrong_norm_epsilon(trainer: Trainer) -> None:
    wrong = replace(trainer.model_config, rms_norm_eps=WRONG_EPSILON)
    trainer.model.config = wrong
    for block in trainer.model.blocks:
        block.config = wrong


@fault(STEP, "one of the 16 values of the NF4 table is wrong", ALL_GRADIENTS)
def wrong_nf4_table(trainer: Trainer) -> None:
    from reference_impl import ops
    from reference_impl.kernels.nf4.naive import BLOCK, CODEBOOK

    dequantize = ops.nf4_dequantize
    change = WRONG_VALUE - float(CODEBOOK[WRONG_CODE])

    def dequantize_wrong(codes: Tensor, absmax: Tensor, rows: int, cols: int, *arguments: Any) -> Tensor:
        import torch

        weight = dequantize(codes, absmax, rows, cols, *arguments)
        both = torch.stack((codes >> 4, codes & 15), dim=1).view(-1, BLOCK)
        return weight.add_(((both == WRONG_CODE) * (change * absmax[:, None])).view(rows, cols))

    _with_operators(trainer, nf4_dequantize=dequantize_wrong)


@fault(STEP, "gate and up projection of SwiGLU are swapped", ALL_GRADIENTS)
def swapped_gate_and_up(trainer: Trainer) -> None:
    from reference_impl import ops

    forward, backward = ops.swiglu_forward, ops.swiglu_backward

    def swapped(gate_up: Tensor) -> Tensor:
        return gate_up.roll(gate_up.shape[1] // 2, dims=1)

    def backward_swapped(grad_act: Tensor, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
        gradient = swapped(backward(grad_act, swapped(gate_up)))
        return gradient if out is None else out.copy_(gradient)

    _with_operators(
        trainer,
        swiglu_forward=lambda gate_up: forward(swapped(gate_up)),
        swiglu_backward=backward_swapped,
        # Use products without fused SwiGLU, so that `swiglu_forward` and `swiglu_backward` above are called.
        up_swiglu=ops.up_then_swiglu,
        down_swiglu_backward=ops.down_then_swiglu_backward,
    )


@fault(
    STEP, "the loss leaves out the last token of a batch, but still divides by the number of all tokens", ALL_GRADIENTS
)
def ignored_last_token(trainer: Trainer) -> None:
    from reference_impl import ops
    from reference_impl.kernels.cross_entropy.naive import IGNORED

    loss = ops.cross_entropy_forward_backward_

    def without_last(logits: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
        counted = targets.clone()
        counted[-1:] = IGNORED
        return loss(logits, counted, scale)

    # Use the unfused operator for head and loss, which calls `without_last`. The fused one computes the loss with
    # another function, from statistics that the head's product writes.
    _with_operators(trainer, cross_entropy_forward_backward_=without_last, head_loss=ops.head_then_loss)


@fault(STEP, "LoRA is scaled by alpha / (2 rank)", ALL_GRADIENTS)
def wrong_lora_scale(trainer: Trainer) -> None:
    trainer.trainable.scale /= 2


def _in_eight_bits(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `tensor` rounded to the 8-bit type `dtype`, in its original dtype.

    Before the rounding, the tensor is scaled so that its largest element becomes the largest number of the type.
    """
    import torch

    scale = tensor.abs().amax().float() / torch.finfo(dtype).max
    return (tensor / scale).to(dtype).to(tensor.dtype) * scale.to(tensor.dtype)


@fault(STEP, "the logits' gradients are kept in 8 bits (E5M2, FP8's format for gradients)", ALL_GRADIENTS)
def logit_gradients_in_fp8(trainer: Trainer) -> None:
    from reference_impl import ops

    loss = ops.cross_entropy_forward_backward_

    def in_fp8(logits: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
        import torch

        losses = loss(logits, targets, scale)
        logits.copy_(_in_eight_bits(logits, torch.float8_e5m2))
        return losses

    _with_operators(trainer, cross_entropy_forward_backward_=in_fp8, head_loss=ops.head_then_loss)


@fault(STEP, "the product that gives the gradient of LoRA's B reads its operands in 8 bits (E4M3)", ONE_GRADIENT)
def lora_product_in_fp8(trainer: Trainer) -> None:
    import torch

    from reference_impl import block as blocks

    for block in trainer.model.blocks:
        own, of_b = block.write_product_ or blocks.write_product_, block.trainable.grad_b

        def write_product_(out: Tensor, left: Tensor, right: Tensor, own: Any = own, of_b: Tensor = of_b) -> None:
            if out is of_b:
                left, right = (_in_eight_bits(each, torch.float8_e4m3fn) for each in (left, right))
            own(out, left, right)

        block.write_product_ = write_product_
