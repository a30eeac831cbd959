"""Every judge reaches every one of its reason codes, with the sentence that people read, word for word.

The sentences stand in `sentences/<kind>.yaml`; every code is reached by some evidence.
"""

from pathlib import Path

import pytest
import yaml
from judge_cases import Case
from judge_cases_tables import EVERYTHING, TABLES

from harness.judging.reasons import REASONS
from harness.kinds import BUILT_IN

# libyaml's parser where PyYAML was built with it: the other one takes half a second, in every process that collects.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SENTENCES: dict[str, dict[str, str]] = {
    path.stem: yaml.load(path.read_text(), LOADER)  # noqa: S506 - either of them is a safe one
    for path in sorted((Path(__file__).parent / "sentences").glob("*.yaml"))
}
ALL = [pytest.param(kind, case, id=f"{kind}: {case.name}") for kind, cases in EVERYTHING.items() for case in cases]


@pytest.mark.parametrize(("kind", "case"), ALL)
def test_each_single_defect_of_the_evidence_gives_its_reason_code_and_sentence(kind: str, case: Case) -> None:
    verdict = case.judged()
    assert (verdict.reason, verdict.status) == (case.reason, REASONS[case.reason].status), verdict.message
    assert verdict.message == SENTENCES[kind][case.name]


def test_every_expected_message_belongs_to_a_judge_case() -> None:
    written = sorted((kind, name) for kind, sentences in SENTENCES.items() for name in sentences)
    assert written == sorted((kind, case.name) for kind, cases in EVERYTHING.items() for case in cases)


def test_every_reason_code_is_given_by_some_judge_case() -> None:
    reached = {case.reason for cases in EVERYTHING.values() for case in cases}
    assert reached == set(REASONS)


def test_every_claim_kind_has_a_judge_and_a_table_of_cases() -> None:
    assert set(TABLES) == set(BUILT_IN)


@pytest.mark.parametrize("kind", TABLES)
def test_the_cases_of_every_claim_kind_include_pass_fail_and_error(kind: str) -> None:
    statuses = {str(REASONS[case.reason].status) for case in TABLES[kind]}
    assert {"PASS", "FAIL", "ERROR"} <= statuses
