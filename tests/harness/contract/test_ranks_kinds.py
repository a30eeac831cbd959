"""What a contract may say of ranks."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from run_builders import make_contract

from harness.contract.load import problems

AGREE = {"id": "A", "kind": "ranks_agree", "candidate": "two", "steps": 3}
MATCH = {
    "id": "M",
    "kind": "ranks_match",
    "candidate": "two",
    "baseline": "one",
    "steps": 3,
    "max_abs_difference": 0.1,
    "max_end_difference": 0.1,
}
NEAR = MATCH | {"max_end_difference": None}
EQUAL = {
    "id": "E",
    "kind": "trajectory_match",
    "candidate": "two",
    "baseline": "too",
    "equality": "bitwise",
    "max_abs_difference": 0.1,
    "guards": {"steps": 3},
}
ARMS: dict[str, Any] = {
    "two": {"ranks": 2},
    "too": {"ranks": 2},
    "three": {"ranks": 3},
    "four": {"ranks": 4},
    "one": {},
    "again": {},
    "alone": {"capture": "step"},
}


def rules(*claims: dict[str, Any]) -> list[tuple[str, str]]:
    return [(problem.rule, problem.got) for problem in problems(make_contract(*claims, arms=ARMS))]


def test_consistent_claims_about_ranks_have_no_finding() -> None:
    in_turn = {**MATCH, "id": "T", "in_turn": "alone", "max_end_difference": None}
    near = {**in_turn, "id": "N", "ends": {"control": "again", "at_most": 0.01}}
    assert rules(AGREE, MATCH, in_turn, near, EQUAL) == []


def test_a_ranks_match_claim_must_state_how_end_states_are_compared() -> None:
    with pytest.raises(
        ValidationError, match="the claim does not check the end; give `max_end_difference`, `ends` or `in_turn`; "
    ):
        make_contract(MATCH | {"max_end_difference": None}, arms=ARMS)
    with pytest.raises(ValidationError, match="leave `max_end_difference` out"):
        make_contract(MATCH | {"ends": {"control": "again", "at_most": 0.01}}, arms=ARMS)


@pytest.mark.parametrize(
    ("claim", "rule", "got"),
    [
        (AGREE | {"candidate": "one"}, "a claim about ranks needs an arm with several ranks", "'one' has 1"),
        (MATCH | {"in_turn": "too"}, "ranks must be compared with one process", "2 ranks in 'too'"),
        (MATCH | {"in_turn": "one"}, "an arm must not be compared with itself", "'one' as `baseline` and as `in_turn`"),
        (
            NEAR | {"ends": {"control": "alone", "at_most": 0.01}},
            "the control of `ends` must have the baseline's settings",
            "'alone', whose settings differ from those of 'one'",
        ),
        (
            MATCH | {"candidate": "four", "in_turn": "alone"},
            "`in_turn` compares bits, so the candidate must have two ranks that read two shares",
            "4 ranks with 4 shares",
        ),
        (MATCH | {"baseline": "too"}, "ranks must be compared with one process", "2 ranks in 'too'"),
        (
            EQUAL | {"baseline": "one"},
            "arms that are compared rank by rank must have equal numbers of ranks",
            "1 in 'one' and 2 in the candidate",
        ),
        (
            AGREE | {"candidate": "three"},
            "ranks must take equal shares of a batch",
            "3 ranks in 'three' and batches of 4 in workload 'w'",
        ),
    ],
)
def test_contradictory_fields_of_a_claim_about_ranks_are_reported(claim: dict[str, Any], rule: str, got: str) -> None:
    assert rules(claim) == [(rule, got)]


def test_the_number_of_ranks_is_not_passed_to_the_system() -> None:
    contract = make_contract(AGREE, arms=ARMS)
    assert contract.arms["two"].ranks == 2
    assert contract.arms["two"].settings() == {}


def test_model_parallel_ranks_share_one_part_of_the_batch() -> None:
    arms = ARMS | {"two": {"ranks": 6, "model_parallel": 2}}
    workloads = {"w": {"model": "m", "batch_size": 3, "seq_len": 4, "steps": 3}}
    assert [*problems(make_contract(AGREE, arms=arms, workloads=workloads))] == []
    with pytest.raises(ValidationError, match=r"`ranks` \(3\) must be a multiple of `model_parallel` \(2\)"):
        make_contract(AGREE, arms=ARMS | {"two": {"ranks": 3, "model_parallel": 2}})
