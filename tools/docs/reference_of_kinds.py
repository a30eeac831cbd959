"""Fill docs/reference/claim-kinds.md: the fields of a contract, and every kind of claim with its fields.

Fields and their descriptions come from the JSON Schema. The capabilities that a kind requires come from `BUILT_IN`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from functools import cache
from typing import Any

from page_tables import table

from harness.contract.base import Demand, marks
from harness.contract.json_schema import contract_json_schema
from harness.contract.schema import part_model
from harness.kinds import BUILT_IN

Schema = Mapping[str, Any]
# The fields that all claims share are taken from this kind (any would do), without the fields of its check.
OF_ALL = "TrajectoryMatchClaim"
COMPOSITE = "A claim of `kind: composite` has `parts`, each of one of the kinds below. The worst part decides."
CASES = "[cases](../writing-a-contract.md#3-take-the-numbers-from-somewhere)"
WORDS = {"string": "text", "number": "number", "integer": "whole number", "boolean": "`true` or `false`"}
SIGNS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
HEAD = ("field", "value", "default", "")


@cache
def text() -> str:
    """Return the text to write between the two marks of the page, in Markdown."""
    schema = contract_json_schema(with_packages=False)
    defined: Mapping[str, Schema] = schema["$defs"]
    models = {kind: part_model(kind).__name__ for kind in BUILT_IN}
    own = {name for model in models.values() for name in (model, f"{model}Claim")}
    shared = [name for name in defined if name not in own and name not in {"ByCase", "Case", "CompositeClaim"}]
    of_all = defined[OF_ALL]["properties"].keys() - defined[models["trajectory_match"]]["properties"].keys()
    parts = ["## A contract", _fields(schema)]
    parts += ["## Every claim", _fields(defined[OF_ALL], only=of_all), COMPOSITE]
    parts += [part for kind, model in models.items() for part in _kind(kind, defined[model])]
    parts += [part for name in shared for part in (f"## {name}", _text(defined[name]), _fields(defined[name]))]
    return "\n\n".join(part for part in parts if part)


def _kind(kind: str, model: Schema) -> Iterator[str]:
    yield f"## {kind}"
    yield _text(model)
    needed = ", ".join(f"`{name}`" for name in sorted(BUILT_IN[kind].capabilities))
    yield f"All arms need the [capabilities](capabilities.md) {needed}." if needed else "It needs no capability."
    yield _fields(model)
    demands = marks(part_model(kind), Demand)
    rows = [f"- `{path}`: {', '.join(f'`{code}`' for code in demand.reasons)}" for path, demand in demands.items()]
    yield "\n".join(["[Reason codes](reason-codes.md) of demands that are not met:", "", *rows])


def _fields(model: Schema, only: Container[str] | None = None) -> str:
    """Return a table of the fields `only` of a model, or of all fields except `kind`, which is the section's title."""
    required = model.get("required", ())
    rows = [
        (f"`{name}`", _value(field), "must be given" if name in required else _default(field), _text(field))
        for name, field in model["properties"].items()
        if (name != "kind" if only is None else name in only)
    ]
    return table(HEAD, rows) if rows else ""


def _default(field: Schema) -> str:
    value = field.get("default")
    return "" if value in (None, [], {}) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _text(described: Schema) -> str:
    """Return the description of a model or field on one line."""
    return " ".join(str(described.get("description", "")).split())


def _value(field: Schema) -> str:
    """Return the values that a field accepts, in words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return CASES if name == "ByCase" else f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        choices = [_value(one) for one in field["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(choices))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{one}`" for one in field.get("enum", [field.get("const")]))
    return _of_type(field)


def _of_type(field: Schema) -> str:
    """Return the values that a field accepts, from its JSON type. A field without a type is a list of claims."""
    match field.get("type"):
        case None:
            return "claims, each of one of the kinds below"
        case "array":
            return f"list of {_value(field['items'])}"
        case "object":
            inside = [*field.get("patternProperties", {}).values(), field.get("additionalProperties")][0]
            return f"names, each with {_value(inside)}"
        case kind:
            limits = [f"{sign} {field[key]}" for key, sign in SIGNS.items() if key in field]
            return " ".join([WORDS[kind], *limits])
