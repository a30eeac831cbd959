"""Try a step before it has a contract: run a drafted one as `harness verify` runs any contract, and judge it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from harness.api import session
from harness.devices import environment
from harness.first_contract.at_commit import checked_out_step
from harness.first_contract.draft import Draft
from harness.first_contract.project import require_valid
from harness.judging.verdict import Verdict
from harness.report.view import ReportView
from harness.run_directory.writer import KEPT


@dataclass(frozen=True)
class Tried:
    """What came of it: the contract as it was judged, the verdicts; `run_directory` where one was asked for."""

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

    reports: where a run directory is kept; None keeps nothing. judged: gets each verdict as soon as its arms have
    ended, and the results of the trial so far. Raises UsageError where no run could be made.
    """
    from harness.execution.interpreters import Interpreters

    def tell(verdict: Verdict, view: ReportView) -> None:
        if judged is not None:
            judged(verdict, Tried(draft, session.Judgement(view), None))

    draft = replace(draft, resumes=False)  # several processes, one after the other, choose nothing
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="harness-try-")))
        if draft.commit and draft.source.folder is not None:
            stack.enter_context(_first_on_path(draft.source.folder))
        stack.enter_context(_first_on_path(folder))
        require_valid(draft, folder)
        kept = replace(options, reports=folder / "runs" if reports is None else reports)
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
    """Remove notes about a kept run directory from what the block raises: its temporary folder is deleted."""
    try:
        yield
    except BaseException as error:
        error.__notes__ = [note for note in getattr(error, "__notes__", []) if not note.startswith(KEPT)]
        raise


@contextmanager
def _first_on_path(folder: Path) -> Iterator[Path]:
    """Put `folder` first on the module path within the block, also for processes that this process starts."""
    sys.path.insert(0, str(folder))
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))
