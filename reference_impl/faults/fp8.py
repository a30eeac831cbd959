"""Planted faults of FP8 products: wrong scales or formats, and products not in FP8. Importable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.registry import KERNELS, STEP, fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from reference_impl.fp8 import Fp8Products, ScaledRows
    from reference_impl.kernel_table import KernelTable
    from reference_impl.trainer import Trainer

_UNHEEDED = {"not_worse": Expectation("FAIL", "vacuous_precision")}
_WRONG = {"kernel_match": Expectation("FAIL", "exceeds_tolerance")}

SATURATING = 4.0  # factor by which the scales are too small; a row's largest values then exceed e4m3's limit, 448
E4M3_LARGEST = 448.0


def _products(trainer: Trainer) -> Fp8Products:
    from reference_impl.fp8_model import Fp8Model

    if not isinstance(trainer.model, Fp8Model):
        raise TypeError("this fault needs a step in FP8; plant it in an arm with precision 'fp8'")
    return trainer.model.products


def _dense(rows: ScaledRows) -> Tensor:
    scale = rows.scale if rows.scale.dim() == 0 else rows.scale[:, None]
    return rows.data.float() * scale


def _uncounted(products: Fp8Products) -> None:
    def multiply(a: ScaledRows, b: ScaledRows, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        result = (_dense(a).to(products.dtype) @ _dense(b).to(products.dtype).t()).to(products.dtype)
        if bias is not None:
            result = result + bias
        return result if out is None else out.copy_(result)

    products.multiply = multiply  # type: ignore[method-assign]
    products.serves = lambda x, intermediate: False  # type: ignore[method-assign]  # noqa: ARG005 - as the method's


@fault(STEP, "no product runs in FP8, and no record states this", _UNHEEDED)
def silent_fallback_from_fp8(trainer: Trainer) -> None:
    _uncounted(_products(trainer))


@fault(STEP, "the last block's products run in the compute dtype, and no record states this", _UNHEEDED)
def one_block_not_in_fp8(trainer: Trainer) -> None:
    from reference_impl.fp8 import Fp8Products
    from reference_impl.fp8_block import Fp8Block

    products = Fp8Products(_products(trainer).dtype)
    _uncounted(products)
    block = trainer.model.blocks[-1]
    if isinstance(block, Fp8Block):
        block.products = products


@fault(STEP, "the setting for FP8 is ignored", _UNHEEDED)
def unheeded_precision(trainer: Trainer) -> None:
    from dataclasses import replace

    type(trainer).__init__(trainer, replace(trainer.config, precision="dtype"))


@fault(KERNELS, "every row of a matrix is scaled by the scale of the row before", _WRONG)
def fp8_scale_of_another_row(table: KernelTable) -> None:
    _with_scales(table, lambda scale: scale.roll(1))


@fault(KERNELS, "a quantization uses the scales of the previous call instead of its own", _WRONG)
def fp8_stale_scale(table: KernelTable) -> None:
    earlier: dict[int, Tensor] = {}

    def stale(scale: Tensor) -> Tensor:
        found = earlier.get(scale.numel(), scale * 0 + 1)
        earlier[scale.numel()] = scale
        return found

    _with_scales(table, stale)


@fault(KERNELS, "scales are the inverse of the correct scales", _WRONG)
def fp8_inverse_scale(table: KernelTable) -> None:
    _with_scales(table, lambda scale: scale.reciprocal())


@fault(
    KERNELS,
    "scales are kept in half precision, which is infinite beyond 65504",
    {"kernel_match": Expectation("FAIL", "non_finite")},
)
def fp8_scale_in_fp16(table: KernelTable) -> None:
    _with_scales(table, lambda scale: scale.half().float())


@fault(KERNELS, "scales are four times too small, so that large values saturate", _WRONG)
def fp8_saturated_values(table: KernelTable) -> None:
    def saturated(data: Tensor) -> Tensor:
        return (data.float() * SATURATING).clamp(-E4M3_LARGEST, E4M3_LARGEST).to(data.dtype)

    _with_data(table, saturated)
    _with_scales(table, lambda scale: scale / SATURATING)


@fault(
    KERNELS, "values are rounded to the two fraction bits of e5m2, although e4m3 with three bits is declared", _WRONG
)
def fp8_coarser_format(table: KernelTable) -> None:
    import torch

    _with_data(table, lambda data: data.to(torch.float32).to(torch.float8_e5m2).to(torch.float32).to(data.dtype))


@fault(KERNELS, "the logits' gradient is rounded to e4m3, which loses small probabilities", _WRONG)
def fp8_loss_in_e4m3(table: KernelTable) -> None:
    forward_backward = table.fp8_loss

    def narrow(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        losses, gradient = forward_backward(logits, targets)
        down = 2.0**-7  # reduces the largest value, 2^15, to 2^8, because e4m3 cannot represent 2^15
        return losses, ((gradient.float() * down).to(torch.float8_e4m3fn).float() / down).to(gradient.dtype)

    table.fp8_loss = narrow


@fault(KERNELS, "the transposed weight has the transposed shape, but its elements in the original order", _WRONG)
def fp8_weight_not_transposed(table: KernelTable) -> None:
    transposed = table.fp8_from_nf4_transposed

    def wrong(codes: Tensor, absmax: Tensor, inverse: Tensor, row_count: int) -> Tensor:
        data = transposed(codes, absmax, inverse, row_count)
        return data.t().contiguous().view(data.shape)

    table.fp8_from_nf4_transposed = wrong


_QUANTIZING = (
    "fp8_quantize_rows",
    "fp8_swiglu_forward",
    "fp8_swiglu_backward",
    "fp8_up_swiglu",
    "fp8_down_swiglu_backward",
)


def _with_scales(table: KernelTable, change: Callable[[Tensor], Tensor]) -> None:
    """Make the kernels in `_QUANTIZING`, whose last two results are FP8 data and scales, return `change(scales)`."""

    def changed(own: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        def with_scale(*arguments: Tensor) -> tuple[Tensor, ...]:
            *others, scale = own(*arguments)
            return *others, change(scale)

        return with_scale

    for name in _QUANTIZING:
        setattr(table, name, changed(getattr(table, name)))


def _with_data(table: KernelTable, change: Callable[[Tensor], Tensor]) -> None:
    """Make the kernels in `_QUANTIZING`, whose last two results are FP8 data and scales, return `change(data)`."""

    def changed(own: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        def with_data(*arguments: Tensor) -> tuple[Tensor, ...]:
            *others, data, scale = own(*arguments)
            return *others, change(data), scale

        return with_data

    for name in _QUANTIZING:
        setattr(table, name, changed(getattr(table, name)))
