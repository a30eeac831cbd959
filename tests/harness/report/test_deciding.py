"""The figure that decides a claim: every kind has one, and every verdict can be told by it in a few words."""

from __future__ import annotations

import math
import re
from fnmatch import fnmatchcase
from typing import Any

import pytest
from judge_cases_tables import TABLES

from harness.contract.base import Judged
from harness.contract.claims import part_model
from harness.judge.verdict import Figure, Status, Verdict
from harness.kinds import BUILT_IN, Deciding
from harness.report.deciding import Decided, decided, measured

RULES = [
    pytest.param(kind, rule, id=f"{kind}-{rule.figure}") for kind, row in BUILT_IN.items() for rule in row.deciding
]


@pytest.fixture(scope="module")
def figures_by_kind() -> dict[str, set[str]]:
    """The names of figures and denominators in the verdicts of every kind's cases."""
    judged = {kind: [case.judged() for case in cases] for kind, cases in TABLES.items()}
    return {
        kind: {name for verdict in verdicts for name in (*verdict.figures, *verdict.denominators)}
        for kind, verdicts in judged.items()
    }


@pytest.mark.parametrize(("kind", "rule"), RULES)
def test_what_decides_is_in_verdicts_of_its_kind(
    kind: str, rule: Deciding, figures_by_kind: dict[str, set[str]]
) -> None:
    of_guards = rule.demand.startswith("guards.")  # judged for all kinds alike
    names = set().union(*figures_by_kind.values()) if of_guards else figures_by_kind[kind]
    pattern = re.sub(r"\{\w+\}", "*", rule.figure)
    assert [name for name in names if fnmatchcase(name, pattern)]
    beside = [rule.of] if rule.of else []
    if rule.interval is not None:
        beside += [rule.interval.low, rule.interval.high, rule.interval.over]
    assert set(beside) <= names


@pytest.mark.parametrize(("kind", "rule"), RULES)
def test_its_demand_is_one_of_the_model(kind: str, rule: Deciding) -> None:
    """By a path of `broken_by`; where nothing may be, by the field without which it is not demanded."""
    model = part_model(kind)
    fields = set(model.model_fields)
    assert rule.demand in (set(model.broken_by) | (fields if rule.rule == "none" else set()))
    conditions = [rule.when[0]] if rule.when else []
    stated = [rule.interval.confidence] if rule.interval and isinstance(rule.interval.confidence, str) else []
    assert {path.split(".")[0] for path in [*conditions, *stated, *re.findall(r"\{(\w+)\}", rule.figure)]} <= fields


def part(kind: str, **fields: Any) -> Judged:
    """A part of a kind with these fields alone, without the others that a contract must give."""
    return part_model(kind).model_construct(kind=kind, **fields)


def verdict(
    figures: dict[str, tuple[Any, str]],
    denominators: dict[str, int],
    status: Status = Status.PASS,
    reason: str = "held",
) -> Verdict:
    return Verdict(
        contract="c",
        claim="C",
        workload="w",
        status=status,
        reason=reason,
        message="m",
        figures={name: Figure(value=value, unit=unit) for name, (value, unit) in figures.items()},
        denominators=denominators,
    )


BOUND = {"max_abs_difference": 0.1}
SERIES = {"steps_differing": (0, "steps"), "max_abs_difference": (0.0, "loss"), "steps_run": (200, "steps")}
RATIO = {"mean_ratio": (1.5312, "x"), "lower_bound": (1.489, "x"), "upper_bound": (1.58, "x")}
HOST_SYNCS = part_model("host_syncs").model_validate(
    {
        "kind": "host_syncs",
        "candidate": {"arm": "fused", "exactly": 6, "per_layer": True},
        "control": {"arm": "synchronizing", "exactly": 6, "per_layer": True},
    }
)
SYNCS = {"candidate_syncs_per_step": (24.0, "syncs")}


@pytest.mark.parametrize(
    ("judged", "found", "expected"),
    [
        (
            part("trajectory_match", equality="bitwise", max_abs_difference=0.1),
            verdict(SERIES, {"steps": 200, "state_tensors": 33}),
            Decided("0 of 200 steps differ, none may", "", "counted over 200 steps, 33 state tensors"),
        ),
        (
            part("trajectory_match", equality="within", max_abs_difference=0.1),
            verdict(SERIES | {"max_abs_difference": (0.00727, "loss")}, {"steps": 1}),
            Decided("0.00727 loss, at most 0.1", "max abs difference", "measured over 1 step"),
        ),
        (
            part("throughput_ratio", at_least=1.1, confidence=0.99),
            verdict(RATIO, {"processes": 8}),
            Decided("1.53x, at least 1.10x", "mean ratio", "1.49x to 1.58x: 99 % one-sided bounds over 8 processes"),
        ),
        (
            HOST_SYNCS,
            verdict(SYNCS, {"candidate_steps": 10}),
            Decided("24 syncs, exactly 6 a layer", "candidate syncs per step", "counted over 10 candidate steps"),
        ),
        (
            part("kernel_match", max_relative_error={"float32": 1e-4, "float16": 1e-2}),
            verdict({"max_error_vs_fp64.float16": (2e-3, ""), "max_error_vs_fp64.float32": (9e-5, "")}, {"cases": 12}),
            Decided("9e-5, at most 0.0001", "max error vs fp64: float32", "measured over 12 cases"),
        ),
        (
            part("capture", captures=1, per_shape=False),
            verdict({"captures": (1, "captures")}, {"steps": 9}),
            Decided("1 capture, exactly 1", "", "counted over 9 steps"),
        ),
        (
            part("memory_steady", growth_at_most=0.01),
            verdict({"allocated_growth": (0.0007, ""), "reserved_growth": (0.002, "")}, {"samples": 297}),
            Decided("0.2 %, at most 1 %", "reserved growth", "measured over 297 samples"),
        ),
    ],
    ids=["bits", "within", "ratio", "a-layer", "worst-of-its-own-bound", "counted", "percent"],
)
def test_what_held_is_told_by_its_kinds_first_figure(judged: Judged, found: Verdict, expected: Decided) -> None:
    assert decided(found, judged) == expected


@pytest.mark.parametrize(
    ("figures", "reason", "text"),
    [
        ({"steps_differing": (7, "steps")}, "differs", "7 of 200 steps differ, none may"),
        ({"training_effect": (0.02, "loss")}, "vacuous_training_effect", "0.02 loss, at least 0.2"),
        ({"distinct_batches": (1, "batches")}, "vacuous_batches_repeat", "1 batch, at least 100"),
        ({}, "end_differs", None),
    ],
)
def test_what_is_violated_is_told_by_the_figure_of_its_reason(
    figures: dict[str, tuple[Any, str]], reason: str, text: str | None
) -> None:
    guards = {"steps": 100, "distinct_batches": 100, "training_effect": {"control": "u", "last": 20, "at_least": 0.2}}
    judged = part_model("trajectory_match").model_validate(
        {
            "kind": "trajectory_match",
            "candidate": "a",
            "baseline": "b",
            "equality": "bitwise",
            "guards": guards,
            **BOUND,
        }
    )
    found = decided(verdict(SERIES | figures, {"steps": 200}, Status.FAIL, reason), judged)
    assert (found.text if found else None) == text


@pytest.mark.parametrize(
    ("status", "text"), [(Status.FAIL, "1.07x, at least 1.10x"), (Status.INCONCLUSIVE, "1.05x, at least 1.10x")]
)
def test_a_ratio_is_refuted_by_the_reading_in_the_candidates_favour(status: Status, text: str) -> None:
    ratio = {"mean_ratio": (1.05, "x"), "generous_mean_ratio": (1.07, "x")}
    found = decided(verdict(ratio, {}, status, "too_slow"), part("throughput_ratio", at_least=1.1, confidence=0.99))
    assert found is not None
    assert found.text == text


@pytest.mark.parametrize("status", [Status.NOT_RUN, Status.ERROR])
def test_nothing_decided_what_was_not_judged(status: Status) -> None:
    found = verdict(RATIO, {"processes": 8}, status, "needs_cuda")
    assert decided(found, part("throughput_ratio", at_least=1.1, confidence=0.99)) is None


def test_a_part_of_a_claim_is_told_by_its_own_figures() -> None:
    figures = {f"trajectory_match.1.{name}": value for name, value in SERIES.items()}
    figures |= {"trajectory_match.2.steps_differing": (9, "steps")}
    found = verdict(figures, {"trajectory_match.1.steps": 200, "trajectory_match.2.steps": 9})
    told = decided(found, part("trajectory_match", equality="bitwise"), "trajectory_match.1.")
    assert told == Decided("0 of 200 steps differ, none may", "", "counted over 200 steps")


def test_as_numbers_the_first_figure_and_every_other_with_an_interval() -> None:
    slowdown = {"slowdown": (0.02, ""), "slowdown_least": (0.01, ""), "slowdown_most": (0.03, "")}
    figures = {"blocks_differing": (0, "blocks"), **slowdown, "max_abs_difference_of_rows": (0.0, "loss")}
    first, second = measured(
        verdict(figures, {"blocks": 100}), part("long_replay", steps=10_000, slowdown_at_most=0.05)
    )
    assert (first.figure, first.value, first.low, first.demand, first.bound) == (
        "blocks_differing",
        0,
        None,
        "none may",
        0,
    )
    assert (second.figure, second.low, second.high, second.bound) == ("slowdown", 0.01, 0.03, 0.05)


def test_as_numbers_the_worst_of_several_has_one_name_and_a_part_its_own() -> None:
    figures = {"p.max_error_vs_fp64.float32": (1e-7, ""), "p.max_error_vs_fp64.bfloat16": (2e-3, "")}
    bounds = {"float32": 1e-6, "bfloat16": 4e-3}
    [one] = measured(verdict(figures, {}), part("kernel_match", max_relative_error=bounds), "p.")
    assert (one.figure, one.value, one.demand) == ("p.max_error_vs_fp64.largest", 2e-3, "at most 0.004")


def test_as_numbers_nothing_where_nothing_was_measured() -> None:
    assert measured(verdict({}, {}), part("throughput_ratio", at_least=1.1)) == []


# --- what rounding and the largest must not hide ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("judged", "found", "text", "sure"),
    [
        (
            part("throughput_ratio", at_least=1.1, confidence=0.99),
            verdict(
                {
                    "generous_mean_ratio": (1.0993, "x"),
                    "lower_bound": (1.0897, "x"),
                    "upper_bound": (1.09996, "x"),
                },
                {"processes": 8},
                Status.FAIL,
                "too_slow",
            ),
            "1.099x, at least 1.10x",
            "1.09x to 1.09996x: 99 % one-sided bounds over 8 processes",
        ),
        (
            part("throughput_ratio", at_least=1.125, confidence=0.99),
            verdict({"mean_ratio": (1.1274, "x")}, {"processes": 8}),
            "1.13x, at least 1.125x",
            None,
        ),
        (
            part("trajectory_match", equality="within", max_abs_difference=0.1),
            verdict({"max_abs_difference": (0.10004, "loss")}, {"steps": 9}, Status.FAIL, "exceeds_tolerance"),
            "0.10004 loss, at most 0.1",
            None,
        ),
        (
            part("memory_steady", growth_at_most=0.01),
            verdict({"allocated_growth": (0.0100001, "")}, {"samples": 9}, Status.FAIL, "memory_grew"),
            "1.00001 %, at most 1 %",
            None,
        ),
    ],
    ids=["ratio", "demand", "difference", "percent"],
)
def test_rounding_takes_no_figure_over_its_demand(judged: Judged, found: Verdict, text: str, sure: str | None) -> None:
    told = decided(found, judged)
    assert told is not None
    assert told.text == text
    assert sure in (None, told.confidence)


def test_a_figure_that_is_no_number_is_the_worst_of_several() -> None:
    judged = part("kernel_match", max_relative_error={"float32": 1e-4, "float16": 1e-2})
    figures = {"max_error_vs_fp64.float16": (2e-3, ""), "max_error_vs_fp64.float32": (math.nan, "")}
    told = decided(verdict(figures, {"cases": 12}, Status.FAIL, "exceeds_tolerance"), judged)
    assert told is not None
    assert (told.name, told.text) == ("max error vs fp64: float32", "NaN, at most 0.0001")
