"""`equality: noise` needs no bound, runs both arms several times, and is for trajectories alone."""

from __future__ import annotations

from typing import Any

import pytest
from evidence_builders import TRAJECTORY
from pydantic import ValidationError

from harness.contract.base import GradientDemand
from harness.kinds.between_steps.model import Resume
from harness.kinds.gradients.model import GradientMatch
from harness.kinds.speed.model import trajectory_problems
from harness.kinds.trajectory.model import Repeatability, TrajectoryMatch
from harness.planning.run_builder import _steps_within

TEXTS = ("id", "max_abs_difference")


def claim(**changes: Any) -> TrajectoryMatch:
    given = {name: value for name, value in TRAJECTORY.items() if name not in TEXTS}
    return TrajectoryMatch.model_validate({**given, "equality": "noise", **changes})


def test_a_claim_with_equality_noise_needs_no_bound_and_runs_both_arms_equally_often() -> None:
    assert list(claim().contradictions()) == []
    assert claim().replicas() == {"graphed": 5, "ungraphed": 5}
    assert claim(runs=8).replicas() == {"graphed": 8, "ungraphed": 8}
    assert claim().gradients() == GradientDemand("graphed", None, (0, 1, 2, -1), also=("ungraphed",))
    assert claim().demanded()["equality"].reasons == ("beyond_noise",)


@pytest.mark.parametrize("runs", [4, 9])
def test_a_number_of_runs_too_small_for_the_error_rate_or_too_large_to_divide_is_refused(runs: int) -> None:
    with pytest.raises(ValidationError, match="runs"):
        claim(runs=runs)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"max_abs_difference": 0.1}, "max_abs_difference"),
        ({"max_relative_difference": 0.1}, "max_relative_difference"),
        ({"ends": {"control": "nudged", "at_most": 0.01}}, "ends"),
        ({"compare": "final"}, "compare"),
        ({"equality": "bitwise", "max_abs_difference": 0.1, "runs": 5}, "runs"),
    ],
)
def test_a_bound_that_decides_nothing_under_the_claims_equality_is_refused(changes: dict[str, Any], path: str) -> None:
    [problem] = claim(**changes).contradictions()
    assert problem.path == (path,)
    assert problem.remedy


@pytest.mark.parametrize("kind", [GradientMatch, Repeatability, Resume])
def test_gradient_repeatability_and_resume_claims_do_not_accept_noise_as_equality(kind: type) -> None:
    with pytest.raises(ValidationError, match="'bitwise' or 'within'"):
        kind.model_validate({"equality": "noise"})  # type: ignore[attr-defined]


def test_equality_noise_of_timed_steps_is_refused_unless_several_processes_time_them() -> None:
    noise, bits = {"NOISE": [claim()]}, {"BITS": [claim(equality="bitwise", max_abs_difference=0.1)]}
    assert list(trajectory_problems("NOISE", noise, several_runs=True)) == []
    [problem] = trajectory_problems("NOISE", noise)
    assert "in bits or within a bound" in problem.rule
    assert list(trajectory_problems("BITS", bits)) == []


def test_steps_from_the_end_are_counted_within_the_workload() -> None:
    assert _steps_within([0, 1, 2, -1], 50) == [0, 1, 2, 49]
    assert _steps_within([0, 1, 2, -1], 2) == [0, 1]
