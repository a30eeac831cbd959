"""`harness pack`: write a finished run for publication, with its evidence in one archive; nothing is run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from harness.api.copies import without_names
from harness.api.rejudge import Rejudged, rejudged
from harness.errors import EvidenceError, UsageError
from harness.evidence import layout
from harness.platform.standard_streams import print_lines
from harness.run_directory.archive import write_archive
from harness.run_directory.bundle import Bundle
from harness.run_directory.places import refuse_within_run, temporary_folder
from harness.run_directory.seal import is_seen, manifest_of, manifest_text, read_manifest, write_manifest

PUBLISHED = Path("reports")  # default folder of published runs, in the working directory
# The page must be the first entry, because the option `--no-page` leaves the first entry out.
_BESIDE = (layout.PAGE, layout.SUMMARY, layout.VERDICTS)


def pack(
    run_directory: Annotated[Path, typer.Argument(help="A finished run directory, or an archive of one.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder to create; default: the directory's name in reports/.")
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Leave out names of host, user and folders, also in the evidence.")
    ] = False,
    page: Annotated[
        bool,
        typer.Option(
            "--page/--no-page",
            help="Leave out the run's page, because another page shows the run, or `harness report` draws the page.",
        ),
    ] = True,
) -> None:
    """Write a run for publication: page, summary and verdicts next to one archive of the rest. The run is unchanged."""
    print_lines(published(run_directory, out or PUBLISHED / run_directory.resolve().name, redact=redact, page=page))


def published(run: Path, out: Path, *, redact: bool = False, page: bool = True) -> tuple[str, str]:
    """Write the folder for publication, judge the run again from the folder's archive, and rename the folder to `out`.

    Return two lines about the published folder. Raises UsageError if `out` exists or is inside a run directory. Raises
    EvidenceError if the run is incomplete or was changed.
    """
    if os.path.lexists(out):
        raise UsageError(
            "the new folder for the published run must not exist yet",
            where=str(out),
            got="one that exists",
            remedy="name another folder with --out",
        )
    refuse_within_run(out, [run])
    given = rejudged(run)
    _refuse_unfit(given)
    with without_names(given) if redact else nullcontext(given) as source:
        _make(source, out, given.bundle.seal.digest, _BESIDE if page else _BESIDE[1:])
    size = sum(path.stat().st_size for path in out.iterdir())
    return f"{out}: {size} bytes, {given.judgement.view.count_line()}", f"manifest: sha256:{read_manifest(out)[1]}"


def _make(source: Rejudged, out: Path, replaces: str | None, beside: Sequence[str]) -> None:
    temporary = temporary_folder(out)
    try:
        _write(source.bundle, temporary, replaces, beside)
        _refuse_other(source, rejudged(temporary), out)
        temporary.chmod(0o755)
        temporary.rename(out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _refuse_unfit(source: Rejudged) -> None:
    place = source.bundle.place
    if source.problems:
        raise EvidenceError(
            "only a complete and unchanged run can be published",
            where=str(place.named),
            got="; ".join(source.problems[:3]),
            remedy="see all differences with `harness judge --check`",
        )
    missing_pages = [name for name in _BESIDE if not (place.derived / name).is_file()]
    if missing_pages:
        raise EvidenceError(
            "a run can be published only with its pages",
            where=str(place.named),
            got=f"no {missing_pages[0]}",
            remedy="write the pages with `harness report`",
        )


def _write(bundle: Bundle, folder: Path, replaces: str | None, beside: Sequence[str]) -> None:
    root, derived = bundle.root, bundle.place.derived
    for name in [*beside, *([layout.DRILL] if (derived / layout.DRILL).exists() else [])]:
        (folder / name).write_bytes((derived / name).read_bytes())
    seen = manifest_of(root, only=is_seen, before=bundle.seal.within)
    texts = {layout.MANIFEST: manifest_text(seen)}
    write_archive(root, [file.path for file in seen.files], seen.folders, folder / layout.ARCHIVE, texts)
    changes = {"seen": seen.seen, "replaces": replaces}
    write_manifest(folder, manifest_of(folder).model_copy(update=changes))


def _refuse_other(source: Rejudged, packed: Rejudged, out: Path) -> None:
    """Raise EvidenceError if the packed run has problems (such as other verdicts) or not its source's header."""
    if packed.problems or packed.bundle.header != source.bundle.header:
        difference = "; ".join(packed.problems[:3]) or "another header"
        raise EvidenceError(
            "the packed run must have the same content as the original run", where=str(out), got=difference
        )
