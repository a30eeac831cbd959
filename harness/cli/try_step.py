"""`harness try`: run the step that a function makes, and print whether its captured form trains the same and is
faster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from harness.api import session
from harness.cli.arguments import Heartbeat, Json, Name, Redact, WallLimit
from harness.cli.init import Compile, Force, Step, Steps, print_kept, probe
from harness.cli.interruption import interruptible
from harness.errors import UsageError
from harness.first_contract.answers import Answers, headline_of, not_tried
from harness.first_contract.choosing import CHOSEN, FIRST, compared_steps, compares, fair_trial
from harness.first_contract.draft import STEPS, Draft, arms_here, keep, kept_files, require_free
from harness.first_contract.step_source import find_step_source
from harness.first_contract.trial_texts import trial_json, trial_markdown
from harness.first_contract.trying import Tried, at_baseline
from harness.first_contract.trying import try_step as try_step_of
from harness.judging.verdict import Verdict
from harness.platform.standard_streams import print_json, print_line, print_lines
from harness.report.terminal import Progress


def try_step(
    step: Step,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="REF", help="Compare with the same function at this branch, tag or commit."),
    ] = None,
    steps: Steps = None,
    compiled: Compile = True,
    speed: Annotated[bool, typer.Option("--speed/--no-speed", help="Time the step if there is a GPU.")] = True,
    write_contract: Annotated[
        bool, typer.Option("--write-contract", help="Keep the contract and its adapter in the project.")
    ] = False,
    force: Force = False,
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
    reports: Annotated[
        Path | None, typer.Option("--reports", help="Keep the run directory here; by default it is removed.")
    ] = None,
    name: Name = None,
    wall_limit: WallLimit = None,
    heartbeat: Heartbeat = None,
    redact: Redact = None,
) -> None:
    """Run the step that a function makes: does it capture, train the same, how fast is it, where does the host wait."""
    draft = Draft(find_step_source(step), steps or STEPS, arms_here(compiled=compiled, speed=speed))
    _refuse_together({"--json": json, "--markdown": markdown, "--write-contract": write_contract})
    _refuse_together({"--baseline": bool(baseline), "--write-contract": write_contract})
    draft = at_baseline(draft, baseline)
    if write_contract:
        require_free(kept_files(draft, Path.cwd()), force=force)
    options = session.VerifyOptions(
        name=name,
        wall_limit_s=wall_limit,
        heartbeat_s=heartbeat,
        redact=redact,
        command=("harness", *sys.argv[1:]),
        where=baseline is not None,
    )
    with interruptible(), Progress(stages=True) as watch:
        tried, draft = _tried(draft, reports, options, watch, as_text=not json and not markdown)
    if json:
        print_json(trial_json(tried, draft))
    elif markdown:
        print_lines(trial_markdown(tried, draft).splitlines(), whole=True)
    else:
        print_line("")
        _say_what_is_kept(tried, draft, write_contract=write_contract, force=force)
        print_line(str(headline_of(tried)))
    raise typer.Exit(tried.judgement.exit_code)


def _refuse_together(options: Mapping[str, bool]) -> None:
    """Raise UsageError if more than one of these options was given. options: for each option, True if it was given."""
    given = [name for name, value in options.items() if value]
    if len(given) > 1:
        raise UsageError(
            f"{' and '.join(options)} cannot be combined", got=" and ".join(given), remedy="leave out all except one"
        )


def _tried(
    draft: Draft, reports: Path | None, options: session.VerifyOptions, watch: Progress, *, as_text: bool
) -> tuple[Tried, Draft]:
    """Run the draft contract. If the results show that other settings make a fairer comparison, run it with those, too.

    Return the results of the last execution, and the draft contract with the chosen settings. as_text: True to print
    each answer about the step as soon as it is known.
    """
    answers = Answers()
    names = {FIRST: options.name, CHOSEN: None if options.name is None else f"{options.name}-chosen"}

    def run(other: Draft, which: str) -> Tried:
        given = replace(options, name=names.get(which))
        if not as_text:
            return try_step_of(other, reports=reports, options=given, watch=watch)
        if which == CHOSEN:
            print_line("")
        return _answered(other, reports, given, watch, answers)

    def compared(fair: Draft) -> None:
        if as_text:
            with watch.out_of_the_way():
                print_lines(["", compares(fair)])

    return fair_trial(draft, run, lambda other: probe(other, replace(options, name=None), watch), compared)


def _answered(
    draft: Draft, reports: Path | None, options: session.VerifyOptions, watch: Progress, answers: Answers
) -> Tried:
    """Run the draft contract, print each answer about the step as soon as it is known, and return the results."""

    def answer(verdict: Verdict, so_far: Tried) -> None:
        with watch.out_of_the_way():
            print_lines(answers.early(verdict, so_far))
            sys.stdout.flush()

    tried = try_step_of(draft, reports=reports, options=options, watch=watch, judged=answer)
    with watch.out_of_the_way():
        print_lines(answers.rest(tried))
        sys.stdout.flush()
    return tried


def _say_what_is_kept(tried: Tried, draft: Draft, *, write_contract: bool, force: bool) -> None:
    if tried.run_directory is not None:
        print_line(f"report: {tried.run_directory / 'report.html'}")
    if not_tried(tried):
        if write_contract:
            print_line("nothing is kept: the step did not run, so no number of a contract can be measured")
    elif not write_contract and not draft.commit:
        print_line(f"keep it as a contract: harness try {tried.draft.source.asked} --write-contract")
    elif write_contract:
        print_lines(compared_steps(draft))
        print_kept(draft, keep(draft, Path.cwd(), force=force))
