"""Clip gradients in one flat fp32 buffer, by three launches for the whole model, without host sync or atomics.

Legend: n elements of the buffer, P parts ("partials") of at most BLOCK elements, G groups of parts. A group is a layer,
or the whole model for the global norm.

    partials[p] = sum of squares of flat[starts[p] : starts[p] + counts[p]]
    norms[g] = sqrt(sum of partials[group_starts[g] : group_starts[g + 1]])
    scales[g] = min(1, max_norm / (norms[g] + eps))
    flat[starts[p] : starts[p] + counts[p]] *= scales[groups[p]]

An empty tensor has no part, so it adds exactly 0. Sums have a fixed order. Square root and division follow IEEE 754.
"""

from __future__ import annotations

import functools

import triton.language as tl
from torch import Tensor

from reference_impl.kernels.dependent_launch import begin
from reference_impl.kernels.registry import KernelSpec, Pointer, kernel, launch, require_shape

BLOCK = 1024
"""The largest number of elements of a part of the buffer."""
_NUM_WARPS = 4


@kernel("flat", "starts", "counts", "partials")
def _squared_sum_kernel(
    flat: tl.tensor, starts: tl.tensor, counts: tl.tensor, partials: tl.tensor, SIZE: tl.constexpr, PDL: tl.constexpr
) -> None:
    begin(PDL)
    program = tl.program_id(0)
    lane = tl.arange(0, SIZE)
    inside = lane < tl.load(counts + program)
    value = tl.load(flat + tl.load(starts + program) + lane, mask=inside, other=0.0)
    tl.store(partials + program, tl.sum(value * value))


@kernel("partials", "group_starts", "norms", "scales")
def _scale_reduce_kernel(
    partials: tl.tensor,
    group_starts: tl.tensor,
    norms: tl.tensor,
    scales: tl.tensor,
    MAX_NORM: tl.constexpr,
    EPS: tl.constexpr,
    PARTIALS: tl.constexpr,
    SIZE: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    group = tl.program_id(0)
    end = tl.load(group_starts + group + 1)
    lane = tl.arange(0, SIZE)
    total = tl.zeros([SIZE], tl.float32)
    start = tl.load(group_starts + group)
    # The number of passes must be known at compile time, so it is enough for a group that contains all parts. The mask
    # limits the reads to the partial sums of this group.
    for step in range(0, PARTIALS, SIZE):
        index = start + step + lane
        total += tl.load(partials + index, mask=index < end, other=0.0)
    norm = tl.sqrt_rn(tl.sum(total))
    tl.store(norms + group, norm)
    # A NaN norm must give a NaN scale, as with torch's clamp. Otherwise training could continue on NaN gradients.
    scale = tl.div_rn(tl.full([], MAX_NORM, tl.float32), norm + EPS)
    tl.store(scales + group, tl.minimum(scale, 1.0, propagate_nan=tl.PropagateNan.ALL))


@kernel("flat", "scales", "starts", "counts", "groups")
def _scale_apply_kernel(
    flat: tl.tensor,
    scales: tl.tensor,
    starts: tl.tensor,
    counts: tl.tensor,
    groups: tl.tensor,
    SIZE: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    program = tl.program_id(0)
    lane = tl.arange(0, SIZE)
    inside = lane < tl.load(counts + program)
    scale = tl.load(scales + tl.load(groups + program))
    pointers = flat + tl.load(starts + program) + lane
    tl.store(pointers, tl.load(pointers, mask=inside, other=0.0) * scale, mask=inside)


@functools.cache
def squared_sum_spec(partials: int) -> KernelSpec:
    """Return the spec (description) of the kernel that `squared_sum_partials` launches for a buffer of `partials`
    parts."""
    return KernelSpec(
        op="clip.squared_sum",
        shape=(partials,),
        dtype="fp32",
        constants=(),
        num_warps=_NUM_WARPS,
        num_stages=1,
        function=_squared_sum_kernel,
        pointers=(
            Pointer("flat", "fp32", aligned=False),
            Pointer("starts", "i64", aligned=False),
            Pointer("counts", "i32", aligned=False),
            Pointer("partials", "fp32", aligned=False),
        ),
        constexprs={"SIZE": BLOCK},
        grid=(partials,),
    )


@functools.cache
def scale_reduce_spec(partials: int, groups: int, max_norm: float, eps: float) -> KernelSpec:
    """Return the spec (description) of the kernel that `clip_scale_reduce` launches for a buffer of `partials` parts in
    `groups` groups."""
    names = (("partials", "fp32"), ("group_starts", "i32"), ("norms", "fp32"), ("scales", "fp32"))
    return KernelSpec(
        op="clip.scale_reduce",
        shape=(partials, groups),
        dtype="fp32",
        constants=(("max_norm", max_norm), ("eps", eps)),
        num_warps=_NUM_WARPS,
        num_stages=1,
        function=_scale_reduce_kernel,
        pointers=tuple(Pointer(name, dtype, aligned=False) for name, dtype in names),
        constexprs={"MAX_NORM": max_norm, "EPS": eps, "PARTIALS": partials, "SIZE": BLOCK},
        grid=(groups,),
    )


@functools.cache
def scale_apply_spec(partials: int) -> KernelSpec:
    """Return the spec (description) of the kernel that `scale_apply_` launches for a buffer of `partials` parts."""
    names = (("flat", "fp32"), ("scales", "fp32"), ("starts", "i64"), ("counts", "i32"), ("groups", "i32"))
    return KernelSpec(
        op="clip.scale_apply",
        shape=(partials,),
        dtype="fp32",
        constants=(),
        num_warps=_NUM_WARPS,
        num_stages=1,
        function=_scale_apply_kernel,
        pointers=tuple(Pointer(name, dtype, aligned=False) for name, dtype in names),
        constexprs={"SIZE": BLOCK},
        grid=(partials,),
    )


def specializations(*, partials: int, groups: int, max_norm: float, eps: float) -> list[KernelSpec]:
    """Return the three kernels of a clip, for a buffer of `partials` parts in `groups` groups."""
    return [squared_sum_spec(partials), scale_reduce_spec(partials, groups, max_norm, eps), scale_apply_spec(partials)]


def squared_sum_partials(flat: Tensor, starts: Tensor, counts: Tensor, out: Tensor) -> Tensor:
    """Write the sum of squares of each part of flat f32 [elements] into out f32 [parts], and return out.

    starts i64 [parts]: first element of each part. counts i32 [parts]: number of elements of each part, at most 1024.
    """
    partials = starts.numel()
    spec = squared_sum_spec(partials)
    require_shape(spec.op, "counts", counts, (partials,))
    require_shape(spec.op, "out", out, (partials,))
    launch(spec, flat, starts, counts, out)
    return out


def clip_scale_reduce(
    partials: Tensor, group_starts: Tensor, max_norm: float, eps: float, norms: Tensor, scales: Tensor
) -> None:
    """Compute the norm and the scale of each group from partials f32 [parts], the sums of squares of the parts. Write
    them into norms and scales, both f32 [groups]. The scale of a NaN norm is NaN.

    group_starts i32 [groups + 1]: index of the first part of each group; the last element is the number of parts.
    """
    spec = scale_reduce_spec(partials.numel(), norms.numel(), max_norm, eps)
    require_shape(spec.op, "group_starts", group_starts, (norms.numel() + 1,))
    require_shape(spec.op, "scales", scales, (norms.numel(),))
    launch(spec, partials, group_starts, norms, scales)


def scale_apply_(flat: Tensor, scales: Tensor, starts: Tensor, counts: Tensor, groups: Tensor) -> None:
    """Multiply each part of flat f32 [elements] in place by the scale of the part's group, in scales f32 [groups].

    starts i64 [parts], counts i32 [parts]: each part's first element and length. groups i32 [parts]: each part's group.
    """
    partials = starts.numel()
    spec = scale_apply_spec(partials)
    require_shape(spec.op, "counts", counts, (partials,))
    require_shape(spec.op, "groups", groups, (partials,))
    launch(spec, flat, scales, starts, counts, groups)
