"""Check out the function that makes a step at another commit of its repository: `harness try --baseline`.

The commit stands in a private worktree (`harness.commits.checkout`), and the adapter for it is written there. The
adapter is drafted from the function at that commit, which may take other arguments. The project stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from harness.api.run_header import VerifyOptions
from harness.commits.checkout import Checkout, checked_out
from harness.commits.repository import Repository
from harness.errors import UsageError
from harness.evidence.environment_records import SHORT
from harness.first_contract.draft import Draft
from harness.first_contract.step_source import StepSource, read_step_source


def at_baseline(draft: Draft, baseline: str | None) -> Draft:
    """Return the draft with the commit that `baseline` names now: a branch may move between trials.

    Raises UsageError for an empty name, for a commit that does not exist, and for a step outside of a repository.
    """
    if baseline is None:
        return draft
    if not baseline.strip():
        raise UsageError("--baseline takes a branch, a tag or a commit", got="an empty name")
    commit = Repository.around(draft.source.file.parent).commit(baseline)
    return replace(draft, commit=commit, commit_named=baseline)


@contextmanager
def checked_out_step(draft: Draft, options: VerifyOptions) -> Iterator[Checkout]:
    """Yield a worktree of the draft's commit, with an adapter for the function as it is there.

    Raises UsageError where the step is in no repository, or the commit does not exist or does not have the function.
    """
    source = draft.source
    systems = [f"{source.module}:{source.function}"]
    with checked_out(draft.commit, systems, options.reports, named=draft.commit_named) as checkout:
        there = step_at(source, checkout)
        home = Path(checkout.import_path.path[0])
        adapter = home / draft.adapter_name
        adapter.unlink(missing_ok=True)  # a link of the commit may lead out of the worktree
        adapter.write_text(replace(draft, source=there).adapter(home), encoding="utf-8")
        yield checkout


def step_at(source: StepSource, checkout: Checkout) -> StepSource:
    """Return the function as the commit has it. Raises UsageError, with file and line, where the commit lacks it."""
    tree, baseline = Path(checkout.import_path.tree), checkout.commits.baseline
    root = checkout.import_path.root
    if not source.file.is_relative_to(root):
        remedy = "name the function in a file of the repository"
        rule = "--baseline takes a step whose file lies in its repository"
        raise UsageError(rule, where=str(source.file), got=f"the repository {root}", remedy=remedy)
    name = source.file.relative_to(root)
    at = f"at {baseline.commit[:SHORT]}"
    if not (tree / name).is_file():
        remedy = f"name a commit that has it: `git log --oneline -- {name}` lists those that changed it"
        raise UsageError(
            "--baseline takes a commit that has the step's file", where=at, got=f"no {name}", remedy=remedy
        )
    try:
        there = read_step_source(source.asked, source.function, tree / name, tree, source.module)
        return replace(there, folder=None)  # its folder comes first on the path
    except UsageError as error:
        where = error.where.replace(f"{tree}/", "")
        raise UsageError(error.rule, where=f"{where}, {at}", got=error.got, remedy=error.remedy) from error
