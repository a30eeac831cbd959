"""`harness init`: try a step, and write a first contract and adapter for the step into an existing project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from harness.api import session
from harness.cli.arguments import OWN_REPORTS
from harness.cli.interruption import interruptible
from harness.commits.checkout import is_unignored
from harness.errors import HarnessError
from harness.first_contract.answers import on_a_gpu, why_untried
from harness.first_contract.choosing import Horizon, chosen, compared_steps, compares, seconds_of, to_its_end
from harness.first_contract.draft import STEPS, Arms, Draft, arms_here, keep, kept_files, require_free
from harness.first_contract.step_source import find_step_source
from harness.first_contract.trying import Tried, try_step
from harness.judging.reasons import OTHER_RANDOM_NUMBERS
from harness.platform.standard_streams import print_line, print_lines
from harness.report.terminal import Progress
from harness.report.text import line
from harness.report.wording import reason_text

Step = Annotated[str, typer.Argument(metavar="STEP", help="`module:function` or `path/to/file.py:function`.")]
Compile = Annotated[bool, typer.Option("--compile/--no-compile", help="Also try the step through torch.compile.")]
Steps = Annotated[
    int | None,
    typer.Option("--steps", min=8, help=f"Training steps of each arm, by default {STEPS}; no long run is added."),
]
Budget = Annotated[
    str | None,
    typer.Option("--budget", help="Choose the number of steps so that all claims take about this time: 90s, 20m, 2h."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]


def init(
    step: Step, steps: Steps = None, budget: Budget = None, compiled: Compile = True, force: Force = False
) -> None:
    """Try the step that a function makes. Write an adapter, and a contract for all that can be compared."""
    horizon = Horizon(steps, None if budget is None else seconds_of(budget))
    draft = Draft(find_step_source(step), steps or STEPS, arms_here(compiled=compiled))
    require_free(kept_files(draft, Path.cwd()), force=force)
    with interruptible(), Progress(stages=True) as watch:
        draft, untried, foreseen = _measured(draft, horizon, watch)
    print_line(f"{compares(draft)}{'; this was not measured' if untried else ''}")
    if draft.undecided:
        print_line(f"to decide it: {reason_text(OTHER_RANDOM_NUMBERS).remedy}")
    print_lines(compared_steps(draft))
    print_lines(foreseen)
    print_kept(draft, keep(draft, Path.cwd(), force=force), untried)


def _measured(draft: Draft, horizon: Horizon, watch: session.Watch) -> tuple[Draft, str, list[str]]:
    """Run the draft contract. Return three results: the draft with what the trials decided, such as its comparison; the
    reason why the step cannot run on this machine, or ""; and lines that predict what the step would do on a GPU."""

    def again(other: Draft) -> Tried:
        return probe(other, session.VerifyOptions(), watch)

    try:
        tried = again(horizon.first(draft))
        if horizon.budget_s is not None and not why_untried(tried):
            tried = again(horizon.of_budget(tried))
        tried = to_its_end(tried, again)
        untried = why_untried(tried)
        if not untried:
            measured = horizon.with_long_run(chosen(tried, again), tried)
            return replace(measured, arms=draft.arms), "", on_a_gpu(tried)
    except HarnessError as error:
        untried = str(error)
    unseen = replace(draft, choice=replace(draft.choice, repeats=None))
    return unseen, untried, []


def probe(draft: Draft, options: session.VerifyOptions, watch: session.Watch) -> Tried:
    """Run the draft contract and keep no files. Arms whose results cannot change the draft are not run."""
    return try_step(replace(draft, arms=Arms(False, False, memory=False)), reports=None, options=options, watch=watch)


def print_kept(draft: Draft, paths: Sequence[Path], untried: str = "") -> None:
    """Print which files were written, which claims the contract lacks, and what to do next. untried: the reason why the
    step did not run on this machine, or "" if it ran. If the step did not run, the content of the files is only a
    guess."""
    for path in paths:
        print_line(f"wrote {path.relative_to(Path.cwd())}")
    for left_out in draft.left_out:
        print_line(f"left out: {left_out}")
    for name, read in draft.host_values.items():
        print_line(
            f"please explain why no replay needs to change `{name}` ({read}), under `host_values` of each contract"
        )
    if is_unignored(Path.cwd() / OWN_REPORTS / "run"):
        print_line(f"let git ignore the reports: echo {OWN_REPORTS}/ >> .gitignore")
    if untried:
        print_line(f"the step did not run here: {line(untried, 600)}")
        print_line(
            "next: fix the step, or go to a machine that can run it, and run this command again with --force, because "
            "the written files are a guess"
        )
    else:
        print_line("next: harness check contracts/ && harness verify contracts/")
