"""Peaks of memory and the blocks of a long replay stand on the page, with their bound and their plot."""

from __future__ import annotations

from typing import Any

import numpy as np
from judge_cases_long_replay import EVERY, STEPS, block, from_late, replay
from judge_cases_peak_memory import peak, peaks
from report_views import CONTRACT, arm, contract, loss_curve, small_view

from harness.evidence.run_evidence import RunEvidence
from harness.kinds.captures import section as long_replay
from harness.kinds.memory import section as peak_memory
from harness.report.blocks import Part
from harness.report.html import render
from harness.report.view import ReportView

ARMS = {"candidate": "graphed", "baseline": "ungraphed"}
TEXT = {"title": "t", "judged_on": ["tiny"], "why": "w", "if_fails": "f", **ARMS}
PEAK: dict[str, Any] = {
    **TEXT,
    "id": "F-GRAPH-BWD-001",
    "kind": "peak_memory",
    "at_most_gib": 2.5,
    "trajectory": "F-GRAPH-BWD-001",
}
LONG: dict[str, Any] = {**TEXT, "id": "F-GRAPH-BWD-001", "kind": "long_replay", "steps": STEPS, "every": EVERY}
MIB = 2**20


def view(claim: dict[str, Any], probe: Any, **seen: Any) -> ReportView:
    """Two runs, one an arm."""
    runs = [RunEvidence(f"of-{name}", probe, {name: [arm(name, loss_curve(40), **seen[name])]}) for name in seen]
    unit = {"contract": CONTRACT["id"], "claim": claim["id"], "workload": "tiny", "runs": [run.run_id for run in runs]}
    header = small_view().header
    units = [header.units[0].model_copy(update={"runs": unit["runs"]})]
    return small_view(
        header=header.model_copy(update={"units": units}),
        contracts=[contract(claims=[claim])],
        evidence={run.run_id: run for run in runs},
    )


def peak_part(claim: dict[str, Any] | None = None, **ours: Any) -> Part:
    seen = {"ungraphed": {"peak_memory": peaks("ungraphed")}, "graphed": {"peak_memory": peaks("graphed", **ours)}}
    section = peak_memory.section(view(PEAK | (claim or {}), "peak_memory", **seen))
    assert section is not None
    (part,) = section.parts
    return part


def long_view(**ours: Any) -> ReportView:
    seen = {"ungraphed": {"long_replay": replay("ungraphed")}, "graphed": {"long_replay": replay("graphed", **ours)}}
    return view(LONG, "long_replay", **seen)


def long_part(**ours: Any) -> Part:
    section = long_replay.long_replay_section(long_view(**ours))
    assert section is not None
    (part,) = section.parts
    return part


def test_the_peak_memory_section_shows_both_arms_and_the_bound() -> None:
    part = peak_part(steps=peak(2.25))
    assert part.text == ["Allowed: 2.5 GiB allocated during the whole run."]
    assert part.runs == ["of-graphed", "of-ungraphed"]
    assert part.tables[0].rows == [
        ["graphed", "opening", "1 GiB", "1.5 GiB", "2 GiB", "512 MiB"],
        ["graphed", "steps", "2.25 GiB", "2.75 GiB", "3.25 GiB", "512 MiB"],
        ["ungraphed", "opening", "1 GiB", "1.5 GiB", "2 GiB", "512 MiB"],
        ["ungraphed", "steps", "2 GiB", "2.5 GiB", "3 GiB", "512 MiB"],
    ]


def test_the_memory_section_states_a_bound_given_as_a_ratio() -> None:
    claim = {"at_most_gib": None, "at_most_ratio": 1.5, "of": "reserved", "over": "steps"}
    assert peak_part(claim).text == ["Allowed: 1.5 times the baseline's bytes reserved during the steps."]


def test_the_peak_memory_section_reports_what_may_hide_a_peak() -> None:
    part = peak_part(resets=2, lost_peaks=1, steps=peak(device_bytes=None, outside_bytes=None, samples=0))
    assert part.text[1] == (
        "In the process of graphed, torch's peak statistics were reset 2 times and fell 1 time without a visible "
        "reset, and 0 other processes used the GPU."
    )
    assert part.tables[0].rows[1][4:] == ["–", "–"]


def test_a_long_replay_section_has_a_plot_and_the_blocks_of_both_arms() -> None:
    part = long_part(**from_late(allocated_bytes=33 * MIB, seconds=20.0))
    assert part.runs == ["of-ungraphed", "of-graphed"]
    assert part.tables[0].rows == [
        ["graphed", "40", "400", "350", "1005", "2000", "30 MiB", "33 MiB"],
        ["ungraphed", "40", "400", "350", "1005", "1005", "30 MiB", "30 MiB"],
    ]
    assert part.judged[0].plot.alt == (
        "Milliseconds a step over 40 blocks: 1000 in the first, 2000 in the last. "
        "Growth of memory: allocated 3 MiB, reserved 0 MiB."
    )


def test_a_long_replay_without_cuda_plots_no_memory() -> None:
    blocks = [block(number, allocated_bytes=None, reserved_bytes=None) for number in range(40)]
    part = long_part(blocks=blocks)
    assert "Growth" not in part.judged[0].plot.alt
    assert part.tables[0].rows[0][6:] == ["–", "–"]


def test_a_plot_of_ten_thousand_blocks_stays_below_10_kb() -> None:
    noise = np.random.default_rng(0).random((10_000, 2)).tolist()
    blocks = [block(at, seconds=9 + one, yardstick_seconds=1 + other) for at, (one, other) in enumerate(noise)]
    page = render(long_view(blocks=blocks))
    assert len(page.encode()) - len(render(long_view(blocks=blocks[:2])).encode()) < 10_000
    assert "Long replay" in page


def test_pages_without_memory_claims_have_no_memory_sections() -> None:
    assert (peak_memory.section(small_view()), long_replay.long_replay_section(small_view())) == (None, None)
