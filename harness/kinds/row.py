"""Define the rows of the harness's tables of claim kinds and of probes. A row checks its fields when it is created.

A row names objects of other packages as `module:attribute`. These objects are imported only when they are used.
"""

from __future__ import annotations

import importlib
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Self, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from harness.errors import KindError

Name = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
Reference = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]  # an object, as `module:attribute`
Sentence = Annotated[str, Field(pattern=r"\.$")]  # ends with a full stop


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table. If a field is missing or malformed, the row's creation raises `KindError`."""

    called: ClassVar[str]
    name: Name

    # Look for missing fields here, because the error that a dataclass raises for a missing field does not name the row.
    def __new__(cls, **given: Any) -> Self:
        for field in fields(cls):
            if field.name not in given and field.default is MISSING and field.default_factory is MISSING:
                raise cls._error(given.get("name", "?"), field.name, "must be given", "nothing")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        try:
            _model(cast("Any", type(self))).model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            field = str(first["loc"][0])
            raise self._error(self.name, field, f"is malformed: {first['msg']}", repr(given[field])) from error

    @classmethod
    def _error(cls, name: object, field: str, rule: str, got: str) -> KindError:
        where, remedy = f"{cls.called} '{name}'", "see docs/adding-a-claim-kind.md"
        return KindError(f"the field `{field}` {rule}", where=where, got=got, remedy=remedy)


@cache
def _model(row: type[Row]) -> type[BaseModel]:
    """Return a pydantic model that validates all fields of a row of the class `row`. One model for all fields is faster
    than one validator for each field."""
    types = get_type_hints(row, include_extras=True)
    config = ConfigDict(strict=True, arbitrary_types_allowed=True)
    typed: dict[str, Any] = {field.name: (types[field.name], ...) for field in fields(row)}
    return create_model(row.__name__, __config__=config, **typed)


def resolve(reference: str) -> Any:
    """Return the object that `module:attribute` names. Raises KindError if it cannot be imported or does not exist."""
    try:
        return imported(reference)
    except (Exception, SystemExit) as error:  # a package from outside the harness may raise anything
        raise KindError(
            "an object that the table of claim kinds names cannot be imported",
            where=reference,
            got=f"{type(error).__name__}: {error}",
            remedy="correct the reference, or install the package that the object needs",
        ) from error


def imported(reference: str) -> Any:
    """Return the object that `module:attribute` names, or raise the error of its import."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)
