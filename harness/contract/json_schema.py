"""Generate the JSON Schema of the contract language from its models.

The repository contains the schema of the harness's own claim kinds, without the kinds of installed packages.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from harness.contract.base import model_within
from harness.contract.conditional import ByCase, numbers_of
from harness.contract.schema import Contract, claim_model, part_kinds, part_model
from harness.contract.shared import Shared
from harness.kinds import BUILT_IN
from harness.numbers import dump_json

# Placeholder for the reference to the schema of a bound with cases. It is replaced after pydantic has finished.
_BY_CASE = {"const": "a bound with cases"}
SCHEMA_PATH = Path(__file__).with_name("contract.schema.json")
SHARED_PATH = Path(__file__).with_name("shared.schema.json")


class _Described(GenerateJsonSchema):
    """Generate schemas in which the docstrings of models and fields are the descriptions."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        generated = super().model_schema(schema)
        model = schema["cls"]
        for name in _conditional_fields().get(model, ()):
            value = generated["properties"][name]
            kept = {key: value.pop(key) for key in ("default", "title") if key in value}
            generated["properties"][name] = {"anyOf": [value, _BY_CASE], **kept}
        for name, field in model.model_fields.items():
            models = (one for one in model.__mro__ if issubclass(one, BaseModel))
            found = [text for one in models if (text := field_docstrings(one.__module__).get((one.__name__, name)))]
            if found:  # the fields of a model from another package may have no docstrings
                generated["properties"][field.alias or name]["description"] = found[0]
        return generated


@cache
def _conditional_fields() -> dict[type[BaseModel], set[str]]:
    """Return the names of number fields whose values may depend on the unit (workload, GPU, data type), by model."""
    fields: dict[type[BaseModel], set[str]] = {}
    for kind in part_kinds():
        for path in numbers_of(kind):
            *above, name = path.split(".")
            for model in (part_model(kind), claim_model(kind)):
                owner: type[BaseModel] | None = model
                for field in above:
                    owner = None if owner is None else model_within(owner, field)
                if owner is not None:
                    fields.setdefault(owner, set()).add(name)
    return fields


class _OfTheHarness(_Described):
    """Generate the schema without the claim kinds of installed packages."""

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        foreign = set(part_kinds()) - BUILT_IN.keys()
        own = {kind: choice for kind, choice in schema["choices"].items() if kind not in foreign}
        return super().tagged_union_schema({**schema, "choices": own})


def contract_json_schema(*, with_packages: bool) -> dict[str, Any]:
    """Return a contract file's JSON Schema (2020-12). `with_packages` adds installed packages' claim kinds."""
    generator = _Described if with_packages else _OfTheHarness
    generated = Contract.model_json_schema(by_alias=True, schema_generator=generator)
    # these keys are not required, because shared files may define all workloads and arms
    shared = ("workloads", "arms")
    generated["required"] = [name for name in generated["required"] if name not in shared]
    _refer_to_cases(generated)
    generated["$defs"] |= _by_case()
    generated["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return generated


def _refer_to_cases(schema: object) -> None:
    """Replace each placeholder by a reference, in place.

    pydantic itself refuses a reference to a definition that it did not generate.
    """
    for inside in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _refer_to_cases(inside)
    if isinstance(schema, dict) and _BY_CASE in schema.get("anyOf", []):
        schema["anyOf"] = [{"$ref": "#/$defs/ByCase"} if one == _BY_CASE else one for one in schema["anyOf"]]


def _by_case() -> dict[str, Any]:
    """Return the schema definitions of a bound with cases.

    The loader checks the ranges of the numbers; the schema does not.
    """
    generated = ByCase.model_json_schema(schema_generator=_Described)
    case, properties = generated["$defs"].pop("Case"), generated["properties"]
    case["minProperties"] = 2
    for owner, name in ((case["properties"], "value"), (properties, "otherwise")):
        owner[name] = {"type": "number", **owner[name]}
    del generated["$defs"]
    return {"ByCase": generated, "Case": case}


def schema_text(*, with_packages: bool) -> str:
    """Return the schema as text. With `with_packages=False`, the text is the content of `contract.schema.json`."""
    return dump_json(contract_json_schema(with_packages=with_packages), indent=2) + "\n"


def shared_schema_text() -> str:
    """Return the JSON Schema (2020-12) of shared files as text. The text is the content of `shared.schema.json`."""
    generated = Shared.model_json_schema(by_alias=True, schema_generator=_Described)
    generated["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return dump_json(generated, indent=2) + "\n"


def main() -> None:
    """Write `contract.schema.json` and `shared.schema.json`."""
    SHARED_PATH.write_text(shared_schema_text(), encoding="utf-8")
    SCHEMA_PATH.write_text(schema_text(with_packages=False), encoding="utf-8")


@cache
def field_docstrings(module: str) -> dict[tuple[str, str], str]:
    """Return the strings that stand below fields of models and members of enumerations in a module's source.

    The keys are (name of the class, name of the field).
    """
    docstrings: dict[tuple[str, str], str] = {}
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    for model in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for field, following in zip(model.body, model.body[1:], strict=False):
            targets = field.targets if isinstance(field, ast.Assign) else [getattr(field, "target", None)]
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                docstrings |= {(model.name, name): str(following.value.value) for name in names}
    return docstrings


if __name__ == "__main__":
    main()
