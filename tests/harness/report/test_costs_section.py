"""Where the time went: on the page, in one line, and from one run directory to another."""

from __future__ import annotations

import re

import pytest
from report_views import small_view
from times_builders import STARTED, clocked, old

from harness.evidence.read_run import WorkerTimes
from harness.report.blocks import Section
from harness.report.compare import compare
from harness.report.html import render
from harness.report.sections.costs import section, summary
from harness.run_directory.costs import Costs, costs


def cost_of(*workers: WorkerTimes, has_gpu: bool = True) -> Costs:
    return costs({f"run{place}": [worker] for place, worker in enumerate(workers)}, {}, has_gpu=has_gpu)


def shown(seen: Costs) -> Section:
    drawn = section(small_view(costs=seen))
    assert drawn is not None
    return drawn


def trained(steps: float, *, started: float = STARTED, gpu: str | None = "GPU-1") -> WorkerTimes:
    """2 s of imports, then steps, then 1 s of its end."""
    return clocked(("plain.0: steps", 2.0), end=2.0 + steps, ended=3.0 + steps, started=started, gpu=gpu, processor=1.5)


TWO = cost_of(trained(10.0), trained(1200.0, started=STARTED + 6.5))
OLD = cost_of(old(("start", 0.0), ("plain.0: open", 3.0), ("plain.0: steps", 3.25), end=14.25))


def test_a_run_without_times_has_no_costs_section() -> None:
    assert section(small_view()) is None
    assert summary(Costs()) == ""


def test_the_costs_summary_states_the_duration_and_its_kinds_in_one_line() -> None:
    assert summary(TWO) == (
        "1,210 s by the clock, 1,210 s of GPU time, 2 runs of 1,216 s: judged training 1,210 s · "
        "interpreter start and imports 4.0 s · digests and end 2.0 s"
    )
    assert summary(OLD) == ("1 run of 14 s: judged training 11 s · interpreter start and imports 3.0 s · opening 0.2 s")


def test_the_costs_section_of_a_run_without_gpu_does_not_mention_gpus() -> None:
    drawn = shown(cost_of(trained(10.0, gpu=None)))
    assert drawn.lead.startswith("13 s by the clock, 1 run of 13 s: judged training 10 s")
    assert "GPU" not in drawn.parts[0].text[0] + drawn.parts[0].plots[0].alt
    assert drawn.parts[0].tables[0].columns == ["", "seconds of runs", "%"]


def test_the_costs_line_names_the_largest_kinds_and_sums_the_rest() -> None:
    names = ("plain: open", "plain: warm-up", "timed", "watch launches", "plain.0: census")
    phases = [(name, 2.0 + 10 * place) for place, name in enumerate(names)]
    assert summary(cost_of(clocked(*phases, end=55.0, ended=55.5))).endswith(
        ": census and capture evidence 13 s · opening 10 s · warm-up 10 s · timed blocks 10 s · all else 12 s"
    )


def test_the_costs_table_lists_seconds_by_kind_with_their_gpu_seconds() -> None:
    [table] = shown(TWO).parts[0].tables
    assert table.columns == ["", "seconds of runs", "%", "seconds of GPUs"]
    assert sorted(table.numeric) == [1, 2, 3]
    assert table.rows == [
        ["interpreter start and imports", "4.0", "0", "3.0"],
        ["judged training", "1,210.0", "100", "1,205.0"],
        ["digests and end", "2.0", "0", "1.5"],
        ["all", "1,216.0", "100", "1,209.5"],
    ]


def test_bars_in_the_costs_section_are_as_long_as_the_seconds_and_filled_to_the_gpu_seconds() -> None:
    [plot] = shown(cost_of(trained(10.0), trained(6.0, gpu=None))).parts[0].plots
    widths = [
        int(width) for width in re.findall(r"M\d+ \d+l(\d+) 0 0 \d+", plot.body)
    ]  # of each bar, filled ones first
    filled, lengths = widths[:3], widths[3:]
    assert lengths == pytest.approx([max(lengths) * share for share in (4 / 16, 1, 2 / 16)], abs=1)
    assert filled == pytest.approx([max(lengths) * share for share in (2 / 16, 10 / 16, 1 / 16)], abs=1)
    assert "judged training 16.0 s, 10.0 s of GPUs;" in plot.alt


def test_the_costs_section_lists_runs_by_duration_with_their_largest_kinds() -> None:
    [table] = shown(TWO).parts[1].tables
    assert table.columns == ["run", "seconds", "judged training", "interpreter start and imports", "digests and end"]
    assert table.rows == [["run1", "1,203.0", "1,200.0", "2.0", "1.0"], ["run0", "13.0", "10.0", "2.0", "1.0"]]


def test_the_costs_section_shows_the_longest_runs_and_folds_the_others() -> None:
    first, more = shown(cost_of(*(trained(10.0 + place) for place in range(7)))).parts[1].tables
    assert ([row[0] for row in first.rows], first.folded) == (["run6", "run5", "run4", "run3", "run2"], False)
    assert ([row[0] for row in more.rows], more.folded, more.caption) == (["run1", "run0"], True, "2 more runs")


def test_rare_kinds_of_cost_share_the_last_column() -> None:
    names = ("plain: open", "plain: warm-up", "timed", "watch launches", "plain.0: census", "plain.0: steps")
    phases = [(name, 2.0 + (10 - place) * place) for place, name in enumerate(names)]
    [table] = shown(cost_of(clocked(*phases, end=36.5, ended=37.0))).parts[1].tables
    assert table.columns[-1] == "all else"
    assert len(table.columns) == len(table.rows[0]) == 9
    assert sum(map(float, table.rows[0][2:])) == pytest.approx(float(table.rows[0][1]), abs=0.2)
    assert table.rows[0][-1] == "1.5"


def test_the_costs_section_states_whether_seconds_are_clocked_or_summed() -> None:
    assert shown(TWO).parts[0].text[0].endswith("divided among them. It took 3.0 s of processor time.")
    assert shown(OLD).parts[0].text[0].startswith("These are sums over the runs")


def test_the_costs_section_is_folded_on_the_page_and_takes_few_bytes() -> None:
    page = render(small_view(costs=TWO))
    assert '<h2 id="costs">Where the time went</h2>\n<details><summary>1,210 s by the clock, ' in page
    many = cost_of(*(trained(10.0 + place) for place in range(100)))
    assert len(render(small_view(costs=many))) - len(render(small_view())) < 20_000


def test_a_comparison_lists_the_seconds_of_both_runs_by_kind() -> None:
    lines = compare(small_view(costs=OLD), small_view(costs=TWO))
    assert lines[lines.index("Seconds") + 1 :] == [
        "  before: sums over the runs, as if they had gone one after the other",
        "  wall: 14 s -> 1,210 s",
        "  GPU: 14 s -> 1,210 s",
        "  runs (1 -> 2): 14 s -> 1,216 s",
        "  interpreter start and imports: 3.0 s -> 4.0 s",
        "  opening: 0.2 s -> 0.0 s",
        "  judged training: 11 s -> 1,210 s",
        "  digests and end: 0.0 s -> 2.0 s",
    ]


def test_costs_are_compared_only_if_both_runs_have_times() -> None:
    assert "Seconds" not in compare(small_view(), small_view(costs=TWO))


def test_a_run_of_negligible_duration_has_no_costs_section() -> None:
    """In older evidence, a worker that died in its first moment has almost no duration."""
    assert section(small_view(costs=cost_of(old(("start", 0.0), ("a.0: open", 0.0001), end=None)))) is None
