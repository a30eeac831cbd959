"""The demand that decided a claim, in a few words; and that it is the one by which the judge decided."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from evidence_builders import cuda_graph, graph, graphed, paired, verdict_of
from judge_cases_capture import shaped
from judge_cases_tables import TABLES
from published_pages import DIRECTORIES, judged_run

from harness.judging import reasons
from harness.judging.sheet import Sheet, concluded, settle
from harness.judging.verdict import Demanded, Interval, Judgement, Status, Verdict, tightest
from harness.report.deciding import Decided, decided, demand

NUMBER = r"(-?[\d,.]+(?:e[+-]?\d+)?|NaN|∞)"
SHOWN = re.compile(rf"{NUMBER}.*, (none may|at least|at most|exactly) ?(?:{NUMBER}(?:x| %)?)?")


def number_in(text: str) -> float:
    return float(text.replace(",", "").replace("∞", "inf"))


def is_met(text: str) -> bool:
    """As a reader of the text would say."""
    shown = SHOWN.fullmatch(text)
    assert shown is not None, text
    value, bound = number_in(shown[1]), number_in(shown[3] or "0")
    return {"at least": value >= bound, "at most": value <= bound}.get(shown[2], value == bound)


def contradictions(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """What a page would say of a held unit whose figure breaks its demand, of a violated one whose figure does not."""
    for verdict in verdicts:
        told = decided(verdict)
        if verdict.status is Status.PASS and (told is None or not is_met(told.text)):
            yield f"{verdict.claim} on {verdict.workload} held: {told}"
        if verdict.status is Status.FAIL and told is not None and is_met(told.text):
            yield f"{verdict.claim} on {verdict.workload} violated: {told}"


@pytest.mark.slow
@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: path.name)
def test_in_published_runs_passing_units_meet_and_failing_units_break_their_demand(directory: Path) -> None:
    assert list(contradictions(judged_run(directory).verdicts)) == []


@pytest.mark.parametrize("kind", TABLES)
def test_in_all_judge_cases_a_passing_unit_meets_and_a_failing_unit_breaks_its_demand(kind: str) -> None:
    assert list(contradictions(case.judged() for case in TABLES[kind])) == []


# --- what a judge says ------------------------------------------------------------------------------------------------


def judged(*steps: Callable[[Sheet], object], reason: str | None = None) -> Judgement:
    """What a judge concludes that compares these in their order, and settles with the reason, or says PASS."""

    def judge(sheet: Sheet) -> Judgement:
        sheet.count("steps", 9)
        for step in steps:
            step(sheet)
        if reason is not None:
            settle(reason, "so it is")
        return sheet.held("it holds")

    return concluded(judge, None)


def growth(value: float, **options: Any) -> Callable[[Sheet], object]:
    return lambda sheet: sheet.meets("growth", value, "at most", 1.0, **options)


def kernels(value: float, **options: Any) -> Callable[[Sheet], object]:
    return lambda sheet: sheet.meets("kernels", value, "at least", 20, **options)


OPEN = Demanded("mean", 0.9, "at most", 1.0, interval=Interval(0.5, 1.5, 0.95, "bounds", "steps"))


@pytest.mark.parametrize(
    ("steps", "reason", "figure"),
    [
        ([growth(0.5), kernels(21)], None, "kernels"),
        ([growth(1.0), kernels(20)], None, "growth"),
        ([growth(0.5), kernels(20, beside=True)], None, "growth"),
        ([kernels(20, beside=True)], None, "kernels"),
        ([growth(0.5), kernels(19)], reasons.KERNELS_PER_LAYER, "kernels"),
        ([growth(2.0), kernels(21)], reasons.KERNELS_PER_LAYER, None),
        ([growth(0.5)], reasons.END_DIFFERS, None),
        ([lambda sheet: sheet.note(Demanded("mean", 2.0, "at most", 1.0))], reasons.END_DIFFERS, None),
        ([growth(2.0)], reasons.UNDECIDED_RATIO, "growth"),
        ([growth(0.5, beside=True)], reasons.UNDECIDED_RATIO, None),
        ([kernels(20), growth(2.0)], reasons.UNDECIDED_RATIO, "growth"),
        ([kernels(20), lambda sheet: sheet.note(OPEN)], reasons.UNDECIDED_RATIO, "mean"),
        ([kernels(20)], reasons.UNDECIDED_RATIO, None),
        ([], None, None),
    ],
    ids=[
        "the least room",
        "of several the first",
        "what stands beside gives way",
        "unless it is alone",
        "violated: what was unmet last",
        "violated by something else",
        "violated by no figure",
        "violated by no figure, beside one that is noted",
        "undecided: its own demand",
        "undecided: no guard",
        "undecided: what is unmet, though another has less room",
        "undecided: what may lie on either side of its bound",
        "undecided: nothing that is met",
        "nothing was compared",
    ],
)
def test_the_deciding_figure_is_the_one_that_fits_the_reason(
    steps: list[Callable[[Sheet], object]], reason: str | None, figure: str | None
) -> None:
    found = judged(*steps, reason=reason).decided
    assert (found.figure if found else None) == figure


def test_a_nan_figure_never_meets_a_demand_and_is_not_stored() -> None:
    judgement = judged(growth(math.nan), reason=reasons.MEMORY_GROWS)
    assert judgement.decided is not None
    assert not judgement.decided.is_met
    assert {"demands", "decided"}.isdisjoint(judgement.model_dump())


# --- how it is told ---------------------------------------------------------------------------------------------------


def told(demanded: Demanded, denominators: dict[str, int], status: Status = Status.PASS) -> Decided | None:
    unit = {"contract": "c", "claim": "C", "workload": "w", "reason": "r", "message": "m"}
    return decided(Verdict(**unit, status=status, denominators=denominators, decided=demanded))


RATIO = Interval(1.489, 1.58, 0.99, "one-sided bounds", "processes")


@pytest.mark.parametrize(
    ("demanded", "denominators", "expected"),
    [
        (
            Demanded("steps_differing", 0, "none", 0, "steps differ", of=1200),
            {"steps": 1200, "state_tensors": 33, "runs": 2},
            Decided("0 of 1,200 steps differ, none may", "", "counted over 1,200 steps, 33 state tensors"),
        ),
        (
            Demanded("max_abs_difference", 0.00727, "at most", 0.1, "loss"),
            {"steps": 1},
            Decided("0.00727 loss, at most 0.1", "max abs difference", "measured over 1 step"),
        ),
        (
            Demanded("mean_ratio", 1.5312, "at least", 1.1, "x", interval=RATIO),
            {"processes": 8},
            Decided(
                "1.531x, at least 1.1x",
                "trimmed mean ratio",
                "1.489x to 1.580x: 99 % one-sided bounds over 8 processes",
            ),
        ),
        (
            Demanded("captures", 1, "exactly", 1, "captures"),
            {"steps": 9},
            Decided("1 capture, exactly 1", "", "counted over 9 steps"),
        ),
        (
            Demanded("reserved_growth", 0.002, "at most", 0.01, percent=True),
            {},
            Decided("0.2 %, at most 1 %", "reserved growth", "measured"),
        ),
        (
            Demanded("steps_differing", 7, "none", 0, "steps differ", of=200, part="trajectory_match.1."),
            {"trajectory_match.1.steps": 200, "trajectory_match.2.steps": 9},
            Decided("7 of 200 steps differ, none may", "", "counted over 200 steps"),
        ),
    ],
    ids=["bits", "within", "ratio", "counted", "percent", "of-a-part"],
)
def test_a_demand_is_described_in_words_with_its_confidence(
    demanded: Demanded, denominators: dict[str, int], expected: Decided
) -> None:
    assert told(demanded, denominators) == expected


@pytest.mark.parametrize("status", [Status.NOT_RUN, Status.ERROR])
def test_a_unit_that_was_not_judged_has_no_deciding_figure(status: Status) -> None:
    assert told(Demanded("captures", 1, "exactly", 1), {}, status) is None


@pytest.mark.parametrize(
    ("demanded", "text", "sure"),
    [
        (
            Demanded(
                *("generous_mean_ratio", 1.0993, "at least", 1.1, "x"),
                interval=Interval(1.0897, 1.09996, 0.99, "one-sided bounds", "processes"),
            ),
            "1.099x, at least 1.1x",
            "1.089x to 1.09996x: 99 % one-sided bounds over 8 processes",
        ),
        (Demanded("mean_ratio", 1.1274, "at least", 1.125, "x"), "1.127x, at least 1.125x", None),
        (Demanded("max_abs_difference", 0.10004, "at most", 0.1, "loss"), "0.10004 loss, at most 0.1", None),
        (Demanded("growth", 0.0100001, "at most", 0.01, percent=True), "1.00001 %, at most 1 %", None),
        (Demanded("worse_by", 0.06, "at most", 0.098055555555555556, "loss"), "0.06 loss, at most 0.0981", None),
        (Demanded("error", math.nan, "at most", 1e-4), "NaN, at most 0.0001", None),
    ],
    ids=["ratio", "demand", "difference", "percent", "computed", "no number"],
)
def test_rounding_never_shows_a_figure_beyond_its_demand(demanded: Demanded, text: str, sure: str | None) -> None:
    shown = told(demanded, {"processes": 8})
    assert shown is not None
    assert shown.text == text
    assert sure in (None, shown.confidence)


@pytest.mark.parametrize(("shapes", "text"), [(1, "exactly 1"), (2, "at most 2")])
def test_a_capture_demand_depends_on_the_number_of_shapes(shapes: int, text: str) -> None:
    """A claim that each shape is captured once also demands at least one capture."""
    verdict = shaped(shapes, captures=1, nodes=[graph(label="a")])
    assert next(demand(one) for one in verdict.demands if one.figure == "captures") == text


@pytest.mark.parametrize(
    ("asked", "figure"), [({"skipped_steps_at_most": 0}, "skipped_steps"), ({"captures": 1}, "captures")]
)
def test_a_bound_stated_in_the_contract_has_priority_over_a_default_bound(asked: dict[str, int], figure: str) -> None:
    claim = {"kind": "capture", "mechanism": "cuda_graph", "candidate": "graphed"}
    deciding = tightest(verdict_of(claim | asked, paired(graphed(capture=cuda_graph()))).demands)
    assert deciding is not None
    assert deciding.figure == figure
