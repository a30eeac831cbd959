"""A plot draws what was judged: the largest distance that it shows, and its ratios, are the verdict's own figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
from budget import slow_but
from evidence_builders import LOSSES, arm, gradients, graphed, paired, reduction, verdict_of
from judge_cases import Case
from judge_cases_gradients import GRADIENTS, A
from judge_cases_ranks import MATCH, rank_of, run_of
from judge_cases_tables import TABLES
from published_pages import REPORTS, PublishedOf, judged_run

from harness.judging.series import Compared
from harness.judging.verdict import Status, Verdict
from harness.kinds import BUILT_IN
from harness.kinds.gradients.model import GradientMatch
from harness.kinds.gradients.section import judged_gradients
from harness.kinds.ranks.model import RanksMatch
from harness.kinds.ranks.ranks_match import compared
from harness.report.first_screen import Course, course
from harness.report.glance import Ratios, counted_ratios, glance, named_parts
from harness.report.text import number
from harness.report.view import ReportView

FIGURES = {"trajectories": "max_abs_difference", "resume": "max_abs_difference"}
PUBLISHED = sorted(archive.parent.relative_to(REPORTS).as_posix() for archive in REPORTS.rglob("run.tar.xz"))
QUICK = [name for name in PUBLISHED if name.endswith(("ranks-trains-tiny", "two-commits-slower"))]


def figures_of(verdict: Verdict, name: str) -> set[str]:
    """The verdict's figures of this name, of any part, as a plot writes them."""
    found = [figure.value for each, figure in verdict.figures.items() if each.rpartition(".")[2] == name]
    return {number(float(value)) for value in found if isinstance(value, int | float)}


@pytest.mark.parametrize("name", slow_but(QUICK, PUBLISHED))
def test_the_largest_plotted_distance_is_the_figure_of_the_verdict(name: str, published: PublishedOf) -> None:
    plots, view = published(REPORTS / name).plots, judged_run(REPORTS / name)
    verdicts = {(each.contract, each.claim, each.workload): each for each in view.verdicts}
    for plot in plots:
        drawn = re.match(r"Absolute difference by step, .*: largest (\S+?)[,;.]( |$)", plot.plot.alt)
        for unit in plot.units if drawn else ():
            assert drawn is not None
            assert drawn[1] in figures_of(verdicts[unit], FIGURES[plot.anchor]), (unit, plot.plot.alt)
        if plot.anchor == "throughput":
            shown = re.match(r"Speed ratio of each process: (.*?); (?:left out: (.*?); )?demanded", plot.plot.alt)
            assert shown is not None
            [unit] = plot.units
            assert shown[1] in set(judged_ratios(view, verdicts[unit])), plot.plot.alt
    found = course(view)
    if found is not None:
        the_first_plot_shows_the_worst_unit(view, found)


def judged_ratios(view: ReportView, verdict: Verdict) -> Iterator[str]:
    """The ratios that the judge counted, of each part, as a plot writes them."""
    [parts] = [parts for each, parts, _ in view.judged() if each is verdict]
    for _, prefix in named_parts(view, verdict, parts):
        ratios = counted_ratios(verdict, prefix).values()
        yield ", ".join(f"{ratio:.4g}" for ratio in ratios) or "none counts"


def the_first_plot_shows_the_worst_unit(view: ReportView, found: Course) -> None:
    verdict, parts, runs = view.judged()[int(found.anchor.removeprefix("unit-")) - 1]
    if any(each.status in {Status.FAIL, Status.INCONCLUSIVE} for each in view.verdicts):
        assert verdict.status is not Status.PASS
    shown = glance(view, verdict, parts, runs)
    if isinstance(shown, Ratios):
        assert found.demanded
    else:
        assert shown is not None
        largest = number(shown.difference().largest)
        assert largest in figures_of(verdict, "max_abs_difference") or not figures_of(verdict, "max_abs_difference")


def test_the_plot_of_ranks_shows_the_mean_loss_of_all_ranks() -> None:
    high, low = (np.asarray(LOSSES) + apart for apart in (0.5, -0.5))
    run = run_of(rank_of(0, high), rank_of(1, low), beside=[arm("ungraphed", LOSSES)])
    [pair] = compared(RanksMatch.model_validate(MATCH), run)
    assert pair.candidate == "ranked, mean of 2 ranks"
    assert pair.distances.max() < 1e-12


def test_the_plotted_distance_is_that_of_the_judged_step() -> None:
    ours, theirs = np.array([1.0, 5.0, 2.0]), np.array([1.0, 1.0, 1.5])
    assert Compared("a", "b", ours, theirs, compare="final").distances.tolist() == [0.5]
    assert Compared("a", "b", ours, theirs, compare="first").distances.tolist() == [0.0]
    assert Compared("a", "b", ours, theirs).difference().largest == 4.0


def test_the_distance_of_equal_infinities_is_nan() -> None:
    both = np.array([1.0, math.inf])
    assert math.isnan(Compared("a", "b", both, both).distances[1])


def test_each_kind_with_a_difference_plot_names_its_compared_series() -> None:
    plotted = {name for name, kind in BUILT_IN.items() if {"trajectories", "resume"} & set(kind.card)}
    assert plotted - {name for name, kind in BUILT_IN.items() if kind.compares} == {"ranks_agree", "runs_differ"}


def test_the_largest_plotted_gradient_is_that_of_the_judge() -> None:
    """While the clip is active, both arms' clipped gradients are equal. The gradients before the clip differ."""
    changed = [reduction("a", max_abs=4.0, max_abs_difference=2.0, digest="x", baseline_max_abs=4.0)]
    records = [gradients(0, made_norm=3.0), gradients(5, made=changed, made_norm=6.0, tensors=[A])]
    norms = [gradients(step, arm="ungraphed", baseline=None, made_norm=3.0) for step in (0, 5)]
    run = paired(arm("ungraphed", gradients=norms), arm("synchronizing"), graphed(gradients=records))
    claim = GradientMatch.model_validate(GRADIENTS)
    [worst] = [one for one in judged_gradients(claim, run) if one.differs]
    found = verdict_of(GRADIENTS, run).figures["max_abs_difference"].value
    assert (worst.made, worst.absolute) == (True, found)


def ends(texts: Iterator[str]) -> tuple[str, str]:
    """The least and the largest of numbers, as they are written."""
    ordered = sorted(texts, key=float)
    return ordered[0], ordered[-1]


@pytest.mark.parametrize("case", TABLES["throughput_ratio"], ids=lambda case: case.name)
def test_the_plotted_process_ratios_are_those_of_the_verdict_message(case: Case) -> None:
    """For a violated claim, both message and plot use the reading that is better for the candidate."""
    verdict = case.judged()
    said = re.search(r"times as fast.*? \((\S+) to (\S+) over", verdict.message)
    if said is not None and verdict.status in {Status.PASS, Status.FAIL}:
        ratios = counted_ratios(verdict, "").values()
        assert (said[1], said[2]) == ends(f"{ratio:.3f}" for ratio in ratios)
