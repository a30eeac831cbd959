from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from junit_schema import departures
from report_views import (
    CONTRACT,
    contract,
    drill_view,
    full_view,
    header,
    planted,
    ratio_of,
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
        next((child.tag for child in case if child.tag != "system-out"), "passed")
        for case in parsed(view).iter("testcase")
    ]


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (False, ["passed", "failure", "skipped", "skipped", "error"]),
        (True, ["passed", "failure", "failure", "failure", "error"]),
    ],
)
def test_each_status_has_its_junit_element(gate: bool, expected: list[str]) -> None:
    assert results(view_of(*ALL, gate=gate)) == expected


def test_junit_counts_are_attributes_of_the_suite_and_of_the_whole_file() -> None:
    root = parsed(view_of(*ALL))
    for element in (root, *root.iter("testsuite")):
        counts = {key: element.get(key) for key in ("tests", "failures", "errors")}
        assert counts == {"tests": "5", "failures": "1", "errors": "1"}
    assert [suite.get("skipped") for suite in root.iter("testsuite")] == ["2"]


def test_a_junit_failure_states_status_reason_message_and_causes() -> None:
    (failure,) = parsed(view_of(Status.FAIL)).iter("failure")
    assert failure.get("message") == "FAIL reason_0: message 0"
    assert failure.get("type") == "reason_0"
    assert str(failure.text).startswith("message 0\nWhat usually causes this: A batch that was rebound")


def test_the_junit_text_of_a_unit_that_did_not_hold_is_short_and_names_the_page() -> None:
    """Issue trackers and CI services show the whole text of each case."""
    texts = [found.text or "" for tag in ("failure", "error") for found in parsed(full_view()).iter(tag)]
    assert max(text.count("\n") for text in texts) < 8
    assert {text.splitlines()[-1] for text in texts} == {
        "All figures and causes: report.html, in the folder of this file"
    }
    assert max(len(output(case)) for case in parsed(full_view()).iter("testcase")) < 25


def test_a_junit_failure_has_the_figure_that_decided_and_what_would_decide() -> None:
    view = view_with(verdict("F", status=Status.INCONCLUSIVE, reason="baseline_idle", **ratio_of(1.1)))
    [failure] = parsed(replace(view, gate=True)).iter("failure")
    text = failure.text or ""
    assert "\nDecided by: 1.1" in text
    assert "\nTo decide: " in text


def test_figures_and_denominators_are_in_the_output_of_a_junit_case() -> None:
    item = verdict("F-GRAPH-BWD-001", figures={"largest": Figure(value=0.25, unit="nats")})
    (case,) = parsed(view_with(item)).iter("testcase")
    assert output(case) == ["status: PASS", "reason: held", "largest: 0.25 nats", "out of steps: 100"]


def output(case: ET.Element) -> list[str]:
    return case.findtext("system-out", "").splitlines()


def test_a_junit_case_begins_with_its_claim_in_words() -> None:
    judged = contract()
    first = judged.claims[0]
    item = verdict(first.id, status=Status.FAIL).model_copy(update={"contract": judged.id})
    (case,) = parsed(view_with(item, contracts=[judged])).iter("testcase")
    assert output(case)[0] == f"claim: {first.title}"


@pytest.mark.parametrize("made", [full_view, drill_view, lambda: whole_drill_view(killed=[True, False])])
def test_a_junit_file_follows_its_schema_except_for_file_and_line_of_a_case(made: Callable[[], ReportView]) -> None:
    view = made()
    places = {(verdict.contract, verdict.claim): ("contracts/a.yaml", 12) for verdict in view.verdicts}
    assert set(departures(parsed(replace(view, places=places)))) == {
        "testcase: attribute file",
        "testcase: attribute line",
    }
    assert set(departures(parsed(view))) == set()


def test_junit_output_that_violates_its_schema_is_found() -> None:
    wrong = "<testsuites time='soon'><testsuite name='a'><case/><testcase name='b'><properties/></testcase></testsuite>"
    assert list(departures(ET.fromstring(f"{wrong}</testsuites>"))) == [  # noqa: S314 - our own text
        "testsuites: time is soon",
        "testsuite: no attribute tests",
        "testsuite: no attribute failures",
        "testsuite: no attribute errors",
        "testsuite: child case",
        "case: unknown element",
        "testcase: child properties",
    ]


def test_junit_divides_the_seconds_of_a_run_among_its_units() -> None:
    view = full_view()
    root = parsed(view)
    seconds = {str(case.get("name")): float(case.get("time", "")) for case in root.iter("testcase")}
    took = {run: sum(phase.seconds for phase in phases) for run, phases in view.costs.by_run.items()}
    assert seconds["F-GRAPH-BWD-001[tiny]"] == pytest.approx(took["tiny-paired"])
    assert seconds["CGB-EQ-001[qwen2-1.5b]"] == pytest.approx(took["qwen2-1.5b-paired"] / 3, abs=0.001)
    assert took["tiny-paired"] > 0
    assert float(root.get("time", "")) == pytest.approx(sum(took.values()), abs=0.01)


def test_a_junit_suite_states_start_machine_and_ci_job() -> None:
    ci = {"service": "Jenkins", "link": "https://ci.example/job/7", "author": "ada", "runner": "gpu-3"}
    environment = {"ci": ci, "gpu": {"name": "NVIDIA H200", "names": ["NVIDIA H200"]}}
    view = view_of(Status.FAIL, header=header(environment=environment))
    view = replace(view, places={(CONTRACT["id"], "F-GRAPH-BWD-001"): ("contracts/a.yaml", 12)})
    [suite], [case] = parsed(view).iter("testsuite"), parsed(view).iter("testcase")
    assert {key: suite.get(key) for key in ("timestamp", "hostname", "file", "url")} == {
        "timestamp": view.header.started_at,
        "hostname": "gpu-3",
        "file": "contracts/a.yaml",
        "url": "https://ci.example/job/7",
    }
    told = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert (told["GPU"], told["Author"], told["started"]) == ("NVIDIA H200", "ada", view.header.started_at)
    assert (case.get("file"), case.get("line")) == ("contracts/a.yaml", "12")


def test_a_waived_violation_is_skipped_with_its_waiver() -> None:
    view = view_of(Status.FAIL, gate=True, header=header(waivers=[waiver("w0")]))
    (skipped,) = parsed(view).iter("skipped")
    assert str(skipped.get("message")).startswith("waived by ada until 2027-01-01: known; FAIL reason_0")


def test_junit_cases_of_a_drill_have_their_own_class_name() -> None:
    assert {case.get("classname") for case in parsed(drill_view()).iter("testcase")} == {f"drill.{CONTRACT['id']}"}


@pytest.mark.parametrize(
    ("view", "faults"), [(drill_view(), {"stale_batch"}), (whole_drill_view(killed=[True]), set())]
)
def test_junit_output_names_the_planted_fault_and_none_for_controls(view: ReportView, faults: set[str]) -> None:
    lines = [told for case in parsed(view).iter("testcase") for told in output(case)]
    assert {told.removeprefix("fault: ") for told in lines if told.startswith("fault: ")} == faults


def test_junit_attributes_are_short_and_the_xml_is_valid_for_any_text() -> None:
    text = "<a b='\"&]]>\x00\x0b\ud800\ufffe\u202e" * 5000
    item = verdict(
        "F-GRAPH-BWD-001", status=Status.ERROR, message=text, reason=text, figures={text: Figure(value=text)}
    )
    xml = render_junit(planted(view_with(item), text))
    root = ET.fromstring(xml)  # noqa: S314 - our own output
    assert max(len(value) for element in root.iter() for value in element.attrib.values()) < 320
    assert len(xml.encode("utf-8")) < 10_000


def test_the_junit_file_of_a_run_without_verdicts_has_one_skipped_case() -> None:
    """A file without any case would look as if everything had passed."""
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
def test_junit_has_a_separate_case_for_a_headline_that_no_unit_shows(view: ReportView, expected: list[str]) -> None:
    assert results(view) == expected


def test_a_junit_suite_has_the_headline_as_a_property_and_a_case() -> None:
    view = view_of(Status.PASS, altered=("a.csv: changed",))
    said = "ERROR: Evidence differs from the digests recorded with it, so nothing here is proven."
    suites = list(parsed(view).iter("testsuite"))
    assert [suite.get("name") for suite in suites] == [CONTRACT["id"], "the run as a whole"]
    told = [one for suite in suites for one in suite.findall("properties/property[@name='headline']")]
    assert [one.get("value") for one in told] == [said, said]
    [error] = parsed(view).iter("error")
    assert error.get("message") == said


def test_junit_cases_are_named_by_claim_and_workload() -> None:
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
def test_junit_states_the_headline_even_when_a_unit_has_the_same_status(view: ReportView, tag: str) -> None:
    messages = [found.get("message") for found in parsed(view).iter(tag)]
    assert str(headline(view)) in messages
    assert len(messages) == 2


def test_a_fault_that_survived_is_named_in_the_case_of_the_run() -> None:
    [failure] = parsed(whole_drill_view(killed=[True, False])).iter("failure")
    assert (failure.text or "").startswith("fault1 in F-GRAPH-BWD-001 on tiny: expected ")


def test_junit_counts_the_figures_beyond_the_listed_ones() -> None:
    many = {f"ratio.process_{place}": Figure(value=1.0, unit="x") for place in range(64)}
    [case] = parsed(view_with(verdict("F", figures={**many, "mean_ratio": Figure(value=1.0)}))).iter("testcase")
    assert "53 figures more, in verdicts.json" in output(case)
    [case] = parsed(view_with(verdict("F"))).iter("testcase")
    assert not [told for told in output(case) if "more" in told]
