"""Join several run directories in one view: the shards of a gate (parts that were run separately), or other runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.contract.schema import Contract
from harness.evidence.environment_records import TwoCommits, quoted
from harness.evidence.plan_records import Unit
from harness.evidence.run_evidence import RunEvidence
from harness.judging.verdict import Status, Verdict
from harness.report.headline import headline
from harness.report.text import line
from harness.report.view import ReportView, RunPart
from harness.run_directory.bundle import Header, Narrowed
from harness.run_directory.costs import joined
from harness.run_directory.shards import joined_attempts

# The functions below describe the parts of a page about several run directories: machine, commit and verdict of each
# part, and what differs between the parts.
#
# The most frequent value of a fact is shown without a mark. Any other value gets the prefix `DIFFERS`. If no value
# occurs twice, every value gets this prefix.

DIFFERS = "≠ "
FEW = 3  # number of different values of a fact that are shown at the top of the page
UNKNOWN = "–"


def facts(view: ReportView) -> dict[str, str]:
    """Return facts about machine and code, which are equal in all runs of a gate on equal machines with equal code. The
    value `UNKNOWN` means that a fact was not recorded."""
    header = view.header
    collected = header.environment
    known: dict[str, str | None] = {
        "GPU": view.gpus_used() or "none",
        "driver": collected.gpu.driver,
        "torch": collected.versions.get("torch"),
        "harness commit": quoted(collected.git.commit or "") or None,
        "trainer commit": _trainers(header),
        "sources": header.digests.source[:12],
    }
    return {name: line(value, 120) if value else UNKNOWN for name, value in known.items()}


def columns(view: ReportView) -> dict[str, list[str]]:
    """Return the name of each fact with its values, one for each part. Values other than the most frequent one have the
    prefix `DIFFERS`.

    A fact that is unknown in every part is left out.
    """
    of_parts = [facts(part.view) for part in view.parts]
    found = {name: [each[name] for each in of_parts] for name in (of_parts[0] if of_parts else ())}
    return {name: _marked(values) for name, values in found.items() if set(values) != {UNKNOWN}}


def differences(view: ReportView) -> str:
    """Return a sentence about the facts that differ between the parts, with the number of values of each fact. Return
    "" if none differs."""
    found = {name: {value.removeprefix(DIFFERS) for value in values} for name, values in columns(view).items()}
    several = [f"{name} ({len(values)} of them)" for name, values in found.items() if len(values) > 1]
    return f"The parts differ in {', '.join(several)}." if several else ""


def notes(view: ReportView) -> list[str]:
    """Return notes about several parts: why the parts are not one gate, which facts differ, and which units have
    unequal verdicts in several parts."""
    if not view.parts:
        return []
    apart = f"Not one gate ({'; '.join(view.apart)}): each run is judged by itself." if view.apart else ""
    units = view.contradictory()
    named = ", ".join(f"{line(unit.claim, 80)} on {line(unit.workload, 60)}" for unit in units[:5])
    more = f" and {len(units) - 5} more" if len(units) > 5 else ""
    again = f"Judged differently in several parts: {named}{more}. The earliest attempt counts." if units else ""
    return [note for note in (apart, differences(view), again) if note]


def rows(view: ReportView) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns, and a row for each part. The rows are in the order of the parts' starts."""
    marked = columns(view)
    names = ["part", "verdict", "units held", *marked, "started (UTC)"]
    cells = []
    for place, part in enumerate(view.parts):
        verdicts = part.view.verdicts
        held = f"{sum(verdict.status is Status.PASS for verdict in verdicts)} of {len(verdicts)}"
        own = [values[place] for values in marked.values()]
        cells.append([line(part.name, 160), headline(part.view).word, held, *own, _minute(part.view.header.started_at)])
    return names, cells


def part_lines(view: ReportView) -> list[str]:
    """Return a line of text for each part."""
    names, cells = rows(view)
    return [
        f"part {name}: {word}, {held} held · " + " · ".join(map(" ".join, zip(names[3:], facts, strict=True)))
        for name, word, held, *facts in cells
    ]


def of_each_part(view: ReportView, facts_of: Callable[[ReportView], list[tuple[str, str]]]) -> list[tuple[str, str]]:
    """Call `facts_of` for each part and return the facts of all parts by name.

    Each different value is listed once, and at most `FEW` values for each name.
    """
    found: dict[str, list[str]] = {}
    for one in [part.view for part in view.parts] or [view]:
        for name, value in facts_of(one):
            if value not in found.setdefault(name, []):
                found[name].append(value)
    return [(name, _few(values)) for name, values in found.items()]


def _few(values: list[str]) -> str:
    return "; ".join(values[:FEW]) + (f" and {len(values) - FEW} more" if len(values) > FEW else "")


def _minute(moment: str) -> str:
    """Return the time of a header without seconds, such as `2026-11-22 16:16`."""
    return line(moment, 60)[:16].replace("T", " ")


def _marked(values: list[str]) -> list[str]:
    [(usual, count)] = Counter(values).most_common(1)
    return [value if value == usual and count > 1 else DIFFERS + value for value in values]


def _trainers(header: Header) -> str | None:
    """Return the commits of the trainers' repositories or, if two commits are compared, only the candidate's commit."""
    if header.commits is not None:
        return header.commits.candidate.line()
    commits = dict.fromkeys(quoted(facts.commit) for facts in header.environment.trainers.values() if facts.commit)
    return ", ".join(commits) or None


@dataclass(frozen=True)
class JudgedUnit:
    """A unit with its verdict, and the part whose evidence decides it. part: None if no part planned the unit."""

    unit: Unit
    verdict: Verdict
    part: RunPart | None

    @property
    def name(self) -> tuple[str, str, str]:
        return self.unit.contract, self.unit.claim, self.unit.workload


def together(
    parts: Sequence[RunPart], units: Sequence[JudgedUnit], contracts: Sequence[Contract], apart: Sequence[str] = ()
) -> ReportView:
    """Return one view of these units. The name of a part becomes a prefix of its runs' ids: `gate-1/tiny-paired`."""
    by_start = sorted(parts, key=lambda part: (part.view.header.started_at, part.name))
    views = [part.view for part in by_start]
    evidence: dict[str, RunEvidence] = {}
    for one in units:
        for run_id in one.unit.runs:
            if one.part is not None and (seen := one.part.view.evidence.get(run_id)) is not None:
                evidence[f"{one.part.name}/{run_id}"] = replace(seen, run_id=f"{one.part.name}/{run_id}")
    return ReportView(
        header=_header({part.name: part.view.header for part in parts}, units),
        contracts=contracts,
        verdicts=[one.verdict for one in units],
        evidence=evidence,
        altered=tuple(line for view in views for line in view.altered),
        incomplete=tuple(name for view in views for name in view.incomplete),
        unsealed=tuple(name for view in views for name in view.unsealed),
        costs=joined([(part.name, part.view.costs) for part in by_start]),
        gpus={one.name: one.part.view.header.environment.gpu for one in units if one.part is not None},
        parts=tuple(by_start),
        origins={one.name: one.part.name for one in units if one.part is not None},
        apart=tuple(apart),
        located={
            one.name: found
            for one in units
            if one.part is not None and (found := one.part.view.located.get(one.name)) is not None
        },
    )


def side_by_side(parts: Sequence[RunPart], apart: Sequence[str]) -> ReportView:
    """Return one view of run directories that are not one gate, with the units and verdicts of each directory.

    apart: the reasons why the directories are not one gate. If several directories have a contract of the same name,
    the name of the directory is added to the name of the contract.
    """
    often = Counter(contract.id for part in parts for contract in part.view.contracts)
    named = [
        replace(
            part, view=_renamed(part.view, {id_: f"{id_} ({part.name})" for id_, count in often.items() if count > 1})
        )
        for part in parts
    ]
    units = [
        JudgedUnit(unit, verdict, part)
        for part in named
        for unit, verdict in zip(part.view.header.units, part.view.verdicts, strict=True)
    ]
    return together(named, units, [contract for part in named for contract in part.view.contracts], apart)


def _named(one: JudgedUnit) -> Unit:
    """Return the unit with the ids that its runs have in the joined view."""
    if one.part is None:
        return one.unit
    return one.unit.model_copy(update={"runs": [f"{one.part.name}/{run}" for run in one.unit.runs]})


def _header(headers: Mapping[str, Header], units: Sequence[JudgedUnit]) -> Header:
    """Return the first header, changed so that it has the judged units, and the waivers, interruptions and attempts of
    all headers.

    A waiver is kept only if its run directory also decides the waived unit.
    """
    first = next(iter(headers.values()))
    decided = {(one.part.name, *one.name) for one in units if one.part is not None}
    changes: dict[str, object] = {
        "units": [_named(one) for one in units],
        "waivers": [
            waiver
            for name, header in headers.items()
            for waiver in header.waivers
            if (name, waiver.contract, waiver.claim, waiver.workload) in decided
        ],
        "resumed": [resumption for header in headers.values() for resumption in header.resumed],
        "drilled": list(
            {(one.contract, one.claim): one for header in headers.values() for one in header.drilled}.values()
        ),
        "attempts": joined_attempts(headers),
        "narrowed": Narrowed(),  # units that no shard planned have verdicts, too, so no unit counts as left out
        "commits": _commits([header.commits for header in headers.values()]),
    }
    return first.model_copy(update=changes)


def _commits(commits: Sequence[TwoCommits | None]) -> TwoCommits | None:
    """Return the two commits that all runs compare, with the accepted baselines of all runs. Return None if not all
    runs compare the same two commits."""
    known = [each for each in commits if each is not None]
    both = [(each.candidate, each.baseline) for each in known]
    if len(known) < len(commits) or any(each != both[0] for each in both):
        return None
    accepted = list({(one.contract, one.claim): one for each in known for one in each.accepted}.values())
    return known[0].model_copy(update={"accepted": accepted})


def _renamed(view: ReportView, names: Mapping[str, str]) -> ReportView:
    """Return the same view with other names of contracts. names: old name -> new name."""

    def of(contract: str) -> dict[str, str]:
        return {"contract": names.get(contract, contract)}

    header, timings = view.header, view.header.attempts.timings
    changes: dict[str, object] = {
        "attempts": header.attempts.model_copy(
            update={"timings": [timing.model_copy(update=of(timing.contract)) for timing in timings]}
        ),
        "units": [unit.model_copy(update=of(unit.contract)) for unit in header.units],
        "waivers": [waiver.model_copy(update=of(waiver.contract)) for waiver in header.waivers],
        "drilled": [one.model_copy(update=of(one.contract)) for one in header.drilled],
    }
    if header.commits is not None:
        accepted = [one.model_copy(update=of(one.contract)) for one in header.commits.accepted]
        changes["commits"] = header.commits.model_copy(update={"accepted": accepted})
    contracts = [contract.model_copy(update={"id": names.get(contract.id, contract.id)}) for contract in view.contracts]
    verdicts = [verdict.model_copy(update=of(verdict.contract)) for verdict in view.verdicts]
    return replace(view, header=header.model_copy(update=changes), contracts=contracts, verdicts=verdicts)
