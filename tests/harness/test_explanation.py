"""`harness explain` says all that a claim demands, in lines that fit a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.explain import WIDTH, explanation_of
from harness.contract.load import load_contracts
from harness.contract.schema import AnyClaim
from harness.errors import UsageError
from harness.judging.reasons import REASONS, Reason
from harness.judging.verdict import Status

CONTRACTS = Path(__file__).parents[2] / "contracts"
LOADED = load_contracts([CONTRACTS])
CLAIMS = [claim for loaded in LOADED for claim in loaded.contract.claims]


def test_explain_shows_the_default_numbers_of_a_timing_that_the_contract_omits() -> None:
    lines = [line.strip() for line in explanation_of("F-CGT-001", CONTRACTS)]
    assert lines[0] == "F-CGT-001: The captured step is at least 3 times as fast at a launch-bound shape"
    assert "throughput_ratio" in lines
    for line in ("at_least: 3.0", "processes: 8", "confidence: 0.99", "trajectory: F-CGT-002"):
        assert line in lines
    assert "sm_clock_spread 0.05" in " ".join(lines)  # a default


def test_each_part_of_a_composite_claim_is_explained_separately() -> None:
    lines = explanation_of("F-CGT-006", CONTRACTS)
    assert "  capture      mechanism: cuda_graph" in lines
    assert "  host_syncs   mechanism: cuda_graph" in lines
    assert "               control: arm synchronizing, exactly 6, per_layer true" in lines


def test_explain_says_that_several_sequence_lengths_are_taken_in_turn() -> None:
    lines = explanation_of("F-GRAPH-BWD-002-shapes", CONTRACTS)
    assert "  workloads    tiny-shapes: tiny, 4 × 32/64/48 tokens, 300 steps" in lines


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_every_claim_is_explained_completely_within_the_width(claim: AnyClaim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.cli.explain.load_contracts", lambda _: LOADED)  # a tenth of a second each time
    lines = explanation_of(claim.id, CONTRACTS)
    assert max(len(line) for line in lines[1:]) <= WIDTH
    said = " ".join(" ".join(lines).split())
    assert "{'" not in said  # a dictionary as Python writes it
    for words in (claim.why, claim.if_fails, ", ".join(claim.falsified_by)):
        assert " ".join(words.split()) in said


@pytest.mark.parametrize("code", REASONS)
def test_explain_prints_the_status_and_the_meaning_of_a_reason_code(code: str) -> None:
    first, *lines = explanation_of(code, CONTRACTS)
    assert first == f"{code}: a reason code of {REASONS[code].status}"
    assert lines[0].startswith("  meaning")
    assert "{" not in " ".join(lines)


def test_explain_prints_the_meaning_of_a_reason_code_that_an_installed_kind_defines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defined = Reason("too_blue", Status.FAIL, "The sky is too blue.")
    monkeypatch.setattr("harness.judging.reasons._with_packages", lambda: {"too_blue": defined})
    assert explanation_of("too_blue", CONTRACTS) == [
        "too_blue: a reason code of FAIL",
        "  meaning      The sky is too blue.",
    ]


def test_explain_refuses_an_unknown_claim_with_the_nearest_existing_claim() -> None:
    with pytest.raises(UsageError, match=r"no contract has this claim; found 'F-CGT-009'; did you mean 'F-CGT-006'\?"):
        explanation_of("F-CGT-009", CONTRACTS)


@pytest.mark.parametrize("width", [40, 80])
def test_explain_prints_the_same_words_in_shorter_lines_on_a_narrower_terminal(width: int) -> None:
    narrow = explanation_of("F-CGT-006", CONTRACTS, width)
    _, *lines = narrow
    assert [line for line in lines if len(line) > width and len(line.split()) > 2] == []
    assert " ".join(narrow).split() == " ".join(explanation_of("F-CGT-006", CONTRACTS)).split()
