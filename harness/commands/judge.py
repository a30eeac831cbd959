"""`harness judge`: verdicts from run directories that exist; nothing is run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import session
from harness.commands.arguments import Gate, Json, RunDirectories
from harness.commands.printing import print_judgement
from harness.errors import EvidenceError, ExitCode
from harness.evidence import layout
from harness.rejudge import judged
from harness.run_directory.bundle import Bundle, write_text
from harness.run_directory.drill_record import record_text
from harness.run_directory.verdict_file import verdict_text, write_verdicts

if TYPE_CHECKING:
    from harness.drill.recheck import Recheck


def judge(
    run_directories: RunDirectories,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 0 when verdicts, and a drill's rows, are as recorded.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Replace verdicts.json and the reports, never evidence.")
    ] = False,
    contracts: Annotated[Path | None, typer.Option("--contracts", help="Judge by these contracts instead.")] = None,
    gate: Gate = False,
    json: Json = False,
) -> None:
    """Judge the evidence of run directories again, without a GPU."""
    if check:
        raise typer.Exit(check_recorded(run_directories, as_json=json))
    if write:
        raise typer.Exit(replace_recorded(run_directories))
    raise typer.Exit(print_verdicts(run_directories, contracts=contracts, gate=gate, as_json=json))


def print_verdicts(directories: Sequence[Path], *, contracts: Path | None, gate: bool, as_json: bool) -> int:
    """Print the verdicts; the exit code is the table's. Nothing is written."""
    _, judgement = judged(directories, contracts, gate=gate)
    print_judgement(judgement, as_json=as_json)
    if as_json:  # text says it at its top
        _print_warnings(judgement)
    return judgement.exit_code


def check_recorded(directories: Sequence[Path], *, as_json: bool) -> int:
    """0 when every directory's verdicts are, byte for byte, those in its `verdicts.json`; 12 otherwise.

    Of a fire drill the rows are judged again too; those that could not be are told and counted.
    """
    differing = 0
    for directory in directories:
        [bundle], judgement = judged([directory])
        drill = _drill_again(bundle, judgement)
        if as_json:
            print(session.judgement_json(judgement))
        problems = [*judgement.view.altered, *([] if bundle.complete else ["the run did not finish"])]
        if not _same(directory, judgement):
            problems.append(f"{directory / layout.VERDICTS}: the evidence gives other verdicts")
        counts = judgement.counts.line()
        if drill is not None:
            problems += drill.differences
            counts += f" · {drill.count_line()}"
        for line in [*problems, *(drill.not_judged if drill is not None else [])]:
            print(f"{directory}: {line}", file=sys.stderr)
        differing += bool(problems)
        if not as_json:
            print(f"{'differs' if problems else 'same   '}  {directory}: {counts}")
    return ExitCode.ERROR if differing else ExitCode.HELD


def _drill_again(bundle: Bundle, judgement: session.Judgement) -> Recheck | None:
    """A fire drill's rows by today's judges; None for any other directory."""
    if bundle.header.purpose != "drill":
        return None
    from harness.drill.recheck import recheck

    return recheck(bundle, judgement.view.contracts, judgement.verdicts, session.describe)


def _same(directory: Path, judgement: session.Judgement) -> bool:
    try:
        published = (directory / layout.VERDICTS).read_bytes()
    except OSError:
        return False
    return published == verdict_text(judgement.verdicts).encode("utf-8")


def replace_recorded(directories: Sequence[Path]) -> int:
    """Replace verdicts and reports by what today's judges say; evidence stays as it is."""
    for directory in directories:
        [bundle], judgement = judged([directory])
        if judgement.view.altered:
            raise EvidenceError(
                "evidence is as it was recorded", where=str(directory), got="; ".join(judgement.view.altered)
            )
        view, drill = judgement.view, _drill_again(bundle, judgement)
        if drill is not None:
            write_text(directory / layout.DRILL, record_text(drill.record))
            view = replace(view, drill=drill.record)
        write_verdicts(directory, judgement.verdicts)
        session.write_reports(directory, view)
        print(f"written  {directory}: {judgement.counts.line()}")
    return ExitCode.HELD


def _print_warnings(judgement: session.Judgement) -> None:
    for warning in judgement.view.warnings():
        print(f"WARNING: {warning}", file=sys.stderr)
