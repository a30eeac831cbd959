"""Reads contracts of another language as data: their claims, so that ours can say where they come from.

Known forms are lists of claims under `falsification_tests`, `falsification` or `proof_obligations`. Nothing is
executed: a `test` is a text. What cannot be read is reported, never dropped in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.contract import strict_yaml

CLAIM_LISTS = ("falsification_tests", "falsification", "proof_obligations")

# Field of `UpstreamClaim` -> the keys that name it in the known forms, in order of preference.
_KEYS = {
    "rule": ("rule", "property", "claim", "description"),
    "prediction": ("prediction",),
    "test": ("test",),
    "if_fails": ("if_fails", "action_if_falsified"),
    "formal": ("formal",),
}
_OTHER_KEYS = ("id", "tolerance")
# How upstream classifies or has checked a claim: no part of what it says, so left out without complaint.
_BOOKKEEPING = ("type", "applies_to", "lean", "evidence", "status", "reference")


@dataclass(frozen=True)
class UpstreamClaim:
    """One claim, in upstream's words; "" where upstream says nothing. `section` is the list it stands in."""

    id: str
    section: str
    rule: str = ""
    prediction: str = ""
    test: str = ""
    if_fails: str = ""
    formal: str = ""
    tolerance: float | None = None


@dataclass(frozen=True)
class UpstreamContract:
    """A foreign contract's claims, and what of the file could not be read (`file:line:column: what`)."""

    id: str
    title: str
    claims: list[UpstreamClaim]
    unread: list[str] = field(default_factory=list)


def import_upstream(path: Path) -> UpstreamContract:
    """Read one foreign contract. Raises ContractError only when the file is no YAML mapping at all."""
    document = strict_yaml.read(path)
    value = document.value
    if not isinstance(value, dict):
        raise document.error((), "a contract is a mapping of keys to values", got=type(value).__name__)
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    title = metadata.get("description", value.get("description", ""))
    claims: list[UpstreamClaim] = []
    unread: list[str] = []
    for section in CLAIM_LISTS:
        for claim, complaints in _section(document, section):
            unread.extend(complaints)
            if claim is not None:
                claims.append(claim)
    if not claims:
        unread.append(f"{document.where}:1:1: no claims under {', '.join(CLAIM_LISTS)}")
    name = value.get("name", path.stem)
    return UpstreamContract(id=_text(name), title=" ".join(_text(title).split()), claims=claims, unread=unread)


def _section(document: strict_yaml.Document, section: str) -> Iterator[tuple[UpstreamClaim | None, list[str]]]:
    items = document.value.get(section, [])
    if not isinstance(items, list):
        yield None, [_complaint(document, (section,), f"`{section}` is not a list")]
        return
    for number, item in enumerate(items):
        place = (section, number)
        if not isinstance(item, dict):
            yield None, [_complaint(document, place, "a claim is not a mapping")]
            continue
        yield _claim(document, item, place)


def _claim(
    document: strict_yaml.Document, item: dict[str, Any], place: tuple[str, int]
) -> tuple[UpstreamClaim, list[str]]:
    section, number = place
    complaints: list[str] = []
    texts: dict[str, str] = {}
    known = {*_OTHER_KEYS, *_BOOKKEEPING}
    for name, keys in _KEYS.items():
        known.update(keys)
        given = [key for key in keys if key in item]
        texts[name] = _text(item[given[0]]) if given else ""
        complaints += [
            _complaint(document, (*place, key), f"`{key}` left out beside `{given[0]}`") for key in given[1:]
        ]
    complaints += [_complaint(document, (*place, key), f"unknown key `{key}`") for key in item if key not in known]
    if not texts["rule"]:
        complaints.append(_complaint(document, place, f"no rule (one of {', '.join(_KEYS['rule'])})"))
    tolerance = item.get("tolerance")
    number_given = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    if tolerance is not None and not number_given:
        complaints.append(_complaint(document, (*place, "tolerance"), f"tolerance {tolerance!r} is no number"))
    claim = UpstreamClaim(
        id=_text(item.get("id", f"{section}-{number + 1}")),
        section=section,
        tolerance=float(tolerance) if tolerance is not None and number_given else None,
        **texts,
    )
    return claim, complaints


def _text(value: object) -> str:
    """A scalar as its text, trimmed; a list's items joined."""
    if isinstance(value, list):
        return "; ".join(_text(item) for item in value)
    return "" if value is None else str(value).strip()


def _complaint(document: strict_yaml.Document, path: tuple[str | int, ...], what: str) -> str:
    line, column = document.position(path)
    return f"{document.where}:{line}:{column}: {what}"
