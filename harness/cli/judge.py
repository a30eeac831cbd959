"""`harness judge`: judge the evidence of run directories again; nothing is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from harness.api import session
from harness.api.copies import refuse_used, write_shared
from harness.api.rejudge import NOTHING_KNOWN, Known, judged, refuse_others, rejudged, replaced, rewritten, whole_commit
from harness.cli.arguments import Claims, Gate, Json, Out, RunDirectories, Tags, Workloads
from harness.cli.printing import print_judgement, print_manifest
from harness.errors import ExitCode, UsageError
from harness.evidence import layout
from harness.evidence.files import write_text
from harness.platform.standard_streams import print_error, print_json, print_line
from harness.report.badge import render_badge
from harness.report.github_actions import append_step_summary
from harness.run_directory.bundle import Narrowed, read_bundle
from harness.run_directory.places import refuse_within_run, write_named
from harness.run_directory.shards import refuse_mixed
from harness.run_directory.verdict_file import record_text, write_verdicts


def judge(
    run_directories: RunDirectories,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 0 if verdicts and a drill's results are as recorded.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Replace verdicts.json and the reports, but never evidence.")
    ] = False,
    contracts: Annotated[
        list[Path] | None,
        typer.Option("--contracts", help="Judge by these contracts and waivers instead; may be repeated."),
    ] = None,
    commit: Annotated[
        str | None,
        typer.Option("--commit", metavar="SHA", help="Refuse a run of another commit, or with uncommitted changes."),
    ] = None,
    not_before: Annotated[
        datetime | None,
        typer.Option(
            "--not-before",
            metavar="TIME",
            help="Refuse a run that started earlier (UTC, or with a time zone).",
            formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"],
        ),
    ] = None,
    claim: Claims = None,
    tag: Tags = None,
    workload: Workloads = None,
    gate: Gate = False,
    json: Json = False,
    out: Out = None,
    digest: Annotated[
        list[str] | None,
        typer.Option(
            "--digest",
            metavar="SHA256",
            help="Refuse a directory whose manifest has another digest; one digest for each directory.",
        ),
    ] = None,
    badge: Annotated[
        Path | None, typer.Option("--badge", metavar="FILE", help="Also write JSON for a badge of shields.io.")
    ] = None,
) -> None:
    """Judge the evidence of run directories again, without a GPU."""
    if check or write:
        printed: dict[str, object] = {
            "--badge": badge,
            "--contracts": contracts,
            "--commit": commit,
            "--not-before": not_before,
        }
        printed |= {"--claim": claim, "--tag": tag, "--workload": workload}
        refuse_of_printed("--check" if check else "--write", printed)
    if check and write:
        raise UsageError("--check and --write cannot be combined", got="both", remedy="leave out --check or --write")
    if out is not None:
        refuse_beside_out({"--check": check, "--write": write})
        refuse_used(out, run_directories)
    if badge is not None:
        refuse_within_run(badge, run_directories)
    if digest:
        refuse_others(run_directories, digest)
    if check:
        raise typer.Exit(check_recorded(run_directories, gate=gate, as_json=json))
    if write:
        raise typer.Exit(replace_recorded(run_directories, gate=gate))
    if not_before is not None and not_before.tzinfo is None:
        not_before = not_before.replace(tzinfo=UTC)
    asked = Narrowed(claims=claim or [], tags=tag or [], workloads=workload or [])
    if asked != Narrowed() and not (gate and contracts and len(run_directories) == 1):
        selection_needs_gate = "--claim, --tag and --workload need a single run directory, --gate and --contracts"
        raise UsageError(
            selection_needs_gate,
            remedy="leave out these three options, or name one run directory with both --gate and --contracts",
        )
    known = Known(contracts or (), None if commit is None else whole_commit(commit), not_before, asked=asked)
    code = print_verdicts(run_directories, known, gate=gate, as_json=json, out=out, badge=badge)
    raise typer.Exit(code)


def print_verdicts(
    directories: Sequence[Path],
    known: Known = NOTHING_KNOWN,
    *,
    gate: bool,
    as_json: bool,
    out: Path | None = None,
    badge: Path | None = None,
) -> int:
    """Print the verdicts and return the exit code. Write a badge only if `badge` names a file, and pages only if `out`
    names a folder. No other files are written."""
    bundles, judgement = judged(directories, known, gate=gate)
    if out is not None:
        judgement = write_shared(out, judgement, bundles)
        append_step_summary(judgement.view)
    if badge is not None:
        write_named(badge, render_badge(judgement.view))
    print_judgement(judgement, as_json=as_json)
    if out is not None and not as_json:
        print_line(f"report: {out / layout.PAGE}")
    if as_json:  # without `as_json`, the warnings are already at the top of the printed text
        _print_warnings(judgement)
    return judgement.exit_code


def refuse_of_printed(option: str, options: Mapping[str, object]) -> None:
    """Raise UsageError if `option` is combined with one of `options`, which apply only to printed verdicts."""
    for name, value in options.items():
        if value is not None:
            needs_printed_verdicts = f"{name} can be used only if the verdicts are printed"
            raise UsageError(needs_printed_verdicts, got=option, remedy=f"leave out {name} or {option}")


def refuse_beside_out(options: Mapping[str, bool]) -> None:
    """Raise UsageError if one of these options was given. Call this only if `--out` was given."""
    for name, given in options.items():
        if given:
            raise UsageError(
                "--out cannot be combined with --check or --write", got=name, remedy=f"leave out --out or {name}"
            )


def check_recorded(directories: Sequence[Path], *, gate: bool = False, as_json: bool) -> int:
    """Judge each directory again. Return 0 if its `verdicts.json` has exactly the same verdicts, otherwise 12.

    With `gate`, the directories are the parts (shards) of a gate. If there are no differences, the exit code of this
    gate is returned instead of 0. In the directory of a drill, the results of the planted faults are judged again, too.
    Faults that cannot be judged again are printed and counted.
    """
    differing = 0
    for directory in directories:
        again = rejudged(directory)
        if as_json:
            print_json(session.judgement_json(again.judgement))
        for line in [*again.problems, *(again.drill.not_judged if again.drill is not None else [])]:
            print_error(f"{directory}: {line}")
        differing += bool(again.problems)
        if not as_json:
            rows = f" · {again.drill.count_line()}" if again.drill is not None else ""
            word = "differs" if again.problems else "same   "
            print_line(f"{word}  {directory}: {again.judgement.view.count_line()}{rows}")
            print_manifest(again.judgement)
    if differing:
        return ExitCode.ERROR
    return _gate(directories) if gate else ExitCode.HELD


def _gate(directories: Sequence[Path]) -> int:
    """Print the headline of the gate over all directories on stderr, and return the gate's exit code."""
    _, judgement = judged(directories, gate=True)
    print_error(str(judgement.headline))
    return judgement.exit_code


def replace_recorded(directories: Sequence[Path], *, gate: bool = False) -> int:
    """Judge each directory again, and replace its verdicts, reports and manifest. The evidence stays unchanged.

    Return 0 without `gate`. With `gate`, write the pages of a gate, and return the exit code of the gate over all
    directories. A directory that was written before manifests existed gets a manifest.
    """
    if gate:
        # refuse mixed runs before any file is written
        refuse_mixed([read_bundle(directory) for directory in directories])
    for directory in directories:
        again = rejudged(directory)
        published = again.bundle.place.published
        with rewritten(again.bundle, again.judgement, replaced(again.bundle, layout.VERDICTS)) as (target, view):
            record = again.drill.record if again.drill is not None else None
            if record is not None:
                write_text(target / layout.DRILL, record_text(record))
            write_verdicts(target, again.judgement.verdicts)
            session.write_reports(target, replace(view, gate=gate, drill=record), junit=not published)
        print_line(f"written  {directory}: {again.judgement.view.count_line()}")
    return _gate(directories) if gate else ExitCode.HELD


def _print_warnings(judgement: session.Judgement) -> None:
    for warning in judgement.view.warnings():
        print_error(f"WARNING: {warning}")
