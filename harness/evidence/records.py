"""Find record types by their registry: which there are, how a line is read, and evidence that is made of records.

The harness's own types are the fields of `ArmEvidence` and `RunEvidence`. A package offers a type by an entry point of
the group `contract_harness.records` that names a subclass of `ArmRecord` or `RunRecord` (`module:attribute`).
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, reduce
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter

from harness.errors import KindError
from harness.evidence.base import ArmRecord, Record, RunRecord
from harness.evidence.files import require_keys_once
from harness.evidence.run_evidence import JOURNAL, ArmEvidence, RunEvidence, Series
from harness.kinds.installed import offered, place

GROUP = "contract_harness.records"
_OTHER = ("of_packages", list)  # where records of types without a field of their own go
_Row = tuple[str, object]  # the field, and what it is: a list, a mapping, or one record


def _rows(evidence: type) -> dict[type[RunRecord], _Row]:
    """Return the record types that a class of evidence has fields for."""
    hints = get_type_hints(evidence).items()
    named = [(one, (field, get_origin(hint))) for field, hint in hints for one in (hint, *get_args(hint))]
    types = [(one, row) for one, row in named if isinstance(one, type) and issubclass(one, RunRecord)]
    return {one: row for one, row in types if one is not RunRecord}


_ROWS: dict[type, dict[type[RunRecord], _Row]] = {one: _rows(one) for one in (ArmEvidence, RunEvidence)}
_FIELDS = {field for field, _ in _ROWS[ArmEvidence].values()}
BUILT_IN: tuple[type[Record], ...] = (*JOURNAL, *_ROWS[ArmEvidence], *_ROWS[RunEvidence])


@cache
def _adapter(packages: tuple[type[RunRecord], ...]) -> TypeAdapter[Record]:
    types = reduce(operator.or_, (*BUILT_IN, *packages))
    return TypeAdapter(Annotated[types, Field(discriminator="record")])  # type: ignore[arg-type]


_adapter(())  # at import: threads read evidence, and a model that was first built in one crashed Python 3.13.0


def tag(kind: type[Record]) -> str:
    """Return the `record` value of a record type's lines; "" where it is not a record type."""
    field = kind.model_fields.get("record")
    return field.default if field is not None and get_args(field.annotation) == (field.default,) else ""


@cache
def of_packages() -> tuple[type[RunRecord], ...]:
    """Return the record types of installed packages. Raises KindError for an entry point without a sound type."""
    types: dict[str, type[RunRecord]] = {}
    taken = {*map(tag, BUILT_IN), *_FIELDS}
    what = "a subclass of `ArmRecord` or `RunRecord`, its `record` one word and its `key` some of its fields"
    for entry, kind in offered(GROUP, what, _is_sound):
        if tag(kind) in taken | types.keys():
            rule = "a package's record type has a `record` of its own"
            raise KindError(rule, where=place(entry), got=f"'{tag(kind)}' again", remedy="rename it, or remove one")
        types[tag(kind)] = kind
    return tuple(types.values())


def _is_sound(value: Any) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, RunRecord)
        and tag(value) != ""
        and set(value.key) <= set(value.model_fields)
        and (not issubclass(value, ArmRecord) or value.key[:2] == ArmRecord.key)
    )


def parsed(line: str | bytes) -> Record:
    """Return one line of `records.jsonl` as its record. Raises pydantic's errors for a line that is not a record."""
    require_keys_once(line)
    return _adapter(of_packages()).validate_json(line, strict=True)


def parts() -> set[str]:
    """Return the names of the parts of an execution, of which each may fail alone (`PartFailed.part`)."""
    return {*_FIELDS, *map(tag, of_packages())}


def recorded_in(execution: ArmEvidence) -> Iterator[RunRecord]:
    """Yield every record of an execution."""
    for each in dataclasses.fields(execution):
        value = getattr(execution, each.name)
        values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
        yield from (one for one in values if isinstance(one, RunRecord))


def execution_of(series: Series, records: Iterable[RunRecord]) -> ArmEvidence:
    """Return the evidence of an execution: its series, and its records in their fields."""
    return ArmEvidence(series=series, **{"end": None, **held(ArmEvidence, records)})


def held(evidence: type, records: Iterable[RunRecord]) -> dict[str, Any]:
    """Return records as a class of evidence holds them in its fields: one, several, or by the last part of the key."""
    fields: dict[str, Any] = {}
    for record in records:
        field, shape = _ROWS[evidence].get(type(record), _OTHER)
        if shape is list:
            fields.setdefault(field, []).append(record)
        elif shape in (dict, Mapping):
            fields.setdefault(field, {})[getattr(record, record.key[-1])] = record
        else:
            fields[field] = record
    return fields
