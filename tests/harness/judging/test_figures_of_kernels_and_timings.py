"""Figures of the kernel judges, of throughput and of composite claims: see `test_figures`."""

import math
from typing import Any

import numpy as np
import pytest
from evidence_builders import sample, timed_run, trajectory_run, verdict_of
from judge_cases import figures
from judge_cases_capture import CAPTURE
from judge_cases_kernel_match import GRID, agreed, beside_peers, compared, in_terms
from judge_cases_kernels import WARM, compiled, covered, kernel, prewarmed, targeted
from judge_cases_ratios import measured, stalling, stalling_twice
from judge_cases_throughput import composite, processes, timed

from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import Telemetry


def test_kernels_that_fit_the_device_report_their_counts() -> None:
    verdict = targeted(planned=[kernel(targets=["compute_80", "sm_90a"])], used=[kernel("clip"), kernel("norm")])
    assert verdict.denominators == {"kernels": 3}
    assert figures(verdict) == {
        "target": ("sm_90", ""),
        "kernels.compute_80": (1, "kernels"),
        "kernels.sm_90a": (3, "kernels"),
        "kernels_mismatched": (0, "kernels"),
        "driver_ptx_version": ("9.0", ""),
    }


def test_figures_name_the_kernels_that_do_not_fit_the_device() -> None:
    verdict = targeted(
        planned=[kernel("norm", targets=["sm_100"]), kernel("clip", targets=["sm_120"])], used=[kernel()]
    )
    assert verdict.denominators == {"kernels": 3}
    assert (
        verdict.message
        == "the PTX of 2 of 3 kernels does not fit sm_90 (policy: loadable): clip (sm_120), norm (sm_100)"
    )
    assert figures(verdict) == {
        "target": ("sm_90", ""),
        "kernels.sm_100": (1, "kernels"),
        "kernels.sm_120": (1, "kernels"),
        "kernels.sm_90a": (1, "kernels"),
        "kernels_mismatched": (2, "kernels"),
        "first_mismatched_key": ("clip", ""),
    }


def test_figures_of_prewarmed_steps_in_full_memory_are_reported() -> None:
    verdict = prewarmed({"used": [kernel()]}, handles={"cublas": 0.5, "cudnn": 2.5})
    assert verdict.reason == "held"
    assert verdict.denominators == {
        "planned_kernels": 2, "used_kernels": 1, "jit_events": 2, "steps_after_fill": 2,
    }  # fmt: skip
    assert figures(verdict) == {
        "keys_missing": (0, "keys"),
        "late_jit_events": (0, "events"),
        "handles": (2, "handles"),
        "free_bytes_after_fill": (3 * 2**20, "bytes"),
    }


def test_figures_name_the_kernel_keys_that_were_not_prewarmed() -> None:
    planned = covered(planned=[kernel("norm")])
    assert planned.denominators == {"planned_kernels": 1, "used_kernels": 2}
    assert figures(planned) == {"keys_missing": (2, "keys"), "first_missing_key": ("clip", "")}
    never_compiled = figures(prewarmed(events=[]))
    assert never_compiled["keys_missing"] == (0, "keys")
    assert never_compiled["first_missing_key"] == ("clip", "")


def test_kernels_with_different_ptx_report_the_first_key() -> None:
    used = [kernel(key, ptx_digest="other") for key in ("gemm", "clip")]
    assert figures(covered(used=used)) == {"keys_missing": (0, "keys"), "first_differing_key": ("clip", "")}


def test_late_compilations_report_their_number_and_the_first_key() -> None:
    late = [compiled("norm", phase="train", seconds=3.5), compiled("clip", phase="upload", seconds=2.5)]
    verdict = prewarmed(events=[*WARM, *late])
    assert verdict.denominators == {"planned_kernels": 2, "used_kernels": 2, "jit_events": 4}
    assert figures(verdict) == {
        "keys_missing": (0, "keys"),
        "late_jit_events": (2, "events"),
        "first_late_key": ("norm", ""),
    }


def test_agreeing_kernels_report_their_largest_errors() -> None:
    errors = [(1e-6, 2e-6, 3e-6), (4e-6, 1e-6, 2e-6), (1e-3, 2e-3, 3e-3), (2e-3, 1e-3, 4e-3)]
    names = ("error_vs_fp64", "error_vs_naive", "naive_error_vs_fp64")
    wrong: list[dict[str, Any]] = [dict(zip(names, each, strict=True)) for each in errors]
    shapes = ("16x16", "5x3", "16x16", "5x3")
    points = zip(GRID, shapes, wrong, strict=True)
    cases = [compared(dtype, shape=shape, **changes) for (dtype, _), shape, changes in points]
    verdict = agreed(
        {"operations": ["gemm", "clip"], "magnitudes": [1.0]},
        cases=[
            *cases,
            compared(magnitude=1e5, error_vs_fp64=1.0),
            compared(operation="clip"),
            compared("bfloat16", operation="clip"),
            compared(operation="norm"),
        ],
        compiled=[kernel(), kernel("clip")],
    )
    assert verdict.reason == "held"
    assert verdict.denominators == {"cases": 6, "operations": 2}
    assert figures(verdict) == {
        "max_error_vs_fp64.float32": (4e-6, ""),
        "max_error_vs_naive.float32": (2e-6, ""),
        "max_naive_error_vs_fp64.float32": (3e-6, ""),
        "max_error_vs_fp64.bfloat16": (2e-3, ""),
        "max_error_vs_naive.bfloat16": (2e-3, ""),
        "max_naive_error_vs_fp64.bfloat16": (4e-3, ""),
        "max_peer_error_vs_fp64.bfloat16": (1e-6, ""),
        "max_peer_error_vs_fp64.float32": (1e-6, ""),
        "compiled_kernels": (2, "kernels"),
    }


def test_kernels_with_peers_report_errors_relative_to_the_peer() -> None:
    verdict = in_terms(cases=beside_peers({"own": 1e-6, "theirs": 2e-6}, {"own": 3e-6, "theirs": 1e-6}))
    assert verdict.reason == "held"
    found = {name: value for name, (value, _) in figures(verdict).items() if "peer" in name}
    assert found == {
        "max_peer_error_vs_fp64.bfloat16": 1e-6,
        "max_peer_error_vs_fp64.float32": 2e-6,
        "over_peer.gemm.bfloat16": 0.000256,  # of a unit roundoff, since the peer errs by less
        "over_peer.gemm.float32": 1.5,
    }


def test_figures_name_the_kernel_case_with_non_finite_output() -> None:
    verdict = agreed(last={"finite": False})
    assert verdict.denominators == {"cases": 4, "operations": 1}
    assert figures(verdict) == {"first_non_finite_case": ("gemm bfloat16 16x16 at magnitude 1e+05", "")}


CANDIDATE = [0.010, 0.0101, 0.0102, 0.010]
BASELINE = [0.012, 0.0118, 0.0121, 0.0122]
SPREAD = [1.0, 1.002, 0.998, 1.001, 0.999, 1.003, 0.997, 1.0]


def eight_processes() -> list[RunEvidence]:
    """A machine with something of everything, within wide limits; the last process saw the most of it."""
    quiet = Telemetry(samples=[sample(), sample(throttle_reasons=["sw_power_cap"])])
    busy = Telemetry(
        samples=[
            sample(throttle_reasons=["sw_power_cap"]),
            sample(throttle_reasons=["hw_slowdown"], foreign_processes=2),
            sample(host_load_per_core=0.75, sm_clock_mhz=1881.0, throttle_reasons=["sw_power_cap"]),
            sample(throttle_reasons=["sw_power_cap", "hw_slowdown"]),
        ]
    )
    return [
        timed_run(index, CANDIDATE, [factor * each for each in BASELINE], telemetry=busy if index == 7 else quiet)
        for index, factor in enumerate(SPREAD)
    ]


def interval(logs: list[float], confidence: float) -> tuple[float, float]:
    """Two-sided interval of the mean with one of eight trimmed on each side, by scipy's own words."""
    from scipy import stats

    low, high = stats.mstats.trimmed_mean_ci(logs, limits=(0.125, 0.125), alpha=1 - confidence)
    return float(low), float(high)


def winsorized_deviation(logs: list[float]) -> float:
    from scipy import stats

    return float(np.std(stats.mstats.winsorize(np.array(logs), limits=(0.125, 0.125)), ddof=1))


def test_a_timing_reports_ratios_bounds_and_machine_figures() -> None:
    limits = {"foreign_gpu_processes": 2, "throttled_share": 0.5, "host_load_per_core": 0.8}
    verdict = timed(eight_processes(), {"limits": limits, "at_least": 1.125})
    assert verdict.reason == "held"
    assert verdict.denominators == {
        "processes": 8,
        "blocks": 64,
        "telemetry_samples": 18,
        "state_tensors": 7,
    }
    # lower quartiles and medians of the blocks: 0.0100 and 0.01005, 0.01195 and 0.01205 times the factor
    logs = [math.log(factor * 0.01195 / 0.01005) for factor in SPREAD]
    generous = [math.log(factor * 0.01205 / 0.0100) for factor in SPREAD]
    low, high = interval(logs, 0.98)
    mean, margin = (low + high) / 2, math.hypot((high - low) / 2, 0.0275)
    ratios = {f"ratio.process_{index}": (pytest.approx(math.exp(each)), "x") for index, each in enumerate(logs)}
    # first blocks of a round against the second, the same in every process: 0.0101 / 0.01005 by the median, and by
    # the lower quartile 0.012025 / 0.0119
    candidate, baseline = 0.0101 / 0.01005, 0.012025 / 0.0119
    assert figures(verdict) == {
        **{f"untimed_helper_share.{arm}": (0.0, "") for arm in ("graphed", "ungraphed")},
        "mean_ratio": (pytest.approx(math.exp(mean)), "x"),
        "generous_mean_ratio": (pytest.approx(math.exp(sum(interval(generous, 0.98)) / 2)), "x"),
        "lower_bound": (pytest.approx(math.exp(mean - margin)), "x"),
        "upper_bound": (pytest.approx(math.exp(sum(interval(generous, 0.98)) / 2 + margin)), "x"),
        "margin": (pytest.approx(math.exp(margin)), "x"),
        "demanded_ratio": (1.125, "x"),
        "missed_bias": (pytest.approx(baseline), "x"),
        "log_ratio_deviation": (pytest.approx(winsorized_deviation(logs)), ""),
        "self_ratio_candidate_low": (pytest.approx(candidate), "x"),
        "self_ratio_candidate_high": (pytest.approx(candidate), "x"),
        "self_ratio_baseline_low": (pytest.approx(baseline), "x"),
        "self_ratio_baseline_high": (pytest.approx(baseline), "x"),
        "candidate_step_ms": (pytest.approx(10.05), "ms"),
        "baseline_step_ms": (pytest.approx(12.05), "ms"),
        **ratios,
        "power_capped_share": (0.75, ""),
        "foreign_gpu_processes": (2.0, ""),
        "throttled_share": (0.5, ""),
        "sm_clock_spread": (0.05, ""),
        "host_load_per_core": (0.75, ""),
        "baseline_idle_share": (0.0, ""),
        "watched": ("parameters, buffers, optimizer, generators", ""),
    }


def test_figures_state_the_interval_of_an_arms_ratio_with_itself() -> None:
    runs = [
        timed_run(index, [0.01, 0.01, 0.01 * factor, 0.01], [0.012, 0.012, 0.012, 0.012 * factor])
        for index, factor in enumerate(SPREAD)
    ]
    seen = figures(timed(runs))
    by_median = [math.log((1 + factor) / 2) for factor in SPREAD]
    by_quartile = [math.log(min(1, factor) + abs(factor - 1) / 4) for factor in SPREAD]
    (low, high), (least, most) = interval(by_median, 0.95), interval(by_quartile, 0.95)
    ends = [seen[f"self_ratio_{name}"] for name in ("candidate_low", "candidate_high", "baseline_low", "baseline_high")]
    expected = [low, high, -most, -least]
    assert ends == [(pytest.approx(math.exp(end), abs=1e-9), "x") for end in expected]
    assert seen["missed_bias"] == (pytest.approx(math.exp(max(map(abs, expected))), abs=1e-9), "x")


def test_figures_state_the_ratio_over_all_blocks_of_a_stalling_candidate() -> None:
    """One block of eight takes ten times as long, so the time grows to 17/8.

    With two measurements, only the second has such blocks.
    """
    assert figures(stalling(1.5, 10.0))["sustained_ratio"] == (pytest.approx(1.5 * 8 / 17), "x")
    assert figures(stalling_twice(second=10.0))["sustained_ratio"] == (pytest.approx(1.5 * 8 / 17), "x")


def test_each_of_two_measurements_reports_its_own_figures() -> None:
    seen = figures(measured(processes(1.2), processes(1.3)))
    names = ["mean_ratio", "generous_mean_ratio", "lower_bound", "upper_bound", "margin", "missed_bias"]
    for measurement, ratio in enumerate((1.2, 1.3)):
        alone = figures(timed(processes(ratio)))
        assert {name: seen[f"measurement_{measurement}.{name}"] for name in names} == {
            name: alone[name] for name in names
        }
    assert seen["mean_ratio"] == (pytest.approx(math.sqrt(1.2 * 1.3), rel=1e-3), "x")
    assert seen["ratio.process_15"] == (pytest.approx(1.3 * 0.99975), "x")


def test_a_composite_reports_the_figures_of_its_parts() -> None:
    parts = {"capture": verdict_of(CAPTURE, trajectory_run())}
    verdict = composite(trajectory_run())
    seen = figures(verdict)
    assert seen["capture.status"] == ("PASS", "")
    assert seen["trajectory_match.status"] == ("PASS", "")
    assert seen["trajectory_match.max_abs_difference"] == (0.0, "loss")
    of_capture = {name: figure for name, figure in seen.items() if name.startswith("capture.")}
    own = {f"capture.{name}": figure for name, figure in figures(parts["capture"]).items()}
    assert of_capture == own | {"capture.status": ("PASS", "")}
    assert verdict.denominators == {
        "capture.nodes": 13, "capture.captures": 1, "capture.observed_steps": 3, "capture.buffers": 5,
        "capture.steps": 10, "capture.layers": 2, "trajectory_match.steps": 10, "trajectory_match.state_tensors": 7,
        "capture.steps_watched": 9, "capture.replays_watched": 3,
    }  # fmt: skip


def test_figures_state_the_processes_needed_if_too_few_ran_for_the_confidence() -> None:
    assert figures(timed(processes(1.2)[:6], {"processes": 6}))["processes_to_decide"] == (7, "processes")


@pytest.mark.parametrize(("slow", "needed"), [(1.1, 9), (0.8, None)])
def test_an_undecided_ratio_reports_the_processes_that_would_decide(slow: float, needed: int | None) -> None:
    """Two of eight processes are slow. In one case they are one too many, and in the other they are too slow."""
    verdict = timed(processes(1.2, [*SPREAD[:6], slow / 1.2, slow / 1.2]))
    assert (verdict.reason, figures(verdict)["processes_to_decide"]) == ("undecided_ratio", (needed, "processes"))


def test_the_measurement_that_needs_more_processes_determines_the_estimate() -> None:
    wide = processes(1.2, [*SPREAD[:6], 1.1 / 1.2, 1.1 / 1.2])
    assert figures(measured(wide, processes(1.2)))["processes_to_decide"] == (9, "processes")
    assert figures(measured(wide, processes(1.1)))["processes_to_decide"] == (None, "processes")
    assert figures(measured(processes(1.2), processes(1.0)))["processes_to_decide"] == (None, "processes")
