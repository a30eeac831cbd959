"""Record types by their registry: which there are, how a line is read, and evidence that is made of records.

The harness's own types are the fields of `ArmEvidence` and `RunEvidence`. A package offers a type by an entry point of
the group `contract_harness.records` that names a subclass of `ArmRecord` or `RunRecord` (`module:attribute`).
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache, reduce
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter

from harness.errors import KindError
from harness.evidence.base import ArmRecord, Record, RunRecord
from harness.evidence.run_evidence import JOURNAL, ArmEvidence, RunEvidence, Series
from harness.kinds.installed import offered, place

GROUP = "contract_harness.records"
_OF_PACKAGES = "of_packages"  # the field for records of types that have none
_HINTS: dict[type, dict[str, Any]] = {evidence: get_type_hints(evidence) for evidence in (ArmEvidence, RunEvidence)}


def _rows(evidence: type) -> dict[type[RunRecord], str]:
    """Return the record types that a class of evidence holds, each with its field."""
    named = [(one, field) for field, hint in _HINTS[evidence].items() for one in (hint, *get_args(hint))]
    types = [(one, field) for one, field in named if isinstance(one, type) and field != _OF_PACKAGES]
    return {one: field for one, field in types if issubclass(one, RunRecord)}


_ROWS = {evidence: _rows(evidence) for evidence in _HINTS}
BUILT_IN: tuple[type[Record], ...] = (*JOURNAL, *_ROWS[ArmEvidence], *_ROWS[RunEvidence])


def _adapter(types: Iterable[type[Record]]) -> TypeAdapter[Record]:
    return TypeAdapter(Annotated[reduce(operator.or_, types), Field(discriminator="record")])  # type: ignore[arg-type]


# at import: threads read evidence, and a model that was first built in one crashed Python 3.13.0
_OWN = _adapter(BUILT_IN)


def tag(kind: type[Record]) -> str:
    """Return what a record type's lines have as `record`; empty: it is no record type."""
    field = kind.model_fields.get("record")
    return field.default if field is not None and get_args(field.annotation) == (field.default,) else ""


@cache
def of_packages() -> tuple[type[RunRecord], ...]:
    """Return the record types of installed packages. Raises KindError for an entry point that is no sound type."""
    types: dict[str, type[RunRecord]] = {}
    taken = {*map(tag, BUILT_IN), *_HINTS[ArmEvidence]}
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


@cache
def _all() -> TypeAdapter[Record]:
    return _adapter((*BUILT_IN, *of_packages())) if of_packages() else _OWN


def parsed(line: str | bytes) -> Record:
    """Return one line of `records.jsonl` as its record. Raises what pydantic raises for a line that is none."""
    return _all().validate_json(line)


@cache
def parts() -> frozenset[str]:
    """Return the names of the parts of an execution, of which each may fail alone (`PartFailed.part`)."""
    return frozenset({*_ROWS[ArmEvidence].values(), *map(tag, of_packages())})


def identity(record: RunRecord) -> tuple[object, ...]:
    """Return what no two records of one run have in common."""
    return type(record), *(getattr(record, name) for name in record.key)


def recorded_in(execution: ArmEvidence) -> Iterator[RunRecord]:
    """Yield every record of an execution."""
    for each in fields(execution):
        value = getattr(execution, each.name)
        values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
        yield from (one for one in values if isinstance(one, RunRecord))


def execution_of(series: Series, records: Iterable[RunRecord]) -> ArmEvidence:
    """Return the evidence of an execution: its series, and its records in their fields."""
    return ArmEvidence(series=series, **{"end": None, **held(ArmEvidence, records)})


def held(evidence: type, records: Iterable[RunRecord]) -> dict[str, Any]:
    """Return records as the fields of a class of evidence hold them: one, several, or by the last part of the key."""
    by_field: defaultdict[str, list[RunRecord]] = defaultdict(list)
    for record in records:
        by_field[_ROWS[evidence].get(type(record), _OF_PACKAGES)].append(record)
    return {field: _shaped(_HINTS[evidence][field], several) for field, several in by_field.items()}


def _shaped(hint: Any, records: list[RunRecord]) -> Any:
    shape = get_origin(hint)
    if shape is list:
        return records
    return {getattr(one, one.key[-1]): one for one in records} if shape in (dict, Mapping) else records[0]
