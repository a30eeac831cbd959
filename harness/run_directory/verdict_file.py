"""`verdicts.json`: the verdicts of a run directory, without paths and without a clock, the same bytes everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.files import Damaged, read_model, write_text
from harness.judging.verdict import Counts, Status, Verdict, count
from harness.numbers import dump_json


class Gate(Record):
    """Open: every planned unit was decided and held."""

    open: bool


class VerdictFile(Record):
    """The file's content."""

    format_version: Literal[1] = 1
    counts: Counts
    gate: Gate
    claims: list[Verdict]


def verdict_file(verdicts: Sequence[Verdict]) -> VerdictFile:
    """The file's content for these verdicts; a gate over nothing stays shut."""
    held = bool(verdicts) and all(verdict.status is Status.PASS for verdict in verdicts)
    return VerdictFile(counts=count(verdicts), gate=Gate(open=held), claims=list(verdicts))


def verdict_text(verdicts: Sequence[Verdict]) -> str:
    """The file's text; equal verdicts give equal bytes."""
    return dump_json(verdict_file(verdicts).model_dump(mode="json"), indent=2) + "\n"


def write_verdicts(directory: Path, verdicts: Sequence[Verdict]) -> None:
    """Write the verdicts into a run directory, replacing those that are there."""
    write_text(directory / layout.VERDICTS, verdict_text(verdicts))


def read_verdicts(directory: Path) -> VerdictFile:
    """Read them back; raises EvidenceError when the file is missing or damaged."""
    try:
        return read_model(directory / layout.VERDICTS, VerdictFile)
    except Damaged as damage:
        raise EvidenceError(
            "a finished run directory holds its verdicts",
            where=str(directory),
            got=str(damage),
            remedy="`harness judge --write` makes them anew from the evidence",
        ) from damage
