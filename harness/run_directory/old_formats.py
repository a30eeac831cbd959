"""Read old formats of a run directory's files: one reader each, from the values of a version to those of the next.

Evidence has no version. What older evidence lacks is None in its records: it was not recorded, and judges decide what
that means (`end_state_unrecorded`). No reader fills it in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import model_validator

from harness.evidence.base import Record

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
