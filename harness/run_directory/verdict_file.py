"""`verdicts.json`: the facts of a run directory's verdicts, without sentences, paths and clocks.

The bytes are the same everywhere. A sentence is drawn from the evidence whenever one is shown, so that its words may
change, and no published run with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.files import Damaged, read_model, write_text
from harness.judging.verdict import Counts, Status, UnitFacts, count
from harness.numbers import dump_json
from harness.run_directory.old_formats import Versioned, verdict_file_1


class Gate(Record):
    """Open: every planned unit was decided and held."""

    open: bool


class VerdictFile(Versioned):
    """The file's content."""

    older: ClassVar = {1: verdict_file_1}
    format_version: Literal[2] = 2
    counts: Counts
    gate: Gate
    claims: list[UnitFacts]


def verdict_file(verdicts: Sequence[UnitFacts]) -> VerdictFile:
    """Return the file's content for these verdicts; a gate over nothing stays shut."""
    held = bool(verdicts) and all(verdict.status is Status.PASS for verdict in verdicts)
    facts = [UnitFacts(**{name: getattr(each, name) for name in UnitFacts.model_fields}) for each in verdicts]
    return VerdictFile(counts=count(verdicts), gate=Gate(open=held), claims=facts)


def verdict_text(verdicts: Sequence[UnitFacts]) -> str:
    """Return the file's text; equal facts give equal bytes."""
    return _text(verdict_file(verdicts))


def write_verdicts(directory: Path, verdicts: Sequence[UnitFacts]) -> None:
    """Write the verdicts into a run directory, replacing those that are there."""
    write_text(directory / layout.VERDICTS, verdict_text(verdicts))


def read_verdicts(directory: Path) -> VerdictFile:
    """Read them back, in any version. Raises EvidenceError when the file is missing or damaged."""
    try:
        return read_model(directory / layout.VERDICTS, VerdictFile)
    except Damaged as damage:
        raise EvidenceError(
            "a finished run directory holds its verdicts",
            where=str(directory),
            got=str(damage),
            remedy="`harness judge --write` makes them anew from the evidence",
        ) from damage


def other_than(directory: Path, verdicts: Sequence[UnitFacts]) -> str | None:
    """Say how the facts that a directory has differ from these; None: they are equal, digit for digit."""
    try:
        recorded = _text(read_verdicts(directory))
    except EvidenceError:
        return "it cannot be read"
    return None if recorded == verdict_text(verdicts) else "the evidence gives other verdicts"


def _text(content: VerdictFile) -> str:
    return dump_json(content.model_dump(mode="json"), indent=2) + "\n"
