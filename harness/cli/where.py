"""`harness where`: locate the first difference of a claim that failed, by executing its arms again."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.api.first_difference import executing_into, foreseen_seconds, locate, recorded, run_of, unit_of
from harness.api.rejudge import copies, judged
from harness.cli.arguments import Json
from harness.cli.interruption import interruptible
from harness.contract.load import LoadedContract
from harness.contract.strict_yaml import nearest
from harness.errors import ExitCode, UsageError
from harness.judging.first_difference import FirstDifference
from harness.judging.verdict import Verdict
from harness.numbers import counted, dump_json
from harness.planning.obstacles import baseline_checkout
from harness.planning.plan import LIMIT_S
from harness.platform.standard_streams import print_error, print_json, print_line, print_lines
from harness.report.located import located, path_rows
from harness.report.terminal import Progress
from harness.run_directory.bundle import Bundle


def where(
    run_directory: Annotated[Path, typer.Argument(help="A run directory, or an archive of one.")],
    claim: Annotated[str, typer.Argument(help="The id of a claim that failed there.")],
    workload: Annotated[
        str | None, typer.Option("--workload", help="The workload, if the claim failed on several.")
    ] = None,
    limit: Annotated[
        float,
        typer.Option("--limit", min=1.0, metavar="SECONDS", help="End the search after this time."),
    ] = LIMIT_S,
    json: Json = False,
) -> None:
    """Find the first difference between the two trainings of a failed claim: the operator and the line of your code."""
    [bundle], judgement = judged([run_directory])
    verdict = _chosen(judgement.verdicts, claim, workload)
    unit = unit_of(bundle, verdict)
    found = None if unit is None else recorded(bundle, unit)
    if found is None:
        with interruptible():
            found = _looked_for(bundle, verdict, copies([bundle]), limit)
    if json:
        print_json(dump_json(found.model_dump(mode="json"), indent=2))
    else:
        print_line(f"{verdict.claim} on {verdict.workload}: {located(found)}.")
        width = max((len(part) for part, _, _ in path_rows(found)), default=0)
        print_lines([f"  {part:<{width}}  {answer:<8}  {what}".rstrip() for part, answer, what in path_rows(found)])
    raise typer.Exit(ExitCode.HELD if found.found == "found" else ExitCode.UNDECIDED)


def _chosen(verdicts: Sequence[Verdict], claim: str, workload: str | None) -> Verdict:
    of_claim = [each for each in verdicts if each.claim == claim]
    if not of_claim:
        no_such_claim, known_claims = "the run directory has no such claim", sorted({each.claim for each in verdicts})
        raise UsageError(no_such_claim, got=f"'{claim}'", remedy=nearest(claim, known_claims))
    there = [each for each in of_claim if workload in (None, each.workload)]
    failed = [each for each in there if each.status.value == "FAIL"]
    if len(failed) != 1:
        verdict_of_each_workload = ", ".join(f"{each.workload}: {each.status.value}" for each in of_claim)
        how_to_choose = "name one with --workload" if failed else "name a claim that failed"
        raise UsageError(
            "`harness where` locates the first difference of exactly one failed unit",
            where=claim,
            got=verdict_of_each_workload,
            remedy=how_to_choose,
        )
    return failed[0]


def _looked_for(
    bundle: Bundle, verdict: Verdict, contracts: Sequence[LoadedContract], limit_s: float
) -> FirstDifference:
    models = [loaded.contract for loaded in contracts if loaded.contract.id == verdict.contract]
    claim = next((each for model in models for each in model.claims if each.id == verdict.claim), None)
    run = run_of(bundle, claim, verdict, limit_s)
    if run is None:
        raise UsageError(
            "`harness where` needs a failed claim that compares the trainings of two arms",
            where=verdict.claim,
            got=verdict.reason,
            remedy="name a failed claim that compares two arms, each with a single rank",
        )
    commits = bundle.header.commits
    baseline = commits.baseline_of(verdict.contract, verdict.claim).commit if commits is not None else None
    steps = counted(int(str(run.settings["last"])) + 1, "step")
    unit = unit_of(bundle, verdict)
    seconds = None if unit is None else foreseen_seconds(bundle, unit, run)
    about = "" if seconds is None else f"about {seconds:.0f} s, "
    print_error(f"locating: at most three runs of {steps} in both arms, {about}at most {limit_s:g} s")
    with (
        tempfile.TemporaryDirectory(prefix="harness-where-") as folder,
        baseline_checkout(contracts, baseline, Path(folder)) as checkout,
        Progress() as watch,
    ):
        return locate(run, executing_into(Path(folder) / "where", verdict.claim, checkout, tell=watch.moves))
