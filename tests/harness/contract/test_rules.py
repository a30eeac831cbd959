"""Rules that came with a version: each concerns a contract that lacks its line, and none that has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.contract.load import LoadedContract, Place, load_contract
from harness.contract.rules import Rule, current_rules, newer_rules, rules
from harness.judging.reasons import REASONS
from harness.kinds import BUILT_IN
from harness.lint import Finding, lint_rules

Toy = Callable[..., Path]

TEXTS = {"judged_on": ["small"], "why": "reasons", "if_fails": "causes"}
# A judgement of each kind that a rule names, as 0.1.0 let it hold.
JUDGEMENTS: dict[str, dict[str, Any]] = {
    "trajectory_match": {"baseline": "plain", "equality": "bitwise", "max_abs_difference": 0.1, "guards": {"steps": 9}},
    "repeatability": {"equality": "bitwise", "max_abs_difference": 0.1, "guards": {"steps": 9}},
    "gradient_match": {"baseline": "plain", "steps": [0, 1], "equality": "bitwise"},
    "capture": {},
    "memory_steady": {"per": "replay", "after": 2, "growth_at_most": 0.0},
    "throughput_ratio": {"baseline": "plain", "at_least": 1.1, "processes": 8, "trajectory": "trajectory_match"},
    "host_syncs": {"candidate": {"arm": "fast", "at_most": 0}, "control": {"arm": "plain", "exactly": 1}},
}
OLD = {
    "schema": "contract/v2",
    "id": "old-v1",
    "title": "A contract of 0.1.0",
    "system": "toy.system:Toy",
    "workloads": {"small": {"model": "toy", "batch_size": 2, "seq_len": 8, "steps": 10}},
    "arms": {"fast": {"capture": "step"}, "plain": {"capture": "none"}},
    "claims": [
        {"id": kind, "title": kind, "kind": kind, "candidate": "fast", **judgement, **TEXTS}
        for kind, judgement in JUDGEMENTS.items()
    ],
}


def loaded(folder: Path, contract: object) -> LoadedContract:
    path = folder / "old.yaml"
    path.write_text(json.dumps(contract), encoding="utf-8")
    return load_contract(path)


def concerned(contract: LoadedContract) -> dict[str, Sequence[str]]:
    return {concern.rule.id: list(concern.claims) for concern in newer_rules(contract)}


def with_line(contract: Any, rule: Rule, places: Sequence[Place]) -> Any:
    changed = json.loads(json.dumps(contract))
    for place in places:
        written = changed
        for key in place:
            written = written[key]
        written.update(yaml.safe_load(rule.write))
    return changed


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_a_new_rule_of_judging_affects_a_contract_until_the_required_line_is_written(
    rule: Rule, tmp_path: Path
) -> None:
    assert {*rule.reasons} <= REASONS.keys()
    assert {*rule.kinds} <= BUILT_IN.keys()
    old = loaded(tmp_path, OLD)
    [concern] = [each for each in newer_rules(old) if each.rule == rule]
    assert list(concern.claims) == [kind for kind in JUDGEMENTS if kind in rule.kinds]
    fixed = loaded(tmp_path, with_line(OLD, rule, list(concern.places)))
    assert concerned(fixed).keys() == concerned(old).keys() - {rule.id} - (
        {"repeats-in-another-process"} if rule.id == "baseline-repeats" else set()  # the same line in the same arm
    )


def test_no_new_rule_affects_a_contract_that_declares_the_current_version_of_rules(tmp_path: Path) -> None:
    assert concerned(loaded(tmp_path, {**OLD, "rules": current_rules()})) == {}
    assert len(concerned(loaded(tmp_path, {**OLD, "rules": "0.1.0"}))) == len(rules()) >= 8


def test_rules_about_captures_equal_in_bits_do_not_affect_claims_about_plain_arms_within_a_bound(toy: Toy) -> None:
    path = toy("equality: bitwise", "equality: within")
    assert list(concerned(load_contract(path))) == ["host-values"]
    path.write_text(path.read_text().replace("candidate: fast", "candidate: waiting"), encoding="utf-8")
    assert concerned(load_contract(path)) == {}


def test_the_note_about_a_new_rule_has_the_place_the_possible_verdict_and_the_line_to_write(toy: Toy) -> None:
    notes = list(lint_rules(load_contract(toy())))
    assert {each.level for each in notes} == {"note"}
    assert notes[2] == Finding(
        "note",
        "toy.yaml:8:9",
        "under the rules of version 0.2.0, TOY-001 can end INCONCLUSIVE `baseline_not_repeatable` if the baseline does "
        "not repeat its bits in a second process: write `deterministic: true` into fast, plain, or "
        '`rules: "0.2.0"` if this does not happen here',
    )
    assert list(lint_rules(load_contract(toy()), claims=["OTHER"])) == []


def test_a_rules_version_newer_than_the_harness_is_a_warning(toy: Toy) -> None:
    [found] = lint_rules(load_contract(toy("id: toy-v1", "rules: 9.0.0\nid: toy-v1")))
    assert (found.level, found.where) == ("warning", "toy.yaml:2:8")


def test_changing_the_version_of_rules_in_a_contract_does_not_make_its_drill_outdated(toy: Toy) -> None:
    old = load_contract(toy()).demands()
    assert load_contract(toy("id: toy-v1", "id: toy-v1\nrules: 0.2.0")).demands() == old
