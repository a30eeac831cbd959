"""The clip against `torch.linalg.vector_norm` in float64, fused and synchronizing, per layer and global."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reference_impl.clip import EPS, ClipPlan, GradientClip
from reference_impl.config import ClipMode, ClipScope, TrainConfig

# Two layers of three tensors: below, at and above one block of 1024, one empty, one of a single element.
SIZES = (1024, 0, 1500, 1, 3000, 1023)
LAYERS = (0, 0, 0, 1, 1, 1)
CPU = torch.device("cpu")
MODES: tuple[ClipMode, ...] = ("fused", "synchronizing")


def make_clip(max_norm: float, scope: ClipScope = "per_layer", mode: ClipMode = "fused") -> GradientClip:
    config = dataclasses.replace(TrainConfig(), max_norm=max_norm, clip_scope=scope, clip_mode=mode)
    return GradientClip(SIZES, LAYERS, config, CPU)


def gradient() -> Tensor:
    return torch.randn(sum(SIZES), generator=torch.Generator().manual_seed(0))


def by_layer(flat: Tensor) -> list[Tensor]:
    return list(torch.split(flat, [sum(SIZES[:3]), sum(SIZES[3:])]))


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float(((got.double() - expected) / expected).abs().max())


class ReadBacks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts values read back to the host."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", MODES)
def test_per_layer_clipping_computes_norms_scales_and_gradients(mode: ClipMode) -> None:
    flat, clip = gradient(), make_clip(1.0, mode=mode)
    norms = torch.stack([torch.linalg.vector_norm(part.double()) for part in by_layer(flat)])
    expected = torch.cat([part.double() / (norm + EPS) for part, norm in zip(by_layer(flat), norms, strict=True)])
    clip.apply_(flat)
    # Rounding a sum of n positive terms costs at most its depth times 2^-24, halved by the root. torch sums 4000 terms
    # in vector lanes and pairwise, at a depth below 100; the scale and the product add three roundings.
    assert relative_error(clip.norms, norms) <= 64 * 2**-24
    assert relative_error(clip.scales, 1.0 / (norms + EPS)) <= 64 * 2**-24
    assert relative_error(flat, expected) <= 64 * 2**-24


@pytest.mark.parametrize("mode", MODES)
def test_the_global_clip_has_one_group_for_all_tensors(mode: ClipMode) -> None:
    flat, clip = gradient(), make_clip(2.0, "global", mode)
    norm = torch.linalg.vector_norm(flat.double())
    clip.apply_(flat)
    assert clip.norms.shape == (1,)
    assert relative_error(clip.norms, norm) <= 64 * 2**-24
    assert math.isclose(float(torch.linalg.vector_norm(flat.double())), 2.0, rel_tol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_the_clip_does_not_change_gradients_below_the_threshold(mode: ClipMode) -> None:
    flat, clip = gradient(), make_clip(1e6, mode=mode)
    before = flat.clone()
    clip.apply_(flat)
    assert torch.equal(flat, before)
    assert clip.scales.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("mode", MODES)
def test_the_clip_adds_epsilon_to_the_norm(mode: ClipMode) -> None:
    flat = torch.zeros(sum(SIZES))
    flat[0] = 1e-6
    clip = make_clip(1e-6, mode=mode)
    clip.apply_(flat)
    assert math.isclose(flat[0].item(), 5e-7, rel_tol=1e-5)  # 1e-6 / (1e-6 + 1e-6); 1e-6 without the epsilon


@pytest.mark.parametrize("mode", MODES)
def test_a_nan_gradient_makes_only_the_gradients_of_its_layer_nan(mode: ClipMode) -> None:
    flat, clip = gradient(), make_clip(1.0, mode=mode)
    flat[0] = math.nan
    clip.apply_(flat)
    first, second = by_layer(flat)
    assert bool(first.isnan().all())
    assert bool(second.isfinite().all())


def test_an_empty_tensor_has_no_partial_sum_in_the_clip() -> None:
    plan = ClipPlan.build(SIZES, LAYERS, "per_layer", CPU)
    assert [span.first_partial for span in plan.spans] == [0, 1, 1, 3, 4, 7]
    assert plan.counts.tolist() == [1024, 1024, 476, 1, 1024, 1024, 952, 1023]
    assert plan.group_starts.tolist() == [0, 3, 8]
    assert plan.starts.tolist() == [0, 1024, 2048, 2524, 2525, 3549, 4573, 5525]


def test_the_clip_computes_a_norm_of_zero_for_a_layer_of_empty_tensors() -> None:
    config = dataclasses.replace(TrainConfig(), max_norm=1.0)
    clip = GradientClip((0, 3), (0, 1), config, CPU)
    flat = torch.tensor([0.0, 3.0, 4.0])
    clip.apply_(flat)
    assert clip.norms.tolist() == [0.0, 5.0]
    assert clip.scales[0].item() == 1.0


def test_the_fused_clip_never_reads_back_and_the_synchronizing_clip_once_per_tensor() -> None:
    counts = {}
    for mode in MODES:
        clip, flat = make_clip(1.0, mode=mode), gradient()
        with ReadBacks() as read_backs:  # type: ignore[no-untyped-call]
            clip.apply_(flat)
        counts[mode] = read_backs.count
    assert counts == {"fused": 0, "synchronizing": 5}  # six tensors, one of them empty
