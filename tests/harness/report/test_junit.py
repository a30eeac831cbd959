from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from report_views import (
    CONTRACT,
    drill_view,
    full_view,
    header,
    planted,
    verdict,
    view_of,
    view_with,
    waiver,
    whole_drill_view,
)

from harness.judging.verdict import Figure, Status
from harness.report.headline import headline
from harness.report.junit import render_junit
from harness.report.view import ReportView

ALL = (Status.PASS, Status.FAIL, Status.INCONCLUSIVE, Status.NOT_RUN, Status.ERROR)


def parsed(view: ReportView) -> ET.Element:
    return ET.fromstring(render_junit(view))  # noqa: S314 - our own output


def results(view: ReportView) -> list[str]:
    return [
        next((child.tag for child in case if child.tag != "properties"), "passed")
        for case in parsed(view).iter("testcase")
    ]


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (False, ["passed", "failure", "skipped", "skipped", "error"]),
        (True, ["passed", "failure", "failure", "failure", "error"]),
    ],
)
def test_each_status_becomes_its_element(gate: bool, expected: list[str]) -> None:
    assert results(view_of(*ALL, gate=gate)) == expected


def test_counts_are_attributes_of_suite_and_whole() -> None:
    root = parsed(view_of(*ALL))
    for element in (root, *root.iter("testsuite")):
        counts = {key: element.get(key) for key in ("tests", "failures", "errors", "skipped")}
        assert counts == {"tests": "5", "failures": "1", "errors": "1", "skipped": "2"}


def test_a_failure_says_status_reason_sentence_and_usual_causes() -> None:
    (failure,) = parsed(view_of(Status.FAIL)).iter("failure")
    assert failure.get("message") == "FAIL reason_0: message 0"
    assert failure.get("type") == "reason_0"
    assert str(failure.text).startswith("message 0\nWhat usually causes this: A batch that was rebound")


def test_figures_and_denominators_are_properties() -> None:
    item = verdict("F-GRAPH-BWD-001", figures={"largest": Figure(value=0.25, unit="nats")})
    (case,) = parsed(view_with(item)).iter("testcase")
    found = {entry.get("name"): entry.get("value") for entry in case.iter("property")}
    assert found == {"status": "PASS", "reason": "held", "largest": "0.25 nats", "denominator.steps": "100"}


def test_a_waived_violation_is_skipped_with_its_waiver() -> None:
    view = view_of(Status.FAIL, gate=True, header=header(waivers=[waiver("w0")]))
    (skipped,) = parsed(view).iter("skipped")
    assert str(skipped.get("message")).startswith("waived by ada until 2027-01-01: known; FAIL reason_0")


def test_a_drill_has_a_class_name_of_its_own() -> None:
    assert {case.get("classname") for case in parsed(drill_view()).iter("testcase")} == {f"drill.{CONTRACT['id']}"}


@pytest.mark.parametrize(
    ("view", "faults"), [(drill_view(), {"stale_batch"}), (whole_drill_view(killed=[True]), set())]
)
def test_a_planted_fault_is_a_property_and_controls_have_none(view: ReportView, faults: set[str]) -> None:
    properties = [(entry.get("name"), entry.get("value")) for entry in parsed(view).iter("property")]
    assert {value for name, value in properties if name == "fault"} == faults


def test_attributes_stay_short_and_xml_stays_sound_whatever_the_text() -> None:
    text = "<a b='\"&]]>\x00\x0b\ud800\ufffe\u202e" * 5000
    item = verdict(
        "F-GRAPH-BWD-001", status=Status.ERROR, message=text, reason=text, figures={text: Figure(value=text)}
    )
    xml = render_junit(planted(view_with(item), text))
    root = ET.fromstring(xml)  # noqa: S314 - our own output
    assert max(len(value) for element in root.iter() for value in element.attrib.values()) < 320
    assert len(xml.encode("utf-8")) < 10_000


def test_a_run_without_verdicts_is_a_sound_empty_file() -> None:
    """Sound, and no success: a file without a case reads like one in which everything passed."""
    assert results(view_of()) == ["skipped"]


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (view_of(Status.PASS, Status.NOT_RUN), ["passed", "skipped"]),
        (view_of(Status.PASS, altered=("a.csv: changed",)), ["passed", "error"]),
        (view_of(Status.PASS, Status.FAIL, incomplete=("run",)), ["passed", "failure", "error"]),
        (whole_drill_view(killed=[True, False]), ["passed", "failure"]),
        (whole_drill_view(killed=[True, True], not_run=1), ["passed", "skipped"]),
        (whole_drill_view(Status.PASS, Status.NOT_RUN, killed=[True, True]), ["passed", "skipped", "failure"]),
        (whole_drill_view(killed=[True, True]), ["passed"]),
        (view_of(Status.FAIL, gate=True, header=header(waivers=[waiver("w0")])), ["skipped", "failure"]),
    ],
    ids=["partly", "altered", "incomplete", "survivor", "not drilled", "control", "killed", "waived only"],
)
def test_what_no_unit_shows_has_a_case_of_its_own(view: ReportView, expected: list[str]) -> None:
    assert results(view) == expected


def test_the_headline_is_a_property_of_every_suite_and_the_message_of_its_case() -> None:
    view = view_of(Status.PASS, altered=("a.csv: changed",))
    said = "ERROR: Evidence differs from the digests recorded with it, so nothing here is proven."
    suites = list(parsed(view).iter("testsuite"))
    assert [suite.get("name") for suite in suites] == [CONTRACT["id"], "the run as a whole"]
    told = [one for suite in suites for one in suite.findall("properties/property[@name='headline']")]
    assert [one.get("value") for one in told] == [said, said]
    [error] = parsed(view).iter("error")
    assert error.get("message") == said


def test_cases_are_named_by_claim_and_workload() -> None:
    names = [case.get("name") for case in parsed(full_view()).iter("testcase")]
    assert names[:2] == ["F-GRAPH-BWD-001[qwen2-1.5b]", "F-GRAPH-BWD-001[tiny]"]


@pytest.mark.parametrize(
    ("view", "tag"),
    [
        (view_of(Status.ERROR, altered=("a.csv: changed",)), "error"),
        (whole_drill_view(Status.FAIL, killed=[True, False]), "failure"),
    ],
    ids=["altered", "survivor"],
)
def test_a_unit_that_ended_like_the_run_does_not_stand_for_what_it_does_not_say(view: ReportView, tag: str) -> None:
    messages = [found.get("message") for found in parsed(view).iter(tag)]
    assert str(headline(view)) in messages
    assert len(messages) == 2


def test_a_fault_that_survived_is_named_in_the_case_of_the_run() -> None:
    [failure] = parsed(whole_drill_view(killed=[True, False])).iter("failure")
    assert (failure.text or "").startswith("fault1 in F-GRAPH-BWD-001 on tiny: expected ")


def test_figures_beyond_those_that_are_properties_are_counted() -> None:
    many = {f"ratio.process_{place}": Figure(value=1.0, unit="x") for place in range(64)}
    [case] = parsed(view_with(verdict("F", figures={**many, "mean_ratio": Figure(value=1.0)}))).iter("testcase")
    properties = {one.get("name"): one.get("value") for one in case.iter("property")}
    assert properties["left out"] == "5 figures more, in verdicts.json"
    [case] = parsed(view_with(verdict("F"))).iter("testcase")
    assert "left out" not in {one.get("name") for one in case.iter("property")}
