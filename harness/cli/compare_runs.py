"""`harness compare-runs`: judge two recordings of `harness.record` against each other; nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.arguments import Json
from harness.errors import UsageError
from harness.platform.standard_streams import print_json, print_lines
from harness.recorded_loops.compared_loops import compared
from harness.recorded_loops.comparison_texts import comparison_json, comparison_lines, comparison_markdown, end_of
from harness.recorded_loops.recordings import read_recording


def compare_runs(
    baseline: Annotated[Path, typer.Argument(help="The recording to compare with.")],
    candidate: Annotated[Path, typer.Argument(help="The recording that is judged.")],
    repeat: Annotated[
        list[Path] | None,
        typer.Option("--repeat", metavar="FOLDER", help="Another recording of the baseline; may be repeated."),
    ] = None,
    candidate_repeat: Annotated[
        list[Path] | None,
        typer.Option("--candidate-repeat", metavar="FOLDER", help="Another of the candidate; may be repeated."),
    ] = None,
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
) -> None:
    """Judge if two recorded loops trained the same, in bits or within the baseline's own noise."""
    if json and markdown:
        raise UsageError("--json and --markdown exclude one another", got="both", remedy="name one")
    first, second = read_recording(baseline), read_recording(candidate)
    repeats, others = ([read_recording(each) for each in given or ()] for given in (repeat, candidate_repeat))
    result = compared(first, second, repeats, others)
    if json:
        print_json(comparison_json(result))
    else:
        print_lines(comparison_markdown(result).splitlines() if markdown else comparison_lines(result), whole=markdown)
    raise typer.Exit(end_of(result)[1])
