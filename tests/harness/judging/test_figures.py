"""Figures, units and denominators of whole verdicts: each from evidence in which no two numbers are alike."""

import math

import numpy as np
import pytest
from evidence_builders import (
    LOSSES,
    TRAJECTORY,
    arm,
    gradients,
    graphed,
    paired,
    reduction,
    twice,
    untrained,
    verdict_of,
)
from judge_cases import figures
from judge_cases_gradients import GRADIENTS_WITHIN, A, all_steps, matched, norm, unlike
from judge_cases_ranks import CLOSE, STALE, TWIN, agreeing, matching, rows_of
from judge_cases_training import changed, nudged, repeated, trajectory

from harness.evidence.arm_records import GroupNorm
from harness.judging.series import Bounds, difference
from harness.kinds.ranks.executions import odd_one


def test_a_trajectory_within_its_bound_reports_its_figures() -> None:
    verdict = trajectory(
        graphed(changed(4, LOSSES[4] + 0.0625), active=[1] * 9 + [0]),
        arm("ungraphed", end="elsewhere"),
        untrained(),
        arm("ungraphed", LOSSES + 0.03125, replica=1),
        claim={"equality": "within"},
    )
    assert verdict.reason == "held"
    assert verdict.denominators == {"steps": 10, "state_tensors": 7}
    assert figures(verdict) == {
        "max_abs_difference": (0.0625, "loss"),
        "max_abs_difference_step": (4, "step"),
        "tolerance": (0.1, "loss"),
        "steps_differing": (1, "steps"),
        "first_differing_step": (4, "step"),
        "first_exceeding_step": (None, "step"),
        "noise_floor": (0.03125, "loss"),
        "multiple_of_noise_floor": (2.0, ""),
        "final_loss_candidate": (2.0, "loss"),
        "final_loss_baseline": (2.0, "loss"),
        "final_parameters_equal": (False, ""),
        "steps_run": (10, "steps"),
        "distinct_batches": (10, "batches"),
        "clip_active_steps": (9, "steps"),
        "training_effect": (0.944444444444, "loss"),
        "training_effect_demanded": (0.2, "loss"),
        "end_max_abs_difference": (0.0, "parameter"),
        "end_max_abs_difference_tensor": ("p0", ""),
        "watched": ("parameters, buffers, optimizer, generators", ""),
        "below_any_control_loss": (0.944444444444, "loss"),
        "follows_control": (0.0, ""),
    }


def test_a_trajectory_that_differs_at_its_end_reports_its_distances() -> None:
    verdict = trajectory(graphed(changed(9, 5.0)))
    assert figures(verdict) == {
        "max_abs_difference": (3.0, "loss"),
        "max_abs_difference_step": (9, "step"),
        "tolerance": (0.1, "loss"),
        "steps_differing": (1, "steps"),
        "first_differing_step": (9, "step"),
        "within_upstream_tolerance": (False, ""),
        "noise_floor": (0.0, "loss"),
        "multiple_of_noise_floor": (math.inf, ""),
        "final_loss_candidate": (5.0, "loss"),
        "final_loss_baseline": (2.0, "loss"),
        "final_parameters_equal": (True, ""),
        "end_max_abs_difference": (0.0, "parameter"),
        "end_max_abs_difference_tensor": ("p0", ""),
        "watched": ("parameters, buffers, optimizer, generators", ""),
    }


def test_a_trajectory_beyond_its_bound_at_the_final_step_reports_the_step() -> None:
    verdict = trajectory(
        graphed(changed(9, 5.0)),
        repetition=arm("ungraphed", changed(4, 9.0), replica=1),
        claim={"equality": "within", "compare": "final"},
    )
    assert verdict.denominators == {"steps": 1, "state_tensors": 7}
    assert figures(verdict) == {
        "max_abs_difference": (3.0, "loss"),
        "max_abs_difference_step": (9, "step"),
        "tolerance": (0.1, "loss"),
        "steps_differing": (1, "steps"),
        "first_differing_step": (9, "step"),
        "first_exceeding_step": (9, "step"),
        "noise_floor": (0.0, "loss"),
        "multiple_of_noise_floor": (math.inf, ""),
        "final_loss_candidate": (5.0, "loss"),
        "final_loss_baseline": (2.0, "loss"),
        "final_parameters_equal": (True, ""),
        "end_max_abs_difference": (0.0, "parameter"),
        "end_max_abs_difference_tensor": ("p0", ""),
        "watched": ("parameters, buffers, optimizer, generators", ""),
    }


def test_figures_name_the_first_step_with_unequal_batches_or_non_finite_losses() -> None:
    tokens = figures(trajectory(graphed(tokens=[256] * 3 + [128] * 7)))
    assert tokens["first_unequal_step"] == (3, "step")
    batches = figures(trajectory(graphed(batches=[f"batch{step % 6}" for step in range(10)])))
    assert batches["first_unequal_step"] == (6, "step")
    losses = figures(trajectory(graphed(changed(4, math.nan))))
    assert losses["first_non_finite_step"] == (4, "step")


def test_a_trajectory_of_a_single_equal_step_is_reported_as_within_upstreams_bound() -> None:
    verdict = verdict_of(TRAJECTORY | {"guards": {"steps": 1}}, paired(*twice("ungraphed", [2.0]), graphed([2.0])))
    assert figures(verdict)["within_upstream_tolerance"] == (True, "")


def test_series_without_a_step_report_empty_denominators() -> None:
    verdict = trajectory(graphed([]), arm("ungraphed", []), untrained(losses=[]), arm("ungraphed", [], replica=1))
    assert verdict.denominators == {"steps": 0, "state_tensors": 7}
    assert figures(verdict) == {
        "max_abs_difference": (0.0, "loss"),
        "max_abs_difference_step": (None, "step"),
        "tolerance": (0.1, "loss"),
        "steps_differing": (0, "steps"),
        "first_differing_step": (None, "step"),
        "within_upstream_tolerance": (False, ""),
        "noise_floor": (0.0, "loss"),
        "multiple_of_noise_floor": (0.0, ""),
        "final_loss_candidate": (None, "loss"),
        "final_loss_baseline": (None, "loss"),
        "final_parameters_equal": (True, ""),
        "steps_run": (0, "steps"),
        "end_max_abs_difference": (0.0, "parameter"),
        "end_max_abs_difference_tensor": ("p0", ""),
        "watched": ("parameters, buffers, optimizer, generators", ""),
    }


def test_repeated_runs_report_their_largest_difference() -> None:
    verdict = repeated(arm("ungraphed", nudged(7), batches=["b"] * 5 + [f"b{step}" for step in range(5)]))
    assert verdict.denominators == {"steps": 10, "runs": 3, "state_tensors": 7}
    assert figures(verdict) == {
        "max_abs_difference": (4.4408920985e-16, "loss"),
        "max_abs_difference_step": (7, "step"),
        "tolerance": (1e-5, "loss"),
        "steps_differing": (1, "steps"),
        "first_differing_step": (7, "step"),
        "within_upstream_tolerance": (True, ""),
        "first_unequal_step": (0, "step"),
        "end_max_abs_difference": (0.0, "parameter"),
        "end_max_abs_difference_tensor": ("p0", ""),
        "watched": ("parameters, buffers, optimizer, generators", ""),
    }


def test_gradients_within_their_bound_report_their_figures() -> None:
    early = gradients(0, tensors=[A, reduction("b"), reduction("c")], groups=[*norm(3.0, 0.5), *norm(2.0, 0.75)])
    late = gradients(
        5, tensors=[A, unlike(5e-4, baseline_max_abs=0.25), reduction("c", digest="other", max_abs_difference=4e-4)]
    )
    verdict = matched(claim=GRADIENTS_WITHIN, execution={"gradients": [late, early], "active": [1] * 9 + [0]})
    assert verdict.reason == "held"
    assert verdict.denominators == {"steps": 2, "tensors": 3, "groups": 3, "state_tensors": 7}
    assert figures(verdict) == {
        "max_abs_difference": (5e-4, "gradient"),
        "max_abs_difference_tensor": ("b", ""),
        "max_abs_difference_step": (5, "step"),
        "max_relative_difference": (0.002, ""),
        "tensors_differing": (2, "tensors"),
        "largest_clipped_norm": (1.0, "norm"),
        "clip_threshold": (1.0, "norm"),
        "clip_active_steps": (9, "steps"),
        "watched": ("parameters, buffers, optimizer, generators", ""),
    }


def test_differing_gradients_report_the_tensor_and_the_step() -> None:
    verdict = matched(execution=all_steps(A, unlike(2e-5)))
    assert figures(verdict) == {
        "max_abs_difference": (2e-5, "gradient"),
        "max_abs_difference_tensor": ("b", ""),
        "max_abs_difference_step": (0, "step"),
        "max_relative_difference": (4e-5, ""),
        "tensors_differing": (1, "tensors"),
        "within_upstream_tolerance": (False, ""),
        "first_differing_step": (0, "step"),
        "first_differing_tensor": ("b", ""),
        "watched": ("parameters, buffers, optimizer, generators", ""),
    }


def test_gradients_equal_to_upstreams_bound_are_within_it() -> None:
    seen = figures(matched(A, unlike(1e-5)))
    assert seen["within_upstream_tolerance"] == (True, "")


@pytest.mark.parametrize(("absolute", "relative"), [(0.0, 0.0), (1e-6, math.inf)])
def test_relative_to_a_baseline_of_zero_the_difference_of_gradients_is_zero_or_infinite(
    absolute: float, relative: float
) -> None:
    seen = figures(matched(A, unlike(absolute, max_abs=absolute, baseline_max_abs=0.0)))
    assert seen["max_relative_difference"] == (relative, "")


def test_figures_name_the_first_non_finite_gradient_or_norm() -> None:
    tensor = figures(matched(A, unlike(math.inf)))
    assert tensor["first_non_finite_step"] == (5, "step")
    assert tensor["first_non_finite_tensor"] == ("b", "")
    group = figures(matched(groups=[GroupNorm(group="layer0", before=math.inf, after=1.0)]))
    assert group["first_non_finite_step"] == (5, "step")
    assert "first_non_finite_tensor" not in group


def test_a_series_counts_only_steps_beyond_the_relative_bound_as_rounding() -> None:
    bounds = Bounds(2.0, 0.01, rounding=np.array([1.0, 0.25, 0.5]))
    theirs = np.array([8.0, 1.0, 0.0])
    found = difference(theirs + np.array([0.0625, 0.125, 0.0]), theirs, "every", bounds)
    assert (found.as_rounding, found.rounding, found.largest_relative) == (1, 0.25, 0.125)
    overflowing = difference(np.array([1e300]), np.array([1e-300]), "every", bounds)
    assert (overflowing.exceeded_bound, overflowing.largest_relative) == ("max_abs_difference", math.inf)


def test_unequal_rows_are_reported_with_the_rank_that_read_them() -> None:
    for verdict in (agreeing(last=TWIN), matching(CLOSE, STALE)):
        assert figures(verdict)["rank"] == (1, "")
    unread = {"rows": [rows_of(1, step)[: 2 - (step == 2)] for step in range(10)]}
    assert "rank" not in figures(matching(CLOSE, unread))


@pytest.mark.parametrize(("digests", "odd"), [("abb", 0), ("aba", 1), ("ab", 1), ("aa", None)])
def test_the_rank_whose_digest_is_not_the_most_frequent_one_is_named(digests: str, odd: int | None) -> None:
    assert odd_one([*digests]) == odd
