"""The JSON Schema of the contract language, generated from the models and checked in for editors."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from harness.contract import base, claims, schema
from harness.contract.kinds import kernels, replay, throughput, training
from harness.numbers import dump_json

MODULES = (base, kernels, replay, throughput, training, claims, schema)
SCHEMA_PATH = Path(__file__).with_name("contract.schema.json")


def contract_json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a contract file; descriptions are the docstrings of models and of their fields."""
    generated = schema.Contract.model_json_schema(by_alias=True)
    for name, definition in {"Contract": generated, **generated.get("$defs", {})}.items():
        _describe_fields(definition, next(getattr(module, name) for module in MODULES if hasattr(module, name)))
    generated["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return generated


def schema_text() -> str:
    """What `contract.schema.json` must hold, byte for byte."""
    return dump_json(contract_json_schema(), indent=2) + "\n"


def main() -> None:
    """Write `contract.schema.json`."""
    SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")


def _describe_fields(definition: dict[str, Any], model: type[BaseModel]) -> None:
    docstrings = _field_docstrings()
    for name, field in model.model_fields.items():
        found = [docstrings[key] for one in model.__mro__ if (key := (one.__name__, name)) in docstrings]
        definition["properties"][field.alias or name]["description"] = found[0]


@cache
def _field_docstrings() -> dict[tuple[str, str], str]:
    """The string below each field of each model, from the source: Python itself drops it."""
    docstrings = {}
    trees = [ast.parse(inspect.getsource(module)) for module in MODULES]
    for model in (node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)):
        for field, following in zip(model.body, model.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
            ):
                docstrings[model.name, field.target.id] = str(following.value.value)
    return docstrings


if __name__ == "__main__":
    main()
