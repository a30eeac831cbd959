"""The throughput rule errs as seldom as it promises, measured by the script that publishes its error rates."""

import json
from functools import partial

import error_rates
import measured_noise
import numpy as np
import pytest
import simulated_noise
from budget import slow_but
from error_rates import ABOVE_5, ABOVE_9, DEMANDED, Point, Setting, wanted
from simulated_noise import COMMON, DISTURBED, INDEPENDENT, OUTLIERS, Shape

from harness.judging import statistics
from harness.judging.statistics import as_found, undisturbed

EXPERIMENTS = 4000


def slack(rate: float) -> float:
    """Three standard errors of a share as small."""
    return float(3 * (rate / EXPERIMENTS) ** 0.5)


def simulated(name: str, deviation: float, ratio: float, measurements: int = 1, processes: int = 12) -> Point:
    noise = (INDEPENDENT | OUTLIERS | COMMON | DISTURBED)[name]
    setting = Setting("independent", name, noise, deviation, processes=processes, measurements=measurements)
    [point] = error_rates.simulate(setting, [ratio], EXPERIMENTS, seed=1)
    return point


def paced(name: str, ratio: float) -> Point:
    """With the processor's pace measured beside each block."""
    [point] = error_rates.simulate(Setting("paced", name, DISTURBED[name], 0.003, paced=True), [ratio], EXPERIMENTS, 1)
    return point


@pytest.mark.parametrize("name", [*INDEPENDENT, *OUTLIERS])
@pytest.mark.parametrize("deviation", slow_but([0.025], [0.003, 0.025, 0.1]))
def test_if_the_true_ratio_equals_the_demanded_ratio_a_pass_is_rare_for_noise_of_any_shape(
    name: str, deviation: float
) -> None:
    assert simulated(name, deviation, DEMANDED).passed <= 0.005 + slack(0.005)


@pytest.mark.parametrize(
    ("name", "measurements", "rate"),
    [("common to a measurement, 1 %", 1, 0.005), ("common to a measurement, 2.5 %", 2, 0.02)],
)
def test_if_the_true_ratio_equals_the_demanded_ratio_a_pass_is_rare_under_common_noise(
    name: str, measurements: int, rate: float
) -> None:
    assert simulated(name, 0.001, DEMANDED, measurements).passed <= rate + slack(rate)


@pytest.mark.parametrize("share", [name for name in DISTURBED if not name.startswith("75")])
def test_disturbed_baseline_blocks_rarely_pass_a_ratio_below_the_demanded_ratio(share: str) -> None:
    assert simulated(share, 0.003, 1.05).passed <= 0.005 + slack(0.005)


def test_a_claim_whose_baseline_is_disturbed_in_three_of_four_blocks_passes_rarely() -> None:
    assert simulated("75% of the baseline's blocks disturbed", 0.003, 1.05).passed < 0.1


@pytest.mark.parametrize("name", DISTURBED)
@pytest.mark.parametrize("ratio", [1.05, DEMANDED])
def test_with_recorded_paces_disturbed_blocks_rarely_cause_a_pass(name: str, ratio: float) -> None:
    assert paced(name, ratio).passed <= 0.005 + slack(0.005)


def test_with_recorded_paces_a_speedup_is_proven_although_a_quarter_of_blocks_is_disturbed() -> None:
    name = "25% of the baseline's blocks disturbed"
    assert paced(name, 1.05).failed >= 0.95
    assert paced(name, ABOVE_5).passed >= 0.95


@pytest.mark.parametrize("deviation", [0.003, 0.01, 0.025])
def test_a_ratio_below_the_demanded_one_never_passes(deviation: float) -> None:
    assert simulated("bell-shaped", deviation, 1.05).passed == 0.0


@pytest.mark.parametrize(
    ("name", "deviation", "ratio"),
    [
        ("bell-shaped", 0.01, ABOVE_5),
        ("two-humped", 0.01, ABOVE_5),
        ("skewed, candidate", 0.01, ABOVE_5),
        ("one slow baseline", 0.01, ABOVE_9),
        ("one slow candidate", 0.01, ABOVE_9),
    ],
)
def test_a_ratio_well_above_the_demanded_ratio_passes_in_95_percent_of_experiments(
    name: str, deviation: float, ratio: float
) -> None:
    assert simulated(name, deviation, ratio).passed >= 0.95


def test_one_slow_baseline_process_does_not_hide_a_failing_ratio() -> None:
    assert simulated("one slow baseline", 0.01, 1.0).failed >= 0.95


def test_confidence_intervals_reach_their_stated_coverage() -> None:
    point = simulated("bell-shaped", 0.01, DEMANDED)
    assert point.lower_bound_covers >= 0.99
    assert point.self_intervals_cover == pytest.approx(0.95, abs=0.01)


def test_simulated_bell_shaped_noise_has_the_stated_deviation() -> None:
    logs = simulated_noise.bell_shaped(np.random.default_rng(0), Shape(2000, 8, 4), 0.02)
    flat = np.exp(logs).reshape(2000, 2, 8, 8)
    assert np.log(as_found(flat[:, 1]) / as_found(flat[:, 0])).std() == pytest.approx(0.02, rel=0.03)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_simulated_disturbances_have_the_requested_share_in_runs_of_four_blocks(share: float) -> None:
    logs = simulated_noise.disturbed(share, np.random.default_rng(0), Shape(2000, 8, 4), 0.001)
    slow = logs[:, 1].reshape(-1, 8) > 0.2
    assert slow.mean() == pytest.approx(share, abs=0.02)
    assert (slow[:, :-1] & ~slow[:, 1:]).sum() / slow[:, :-1].sum() == pytest.approx(0.25, abs=0.02)


def test_simulated_measurements_have_independent_common_noise() -> None:
    setting = Setting(
        "common", "c", partial(simulated_noise.common_to_a_measurement, 0.1), 0.001, processes=5, measurements=2
    )
    baseline = setting.draw(3000, seed=0)[:, 1].mean(axis=(-1, -2))
    assert baseline[:, :5].std(axis=1).max() < 0.01
    assert abs(np.corrcoef(baseline[:, 0], baseline[:, 5])[0, 1]) < 0.1


def test_resampled_noise_draws_whole_processes() -> None:
    pool = np.arange(3 * 2 * 4 * 2, dtype=float).reshape(3, 2, 4, 2)
    drawn = measured_noise.resampled(pool, np.random.default_rng(0), Shape(50, 5, 4), 0.0)
    assert drawn.shape == (50, 2, 5, 4, 2)
    for process in np.moveaxis(drawn, 2, 1).reshape(-1, 2, 4, 2):
        assert any(np.array_equal(process, each) for each in pool)


def test_published_processes_are_relative_to_an_undisturbed_step() -> None:
    found = measured_noise.pools(error_rates.REPORTS)
    assert set(found) >= {5, 20}
    for pool in found.values():
        quartiles = np.log(undisturbed(np.exp(pool).reshape(*pool.shape[:2], -1)))
        assert np.abs(np.median(quartiles, axis=0)).max() < 0.1


def test_the_stored_step_times_are_of_the_listed_runs() -> None:
    assert [run["run"] for run in measured_noise.kept(error_rates.REPORTS)] == list(measured_noise.RUNS)


def test_step_times_are_read_from_a_run_in_seconds_with_the_candidate_first() -> None:
    run = "gates/2026-12-01-h200-gate-accumulation"
    [measurement] = measured_noise.timed(error_rates.REPORTS, run)["measurements"]
    claims = json.loads((error_rates.REPORTS / run / "verdicts.json").read_text())["claims"]
    [claim] = [claim for claim in claims if claim["claim"] == "F-FP16-002"]
    seconds = np.array(measurement["seconds"])
    assert seconds.shape == (5, 2, measured_noise.BLOCKS)
    judged = [claim["figures"][f"{arm}_step_ms"]["value"] for arm in ("candidate", "baseline")]
    assert np.median(seconds, axis=(0, 2)) * 1e3 == pytest.approx(judged, rel=0.03)


def test_one_measurement_cannot_detect_noise_common_to_all_processes() -> None:
    assert simulated("common to a measurement, 2.5 %", 0.001, DEMANDED).passed > 0.1


def test_repeating_a_measurement_until_it_passes_raises_the_false_pass_rate() -> None:
    noise = COMMON["common to a measurement, 2.5 %"]
    setting = Setting("tries", "common to a measurement, 2.5 %", noise, 0.01)
    [once] = error_rates.simulate(setting, [1.09], 300, seed=1)
    assert error_rates.tried_again(setting, 1.09, 300, seed=1).passed > 2 * once.passed


def test_an_error_rate_above_its_limit_is_reported_as_missed() -> None:
    point = simulated("bell-shaped", 0.01, DEMANDED)
    assert wanted(point) == ("PASS at most 0.5%", True)
    object.__setattr__(point, "passed", 0.006)
    assert wanted(point) == ("PASS at most 0.5%", False)


def test_the_error_rate_script_stops_if_the_judge_decides_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "fewest_processes", lambda _: 99)
    with pytest.raises(RuntimeError, match="but the judge says 12 processes cannot reach"):
        simulated("bell-shaped", 0.003, 1.2)
