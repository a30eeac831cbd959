"""Whether a signed statement is of this directory: the statement is made again from it, and compared byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.attestation.envelope import opened
from harness.attestation.statement import Statement, statement_of, statement_text
from harness.errors import EvidenceError
from harness.evidence.files import Damaged, parse
from harness.session import Judgement


@dataclass(frozen=True)
class Attested:
    """Who signed what: the key's id, the statement, and the gate over the directory that it is of."""

    key_id: str
    statement: Statement
    gate: Judgement


def verify(directory: Path, file: Path, key: Path) -> Attested:
    """Raises EvidenceError unless the key signed what the directory itself says; UsageError for a key that is none."""
    text, key_id = opened(file, key)
    own, gate = statement_of(directory)
    if text != statement_text(own):
        raise EvidenceError(
            "an attestation says what its run directory says", where=str(file), got=_difference(text, own)
        )
    return Attested(key_id, own, gate)


def _difference(text: str, own: Statement) -> str:
    """The first thing that the signed statement says otherwise."""
    try:
        signed = parse(text.encode(), Statement, "the statement")
    except Damaged as damage:
        return str(damage)
    for theirs, ours in zip(signed.subject, own.subject, strict=False):
        if theirs != ours:
            return f"a statement about {_named(theirs.name, theirs.digest)}, here lies {_named(ours.name, ours.digest)}"
    if signed.predicate.result != own.predicate.result:
        return f"the result {signed.predicate.result}, this directory's gate gives {own.predicate.result}"
    return "another predicate than this directory gives under this harness"


def _named(name: str, digest: dict[str, str]) -> str:
    return ascii(f"{name} {digest.get('sha256')}")[1:-1][:200]
