"""Clip the flat gradient buffer, per layer or globally, with the fused or the synchronizing clip.

scale = min(1, max_norm / (norm + 1e-6)) for each group, as in `torch.nn.utils.clip_grad_norm_`. A group is one layer,
or the whole model if the clip is global. The fused clip keeps norm and scale in device memory, and needs three launches
and no host sync for each step. The synchronizing clip is the unoptimized counterpart of the fused clip. It copies one
number for each tensor to the host, which is six numbers for each layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impl import ops
from reference_impl.config import ClipScope, TrainConfig
from reference_impl.kernels.clip.naive import BLOCK

EPS = 1e-6


@dataclass(frozen=True)
class TensorSpan:
    """The place of a tensor's gradient in the flat buffer, the tensor's layer, and the index of the tensor's first part
    in `ClipPlan`."""

    offset: int
    size: int
    layer: int
    first_partial: int


@dataclass(frozen=True)
class ClipPlan:
    """The division of the flat buffer into P parts of at most 1024 elements, and of these parts into G groups.

    A group consists of consecutive parts. The sum of squares of one part is called a partial sum.
    """

    spans: tuple[TensorSpan, ...]
    starts: Tensor  # int64 [P]: index of the first element of each part in the flat buffer
    counts: Tensor  # int32 [P]: number of elements of each part
    groups: Tensor  # int32 [P]: group of each part
    # int32 [G + 1]: group g has the parts from group_starts[g] up to, but not including, group_starts[g + 1]
    group_starts: Tensor

    @classmethod
    def build(cls, sizes: Sequence[int], layers: Sequence[int], scope: ClipScope, device: torch.device) -> ClipPlan:
        """Return the plan for consecutive tensors: tensor i has ``sizes[i]`` elements and is in layer ``layers[i]``.

        Layers are numbered from 0. With the scope "per_layer" each layer is a group, else all tensors are one group.
        """
        spans: list[TensorSpan] = []
        starts: list[int] = []
        counts: list[int] = []
        groups: list[int] = []
        offset = 0
        for size, layer in zip(sizes, layers, strict=True):
            spans.append(TensorSpan(offset, size, layer, len(starts)))
            for start in range(0, size, BLOCK):
                starts.append(offset + start)
                counts.append(min(BLOCK, size - start))
                groups.append(layer if scope == "per_layer" else 0)
            offset += size
        num_groups = max(layers) + 1 if scope == "per_layer" else 1
        group_starts = [sum(group < bound for group in groups) for bound in range(num_groups + 1)]
        return cls(
            tuple(spans),
            torch.tensor(starts, dtype=torch.int64, device=device),
            torch.tensor(counts, dtype=torch.int32, device=device),
            torch.tensor(groups, dtype=torch.int32, device=device),
            torch.tensor(group_starts, dtype=torch.int32, device=device),
        )


class GradientClip:
    """The clip of a flat gradient, in place. ``norms`` (before the clip) and ``scales`` [groups] stay on the device."""

    def __init__(self, sizes: Sequence[int], layers: Sequence[int], config: TrainConfig, device: torch.device) -> None:
        self.plan = ClipPlan.build(sizes, layers, config.clip_scope, device)
        groups = self.plan.group_starts.numel() - 1
        self.partials = torch.zeros(self.plan.starts.numel(), dtype=torch.float32, device=device)
        self.norms = torch.zeros(groups, dtype=torch.float32, device=device)
        self.scales = torch.ones(groups, dtype=torch.float32, device=device)
        self.scope = config.clip_scope
        self._config = config

    def apply_(self, gradient: Tensor) -> None:
        """Clip ``gradient`` [elements] in place, by the fused or the synchronizing clip as configured."""
        if self._config.clip_mode == "fused":
            self._apply_fused_(gradient)
        else:
            self._apply_synchronizing_(gradient)

    def _apply_fused_(self, gradient: Tensor) -> None:
        plan = self.plan
        ops.clip_squared_sum_partials(gradient, plan.starts, plan.counts, self.partials)
        ops.clip_scale_reduce(self.partials, plan.group_starts, self._config.max_norm, EPS, self.norms, self.scales)
        ops.clip_scale_apply_(gradient, self.scales, plan.starts, plan.counts, plan.groups)

    def _apply_synchronizing_(self, gradient: Tensor) -> None:
        """Clip with one host sync for each tensor that has elements. Write norms and scales without another sync."""
        squares = [0.0] * self.norms.numel()
        for span in self.plan.spans:
            if span.size:
                squares[self._group(span)] += self._span(gradient, span).square().sum().item()
        scales: list[float] = []
        for group, square in enumerate(squares):
            norm = math.sqrt(square)
            # Keep this order of arguments: min() returns NaN if its first argument is NaN.
            scales.append(min(self._config.max_norm / (norm + EPS), 1.0))
            self.norms[group].fill_(norm)
            self.scales[group].fill_(scales[group])
        for span in self.plan.spans:
            if span.size:
                self._span(gradient, span).mul_(scales[self._group(span)])

    def _group(self, span: TensorSpan) -> int:
        return span.layer if self.scope == "per_layer" else 0

    @staticmethod
    def _span(gradient: Tensor, span: TensorSpan) -> Tensor:
        return gradient[span.offset : span.offset + span.size]

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that `apply_` changes in addition to the gradient."""
        return {"clip_partials": self.partials, "clip_norms": self.norms, "clip_scales": self.scales}
