"""`harness judge` and `harness report`: verdicts and reports from run directories that exist; nothing is run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import console, session
from harness.contract.load import LoadedContract, load_contracts
from harness.drill.record import read_record, record_text
from harness.errors import EvidenceError, ExitCode, UsageError
from harness.evidence import layout
from harness.evidence.bundle import Bundle, read_bundle, write_text
from harness.evidence.shards import refuse_mixed
from harness.evidence.verdict_file import verdict_text, write_verdicts

if TYPE_CHECKING:
    from harness.drill.recheck import Recheck


def judged(
    directories: Sequence[Path], contracts: Path | None = None, *, gate: bool = False
) -> tuple[list[Bundle], session.Outcome]:
    """Read and judge run directories, by their own copies of the contracts unless others are given.

    Raises EvidenceError for directories that are damaged or do not belong together.
    """
    bundles = [read_bundle(directory) for directory in directories]
    if gate:
        refuse_mixed(bundles)
    loaded = load_contracts([contracts]) if contracts is not None else _copies(bundles)
    outcome = session.judge_bundles(bundles, loaded, gate=gate)
    # only who reads a directory later can tell: while it is written, every directory carries the mark
    incomplete = [bundle.path.name for bundle in bundles if not bundle.complete]
    view = replace(outcome.view, run={**outcome.view.run, "incomplete": incomplete}, drill=_drill_record(bundles))
    return bundles, replace(outcome, view=view)


def _drill_record(bundles: Sequence[Bundle]) -> dict[str, Any] | None:
    """What a fire drill saw, from its directory; None for any other directory."""
    [first, *_] = bundles
    if first.header.fault != layout.DRILL_MARK:
        return None
    return read_record(first.path / layout.DRILL).model_dump(mode="json")


def _copies(bundles: Sequence[Bundle]) -> list[LoadedContract]:
    """The contracts that the directories carry, each once; shards are checked for equal digests when joined."""
    paths: dict[str, Path] = {}
    for bundle in bundles:
        for path in bundle.contract_paths():
            paths.setdefault(path.name, path)
    return load_contracts([paths[name] for name in sorted(paths)])


def judge(directories: Sequence[Path], *, contracts: Path | None, gate: bool, as_json: bool) -> int:
    """Print the verdicts; the exit code is the table's. Nothing is written."""
    _, outcome = judged(directories, contracts, gate=gate)
    console.print_outcome(outcome, as_json=as_json)
    if as_json:  # text says it at its top
        _tell_altered(outcome)
    return outcome.exit_code


def check(directories: Sequence[Path], *, as_json: bool) -> int:
    """0 when every directory's verdicts are, byte for byte, those in its `verdicts.json`; 12 otherwise.

    Of a fire drill the rows are judged again too; those that could not be are told and counted.
    """
    differing = 0
    for directory in directories:
        [bundle], outcome = judged([directory])
        drill = _drill_again(bundle, outcome)
        if as_json:
            print(session.outcome_json(outcome))
        problems = [*outcome.altered, *([] if bundle.complete else ["the run did not finish"])]
        if not _same(directory, outcome):
            problems.append(f"{directory / layout.VERDICTS}: the evidence gives other verdicts")
        counts = outcome.counts.line()
        if drill is not None:
            problems += drill.differences
            counts += f" · {drill.count_line()}"
        for line in [*problems, *(drill.not_judged if drill is not None else [])]:
            print(f"{directory}: {line}", file=sys.stderr)
        differing += bool(problems)
        if not as_json:
            print(f"{'differs' if problems else 'same   '}  {directory}: {counts}")
    return ExitCode.ERROR if differing else ExitCode.HELD


def _drill_again(bundle: Bundle, outcome: session.Outcome) -> Recheck | None:
    """A fire drill's rows by today's judges; None for any other directory."""
    if bundle.header.fault != layout.DRILL_MARK:
        return None
    from harness.drill.recheck import recheck

    return recheck(bundle, outcome.view.contracts, outcome.verdicts, session.describe)


def _same(directory: Path, outcome: session.Outcome) -> bool:
    try:
        published = (directory / layout.VERDICTS).read_bytes()
    except OSError:
        return False
    return published == verdict_text(outcome.verdicts).encode("utf-8")


def write(directories: Sequence[Path]) -> int:
    """Replace verdicts and reports by what today's judges say; evidence stays as it is."""
    for directory in directories:
        [bundle], outcome = judged([directory])
        if outcome.altered:
            raise EvidenceError("evidence is as it was recorded", where=str(directory), got="; ".join(outcome.altered))
        view, drill = outcome.view, _drill_again(bundle, outcome)
        if drill is not None:
            write_text(directory / layout.DRILL, record_text(drill.record))
            view = replace(view, drill=drill.record.model_dump(mode="json"))
        write_verdicts(directory, outcome.verdicts)
        session.write_reports(directory, view)
        print(f"written  {directory}: {outcome.counts.line()}")
    return ExitCode.HELD


def render(directory: Path) -> str:
    """Draw the reports of a run directory again; the path of the page."""
    _, outcome = judged([directory])
    session.write_reports(directory, outcome.view)
    return str(directory / "report.html")


def _tell_altered(outcome: session.Outcome) -> None:
    for warning in outcome.view.warnings():
        print(f"WARNING: {warning}", file=sys.stderr)


def compare(before: Path, after: Path) -> str:
    """What changed from one run directory to another, as plain text."""
    from harness.report.compare import compare as compare_views

    return compare_views(*(judged([directory])[1].view for directory in (before, after)))


def history(reports: Path, out: Path) -> str:
    """Write the page of a folder's runs; one line that says so. Unfinished runs are left out and named."""
    from harness.report.history import render_history

    directories = sorted(path.parent for path in reports.glob(f"*/{layout.HEADER}"))
    finished = [directory for directory in directories if not (directory / layout.INCOMPLETE).exists()]
    if not finished:
        raise UsageError("a history needs run directories", where=str(reports), got="no finished one")
    for directory in sorted(set(directories) - set(finished)):
        print(f"left out: {directory} did not finish", file=sys.stderr)
    views = [judged([directory])[1].view for directory in finished]
    write_text(out, render_history(views))
    return f"{len(views)} runs: {out}"
