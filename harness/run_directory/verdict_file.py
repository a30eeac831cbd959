"""Define `verdicts.json`, the facts of a run directory's verdicts, and read old formats of a run directory's files.

The bytes of `verdicts.json` are the same everywhere, without sentences, paths and clocks. A sentence is made from the
evidence whenever one is shown, so its words may change without any change of a published run.

An old format has one reader, from the values of a version to those of the next. Evidence has no version. What older
evidence lacks is None in its records: it was not recorded, and judges decide what that means
(`end_state_unrecorded`). No reader fills it in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.files import Damaged, read_model, require_keys_once, write_text
from harness.judging.verdict import Counts, Status, UnitFacts, count
from harness.numbers import dump_json

Values = dict[str, Any]


class Versioned(Record):
    """A file with a `format_version`. `older`: the readers of its versions before those that the field allows."""

    older: ClassVar[dict[int, Callable[[Values], Values]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _newer(cls, values: object) -> object:
        for version, reader in cls.older.items():
            if isinstance(values, dict) and values.get("format_version") == version:
                values = {**reader(values), "format_version": version + 1}
        return values


def header_1(values: Values) -> Values:
    """Read a header without `purpose`: `fault` was "drill" in a drill's directory.

    The result has version 2, which is older than manifests (`Header.before_manifests`).
    """
    fault = values.get("fault")
    purpose = "verify" if fault is None else "drill" if fault == "drill" else "fault"
    return {**values, "purpose": purpose, "fault": fault if purpose == "fault" else None}


def verdict_file_1(values: Values) -> Values:
    """Read verdicts that recorded their sentences, in the wording of that time."""
    claims = values.get("claims")
    if not isinstance(claims, list):
        return values
    facts = [{k: v for k, v in each.items() if k != "message"} if isinstance(each, dict) else each for each in claims]
    return {**values, "claims": facts}


def drill_record_1(values: Values) -> Values:
    """Read a drill record that did not count what was planned."""
    listed = [values.get("rows"), values.get("not_run", [])]
    return {**values, "planned": sum(len(each) for each in listed if isinstance(each, list))}


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
