"""Verdicts again from run directories that exist; nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness import session
from harness.contract.load import ContractErrors, LoadedContract, load_contracts
from harness.errors import ContractError
from harness.evidence import layout
from harness.run_directory.bundle import Bundle, read_bundle, recorded_bytes
from harness.run_directory.drill_record import DrillRecord, read_record
from harness.run_directory.shards import refuse_mixed
from harness.run_directory.verdict_file import verdict_text

if TYPE_CHECKING:
    from harness.drill.recheck import Recheck


@dataclass(frozen=True)
class Rejudged:
    """One run judged again, a fire drill's rows too. `problems`: what is not as it was recorded, one line each."""

    bundle: Bundle
    judgement: session.Judgement
    drill: Recheck | None
    problems: list[str]


def judged(
    runs: Sequence[Path], contracts: Path | None = None, *, gate: bool = False
) -> tuple[list[Bundle], session.Judgement]:
    """Read and judge runs (folders, archives, published folders), by their own copies of the contracts unless others
    are given.

    Raises EvidenceError for runs that are damaged, refused, or do not belong together.
    """
    bundles = [read_bundle(run) for run in runs]
    if gate:
        refuse_mixed(bundles)
    loaded = load_contracts([contracts]) if contracts is not None else _copies(bundles)
    judgement = session.judge_bundles(bundles, loaded, gate=gate)
    # only who reads a directory later can tell: while it is written, every directory carries the mark
    incomplete = [bundle.path.name for bundle in bundles if not bundle.complete]
    view = replace(judgement.view, incomplete=tuple(incomplete), drill=_drill_record(bundles[0]))
    return bundles, replace(judgement, view=view)


def rejudged(run: Path) -> Rejudged:
    """Judge one run by its own contracts and hold the result against what was recorded. Raises EvidenceError."""
    [bundle], judgement = judged([run])
    problems = [*judgement.view.altered, *([] if bundle.complete else ["the run did not finish"])]
    recorded = recorded_bytes(bundle.place.derived / layout.VERDICTS)
    if recorded != verdict_text(judgement.verdicts).encode("utf-8"):
        what = "the evidence gives other verdicts" if recorded is not None else "it cannot be read"
        problems.append(f"{run / layout.VERDICTS}: {what}")
    drill = None
    if bundle.header.purpose == "drill":
        from harness.drill.recheck import recheck

        drill = recheck(bundle, judgement.view.contracts, judgement.verdicts, session.describe)
        problems += drill.differences
    return Rejudged(bundle, judgement, drill, problems)


def _drill_record(bundle: Bundle) -> DrillRecord | None:
    """What a fire drill recorded, from its directory; None for any other directory."""
    if bundle.header.purpose != "drill":
        return None
    return read_record(bundle.place.derived / layout.DRILL, shown=bundle.path / layout.DRILL)


def _copies(bundles: Sequence[Bundle]) -> list[LoadedContract]:
    """The contracts that the runs carry, each once; shards are checked for equal digests when joined."""
    paths: dict[str, Path] = {}
    for bundle in bundles:
        for path in bundle.contract_paths():
            paths.setdefault(path.name, path)
    try:
        return load_contracts([paths[name] for name in sorted(paths)])
    except ContractErrors as problem:
        raise ContractErrors([_as_named(error, bundles) for error in problem.errors]) from problem


def _as_named(error: ContractError, bundles: Sequence[Bundle]) -> ContractError:
    """The error with its places as the caller named the run, not where its archive was unpacked."""
    where, remedy = error.where, error.remedy
    for bundle in bundles:
        where, remedy = bundle.place.shown(where), bundle.place.shown(remedy)
    return ContractError(error.rule, where=where, got=error.got, remedy=remedy)
