"""Try a step that has no contract yet: draft a contract, run it, and judge it by the code of `harness verify`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from harness.api import session
from harness.api.session import VerifyOptions
from harness.commits.checkout import Checkout, Repository, checked_out
from harness.devices import environment
from harness.errors import UsageError
from harness.evidence.environment_records import SHORT
from harness.first_contract.draft import Draft, require_valid
from harness.first_contract.step_source import StepSource, read_step_source
from harness.judging.verdict import Verdict
from harness.report.view import ReportView
from harness.run_directory.writer import KEPT

# The functions below compare a step with its version at another commit (`harness try --baseline`). The commit is
# checked out in a temporary worktree (`harness.commits.checkout`). The step's function at that commit may have other
# arguments. Therefore an adapter is drafted from the source at that commit and written into the worktree. The project
# stays unchanged.


def at_baseline(draft: Draft, baseline: str | None) -> Draft:
    """Return the draft with the commit that `baseline` names now. Later trials of this draft use the same commit, even
    if `baseline` is a branch that has moved since.

    Raises UsageError for an empty name, for a commit that does not exist, and for a step that is not in a repository.
    """
    if baseline is None:
        return draft
    if not baseline.strip():
        raise UsageError("--baseline must be a branch, a tag or a commit", got="an empty name")
    commit = Repository.around(draft.source.file.parent).commit(baseline)
    return replace(draft, commit=commit, commit_named=baseline)


@contextmanager
def checked_out_step(draft: Draft, options: VerifyOptions) -> Iterator[Checkout]:
    """Yield a worktree of the draft's commit. The worktree has an adapter for the version of the step's function at
    that commit.

    Raises UsageError if the step is in no repository, if the commit does not exist, or if the commit does not have the
    function.
    """
    source = draft.source
    systems = [f"{source.module}:{source.function}"]
    with checked_out(draft.commit, systems, options.reports, named=draft.commit_named) as checkout:
        there = step_at(source, checkout)
        home = Path(checkout.import_path.path[0])
        adapter = home / draft.adapter_name
        # Remove the path first, because in the commit it may be a symbolic link to a file outside of the worktree.
        adapter.unlink(missing_ok=True)
        adapter.write_text(replace(draft, source=there).adapter(home), encoding="utf-8")
        yield checkout


def step_at(source: StepSource, checkout: Checkout) -> StepSource:
    """Return the version of the step's function in `checkout`. Raises UsageError, with file and line, if the function
    is missing there."""
    tree, baseline = Path(checkout.import_path.tree), checkout.commits.baseline
    root = checkout.import_path.root
    if not source.file.is_relative_to(root):
        name_file_there = "name the function in a file of the repository"
        file_must_be_in_repository = "--baseline needs a step whose file is in the repository of that commit"
        raise UsageError(
            file_must_be_in_repository,
            where=str(source.file),
            got=f"a file outside of the repository {root}",
            remedy=name_file_there,
        )
    step_file = source.file.relative_to(root)
    at = f"at {baseline.commit[:SHORT]}"
    if not (tree / step_file).is_file():
        name_another_commit = (
            f"name a commit that has the file: `git log --oneline -- {step_file}` lists the commits that changed it"
        )
        raise UsageError(
            "the commit of --baseline must have the step's file",
            where=at,
            got=f"no {step_file}",
            remedy=name_another_commit,
        )
    try:
        there = read_step_source(source.asked, source.function, tree / step_file, tree, source.module)
        return replace(there, folder=None)  # the folder of the checkout is already on the import path
    except UsageError as error:
        where = error.where.replace(f"{tree}/", "")
        raise UsageError(error.rule, where=f"{where}, {at}", got=error.got, remedy=error.remedy) from error


@dataclass(frozen=True)
class Tried:
    """The result of a trial: the tried draft, its judgement, and the run directory, if one was kept."""

    draft: Draft
    judgement: session.Judgement
    run_directory: Path | None


def try_step(
    draft: Draft,
    *,
    reports: Path | None,
    options: session.VerifyOptions,
    watch: session.Watch | None = None,
    judged: Callable[[Verdict, Tried], None] | None = None,
) -> Tried:
    """Run the draft's contract about single steps in a temporary folder, and judge it.

    reports: the folder in which the run directory is kept; None to keep nothing. judged: a function that is called as
    soon as all arms of a claim have ended, with the claim's verdict and with the results of the trial up to then.
    Raises UsageError if nothing can be run.
    """
    from harness.execution.supervisor import Interpreters

    def tell(verdict: Verdict, view: ReportView) -> None:
        if judged is not None:
            judged(verdict, Tried(draft, session.Judgement(view), None))

    # leave out the claim about resuming: it needs several processes, and its verdict changes no `Choice`
    draft = replace(draft, resumes=False)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="harness-try-")))
        if draft.commit and draft.source.folder is not None:
            stack.enter_context(first_on_path(draft.source.folder))
        stack.enter_context(first_on_path(folder))
        require_valid(draft, folder)
        kept = replace(options, reports=folder / "runs" if reports is None else reports, pages=reports is not None)
        checkout = stack.enter_context(checked_out_step(draft, kept)) if draft.commit else None
        (folder / draft.adapter_name).write_text(draft.adapter(folder), encoding="utf-8")
        contract = folder / draft.contract_name
        contract.write_text(draft.contract(), encoding="utf-8")
        with Interpreters() as interpreters:
            if environment.torch_version() is not None and hasattr(os, "killpg"):
                interpreters.begin()
            with _nothing_kept() if reports is None else nullcontext():
                judgement = session.verify([contract], kept, watch, interpreters, judged=tell, checkout=checkout)
    return Tried(draft, judgement, None if reports is None else judgement.run_directory)


@contextmanager
def _nothing_kept() -> Iterator[None]:
    """Remove the note that a run directory was kept from any error that leaves the `with` block, because the temporary
    folder with the run directory will be deleted."""
    try:
        yield
    except BaseException as error:
        error.__notes__ = [note for note in getattr(error, "__notes__", []) if not note.startswith(KEPT)]
        raise


@contextmanager
def first_on_path(folder: Path) -> Iterator[Path]:
    """Put `folder` first on the module path within the `with` block, for this process and for processes that it
    starts."""
    sys.path.insert(0, str(folder))
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))
