"""Define models of untrusted files. Validation of a file stops after a few errors.

Without this limit, pydantic collects every error in a file, and needs about two kilobytes of memory for each error. A
file with a line of 3 MB took 80 s and 8 GB of memory. The functions that read files show only the first error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

# Largest number of keys in a mapping from which a model is created (most models have about ten fields). If the value of
# a model's field is a longer mapping, it is validated in groups of this many entries.
MOST_KEYS = 100
_NO_SCHEMAS = frozenset({"cls", "config", "metadata", "serialization"})


class LateModel(BaseModel):
    """A model that pydantic builds at its first use. Unused models then cost no time."""

    model_config = ConfigDict(defer_build=True)

    @classmethod
    def model_rebuild(
        cls,
        *,
        force: bool = False,
        raise_errors: bool = True,
        _parent_namespace_depth: int = 2,
        _types_namespace: Mapping[str, Any] | None = None,
    ) -> bool | None:
        """Build the model, and prevent pydantic from reading the local variables of the calling functions.

        Python 3.13.0 can crash if pydantic reads the local variables of a function that contains a comprehension.
        """
        return super().model_rebuild(force=force, raise_errors=raise_errors, _types_namespace=_types_namespace or {})


class BoundedModel(LateModel):
    """A model whose validation stops after a few errors.

    The validation of a list stops at the first wrong item. The validation of a long mapping stops after the first group
    of `MOST_KEYS` entries with an error.
    """

    @model_validator(mode="before")
    @classmethod
    def _few_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MOST_KEYS:
            raise ValueError(f"the mapping has {len(value)} keys, but at most {MOST_KEYS} keys are allowed")
        return value

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        return _ending_early(schema) if schema["type"] != "definition-ref" else schema


def _ending_early(schema: Any) -> Any:
    """Return the schema, changed so that the validation of each list and each mapping stops after a few errors.

    The schemas of nested models are left unchanged, because they were changed when their models were built.
    """
    if isinstance(schema, list):
        return [_ending_early(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    bounded = {
        key: value if key in _NO_SCHEMAS or _is_model(value) else _ending_early(value) for key, value in schema.items()
    }
    if schema.get("type") == "list":
        return bounded | {"fail_fast": True}
    # JSON has lists but no tuples. Strict validation in a function validator refuses a list where a tuple is expected.
    # Therefore convert the list to a tuple first.
    if schema.get("type") == "tuple":
        return core_schema.no_info_before_validator_function(_tuple, bounded)
    if schema.get("type") == "dict":
        return core_schema.no_info_wrap_validator_function(_in_parts, bounded)
    return bounded


def _is_model(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "model"


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _in_parts(value: Any, validate: Callable[[Any], dict[Any, Any]]) -> dict[Any, Any]:
    if not isinstance(value, dict) or len(value) <= MOST_KEYS:
        return validate(value)
    entries, validated = iter(value.items()), {}
    while part := dict(islice(entries, MOST_KEYS)):
        validated.update(validate(part))
    return validated
