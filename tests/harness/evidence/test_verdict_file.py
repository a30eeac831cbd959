"""`verdicts.json`: facts alone, the same bytes everywhere, a gate, damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import EvidenceError
from harness.judging.verdict import Figure, Status, Verdict
from harness.run_directory.verdict_file import other_than, read_verdicts, verdict_text, write_verdicts


def verdict(status: Status = Status.PASS) -> Verdict:
    figures = {"difference": Figure(value=float("inf"), unit="nats"), "bound": Figure(value=0.1)}
    return Verdict(status=status, reason="r", message="m é", contract="c", claim="C", workload="w", figures=figures)


def test_verdicts_are_read_back_as_written_and_written_again_with_equal_bytes(tmp_path: Path) -> None:
    verdicts = [verdict(), verdict(Status.NOT_RUN)]
    write_verdicts(tmp_path, verdicts)
    read = read_verdicts(tmp_path)
    assert [facts.model_dump() for facts in read.claims] == [v.model_dump(exclude={"message"}) for v in verdicts]
    assert (read.counts.planned, read.counts.held, read.counts.not_run) == (2, 1, 1)
    assert verdict_text(read.claims).encode() == (tmp_path / "verdicts.json").read_bytes()
    assert '"value": "Infinity"' in (tmp_path / "verdicts.json").read_text()


@pytest.mark.parametrize(
    ("statuses", "gate"),
    [
        ([Status.PASS], True),
        ([Status.PASS, Status.NOT_RUN], False),
        ([Status.INCONCLUSIVE], False),
        ([], False),
    ],
)
def test_a_gate_opens_when_every_unit_holds(tmp_path: Path, statuses: list[Status], *, gate: bool) -> None:
    write_verdicts(tmp_path, [verdict(status) for status in statuses])
    assert read_verdicts(tmp_path).gate.open is gate


def test_a_reworded_verdict_is_the_same_and_a_changed_fact_is_not() -> None:
    recorded = verdict_text([verdict()]).encode()
    assert "m é".encode() not in recorded
    assert other_than(recorded, [verdict().model_copy(update={"message": "in today's words"})]) is None
    for change in ({"reason": "s"}, {"figures": {"bound": Figure(value=0.2)}}, {"denominators": {"steps": 1}}):
        assert other_than(recorded, [verdict().model_copy(update=change)]) == "the evidence gives other verdicts"


def of_version_1() -> str:
    content = json.loads(verdict_text([verdict()]))
    content["format_version"] = 1
    content["claims"][0]["message"] = "in the words of its day"
    return json.dumps(content)


def test_verdicts_of_version_1_are_compared_by_their_facts() -> None:
    assert other_than(of_version_1().encode(), [verdict()]) is None
    assert other_than(of_version_1().encode(), [verdict(Status.FAIL)]) == "the evidence gives other verdicts"


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('"open": true', '"open": "yes"'),
        ('"planned": 1', '"planned": 1.0'),
        ('"planned": 1', '"planned": "1"'),
        ('"planned": 1', '"planned": 2, "planned": 1'),
        ('"format_version": 1, ', ""),
        ('"format_version": 1', '"format_version": true'),
    ],
)
def test_a_verdict_file_that_only_a_lenient_parser_reads_as_equal_is_reported(was: str, becomes: str) -> None:
    assert was in of_version_1()
    changed = of_version_1().replace(was, becomes)
    assert other_than(changed.encode(), [verdict()]) == "the evidence gives other verdicts"


def test_a_verdict_file_with_a_repeated_key_does_not_equal_the_stored_verdicts() -> None:
    text = verdict_text([verdict()]).replace('"planned": 1', '"planned": 2, "planned": 1')
    assert other_than(text.encode(), [verdict()]) == "the evidence gives other verdicts"


@pytest.mark.parametrize("text", ["", "{}", '{"format_version": 2}', "[" * 50_000])
def test_damaged_verdicts_are_an_evidence_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "verdicts.json").write_text(text)
    with pytest.raises(EvidenceError, match="must contain its verdicts"):
        read_verdicts(tmp_path)
