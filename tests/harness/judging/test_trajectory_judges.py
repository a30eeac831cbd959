"""What the verdicts on trajectories and gradients say: steps, sizes, order of findings."""

import math
from typing import Any

import pytest
from evidence_builders import (
    LOSSES,
    STEPS,
    TRAJECTORY,
    arm,
    contract_of,
    cuda_graph,
    gradients,
    graphed,
    paired,
    reduction,
    trajectory_run,
    twice,
    untrained,
    verdict_of,
)
from judge_cases_between_steps import RESUME, loaded, saved
from judge_cases_bounds import level
from judge_cases_gradients import GRADIENTS, LARGE, A, matched, unlike
from judge_cases_training import changed, nudged, repeated, trajectory

from harness.judging.verdict import Verdict
from harness.kinds.between_steps import resume
from harness.kinds.gradients.compared_gradients import compared_tensors
from harness.kinds.trajectory import trajectory_match
from harness.kinds.trajectory.trajectory_match import multiple_of


def value(verdict: Verdict, name: str) -> object:
    return verdict.figures[name].value


def test_a_passing_trajectory_verdict_states_its_steps_state_and_training_effect() -> None:
    verdict = trajectory()
    assert verdict.message == "the losses of candidate graphed and baseline ungraphed are equal in bits at all 10 steps"
    assert verdict.denominators == {"steps": 10, "state_tensors": 7}
    assert verdict.mechanism == "cuda_graph"
    assert value(verdict, "noise_floor") == 0.0
    assert value(verdict, "multiple_of_noise_floor") == 0.0
    assert value(verdict, "distinct_batches") == 10
    assert value(verdict, "training_effect") == pytest.approx(1 - 0.5 / 9)
    assert value(verdict, "final_parameters_equal") is True


def test_a_difference_is_reported_with_its_first_step_size_and_noise() -> None:
    losses = LOSSES.copy()
    losses[[3, 6]] += [0.01, 0.04]
    repetition = arm("ungraphed", LOSSES + 0.02, replica=1)
    verdict = trajectory(graphed(losses), repetition=repetition)
    assert verdict.reason == "baseline_not_repeatable"
    assert "differs from its own repetition, by 0.02 in the loss, first at step 0" in verdict.message
    assert value(verdict, "first_differing_step") == 3
    assert value(verdict, "steps_differing") == 2
    assert value(verdict, "max_abs_difference") == pytest.approx(0.04)
    assert value(verdict, "max_abs_difference_step") == 6
    assert value(verdict, "multiple_of_noise_floor") == pytest.approx(2.0)
    assert "first at step 3" in verdict.message
    assert "2 times the noise floor of 0.02" in verdict.message


def test_a_small_difference_is_reported_as_within_upstreams_bound() -> None:
    assert value(trajectory(graphed(nudged(4))), "within_upstream_tolerance") is True
    assert value(trajectory(graphed(changed(4, 9.0))), "within_upstream_tolerance") is False


def test_a_difference_of_nan_is_not_reported_as_within_upstreams_bound() -> None:
    both = changed(4, math.nan)
    verdict = trajectory(graphed(both), arm("ungraphed", both))
    assert (verdict.reason, value(verdict, "within_upstream_tolerance")) == ("non_finite", False)
    assert value(verdict, "first_non_finite_step") == 4


def test_a_difference_over_a_noise_floor_of_zero_is_an_infinite_multiple_of_it() -> None:
    verdict = trajectory(graphed(nudged(4)))
    assert value(verdict, "multiple_of_noise_floor") == math.inf
    assert '"Infinity"' in verdict.model_dump_json()


@pytest.mark.parametrize(
    ("largest", "floor", "multiple"), [(0.0, 0.0, 0.0), (1.0, 0.0, math.inf), (1.0, 0.5, 2.0), (0.0, 0.5, 0.0)]
)
def test_a_difference_is_a_multiple_of_the_noise_floor(largest: float, floor: float, multiple: float) -> None:
    assert multiple_of(largest, floor) == multiple


def test_a_difference_of_nan_divided_by_a_noise_floor_of_zero_is_nan() -> None:
    assert math.isnan(multiple_of(math.nan, 0.0))


def test_a_difference_equal_to_its_bound_meets_the_bound() -> None:
    exact = {"equality": "within", "max_abs_difference": 0.5}
    ours, theirs = level(1.5), level(1.0)
    verdict = trajectory(
        graphed(ours), arm("ungraphed", theirs), untrained(), arm("ungraphed", theirs, replica=1), claim=exact
    )
    assert (verdict.reason, value(verdict, "first_exceeding_step")) == ("held", None)


@pytest.mark.parametrize(
    ("buffer", "reason"),
    [("norm.num_batches_tracked", "end_differs"), ("norm.running_mean", "held"), ("norm.steps", "held")],
)
def test_numbers_of_batches_that_batchnorm_counted_must_be_equal_under_any_bound(buffer: str, reason: str) -> None:
    ours, theirs = ({"buffers": {buffer: digest}} for digest in ("one", "other"))
    baselines = [arm("ungraphed", LOSSES, replica=replica, end_state=theirs) for replica in (0, 1)]
    verdict = trajectory(graphed(LOSSES, end_state=ours), *baselines, untrained(), claim={"equality": "within"})
    assert verdict.reason == reason


def test_a_counter_that_only_one_arm_has_is_not_compared() -> None:
    counted = {"buffers": {"norm.num_batches_tracked": "one"}}
    verdict = trajectory(graphed(LOSSES, end_state=counted), claim={"equality": "within"})
    assert verdict.reason == "held"


def test_a_loss_difference_that_overflows_exceeds_every_bound() -> None:
    verdict = trajectory(
        graphed(changed(4, 1.7e308)), arm("ungraphed", changed(4, -1.7e308)), claim={"equality": "within"}
    )
    assert (verdict.reason, value(verdict, "max_abs_difference")) == ("exceeds_tolerance", math.inf)


def test_only_the_final_step_is_compared_when_the_contract_compares_final() -> None:
    final = {"compare": "final"}
    assert trajectory(graphed(nudged(4)), claim=final).reason == "held"
    verdict = trajectory(graphed(nudged(9)), claim=final)
    assert (verdict.reason, value(verdict, "first_differing_step")) == ("differs", 9)
    assert verdict.denominators["steps"] == 1


def test_two_systems_may_store_frozen_weights_in_different_forms() -> None:
    other = {"baseline": "other_system"}
    run = trajectory_run()
    run.arms["other_system"] = twice("other_system", frozen="another format")
    assert verdict_of(TRAJECTORY | other, run).reason == "held"


UNSEEN = {"max_abs_difference": math.nan, "baseline_max_abs": math.inf}


@pytest.mark.parametrize(
    ("left", "made", "absolute", "size"),
    [
        (0.0, unlike(9e-3, **LARGE), 9e-3, 4.0),
        (0.5, unlike(9e-3, **LARGE), 9e-3 / 8, 0.5),
        (0.5, unlike(**{"absolute": 0.0} | UNSEEN), math.inf, math.inf),
        (0.5, reduction("b", **UNSEEN), 0.0, math.inf),
    ],
)
def test_a_difference_before_the_clip_is_scaled_as_the_clip_scales(
    left: float, made: Any, absolute: float, size: float
) -> None:
    part: Any = contract_of({"id": "C"} | GRADIENTS).claims[0]
    records = [gradients(5, tensors=[reduction("b", baseline_max_abs=left)], made=[made])]
    before, _ = compared_tensors(part, records, arm("ungraphed"))
    assert (before.absolute, before.size) == (absolute, size)


def test_a_compared_series_is_named_by_its_arms_and_metric() -> None:
    claims: Any = contract_of(TRAJECTORY | {"metric": "norm"}, {"id": "R"} | RESUME).claims
    norms: Any = {"metrics": {"norm": LOSSES}}
    [one] = trajectory_match.compared(claims[0], paired(arm("ungraphed", **norms), graphed(**norms)))
    [other] = resume.compared(claims[1], paired(saved(), loaded(), arm("ungraphed", replica=2)))
    assert one.name == "graphed against ungraphed, norm"
    assert other.name == "ungraphed, resumed against ungraphed, uninterrupted"


# --- which of several findings is reported ------------------------------------------------------------------


def test_a_real_difference_is_reported_before_an_unmet_guard() -> None:
    assert trajectory(graphed(nudged(4), end="start", active=0, skipped=1)).reason == "differs"


def test_a_missing_capture_is_reported_before_a_difference() -> None:
    assert trajectory(graphed(nudged(4), capture=cuda_graph(captured=False))).reason == "candidate_not_captured"


def test_nan_is_reported_before_an_unequal_start_and_an_unequal_start_before_unequal_batches() -> None:
    assert trajectory(graphed(changed(4, math.nan), start="x", batches=["b"] * STEPS)).reason == "non_finite"
    assert trajectory(graphed(nudged(4), start="x", batches=["b"] * STEPS)).reason == "unequal_start"
    assert trajectory(graphed(nudged(4), batches=["b"] * STEPS)).reason == "unequal_batches"


def test_unequal_batches_also_report_the_first_differing_loss() -> None:
    verdict = trajectory(graphed(nudged(4), batches=["batch0", *["stale"] * 9]))
    assert (verdict.reason, value(verdict, "first_unequal_step")) == ("unequal_batches", 1)
    assert value(verdict, "first_differing_step") == 4


def test_the_earliest_series_that_is_not_finite_is_named() -> None:
    verdict = trajectory(graphed(changed(7, math.nan)), arm("ungraphed", changed(3, -math.inf)))
    assert verdict.message == "the loss of baseline ungraphed is -inf at step 3"


def test_the_worst_repetition_is_reported() -> None:
    verdict = repeated(arm("ungraphed", LOSSES + 0.5))
    assert value(verdict, "max_abs_difference") == pytest.approx(0.5)
    assert "run 2 of ungraphed and run 0 of ungraphed" in verdict.message


def test_a_gradient_difference_names_step_and_tensor() -> None:
    verdict = matched(A, unlike(3e-6))
    assert value(verdict, "first_differing_step") == 5
    assert value(verdict, "first_differing_tensor") == "b"
    assert value(verdict, "max_relative_difference") == pytest.approx(6e-6)
    assert value(verdict, "within_upstream_tolerance") is True
    assert verdict.denominators == {"steps": 2, "tensors": 2, "groups": 2, "state_tensors": 7}


def test_a_passing_gradient_verdict_states_its_tensors_and_steps() -> None:
    assert matched().message == (
        "the gradients of 2 tensors are equal in bits to ungraphed's at 2 steps, and all 2 clipped norms are at most 1"
    )
