"""Try a step without a contract of one's own: a drafted one is run as `harness verify` runs any, and judged.

How much a claim demands of training depends on the losses, which only the run shows. So the runs are planned by a draft
whose numbers are guesses, and judged by the same draft with the numbers that follow from them.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness import session
from harness.contract.load import LoadedContract, load_contracts
from harness.evidence import environment, layout
from harness.evidence.run_evidence import RunEvidence
from harness.first_contract.draft import Draft, Effect, last_steps, measured_effect
from harness.run_directory.writer import BundleWriter


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
) -> Tried:
    """Run the draft in a folder of its own, take its numbers from what was seen, and judge it.

    reports: where a run directory is kept; None: nothing is. Raises UsageError where no run could be made.
    """
    from harness.runners.interpreters import Interpreters

    with tempfile.TemporaryDirectory(prefix="harness-try-") as name, _first_on_path(Path(name)) as folder:
        (folder / draft.adapter_name).write_text(draft.adapter(folder), encoding="utf-8")
        contracts = _written(draft, folder)
        with Interpreters() as interpreters:
            if environment.torch_version() is not None and hasattr(os, "killpg"):
                interpreters.begin()
            planned = session.plan_contracts(contracts, options)
            started = datetime.now(tz=UTC)
            writer = BundleWriter(folder / "run", session.header_of(contracts, planned, options, started), contracts)
            session.execute(planned.runs, writer, watch, interpreters, session.redaction_of(contracts, options.redact))
        writer.settle()
        guessed = session.judge_bundles([writer.bundle()], contracts)
        draft = replace(draft, effect=effect_of(guessed.view.evidence, draft.steps))
        contracts = _written(draft, folder)
        header = session.header_of(contracts, planned, options, started)
        if reports is None:
            return Tried(draft, session.judge_bundles([writer.bundle()], contracts), None)
        final = BundleWriter(
            reports / (options.name or session.directory_name(started, options)),
            session.with_earlier_runs(header, reports),
            contracts,
            named=options.name is not None,
        )
        try:
            shutil.copytree(writer.path / layout.EVIDENCE, final.path / layout.EVIDENCE, dirs_exist_ok=True)
            judgement = session.judge_bundles([final.bundle()], contracts)
            session.write_judgement(final.path, judgement)
            return Tried(draft, judgement, final.finish())
        except BaseException as error:
            error.add_note(f"kept what there is, marked {layout.INCOMPLETE}: {final.abandon()}")
            raise


def effect_of(evidence: Mapping[str, RunEvidence], steps: int) -> Effect:
    """The training effect that the runs showed; the guess where they show none."""
    for run in evidence.values():
        plain, control = run.arms.get("plain"), run.arms.get("untrained")
        if not plain or not control or len(plain[0].series.loss) != len(control[0].series.loss) != 0:
            continue
        ours, theirs = (arm[0].series.loss[-last_steps(steps) :] for arm in (plain, control))
        return measured_effect(float((theirs - ours).mean()), float(theirs.mean()), steps)
    return Effect()


def _written(draft: Draft, folder: Path) -> list[LoadedContract]:
    path = folder / draft.contract_name
    path.write_text(draft.contract(), encoding="utf-8")
    return load_contracts([path])


@contextmanager
def _first_on_path(folder: Path) -> Iterator[Path]:
    """Within the block this process, and those that it starts, look for modules in `folder` first."""
    sys.path.insert(0, str(folder))
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))
