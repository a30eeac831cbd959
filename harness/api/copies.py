"""Copy a finished run for publication, without the names of host, user and folders. Write pages about several runs.

Removing names changes the header (`run.json`) and the evidence. The harness therefore writes verdicts, pages and
manifest again from the changed files. The copy has no host and user names of this machine, no folder names, and no
facts about the CI job.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from harness.api import session
from harness.api.rejudge import Rejudged, rejudged
from harness.errors import EvidenceError, UsageError
from harness.evidence import layout, redaction
from harness.evidence.environment_records import CiFacts
from harness.evidence.files import write_text
from harness.judging.verdict import Verdict
from harness.numbers import dump_json
from harness.report.view import RunPart
from harness.run_directory.bundle import Bundle
from harness.run_directory.places import made_folder, refuse_within_run, takes_nothing, way
from harness.run_directory.seal import is_seen, manifest_of, write_manifest
from harness.run_directory.shards import part_names
from harness.run_directory.verdict_file import record_text, write_verdicts


@contextmanager
def without_names(source: Rejudged) -> Iterator[Rejudged]:
    """Yield a copy of `source`, judged again, without names of host, user and folders. The copy is removed when the
    `with` block ends.

    Raises UsageError for the run of an older version, whose header has digests of the evidence instead of a manifest.
    Raises EvidenceError if a verdict of the copy differs from the verdict in `source`.
    """
    bundle = source.bundle
    if bundle.header.digests.evidence:
        run_without_manifest, collect_again = (
            "names can be left out only if the run has a manifest",
            "collect the evidence again with --redact",
        )
        raise UsageError(
            run_without_manifest,
            where=str(bundle.path),
            got="a run of an earlier version, which has no manifest",
            remedy=collect_again,
        )
    with tempfile.TemporaryDirectory(prefix="harness-redacted-") as temporary:
        folder = Path(temporary) / bundle.path.name
        _write(bundle, source, folder)
        copy = rejudged(folder)
        _made_anew(copy, folder)
        _refuse_other(source, copy)
        yield rejudged(folder)


def _write(bundle: Bundle, source: Rejudged, folder: Path) -> None:
    """Copy header, contracts, waivers, evidence and drill record to `folder`, without names of host, user and
    folders."""
    seen = manifest_of(bundle.root, only=is_seen)
    for name in seen.folders:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for file in seen.files:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.root / file.path, folder / file.path)
    contracts = [contract.model_dump(mode="json") for contract in source.judgement.view.contracts]
    left_out = redaction.of_this_machine(redaction.texts_in(contracts))
    for name in (layout.EVIDENCE, layout.WHERE):
        if (folder / name).is_dir():
            left_out.directory(folder / name)
    nobody = bundle.header.environment.model_copy(update={"ci": CiFacts()})
    header = session.redacted_header(bundle.header.model_copy(update={"environment": nobody}), left_out)
    write_text(folder / layout.HEADER, dump_json(header.model_dump(), indent=2) + "\n")
    if source.judgement.view.drill is not None:
        write_text(folder / layout.DRILL, record_text(left_out.model(source.judgement.view.drill)))
    write_manifest(folder, manifest_of(folder))


def _made_anew(copy: Rejudged, folder: Path) -> None:
    record = copy.drill.record if copy.drill is not None else None
    if record is not None:
        write_text(folder / layout.DRILL, record_text(record))
    write_verdicts(folder, copy.judgement.verdicts)
    session.write_reports(folder, copy.judgement.view, junit=True)
    write_manifest(folder, manifest_of(folder))


def _refuse_other(source: Rejudged, copy: Rejudged) -> None:
    for before, after in zip(source.judgement.verdicts, copy.judgement.verdicts, strict=True):
        if _decided(before) != _decided(after):
            verdict_of_run, verdict_of_copy = (f"{verdict.status} {verdict.reason}" for verdict in (before, after))
            raise EvidenceError(
                "a copy of the run without names of host, user and folders must get the same verdicts as the run",
                where=str(source.bundle.path),
                got=f"{before.claim} on {before.workload}: {verdict_of_copy} instead of {verdict_of_run}",
                remedy="collect the evidence again with --redact",
            )


def _decided(verdict: Verdict) -> tuple[object, ...]:
    """Return the fields of a verdict that must be equal in a copy of the run. The message is not one of them, because
    it may contain names, which are removed from the copy."""
    return verdict.contract, verdict.claim, verdict.workload, verdict.status, verdict.reason, verdict.denominators


_REMEDY = "name a folder that is new or empty, outside the run directories"


def refuse_used(out: Path, runs: Sequence[Path]) -> None:
    """Raise UsageError if `out`, the folder for the pages, is not empty, is a file, or is inside a run directory."""
    try:
        held = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
        taken = os.path.lexists(out) and not out.is_dir()
    except OSError as error:
        raise takes_nothing(out, error) from error
    if held:
        used_folder = f"a folder that contains {held[0]}"
        raise UsageError("the folder of --out must be empty", where=str(out), got=used_folder, remedy=_REMEDY)
    if taken:
        raise UsageError("--out must name a folder", where=str(out), got="a file", remedy=_REMEDY)
    refuse_within_run(out, runs)


def write_shared(out: Path, judgement: session.Judgement, bundles: Sequence[Bundle]) -> session.Judgement:
    """Write `report.html`, `summary.md` and `junit.xml` into `out`, a folder that `refuse_used` has accepted. Return
    the judgement with links to the page of each run. Raises UsageError if nothing can be written to `out`."""
    pages = {name: _way(out, bundle) for name, bundle in zip(part_names(bundles), bundles, strict=True)}
    parts: tuple[RunPart, ...] = tuple(replace(part, page=pages[part.name]) for part in judgement.view.parts)
    linked = replace(judgement, view=replace(judgement.view, parts=parts))
    made_folder(out)
    try:
        session.write_reports(out, linked.view)
    except OSError as error:
        raise takes_nothing(out, error) from error
    return linked


def _way(out: Path, bundle: Bundle) -> str | None:
    """Return the relative path from `out` to the page of a run, or None for an archive or a run without a page."""
    page = bundle.place.derived / layout.PAGE
    if bundle.place.derived != bundle.place.named or not page.is_file():
        return None
    return way(out, page)
