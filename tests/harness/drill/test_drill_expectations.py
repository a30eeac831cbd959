"""What a fault declares for a claim, and when a verdict is what it declares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from run_builders import make_contract

from harness.contract.schema import AnyClaim
from harness.drill.faults import expectation_for, is_killed, seen_figures, upstream_alone_passes
from harness.judging.verdict import Figure, Status, Verdict
from harness.system.protocol import Expectation, FaultDescription

CAPTURE = {"kind": "capture", "candidate": "graphed"}
SYNCS = {
    "kind": "host_syncs",
    "candidate": {"arm": "graphed", "exactly": 0},
    "control": {"arm": "plain", "exactly": 6},
}
DIFFERS = Expectation("FAIL", "differs", {"first_differing_step": 1})
LOST = Expectation("FAIL", "lost_step")
IDLE = Expectation("INCONCLUSIVE", "baseline_idle")


def claim(*parts: dict[str, Any]) -> AnyClaim:
    fields = parts[0] if len(parts) == 1 else {"kind": "composite", "parts": list(parts)}
    return make_contract({"id": "C-1", **fields}).claims[0]


def fault(**breaks: Expectation) -> FaultDescription:
    return FaultDescription(
        "f", "a fault", "candidate", {key.replace("_1", "-1"): each for key, each in breaks.items()}
    )


def verdict(reason: str = "differs", status: Status = Status.FAIL, **figures: bool | float | str | None) -> Verdict:
    values = {name.replace("__", "."): Figure(value=value) for name, value in figures.items()}
    return Verdict(contract="c", claim="C-1", workload="w", status=status, reason=reason, message="m", figures=values)


def test_a_faults_expected_verdict_for_a_claim_has_priority_over_that_for_its_kind() -> None:
    assert expectation_for(claim(CAPTURE), fault(C_1=DIFFERS, capture=LOST)) == DIFFERS


def test_a_fault_expectation_for_a_kind_applies_to_every_claim_of_the_kind() -> None:
    assert expectation_for(claim(CAPTURE), fault(capture=LOST)) == LOST


def test_a_composite_expects_the_worst_verdict_of_its_parts() -> None:
    both = claim(CAPTURE, SYNCS)
    assert expectation_for(both, fault(host_syncs=DIFFERS)) == DIFFERS
    assert expectation_for(both, fault(capture=IDLE, host_syncs=DIFFERS)) == DIFFERS
    assert expectation_for(both, fault(capture=LOST, host_syncs=DIFFERS)) == LOST


def test_a_fault_declared_for_a_different_claim_kind_has_no_expectation() -> None:
    assert expectation_for(claim(CAPTURE), fault(prewarm=LOST)) is None


def test_a_fault_is_killed_when_status_reason_and_every_figure_match() -> None:
    assert is_killed(DIFFERS, verdict(first_differing_step=1, steps_run=100))


def test_an_alternative_reason_kills_a_fault_only_with_the_declared_status() -> None:
    expected = replace(DIFFERS, or_reasons=("end_differs",))
    assert is_killed(expected, verdict("end_differs"))
    assert not is_killed(expected, verdict("end_differs", Status.INCONCLUSIVE))
    assert not is_killed(expected, verdict("losses_equal"))


@pytest.mark.parametrize(
    "seen",
    [
        verdict(first_differing_step=2),
        verdict(first_differing_step=True),
        verdict(first_differing_step=None),
        verdict(),
        verdict("exceeds_tolerance", first_differing_step=1),
        verdict(status=Status.ERROR, first_differing_step=1),
        verdict("held", Status.PASS, first_differing_step=1),
    ],
)
def test_a_fault_whose_verdict_is_not_the_declared_one_counts_as_survived(seen: Verdict) -> None:
    assert not is_killed(DIFFERS, seen)


def test_a_composite_claim_is_compared_by_the_figure_of_the_part_that_decided() -> None:
    seen = verdict(a__status="PASS", a__first_differing_step=7, b__status="FAIL", b__first_differing_step=1)
    assert is_killed(DIFFERS, seen)
    assert seen_figures(seen, {"first_differing_step": 0, "a.first_differing_step": 0}) == {
        "first_differing_step": 1,
        "a.first_differing_step": 7,
    }


def test_a_bound_next_to_bitwise_equality_gives_the_verdict_by_upstreams_number() -> None:
    assert upstream_alone_passes(claim(CAPTURE), verdict(within_upstream_tolerance=True)) is True
    assert upstream_alone_passes(claim(CAPTURE), verdict(within_upstream_tolerance=False)) is False
    assert upstream_alone_passes(claim(CAPTURE), verdict()) is None


def test_a_claim_with_only_a_bound_gives_the_verdict_by_upstreams_number() -> None:
    assert upstream_alone_passes(claim(CAPTURE), verdict(first_exceeding_step=None)) is True
    assert upstream_alone_passes(claim(CAPTURE), verdict(first_exceeding_step=3)) is False


def test_a_composite_passes_upstream_when_every_part_with_a_number_does() -> None:
    both = claim(CAPTURE, SYNCS)
    passes = verdict(a__status="FAIL", a__within_upstream_tolerance=True, b__status="PASS")
    exceeds = verdict(a__status="FAIL", a__within_upstream_tolerance=True, b__status="FAIL", b__first_exceeding_step=0)
    assert upstream_alone_passes(both, passes) is True
    assert upstream_alone_passes(both, exceeds) is False
