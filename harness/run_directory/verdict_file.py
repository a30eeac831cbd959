"""Define `verdicts.json`: the facts of a run directory's verdicts, without sentences, paths and clocks.

The bytes are the same everywhere. A sentence is made from the evidence whenever one is shown, so its words may change
without any change of a published run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.files import Damaged, read_model, require_keys_once, write_text
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
    """Return the file's content for these verdicts; a gate over nothing stays closed."""
    held = bool(verdicts) and all(verdict.status is Status.PASS for verdict in verdicts)
    facts = [UnitFacts(**{name: getattr(each, name) for name in UnitFacts.model_fields}) for each in verdicts]
    return VerdictFile(counts=count(verdicts), gate=Gate(open=held), claims=facts)


def verdict_text(verdicts: Sequence[UnitFacts]) -> str:
    """Return the file's text; equal facts give equal bytes."""
    return dump_json(verdict_file(verdicts).model_dump(mode="json"), indent=2) + "\n"


def write_verdicts(directory: Path, verdicts: Sequence[UnitFacts]) -> None:
    """Write the verdicts into a run directory, replacing those that are there."""
    write_text(directory / layout.VERDICTS, verdict_text(verdicts))


def read_verdicts(directory: Path) -> VerdictFile:
    """Return a directory's verdicts, in any version. Raises EvidenceError when the file is missing or damaged."""
    try:
        return read_model(directory / layout.VERDICTS, VerdictFile)
    except Damaged as damage:
        raise EvidenceError(
            "a finished run directory holds its verdicts",
            where=str(directory),
            got=str(damage),
            remedy="`harness judge --write` makes them anew from the evidence",
        ) from damage


def other_than(recorded: bytes | None, verdicts: Sequence[UnitFacts]) -> str | None:
    """Return how a recorded file differs from what these verdicts give; None if byte for byte it does not.

    recorded: None where the file cannot be read. One of version 1 is compared without its sentences.
    """
    if recorded is None:
        return "it cannot be read"
    given = verdict_text(verdicts).encode("utf-8")
    return None if given in (recorded, _without_sentences(recorded)) else "the evidence gives other verdicts"


def _without_sentences(recorded: bytes) -> bytes | None:
    """Return a file of version 1 as version 2 has it; None for another file, and for a key that is there twice."""
    try:
        require_keys_once(recorded)
        values = json.loads(recorded)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or repr(values.get("format_version")) != "1":
        return None
    return f"{dump_json({**verdict_file_1(values), 'format_version': 2}, indent=2)}\n".encode()
