"""Show claims without an executable check, what broke, the environment, and how to reproduce the run."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from harness.evidence.base import Scalar
from harness.evidence.environment_records import CHANGES, UNCOMMITTED
from harness.evidence.run_evidence import Death
from harness.evidence.run_records import ArmFailed, PartFailed
from harness.report.blocks import CELL, Part, Section, Table, table
from harness.report.text import line, listing, number
from harness.report.view import ReportView
from harness.run_directory.bundle import Header

# Largest number of characters in a list of the selected claims, workloads or tags. Only the environment section lists
# all of them.
NAMES = 6000


def unchecked(view: ReportView) -> Section | None:
    """Return a section about claims that contracts list without an executable check, with the reasons. Return None if
    there are none."""
    parts = []
    for contract in view.contracts:
        if contract.unchecked:
            columns = ["claim", "demands", "why it is not checked", "source"]
            rows = [[one.id, one.title, one.why, one.source] for one in contract.unchecked]
            listed = table(f"{len(rows)} without an executable check", columns, rows, folded=True, shown=300)
            parts.append(Part(contract.id, [], [], [listed]))
    lead = f"{view.unchecked_sentence()} Nothing was run for them, and no verdict on this page is about them."
    return Section("unchecked", "No executable check", lead, parts) if parts else None


def deaths(view: ReportView) -> Section | None:
    """Return a section about workers, arms and detectors that ended before their work was done, with the recorded
    stacks. Return None if there are none."""
    parts = []
    for run in view.evidence.values():
        broken: list[tuple[str, Death | ArmFailed | PartFailed]] = []
        broken += [(f"arm {arm}", end) for arm, end in run.failed.items()]
        parts_failed = [each for arm in run.arms.values() for one in arm for each in one.failed_parts.values()]
        broken += [(f"{each.part} of arm {each.arm}", each) for each in parts_failed]
        if run.death is not None:
            broken.append(("", run.death))
        for arm, end in broken:
            where = f" in the phase {line(end.phase, 80)}" if end.phase else ""
            whose = f"{line(arm, 120)}: " if arm else ""
            cause = f"{whose}{end.cause.replace('_', ' ')}{where}: {line(end.detail, 600)}"
            stack = listing(end.stack).strip()
            parts.append(Part(line(run.run_id, 120), [cause], runs=[run.run_id], listing=stack))
    introduction = "Workers, arms of a run, and detectors that ended before their work was done."
    return Section("broke", "What broke", introduction, parts) if parts else None


def environment(view: ReportView) -> Section | None:
    """Return a section with machine, software and digests from `run.json`, and with facts that systems state about
    themselves. Return None if nothing is known.

    If there are several run directories, the section has a folded part for each.
    """
    parts = [Part(part.name, tables=_fingerprint(part.view.header, folded=True)) for part in view.parts]
    parts = parts or [Part("Fingerprint", tables=_fingerprint(view.header))]
    if stated := _stated(view):
        told = table("Stated by the system", ["fact", "value", "by"], stated, folded=True, shown=60)
        parts[-1].tables.append(told) if not view.parts else parts.append(Part("All parts", tables=[told]))
    lead = f"The machine and its software, as collected when the run began. {view.recorded_sentence()}".rstrip()
    return Section("environment", "Environment", lead, parts) if any(part.tables for part in parts) else None


def _fingerprint(header: Header, *, folded: bool = False) -> list[Table]:
    records = {"Environment": header.environment, "Digests": header.digests, "Narrowed": header.narrowed}
    tables = []
    for title, record in records.items():
        facts = [[path, value if isinstance(value, str) else number(value)] for path, value in flatten(record).items()]
        if facts:
            long = NAMES if record is header.narrowed else CELL
            hidden = folded or record is header.digests
            tables.append(table(title, ["", "value"], facts, shown=80, folded=hidden, cell=long))
    return tables


def _stated(view: ReportView) -> list[list[object]]:
    """Return rows (fact, value, arms) of the facts that systems state about themselves. Facts that are equal in all
    arms come first."""
    speakers: dict[tuple[str, str], list[str]] = {}
    arms = [(run, arm, items[0]) for run in view.evidence.values() for arm, items in run.arms.items() if items]
    for run, arm, item in arms:
        for key, value in item.start.facts.items():
            fact = (key, value if isinstance(value, str) else number(value))
            speakers.setdefault(fact, []).append(f"{view.title_of(run.run_id)} · {arm}")
    ordered = sorted(speakers.items(), key=lambda item: len(item[1]) != len(arms))
    return [[*fact, _named(arms_with, len(arms))] for fact, arms_with in ordered]


def _named(speakers: list[str], of: int) -> str:
    different = list(dict.fromkeys(speakers))
    if len(speakers) == of > 1:
        return f"all {of} arms of all runs"
    more = f" and {len(different) - 2} more" if len(different) > 2 else ""
    return "; ".join(different[:2]) + more


def flatten(record: BaseModel) -> dict[str, Scalar]:
    """Return the values of a record, each under the path of its field, such as `gpu.name`. A list counts as one value.
    Empty and unknown values are left out."""
    return dict(_leaves(record.model_dump(), ""))


def _leaves(value: object, path: str) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
        return
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    if isinstance(value, str) and value.endswith(CHANGES):
        value = f"{value.removesuffix(CHANGES)} with {UNCOMMITTED}"
    if isinstance(value, bool | int | float | str) and value != "":
        yield path, value
