"""Write JUnit XML for GitHub, GitLab and Jenkins: one suite for each contract, and one case for each unit.

The XML follows the schema of Jenkins' xunit plugin, with one exception. A case also has the attributes `file` and
`line`. GitLab and annotation actions of GitHub read these attributes, and Jenkins' `junit` step accepts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from xml.etree import ElementTree as ET

from harness.errors import ExitCode
from harness.evidence.layout import PAGE
from harness.judging.verdict import Status, Verdict
from harness.numbers import counted
from harness.report.advice import advice, brief, telling_figures
from harness.report.deciding import decided
from harness.report.first_screen import identity, machine
from harness.report.headline import HELD, Headline, headline, of_the_whole, remedy_of
from harness.report.sections.kill_matrix import survived
from harness.report.text import clean, figure, line, sentence
from harness.report.together import of_each_part
from harness.report.view import ReportView
from harness.run_directory.shards import name_of

# Largest number of characters of an attribute. Some readers keep attributes in memory for every build, or cut them at
# 255 characters.
MESSAGE = 240
BODY = 2000
OUTPUT = 20_000
FIGURES = 12  # largest number of figures in a test case


def render_junit(view: ReportView) -> str:
    """Return the verdicts as JUnit XML. Facts and figures of a unit are the standard output of its case.

    A violated unit is a failure, and a unit with the verdict ERROR is an error. Units that are undecided or not run are
    skipped, or are failures if the run is a gate. A waived violation is skipped, and its message begins with the
    waiver. The properties of each suite are the headline and the facts of the run, such as trainer, commits and
    machine. If no unit's case shows why the run did not hold (for example because evidence was altered), the headline
    gets a case of its own. The seconds of a run are divided among the units that the run decides.
    """
    result = headline(view)
    root = ET.Element("testsuites", name="contracts")
    seconds = _seconds(view)
    contracts = dict.fromkeys(verdict.contract for verdict in view.verdicts)
    for contract in contracts:
        verdicts = [verdict for verdict in view.verdicts if verdict.contract == contract]
        suite = _suite(root, view, contract, result)
        for verdict in verdicts:
            _case(suite, view, verdict, seconds.get(name_of(verdict), 0.0))
        _count(suite)
    _show(root, view, result)
    _count(root)
    del root.attrib["skipped"]  # the JUnit schema allows no attribute `skipped` at the root
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _seconds(view: ReportView) -> dict[tuple[str, str, str], float]:
    """Return the seconds of each unit. The seconds of a run are divided equally among the units that it decides."""
    serving = Counter(run for unit in view.header.units for run in unit.runs)
    took = {name: sum(phase.seconds for phase in phases) for name, phases in view.costs.by_run.items()}
    return {name_of(unit): sum(took.get(run, 0.0) / serving[run] for run in unit.runs) for unit in view.header.units}


def _suite(root: ET.Element, view: ReportView, name: str, result: Headline) -> ET.Element:
    origin = next((part for unit, part in view.origins.items() if unit[0] == name), None)
    decided = next((part.view for part in view.parts if part.name == origin), view).header
    recorded = decided.environment
    attributes = {
        "timestamp": decided.started_at,
        "hostname": recorded.ci.runner or recorded.job.node,
        "file": next((file for (contract, _), (file, _) in view.places.items() if contract == name), None),
        "url": recorded.ci.page,
    }
    known = {key: line(value, MESSAGE) for key, value in attributes.items() if value}
    suite = ET.SubElement(root, "testsuite", {"name": line(name, MESSAGE), **known})
    properties = ET.SubElement(suite, "properties")
    recorder = view.recorded_sentence()
    by = [("recorded by", recorder)] if recorder else []
    for key, value in [("headline", str(result)), *identity(view), *of_each_part(view, machine), *by]:
        ET.SubElement(properties, "property", name=key, value=line(value, MESSAGE))
    return suite


def _show(root: ET.Element, view: ReportView, result: Headline) -> None:
    """Add a test case for the whole run if the run did not hold and no unit's case shows this result."""
    if result.word == HELD:
        return
    tag = {ExitCode.ERROR: "error", ExitCode.VIOLATED: "failure"}.get(result.code, "skipped")
    if result.code is ExitCode.UNDECIDED and view.gate:
        tag = "failure"
    if root.find(f".//{tag}") is not None and not of_the_whole(view, result):
        return
    suite = _suite(root, view, "the run as a whole", result)
    case = ET.SubElement(suite, "testcase", classname="run", name=result.word, time="0")
    ended = ET.SubElement(case, tag, message=line(result, MESSAGE))
    if lived := survived(view):
        ended.text = clean("\n".join(lived), BODY)
    _count(suite)


def _case(suite: ET.Element, view: ReportView, verdict: Verdict, seconds: float) -> None:
    name = f"{line(verdict.claim, 120)}[{line(verdict.workload, 80)}]"
    drill = "drill." if view.is_drill else ""
    case = ET.SubElement(suite, "testcase", classname=f"{drill}{line(verdict.contract, 120)}", name=name)
    case.set("time", f"{seconds:.3f}")
    if place := view.places.get((verdict.contract, verdict.claim)):
        case.set("file", line(place[0], MESSAGE))
        case.set("line", str(place[1]))
    _result(case, view, verdict)
    ET.SubElement(case, "system-out").text = clean("\n".join(_facts(view, verdict)), OUTPUT)


def _facts(view: ReportView, verdict: Verdict) -> Iterator[str]:
    """Yield a line for each fact, figure and denominator of a unit."""
    claim = view.claim(verdict.contract, verdict.claim)
    facts = {"claim": claim.title if claim is not None else None}
    facts |= {"status": verdict.status.value, "reason": verdict.reason, "mechanism": verdict.mechanism}
    facts |= {"fault": view.header.fault, "part": view.origins.get(name_of(verdict))}
    yield from (f"{key}: {line(value, MESSAGE)}" for key, value in facts.items() if value)
    for key, number in list(telling_figures(verdict, claim).items())[:FIGURES]:
        yield f"{line(key, 80)}: {line(figure(number), MESSAGE)}"
    if (left := len(verdict.figures) - FIGURES) > 0:
        yield f"{counted(left, 'figure')} more, in verdicts.json"
    for key, count in list(verdict.denominators.items())[:FIGURES]:
        yield f"out of {line(key, 60)}: {count}"


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
        result.text = clean("\n".join(_told(view, verdict)), BODY)


def _told(view: ReportView, verdict: Verdict) -> Iterator[str]:
    """Yield lines about a unit that did not hold: the judge's message, the deciding figure, the first cause, what to
    do, and where to find further advice."""
    yield verdict.message
    if (found := decided(verdict)) is not None:
        yield f"Decided by: {' '.join(word for word in (found.text, found.name) if word)}"
    yield from (f"{sentence(each.label)}: {each.text}" for each in brief(advice(view, verdict)))
    if verdict.status is Status.INCONCLUSIVE and (remedy := remedy_of(verdict, view)):
        yield f"To decide: {remedy}"
    yield f"All figures and causes: {PAGE}, in the folder of this file"


def _tag(status: Status, *, gate: bool, waived: bool) -> str | None:
    """Return the name of the XML element for a status, or None for a case that passed."""
    if status is Status.PASS:
        return None
    if status is Status.ERROR:
        return "error"
    if waived:
        return "skipped"
    return "failure" if status is Status.FAIL or gate else "skipped"


def _count(element: ET.Element) -> None:
    """Set the totals (`tests`, `failures`, …). Some readers use these attributes instead of counting the cases."""
    element.set("time", f"{sum(float(case.get('time', '0')) for case in element.iter('testcase')):.3f}")
    for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(attribute, str(sum(1 for _ in element.iter(tag))))
