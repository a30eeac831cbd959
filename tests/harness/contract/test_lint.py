"""Lint findings: level, place and message of each, and none for a sound contract."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.contract.load import load_contract
from harness.contract.schema import parts_of
from harness.errors import SystemResolutionError
from harness.kinds import BUILT_IN
from harness.lint import Finding, has_judge, lint
from harness.system.protocol import Expectation, FaultDescription, SystemDescription

Toy = Callable[..., Path]

LOSES_A_STEP = FaultDescription("lost_step", "loses a step", "candidate", {"TOY-001": Expectation("FAIL", "differs")})
DESCRIPTION = SystemDescription(
    name="toy",
    summary="a toy",
    models=["toy"],
    arm_options={"wait": bool, "rate": float, "mode": ("fused", "plain"), "rank": int},
    workload_options={"depth": int},
    capabilities=frozenset({"parameters"}),
    captures=frozenset({"none", "step"}),
    faults={"lost_step": LOSES_A_STEP},
)
# What the toy contract itself is told: one of its arms serves no claim.
UNUSED_ARM = Finding("warning", "toy.yaml:10:12", "arm 'waiting' is used by no claim")


def _describe(system: str) -> SystemDescription:
    assert system == "toy.system:Toy"
    return DESCRIPTION


def _findings(path: Path) -> list[Finding]:
    """All but the standing warning of the toy contract, and those of further claims' numbers: see test_numbers.py."""
    findings = [each for each in lint(load_contract(path), _describe) if "no fault of 'TOY-002'" not in each.message]
    assert UNUSED_ARM in findings
    findings.remove(UNUSED_ARM)
    return findings


@pytest.fixture(autouse=True)
def _all_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judges are looked for by module name; these tests do not depend on which exist."""
    monkeypatch.setattr("harness.lint.has_judge", lambda _: True)


def test_a_sound_contract_has_no_findings(toy: Toy) -> None:
    assert _findings(toy()) == []


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (
            "    falsified_by: [stale_batch, doubled_step, no_steps]\n",
            "",
            Finding(
                "warning", "toy.yaml:12:9", "claim 'TOY-001' names no fault, so nothing shows that the claim could fail"
            ),
        ),
        (
            "[stale_batch, doubled",
            "[stale_batch, lost_stp, doubled",
            Finding(
                "error",
                "toy.yaml:23:33",
                "neither the system nor the harness offers fault 'lost_stp'; did you mean 'lost_step'?",
            ),
        ),
        (
            "\narms:",
            "\n  spare: {model: toy, batch_size: 1, seq_len: 1, steps: 1}\narms:",
            Finding("warning", "toy.yaml:7:10", "workload 'spare' is used by no claim"),
        ),
        (
            "model: toy",
            "model: toi",
            Finding("error", "toy.yaml:6:18", "'toy.system:Toy' has no model 'toi'; did you mean 'toy'?"),
        ),
        (
            "steps: 10}\narms",
            "steps: 10, options: {dept: 3}}\narms",
            Finding(
                "error",
                "toy.yaml:6:77",
                "'toy.system:Toy': unknown workload option 'dept'; did you mean 'depth'?",
            ),
        ),
        (
            "capture: step}",
            "capture: step, wit: true}",
            Finding("error", "toy.yaml:8:30", "'toy.system:Toy': unknown arm option 'wit'; did you mean 'wait'?"),
        ),
        (
            "capture: step}",
            "capture: step, mode: fusd}",
            Finding(
                "error",
                "toy.yaml:8:31",
                "'toy.system:Toy': arm option 'mode' cannot be 'fusd'; did you mean 'fused'?",
            ),
        ),
        (
            "capture: step}",
            "capture: step, rank: true}",
            Finding("error", "toy.yaml:8:31", "'toy.system:Toy': arm option 'rank' must be of type int, not True"),
        ),
        (
            "capture: step}",
            "capture: backward}",
            Finding(
                "error",
                "toy.yaml:8:19",
                "'toy.system:Toy' does not support `capture: backward`; it supports: none, step",
            ),
        ),
        (
            "max_abs_difference: 0.1",
            "max_abs_difference: 1.0e+308",
            Finding(
                "warning",
                "toy.yaml:18:25",
                "`max_abs_difference: 1e+308` is larger than any float32: write a number that a measurement can reach",
            ),
        ),
        (
            "plain: {capture: none}",
            "plain: {capture: step}",
            Finding(
                "warning",
                "toy.yaml:15:16",
                "arms 'fast' and 'plain' have the same settings: without `harness verify --baseline REF`, which "
                "compares two commits, the claim is not run",
            ),
        ),
    ],
)
def test_a_lint_finding_has_its_place_and_message(toy: Toy, old: str, new: str, finding: Finding) -> None:
    path = toy(old, new)
    findings = lint(load_contract(path), _describe)
    assert finding in findings
    assert len(findings) == 2  # and the unused arm, wherever it stands now


EVERY_RUN = "requires nothing, because every run meets it: leave it out, or require more"


@pytest.mark.parametrize(
    ("guard", "column"), [("distinct_batches: 1", 43), ("clip_active_steps: 0", 44)], ids=["batches", "clip"]
)
def test_a_guard_that_every_run_meets_is_a_warning(toy: Toy, guard: str, column: int) -> None:
    findings = _findings(toy("guards: {steps: 10}", f"guards: {{steps: 10, {guard}}}"))
    assert findings == [Finding("warning", f"toy.yaml:19:{column}", f"`guards.{guard}` {EVERY_RUN}")]


def test_a_guard_that_some_run_may_fail_has_no_finding(toy: Toy) -> None:
    for guards in ("clip_active_steps: 1, distinct_batches: 2", "distinct_batches: {otherwise: 1, cases: [CASE]}"):
        path = toy("{steps: 10}\n", f"{{steps: 10, {guards.replace('CASE', '{gpu: H100, value: 2}')}}}\n")
        assert [each for each in _findings(path) if EVERY_RUN in each.message] == []


def test_a_long_replay_demanding_one_distinct_batch_is_a_warning(toy: Toy) -> None:
    claim = "  - id: TOY-002\n    title: t\n    kind: long_replay\n    candidate: fast\n    baseline: plain\n"
    [finding] = _findings(toy(claim=f"{claim}    steps: 10\n    distinct_batches: 1\n"))
    assert finding == Finding("warning", "toy.yaml:30:23", f"`distinct_batches: 1` {EVERY_RUN}")


GRADIENTS = "  - {id: TOY-002, title: t, kind: gradient_match, candidate: fast, steps: [0], "
CLIPPED = "clipped_norm: {at_most: 1, relative_rounding: 0}, clip_active_steps: 0, "
SPEED = "kind: throughput_ratio, candidate: fast, baseline: plain, at_least: 1.1, trajectory: TOY-001, "
REST = "judged_on: [small], why: w, if_fails: i, falsified_by: [missing_run]}\n"


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (GRADIENTS + CLIPPED, "clip_active_steps: 0"),
        (
            "  - {id: TOY-002, title: t, kind: capture, candidate: fast, outside_share_at_most: 1.0, ",
            "outside_share_at_most: 1.0",
        ),
        (
            (
                "  - {id: TOY-002, title: t, kind: capture, mechanism: cuda_graph, candidate: fast, "
                "outside_share_at_most: 1.0, "
            ),
            "outside_share_at_most: 1.0",
        ),
        (
            "  - {id: TOY-002, title: t, kind: ranks_agree, candidate: two, steps: 10, share_at_most: 1.0, ",
            "share_at_most: 1.0",
        ),
        (
            f"  - {{id: TOY-002, title: t, {SPEED}limits: {{baseline_idle_share: 1.0}}, ",
            "limits.baseline_idle_share: 1.0",
        ),
        (f"  - {{id: TOY-002, title: t, {SPEED}limits: {{throttled_share: 1.0}}, ", "limits.throttled_share: 1.0"),
    ],
)
def test_a_demanded_number_that_every_run_meets_is_a_warning(toy: Toy, claim: str, said: str) -> None:
    path = toy("waiting: {capture: none, wait: true}", "waiting: {capture: none, wait: true}\n  two: {ranks: 2}")
    path.write_text(path.read_text() + claim + REST)
    found = [each for each in lint(load_contract(path), _describe) if EVERY_RUN in each.message]
    assert [each.message for each in found] == [f"`{said}` {EVERY_RUN}"]
    [number] = [part.value_at(said.partition(":")[0]) for part in parts_of(load_contract(path).contract.claims[1])]
    assert all(
        f"breaks `{said.partition(':')[0]}` ({number})" not in each.message
        for each in lint(load_contract(path), _describe)
    )


ACCURACY = "gradient_seeds: [0], gradient_steps: [0], median_gradient_ratio_at_most: 1.2, gradient_ratio_at_most: 2, "
LOSSES = "loss_seeds: [0], loss_steps: 10, loss_ratio_at_most: 1.2, "
ERRORS = "steps: 10, max_evaluation_error: 0.1, times_yardstick: 2, max_update_error: 0.1, "
EVERY_FIFTH = "every: 5, evaluations: 2, steps: 10, max_relative_difference: 0.1, "
EFFECT = "guards: {steps: 10, training_effect: {control: again, last: 5, at_least: 0.1}}"


@pytest.mark.parametrize(
    ("claim", "pair"),
    [
        ("kind: step_accuracy, candidate: plain, peer: again, reference: fast, " + ACCURACY + LOSSES, "plain"),
        ("kind: step_accuracy, candidate: fast, peer: plain, reference: again, " + ACCURACY + LOSSES, "plain"),
        ("kind: step_match, candidate: plain, reference: again, yardstick: fast, " + ERRORS, "plain"),
        (
            (
                "kind: evaluation, candidate: plain, plain: again, every: 5, evaluations: 2, steps: 10, "
                "max_relative_difference: 0.1, "
            ),
            "plain",
        ),
        ("kind: host_syncs, candidate: {arm: plain, at_most: 2}, control: {arm: again, exactly: 2}, ", "plain"),
        (
            (
                "kind: trajectory_match, candidate: fast, baseline: plain, equality: bitwise, max_abs_difference: 0.1, "
                f"{EFFECT}, "
            ),
            "plain",
        ),
    ],
)
def test_two_arms_with_the_same_settings_are_a_warning(toy: Toy, claim: str, pair: str) -> None:
    arms = "waiting: {capture: none, wait: true}"
    path = toy(arms, f"{arms}\n  again: {{capture: none, system: 'toy.system:Toy'}}")
    path.write_text(f"{path.read_text()}  - {{id: TOY-002, title: t, {claim}{REST}")
    found = [each for each in lint(load_contract(path), _describe) if "same settings" in each.message]
    assert [each.level for each in found] == ["warning"]
    assert found[0].message.startswith(f"arms '{pair}' and 'again' have the same settings: ")
    line, column = map(int, found[0].where.split(":")[1:])
    assert path.read_text().splitlines()[line - 1][column - 1 :].startswith("again")


def test_an_arm_that_repeats_the_systems_default_settings_is_a_warning(toy: Toy) -> None:
    path = toy("plain: {capture: none}", "plain: {capture: step, system: 'toy.system:Toy'}")
    [finding] = [each for each in _findings(path) if "same settings" in each.message]
    assert finding.message.startswith("arms 'fast' and 'plain' have the same settings: without `harness verify")


@pytest.mark.parametrize(
    ("claim", "field"),
    [
        ("kind: capture_fallback, candidate: fast, baseline: other, steps: 10, ", "baseline"),
        ("kind: long_replay, candidate: fast, baseline: other, steps: 10, ", "baseline"),
        (f"kind: evaluation, candidate: fast, plain: other, {EVERY_FIFTH}", "plain"),
    ],
)
def test_a_plain_arm_that_captures_is_a_warning(toy: Toy, claim: str, field: str) -> None:
    arms = "waiting: {capture: none, wait: true}"
    path = toy(arms, f"{arms}\n  other: {{capture: step, wait: true}}")
    path.write_text(f"{path.read_text()}  - {{id: TOY-002, title: t, {claim}{REST}")
    [finding] = [each for each in lint(load_contract(path), _describe) if "plain" in each.message]
    assert finding.level == "warning"
    assert finding.message == (
        f"`{field}` should be the plain arm, but 'other' has `capture: step`: a fault that both captures share would "
        "not be noticed"
    )
    line, column = map(int, finding.where.split(":")[1:])
    assert path.read_text().splitlines()[line - 1][column - 1 :].startswith("other")


def test_a_valid_choice_of_an_arm_option_has_no_finding(toy: Toy) -> None:
    assert _findings(toy("capture: step}", "capture: step, mode: fused}")) == []


def test_claims_without_a_baseline_have_no_findings(toy: Toy) -> None:
    path = toy(claim="  - id: TOY-002\n    title: Captured\n    kind: capture\n    candidate: fast\n")
    assert _findings(path) == []


def test_an_integer_for_a_float_option_has_no_finding(toy: Toy) -> None:
    assert _findings(toy("capture: step}", "capture: step, rate: 0}")) == []


THROUGHPUT = """\
  - id: TOY-002
    title: Faster
    kind: throughput_ratio
    candidate: fast
    baseline: plain
    at_least: 1.1
    trajectory: TOY-001
    confidence: {confidence}
    processes: {processes}
"""


@pytest.mark.parametrize(("confidence", "enough"), [(0.99, 7), (0.996, 8), (0.95, 5), (0.999, 10)])
def test_fewer_processes_than_a_verdict_needs_are_an_error(toy: Toy, confidence: float, enough: int) -> None:
    def of(processes: int) -> list[Finding]:
        return _findings(toy(claim=THROUGHPUT.format(confidence=confidence, processes=processes)))

    assert of(enough) == []
    if enough > 5:  # the language itself demands five
        (finding,) = of(enough - 1)
        assert (finding.level, finding.where) == ("error", "toy.yaml:32:16")
        assert finding.message.startswith(f"{enough - 1} processes cannot reach a verdict")
        assert finding.message.endswith(f"use at least {enough}")


@pytest.mark.parametrize(("processes", "measurements", "together"), [(64, 1, None), (16, 4, None), (17, 4, 68)])
def test_all_measurements_of_a_claim_together_have_a_limited_number_of_processes(
    toy: Toy, processes: int, measurements: int, together: int | None
) -> None:
    claim = THROUGHPUT.format(confidence=0.99, processes=processes) + f"    measurements: {measurements}\n"
    message = f"{measurements} measurements with {processes} processes each are {together} processes; use at most 64"
    assert _findings(toy(claim=claim)) == ([] if together is None else [Finding("error", "toy.yaml:33:19", message)])


def test_a_claim_kind_without_a_judge_is_a_warning(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.lint.has_judge", lambda _: False)
    message = "judge_missing: no judge is installed for 'trajectory_match', so 'TOY-001' will be NOT_RUN"
    assert _findings(toy()) == [Finding("warning", "toy.yaml:14:11", message)]


def test_the_judge_of_a_claim_kind_is_loaded_from_the_module_that_the_table_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert has_judge("capture")
    row = replace(BUILT_IN["capture"], judge="harness.judging.clairvoyance:judge")
    monkeypatch.setattr("harness.lint.kind_of", {"capture": row}.__getitem__)
    assert not has_judge("capture")


def test_lint_reports_a_system_that_cannot_be_described(toy: Toy) -> None:
    def describe(system: str) -> SystemDescription:
        raise SystemResolutionError("no such module", got=system, remedy="install it")

    findings = lint(load_contract(toy("[stale_batch, doubled_step, no_steps]", "[anything]")), describe)
    message = "the system 'toy.system:Toy' cannot be described: no such module; found toy.system:Toy; install it"
    assert findings == [Finding("error", "toy.yaml:4:9", message), UNUSED_ARM]


def test_arm_options_are_checked_against_the_arms_own_system(toy: Toy) -> None:
    other = dataclasses.replace(DESCRIPTION, arm_options={}, faults={})
    path = toy("plain: {capture: none}", "plain: {capture: none, system: 'a:B', wait: true}")
    findings = lint(load_contract(path), lambda name: other if name == "a:B" else DESCRIPTION)
    assert findings == [Finding("error", "toy.yaml:9:47", "'a:B': unknown arm option 'wait'"), UNUSED_ARM]


def test_a_finding_is_printed_with_place_level_and_message() -> None:
    assert str(UNUSED_ARM) == "toy.yaml:10:12: warning: arm 'waiting' is used by no claim"


def test_checking_imports_no_torch() -> None:
    code = (
        "import sys, harness.lint, harness.contract.load, harness.system.wrappers;"
        "print(sorted({'torch', 'numpy', 'pandas', 'scipy'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"
