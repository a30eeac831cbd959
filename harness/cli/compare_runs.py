"""`harness compare-runs`: compare two recordings of `harness.record`, and judge the second; nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.arguments import Json
from harness.errors import ExitCode, UsageError
from harness.judging.verdict import Status
from harness.numbers import dump_json
from harness.platform.standard_streams import print_json, print_lines
from harness.recorded_loops.compared_loops import ComparedRuns, compared
from harness.recorded_loops.recordings import read_recording
from harness.report.headline import ERROR, HELD, NOT_DECIDED, VIOLATED
from harness.report.markdown import escape
from harness.report.text import line

_LONGEST = 600  # largest number of characters of a printed sentence
_ENDS = {
    Status.PASS: (HELD, ExitCode.HELD),
    Status.FAIL: (VIOLATED, ExitCode.VIOLATED),
    Status.INCONCLUSIVE: (NOT_DECIDED, ExitCode.UNDECIDED),
}


def compare_runs(
    baseline: Annotated[Path, typer.Argument(help="The recording to compare with.")],
    candidate: Annotated[Path, typer.Argument(help="The recording that is judged.")],
    repeat: Annotated[
        list[Path] | None,
        typer.Option("--repeat", metavar="FOLDER", help="Another recording of the baseline; may be repeated."),
    ] = None,
    candidate_repeat: Annotated[
        list[Path] | None,
        typer.Option(
            "--candidate-repeat", metavar="FOLDER", help="Another recording of the candidate; may be repeated."
        ),
    ] = None,
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
) -> None:
    """Judge if two recorded loops trained the same: in every bit, or within the noise of the baseline's repeats."""
    if json and markdown:
        raise UsageError(
            "--json and --markdown cannot be combined", got="both", remedy="leave out --json or --markdown"
        )
    first, second = read_recording(baseline), read_recording(candidate)
    repeats, others = ([read_recording(each) for each in given or ()] for given in (repeat, candidate_repeat))
    result = compared(first, second, repeats, others)
    if json:
        print_json(comparison_json(result))
    else:
        print_lines(comparison_markdown(result).splitlines() if markdown else comparison_lines(result), whole=markdown)
    raise typer.Exit(end_of(result)[1])


def end_of(result: ComparedRuns) -> tuple[str, ExitCode]:
    """Return the first word of the headline about a comparison, such as HELD, and the exit code of the command."""
    return _ENDS.get(result.judgement.status, (ERROR, ExitCode.ERROR))


def comparison_lines(result: ComparedRuns) -> list[str]:
    """Return the comparison as lines of text. The last line is the headline."""
    uncontrolled = [f"not controlled: {line(each, _LONGEST)}" for each in result.not_controlled]
    return [_heading(result), *uncontrolled, f"{end_of(result)[0]}: {line(result.judgement.message, _LONGEST)}"]


def comparison_json(result: ComparedRuns) -> str:
    """Return the comparison as a JSON text."""
    word, code = end_of(result)
    judgement, first = result.judgement, result.first
    found = {
        "format_version": 1,
        "baseline": result.baseline.name,
        "candidate": result.candidate.name,
        "repeats": [run.name for run in result.repeats],
        "candidate_repeats": [run.name for run in result.candidate_repeats],
        "headline": {"word": word, "sentence": judgement.message},
        "first_difference": first
        and {"step": first.step, "rank": first.rank, "quantity": first.quantity, "sentence": result.first_in_words},
        "not_controlled": list(result.not_controlled),
        "exit_code": int(code),
        **judgement.model_dump(mode="json", include={"status", "reason", "figures", "denominators"}),
    }
    return dump_json(found, indent=2)


def comparison_markdown(result: ComparedRuns) -> str:
    """Return the comparison as Markdown. The first line is the headline."""
    uncontrolled = "\n".join(f"- {escape(each, _LONGEST)}" for each in result.not_controlled)
    headline = f"**{end_of(result)[0]}**: {escape(result.judgement.message, _LONGEST)}"
    return f"{headline}\n\n{escape(_heading(result), _LONGEST)}\n\n**not controlled**\n\n{uncontrolled}\n"


def _heading(result: ComparedRuns) -> str:
    repeats = [("repeated by", result.repeats), ("candidate repeated by", result.candidate_repeats)]
    named = [f", {words} {', '.join(run.name for run in runs)}" for words, runs in repeats if runs]
    return line(f"{result.candidate.name} against {result.baseline.name}{''.join(named)}", _LONGEST)
