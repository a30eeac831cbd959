"""Figures of captures, host syncs and memory: see `test_figures`."""

import pytest
from evidence_builders import (
    graphed,
    memory,
    paired,
    syncs,
    verdict_of,
)
from judge_cases import figures
from judge_cases_capture import MEMORY, captured, last_shape, replays, retraced, watched


def test_figures_of_a_capture_of_three_shapes_are_reported() -> None:
    last = last_shape(kernels={"gemm": 12, "clip": 4}, by_type={"kernel": 16, "event_record": 2})
    verdict = captured(
        {"captures": 3, "nodes_at_most": 18, "skipped_steps_at_most": 1},
        {"skipped": 1},
        **last | {"warmup_steps": 7, "observed_steps": 4, "observed_graph_launches": 4},
    )
    assert verdict.reason == "held"
    assert verdict.denominators == {
        "nodes": 44, "captures": 3, "observed_steps": 4, "buffers": 5, "steps": 10, "layers": 2,
        "steps_watched": 9, "replays_watched": 3,
    }  # fmt: skip
    assert figures(verdict) == {
        "replays": (10, "replays"),
        "warmup_steps": (7, "steps"),
        "uncaptured_steps": (0, "steps"),
        "nodes.a.kernel": (12, "nodes"),
        "nodes.a.memset": (1, "nodes"),
        "nodes.b.kernel": (12, "nodes"),
        "nodes.b.memset": (1, "nodes"),
        "nodes.c.kernel": (16, "nodes"),
        "nodes.c.event_record": (2, "nodes"),
        "observed_launches": (4, "graph launches"),
        "outside_share": (0.0, ""),
        "outside_operations": (5, "operations"),
        "kernels_per_layer": (6.0, "kernels"),
        "clipped_tensors": (12, "tensors"),
        "skipped_steps": (1, "steps"),
    }


def test_a_traced_capture_reports_its_operations_and_launches() -> None:
    verdict = retraced({"captures": 3}, captures=3, recorded_operations=121)
    assert verdict.denominators == {
        "nodes": 40, "captures": 3, "observed_steps": 3, "buffers": 5, "steps": 10, "steps_watched": 9,
    }  # fmt: skip
    assert figures(verdict) == {
        "replays": (10, "replays"),
        "warmup_steps": (3, "steps"),
        "uncaptured_steps": (0, "steps"),
        "observed_launches": (126, "replayed operations"),
        "skipped_steps": (0, "steps"),
    }


def test_host_syncs_of_candidate_and_control_are_reported() -> None:
    readings = [
        *syncs("synchronizing", {"dispatch_mode": 48}, steps=4).readings,
        *syncs("synchronizing", {"profiler": 36, "fake_pass": 36}, steps=3).readings,
    ]
    verdict = watched(
        replays({"profiler": 10, "sync_debug_mode": 10}, steps=5),
        syncs("synchronizing", {}, readings=readings),
        claim={"candidate": {"arm": "graphed", "exactly": 2}},
    )
    assert verdict.reason == "held"
    assert verdict.denominators == {
        "candidate_steps": 5, "candidate_detectors": 2, "control_steps": 3, "control_detectors": 3,
        "every_step": 9,
    }  # fmt: skip
    assert figures(verdict) == {
        "candidate_syncs_per_step": (2.0, "syncs"),
        "control_syncs_per_step": (12.0, "syncs"),
    }


def test_growing_memory_reports_its_samples_and_peaks() -> None:
    samples = memory([100, 200, 100, 202, 90], [400, 500, 502, 505, 504])
    run = paired(graphed([3.0, 2.9, 2.8, 2.7, 2.6], memory=[memory([1], per="recapture"), samples]))
    verdict = verdict_of(MEMORY, run, steps=5)
    assert verdict.reason == "held"
    assert verdict.denominators == {"samples": 3}
    assert figures(verdict) == {
        "allocated_growth": (pytest.approx(0.01), ""),
        "allocated_peak_bytes": (202, "bytes"),
        "reserved_growth": (pytest.approx(0.01), ""),
        "reserved_peak_bytes": (505, "bytes"),
    }


def test_syncs_of_a_reported_arm_are_printed_and_not_judged() -> None:
    verdict = watched(claim={"reported": "ungraphed"}, reported=syncs("ungraphed", {"profiler": 4, "dispatch_mode": 4}))
    assert verdict.reason == "held"
    assert verdict.message.endswith(
        "; arm ungraphed waits for the device 2 times in each step, at clip.py:7, and a replay executes "
        "none of these waits"
    )
    assert figures(verdict)["reported_syncs_per_step"] == (2.0, "syncs")
