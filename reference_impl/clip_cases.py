"""Comparisons for `kernel_match` claims: kernels of the fused clip (per layer, global) and of norm gains' gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from harness.system.protocol import KernelComparison
from reference_impl.clip import EPS, ClipPlan
from reference_impl.config import ClipScope, ModelConfig
from reference_impl.kernel_table import KernelTable
from reference_impl.kernels.clip import naive as clip_naive
from reference_impl.kernels.rms_norm import naive as norm_naive
from reference_impl.lora import layer_shapes

CLIP_OPERATIONS: dict[str, ClipScope] = {"clip.per_layer": "per_layer", "clip.global": "global"}
GAIN_OPERATION = "rms_norm.gain_gradient"
# Sizes of six tensors in each of three layers: less than, exactly and more than the 1024 elements of one partial sum,
# single elements, and empty tensors. The second layer has only empty tensors, so its norm is exactly 0.
RAGGED_LAYERS = ((1500, 0, 7, 1, 1024, 33), (0, 0, 0, 0, 0, 0), (5, 1025, 0, 64, 3, 2))
RAGGED_ROWS = (67, 36)  # number of tokens and hidden size of the other gain comparisons
# Factor on the gradients of every second layer, from the third layer on. It makes the norms of these layers smaller
# than the threshold, so the clip does not change their gradients.
_SMALL_LAYER = 1e-3
_SEED = 477


def clip_comparisons(
    table: KernelTable,
    operation: str,
    model: ModelConfig,
    rank: int,
    magnitudes: Sequence[float],
    device: torch.device,
) -> Iterator[KernelComparison]:
    """Yield float32 comparisons of the clip, for the model's tensors (six in each layer) and for `RAGGED_LAYERS`.

    magnitudes: standard deviations of the gradients' elements; each gives its own comparison. rank: LoRA's rank.
    """
    in_a_step = tuple(math.prod(shape) for shape in layer_shapes(model, rank).values())
    for layers in ((in_a_step,) * model.num_layers, RAGGED_LAYERS):
        for magnitude in magnitudes:
            yield _clip(table, operation, layers, magnitude, device)


def _clip(
    table: KernelTable, operation: str, layers: Sequence[Sequence[int]], magnitude: float, device: torch.device
) -> KernelComparison:
    sizes = [size for layer in layers for size in layer]
    owners = [index for index, layer in enumerate(layers) for _ in layer]
    plan = ClipPlan.build(sizes, owners, CLIP_OPERATIONS[operation], device)
    groups = plan.group_starts.numel() - 1
    generator = torch.Generator(device).manual_seed(_SEED)
    flat = torch.randn(sum(sizes), generator=generator, device=device) * magnitude
    parts = torch.split(flat, [sum(layer) for layer in layers])
    for part in parts[2::2]:
        part.mul_(_SMALL_LAYER)
    # Let the threshold be half of the smallest norm among the layers whose gradients are not multiplied by
    # `_SMALL_LAYER`. The clip is then active in these layers.
    max_norm = 0.5 * magnitude * math.sqrt(sum(layers[0]))

    def run(kernels: KernelTable, outputs: Mapping[str, Tensor]) -> None:
        partials = torch.full_like(plan.starts, math.nan, dtype=torch.float32)
        kernels.squared_sum_partials(outputs["gradient"], plan.starts, plan.counts, partials)
        kernels.clip_scale_reduce(partials, plan.group_starts, max_norm, EPS, outputs["norms"], outputs["scales"])
        kernels.scale_apply_(outputs["gradient"], outputs["scales"], plan.starts, plan.counts, plan.groups)

    def naive(outputs: Mapping[str, Tensor]) -> None:
        partials = torch.full_like(plan.starts, math.nan, dtype=torch.float32)
        clip_naive.squared_sum_partials(outputs["gradient"], plan.starts, plan.counts, partials)
        clip_naive.clip_scale_reduce(partials, plan.group_starts, max_norm, EPS, outputs["norms"], outputs["scales"])
        clip_naive.scale_apply_(outputs["gradient"], outputs["scales"], plan.starts, plan.counts, plan.groups)

    def reference() -> dict[str, Tensor]:
        pieces = [flat.double()] if groups == 1 else [part.double() for part in parts]
        norms = torch.stack([piece.square().sum().sqrt() for piece in pieces])
        scales = (max_norm / (norms + EPS)).clamp(max=1.0)
        clipped = torch.cat([piece * scale for piece, scale in zip(pieces, scales, strict=True)])
        return {"gradient": clipped, "norms": norms, "scales": scales}

    empty = torch.empty(groups, dtype=torch.float32, device=device)
    return KernelComparison(
        operation=operation,
        dtype="float32",
        shape=f"{len(layers)} layers of {'+'.join(map(str, layers[0]))}",
        magnitude=magnitude,
        written={"norms": empty, "scales": empty},
        updated={"gradient": flat},
        kernel=lambda outputs: run(table, outputs),
        naive=naive,
        reference=reference,
    )


def gain_comparisons(
    table: KernelTable,
    tokens: int,
    hidden: int,
    dtypes: Sequence[str],
    magnitudes: Sequence[float],
    device: torch.device,
) -> Iterator[KernelComparison]:
    """Yield comparisons of the gradient of a norm's gain, a sum over tokens, for [tokens, hidden] and `RAGGED_ROWS`."""
    for rows, width in ((tokens, hidden), RAGGED_ROWS):
        for dtype in dtypes:
            for magnitude in magnitudes:
                yield _gain(table, rows, width, dtype, magnitude, device)


def _gain(
    table: KernelTable, rows: int, width: int, dtype: str, magnitude: float, device: torch.device
) -> KernelComparison:
    generator = torch.Generator(device).manual_seed(_SEED)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device)

    grad_y = (normal(rows, width) * magnitude).to(getattr(torch, dtype))
    x, gain = normal(rows, width).to(grad_y.dtype), 1 + 0.3 * normal(width)
    _, rstd = norm_naive.forward(x, gain, EPS)

    def kernel(outputs: Mapping[str, Tensor]) -> None:
        partials = table.gain_partials(x, 1).fill_(math.nan)
        table.backward_to_partials(grad_y, x, gain, rstd, partials[0])
        table.reduce_gains(partials, outputs["grad_gain"])

    def naive(outputs: Mapping[str, Tensor]) -> None:
        norm_naive.backward(grad_y, x, gain, rstd, None, outputs["grad_gain"])

    return KernelComparison(
        operation=GAIN_OPERATION,
        dtype=dtype,
        shape=f"T{rows} H{width}",
        magnitude=magnitude,
        written={"grad_gain": torch.empty(width, dtype=torch.float32, device=device)},
        updated={},
        kernel=kernel,
        naive=naive,
        reference=lambda: {"grad_gain": (grad_y.double() * x.double() * rstd.double()[:, None]).sum(dim=0)},
    )
