"""Write JUnit XML that GitHub, GitLab and Jenkins read: one suite for each contract, one case for each unit."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from harness.errors import ExitCode
from harness.judging.verdict import Status, Verdict
from harness.numbers import counted
from harness.report.advice import advice
from harness.report.headline import HELD, Headline, headline, of_the_whole
from harness.report.sections.kill_matrix import survived
from harness.report.text import clean, figure, line, sentence
from harness.report.view import ReportView
from harness.run_directory.shards import name_of

# Attributes stay short: some readers keep them in memory for every build, or cut them at 255.
MESSAGE = 240
BODY = 2000
FIGURES = 60  # of a case


def render_junit(view: ReportView) -> str:
    """Return the verdicts as JUnit XML. Figures are properties.

    Violated is a failure, broken an error; undecided and not run are skipped, or failures under the gate. A waived
    violation is skipped, with its waiver as the message. Each suite has the headline as a property. If no unit shows
    what the headline says (altered evidence, a fault that survived), a case of its own does.
    """
    result = headline(view)
    root = ET.Element("testsuites", name="contracts")
    contracts = dict.fromkeys(verdict.contract for verdict in view.verdicts)
    for contract in contracts:
        verdicts = [verdict for verdict in view.verdicts if verdict.contract == contract]
        suite = _suite(root, contract, result)
        for name, text in view.commit_lines().items():
            ET.SubElement(suite[0], "property", name=name, value=line(text, MESSAGE))
        for verdict in verdicts:
            _case(suite, view, verdict)
        _count(suite)
    _show(root, view, result)
    _count(root)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(root: ET.Element, name: str, result: Headline) -> ET.Element:
    suite = ET.SubElement(root, "testsuite", name=line(name, MESSAGE))
    properties = ET.SubElement(suite, "properties")
    ET.SubElement(properties, "property", name="headline", value=line(result, MESSAGE))
    return suite


def _show(root: ET.Element, view: ReportView, result: Headline) -> None:
    """Add a case for the whole run, unless it held or a unit's case ended alike, so that nobody sees a success."""
    if result.word == HELD:
        return
    tag = {ExitCode.ERROR: "error", ExitCode.VIOLATED: "failure"}.get(result.code, "skipped")
    if result.code is ExitCode.UNDECIDED and view.gate:
        tag = "failure"
    if root.find(f".//{tag}") is not None and not of_the_whole(view, result):
        return
    suite = _suite(root, "the run as a whole", result)
    case = ET.SubElement(suite, "testcase", classname="run", name=result.word, time="0")
    ended = ET.SubElement(case, tag, message=line(result, MESSAGE))
    if lived := survived(view):
        ended.text = clean("\n".join(lived), BODY)
    _count(suite)


def _case(suite: ET.Element, view: ReportView, verdict: Verdict) -> None:
    name = f"{line(verdict.claim, 120)}[{line(verdict.workload, 80)}]"
    drill = "drill." if view.is_drill else ""
    case = ET.SubElement(suite, "testcase", classname=f"{drill}{line(verdict.contract, 120)}", name=name, time="0")
    properties = ET.SubElement(case, "properties")
    facts = {"status": verdict.status.value, "reason": verdict.reason, "mechanism": verdict.mechanism}
    facts |= {"fault": view.header.fault, "part": view.origins.get(name_of(verdict))}
    for key, value in facts.items():
        if value:
            ET.SubElement(properties, "property", name=key, value=line(value, MESSAGE))
    for key, number in list(verdict.figures.items())[:FIGURES]:
        ET.SubElement(properties, "property", name=line(key, 80), value=line(figure(number), MESSAGE))
    if (left := len(verdict.figures) - FIGURES) > 0:
        told = f"{counted(left, 'figure')} more, in verdicts.json"
        ET.SubElement(properties, "property", name="left out", value=told)
    for key, count in list(verdict.denominators.items())[:FIGURES]:
        ET.SubElement(properties, "property", name=f"denominator.{line(key, 60)}", value=str(count))
    _result(case, view, verdict)


def _result(case: ET.Element, view: ReportView, verdict: Verdict) -> None:
    waiver = view.waiver(verdict)
    tag = _tag(verdict.status, gate=view.gate, waived=waiver is not None)
    if tag is None:
        return
    message = f"{verdict.status.value} {verdict.reason}: {verdict.message}"
    if waiver is not None:
        message = f"waived by {waiver.owner} until {waiver.expires}: {waiver.reason}; {message}"
    result = ET.SubElement(case, tag, message=line(message, MESSAGE))
    if tag != "skipped":
        result.set("type", line(verdict.reason, 80))
        told = [f"{sentence(each.label)}: {each.text}" for each in advice(view, verdict)]
        result.text = clean("\n".join([verdict.message, *told]), BODY)


def _tag(status: Status, *, gate: bool, waived: bool) -> str | None:
    """Return the element that a status becomes; None for a case that passed."""
    if status is Status.PASS:
        return None
    if status is Status.ERROR:
        return "error"
    if waived:
        return "skipped"
    return "failure" if status is Status.FAIL or gate else "skipped"


def _count(element: ET.Element) -> None:
    """Set the attributes that readers sum up instead of counting."""
    for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(attribute, str(sum(1 for _ in element.iter(tag))))
