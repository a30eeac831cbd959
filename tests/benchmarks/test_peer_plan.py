"""Which arms are open at one time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from benchmarks.peer_plan import AT_OTHER_BATCHES, COSTS, DRIVER_GIB, Place, Shape, arms_at, sittings

H200, H100 = 139.8, 79.1
AT_ONCE = 16


def places(*shapes: str) -> list[Place]:
    return [(arm, shape) for shape in map(Shape.parse, shapes) for arm in arms_at(shape, 4)]


def needed(sitting: Iterable[Place]) -> float:
    return sum(COSTS[arm].gib(shape.tokens) for arm, shape in sitting)


def ready_s(plan: list[list[Place]]) -> float:
    """Until the slowest of each sitting can be timed."""
    return sum(max(COSTS[arm].ready_s for arm, _ in sitting) for sitting in plan)


@pytest.mark.parametrize("memory", [H200, H100])
@pytest.mark.parametrize("shapes", [("4x128", "4x512"), ("4x2048",), ("4x4096",), ("1x8192",), ("4x2048", "4x4096")])
def test_every_arm_is_in_a_sitting_and_every_sitting_fits_into_memory(memory: float, shapes: tuple[str, ...]) -> None:
    """A sitting is a group of arms whose processes are open at the same time."""
    asked = places(*shapes)
    plan = sittings(asked, memory, AT_ONCE)
    assert sorted(map(str, asked)) == sorted(str(place) for sitting in plan for place in sitting)
    assert all(len(sitting) <= AT_ONCE for sitting in plan)
    assert all(needed(sitting) <= memory - DRIVER_GIB for sitting in plan)


def test_compiling_arms_get_ready_in_one_sitting_when_memory_allows() -> None:
    """A sitting is a group of arms whose processes are open at the same time."""
    plan = sittings(places("4x128", "4x512"), H100, AT_ONCE)
    assert len(plan) == 2
    assert {arm for arm, _ in plan[0]} >= {arm for arm, cost in COSTS.items() if cost.ready_s >= 50}
    assert ready_s(plan) < 135


def test_quick_arms_share_a_sitting_and_slow_arms_have_another_sitting() -> None:
    """A sitting is a group of arms whose processes are open together.

    Arms at 2048 tokens on an H200 need two sittings.
    """
    plan = sittings(places("4x2048"), H200, AT_ONCE)
    assert [max(COSTS[arm].ready_s for arm, _ in sitting) for sitting in plan] == [93, 30]


@pytest.mark.parametrize("shapes", [("4x128", "4x512"), ("4x2048", "1x8192")])
def test_the_captured_step_that_all_arms_are_compared_with_is_in_the_first_sitting(shapes: tuple[str, ...]) -> None:
    """A sitting is a group of arms that are open together.

    Regression: on an H100 a ten-minute run ended before its fourth sitting, which had the captured step.
    """
    plan = sittings(places(*shapes), H100, AT_ONCE)
    compared = {place for place in places(*shapes) if place[0] in ("graphed", "graphed_fp8")}
    assert compared <= set(plan[0])


def test_an_arm_that_needs_more_memory_than_available_is_tried_without_other_arms() -> None:
    plan = sittings(places("4x512"), 6.0, AT_ONCE)
    alone = [sitting for sitting in plan if needed(sitting) > 6.0 - DRIVER_GIB]
    assert [len(sitting) for sitting in alone] == [1] * len(alone)
    assert ("hf_eager", Shape(4, 512)) in [sitting[0] for sitting in alone]


def test_without_a_gpu_only_the_number_of_arms_limits_a_sitting() -> None:
    """A sitting is a group of arms whose processes are open at the same time."""
    assert [len(sitting) for sitting in sittings(places("4x128", "4x512"), None, AT_ONCE)] == [16, 10]


@pytest.mark.parametrize(
    ("arm", "seen_gib"),
    [
        *(("graphed", 13.47), ("graphed_dense", 14.64), ("graphed_fp8", 14.21)),
        *(("hf_eager", 36.33), ("hf_reduce_overhead", 24.35), ("unsloth", 13.06)),
    ],
)
def test_extrapolated_memory_covers_the_peak_measured_at_2048_tokens(arm: str, seen_gib: float) -> None:
    """The estimate is above the peak of reserved memory in reports/2026-11-30-h200-peers, by less than a third."""
    assert seen_gib < COSTS[arm].gib(4 * 2048) < 1.3 * seen_gib


def test_shapes_of_a_different_batch_size_have_only_selected_arms() -> None:
    assert arms_at(Shape(1, 8192), 4) == AT_OTHER_BATCHES
    assert arms_at(Shape(4, 8192), 4) == tuple(COSTS)


def test_a_shape_is_parsed_from_its_printed_form() -> None:
    assert str(Shape.parse("1x8192")) == "1x8192"
    assert [str(shape) for shape in sorted(map(Shape.parse, ("1x8192", "4x2048", "1x2048")))] == [
        *("1x2048", "4x2048", "1x8192")
    ]
    for text in ("8192", "0x8192", "1x-1", "1x8192x2", "a x b"):
        with pytest.raises(ValueError, match="is not a shape; write batch size x sequence length"):
            Shape.parse(text)
