"""The throughput rule errs as seldom as it promises, measured by the script that publishes its error rates."""

import error_rates
import pytest

from harness.judge import statistics

EXPERIMENTS = 4000
SIGN_TEST = 2.0**-8
# three standard errors of a share as small as the sign test's
SLACK = 3 * (SIGN_TEST / EXPERIMENTS) ** 0.5


@pytest.mark.parametrize("noise", ["gaussian", "skewed, baseline", "skewed, candidate", "bimodal", "drifting"])
@pytest.mark.parametrize("deviation", [0.003, 0.025])
def test_at_the_demanded_ratio_a_decision_is_as_rare_as_the_sign_test_promises(noise: str, deviation: float) -> None:
    point = error_rates.simulate(noise, deviation, error_rates.DEMANDED, EXPERIMENTS, seed=1)
    assert point.passed <= SIGN_TEST + SLACK
    assert point.failed <= SIGN_TEST + SLACK


@pytest.mark.parametrize("deviation", [0.003, 0.01, 0.025])
def test_a_ratio_below_the_demanded_one_never_passes(deviation: float) -> None:
    point = error_rates.simulate("gaussian", deviation, 1.05, EXPERIMENTS, seed=1)
    assert point.passed == 0.0


@pytest.mark.parametrize(("deviation", "ratio", "power"), [(0.025, 1.20, 0.95), (0.01, 1.15, 0.99)])
def test_a_ratio_well_above_the_demanded_one_is_found(deviation: float, ratio: float, power: float) -> None:
    assert error_rates.simulate("gaussian", deviation, ratio, EXPERIMENTS, seed=1).passed >= power


def test_intervals_cover_what_they_should() -> None:
    point = error_rates.simulate("gaussian", 0.01, 1.10, EXPERIMENTS, seed=1)
    assert point.lower_bound_covers == pytest.approx(0.99, abs=0.005)
    assert point.self_intervals_cover == pytest.approx(0.95, abs=0.01)


def test_the_simulated_deviation_is_the_one_named() -> None:
    import numpy as np

    from harness.judge.statistics import log_ratio

    logs = error_rates.gaussian(np.random.default_rng(0), 2000, 0.02)
    flat = np.exp(logs).reshape(2000, 2, 8, 8)
    assert log_ratio(flat[:, 1], flat[:, 0]).std() == pytest.approx(0.02, rel=0.03)


def test_noise_common_to_all_processes_is_a_bias_that_no_repetition_shows() -> None:
    point = error_rates.simulate("common to all processes", 0.025, 1.10, EXPERIMENTS, seed=1)
    assert point.lower_bound_covers < 0.9


def test_a_judge_that_decides_otherwise_ends_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "fewest_processes", lambda _: 99)
    with pytest.raises(RuntimeError, match="and the judge says 8 processes cannot reach"):
        error_rates.simulate("gaussian", 0.003, 1.2, 10, seed=1)
