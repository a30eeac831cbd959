"""Join several run directories in one view: the shards of a gate, or runs side by side that are not one gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.contract.schema import Contract
from harness.costs.account import joined
from harness.evidence.plan_records import Unit
from harness.evidence.run_evidence import RunEvidence
from harness.judging.verdict import Verdict
from harness.report.view import ReportView, RunPart
from harness.run_directory.attempts import joined_attempts
from harness.run_directory.bundle import Header, Narrowed


@dataclass(frozen=True)
class JudgedUnit:
    """A unit with its verdict, and the part whose evidence decides it; None: no part planned it."""

    unit: Unit
    verdict: Verdict
    part: RunPart | None

    @property
    def name(self) -> tuple[str, str, str]:
        return self.unit.contract, self.unit.claim, self.unit.workload


def together(
    parts: Sequence[RunPart], units: Sequence[JudgedUnit], contracts: Sequence[Contract], apart: Sequence[str] = ()
) -> ReportView:
    """Return the parts as one view of these units. Runs get the part's name before their own: `gate-1/tiny-paired`."""
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
    """Return one view of runs that are not one gate, each with its own units and verdicts; `apart`: why they are not.

    If several of them have a contract, its name gets the part's name too: neither verdict stands for the other.
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
    """Return the unit, with its runs by the names that they have in the joined view."""
    if one.part is None:
        return one.unit
    return one.unit.model_copy(update={"runs": [f"{one.part.name}/{run}" for run in one.unit.runs]})


def _header(headers: Mapping[str, Header], units: Sequence[JudgedUnit]) -> Header:
    """Return the first header, with the units that were judged, and the interruptions and attempts of all.

    A waiver counts only for units that its own run decides: in another run the unit was not waived, or no longer.
    """
    first, *others = headers.values()
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
        "narrowed": Narrowed(),  # shards together are the whole: what no shard planned has a verdict of its own
        "commits": first.commits if all(other.commits == first.commits for other in others) else None,
    }
    return first.model_copy(update=changes)


def _renamed(view: ReportView, names: Mapping[str, str]) -> ReportView:
    """Return the same view, with contracts renamed by `names`."""

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
    contracts = [contract.model_copy(update={"id": names.get(contract.id, contract.id)}) for contract in view.contracts]
    verdicts = [verdict.model_copy(update=of(verdict.contract)) for verdict in view.verdicts]
    return replace(view, header=header.model_copy(update=changes), contracts=contracts, verdicts=verdicts)
