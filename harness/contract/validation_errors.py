"""Turn pydantic's validation errors into contract errors with the place, the rule, the wrong value and a remedy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from harness.contract.schema import Contract, Workload, claim_kinds, claim_model, part_model
from harness.contract.strict_yaml import MOST_ERRORS, Document, Key, nearest, number_of_text
from harness.errors import ContractError

Path = tuple[Key, ...]
_MAPPING_ERRORS = ("model_type", "model_attributes_type", "dict_type")
_NUMBER_ERRORS = ("float_type", "int_type")
_QUOTED = re.compile(r"'([^']*)'")


def explain(
    error: ValidationError, document: Document, at: Path = (), root: type[BaseModel] = Contract
) -> list[ContractError]:
    """Return a ContractError for each place with a validation error, in the order of the file, at most `MOST_ERRORS`.
    at: path of the validated value in the document. root: the model by which this value was validated."""
    found: dict[Path, list[Any]] = {}
    alternatives: set[Path] = set()
    for detail in error.errors(include_url=False):
        path, of_union = _without_tags(detail, document.at(at))
        path = (*at, *path)
        if of_union:
            alternatives.add(path)
        found.setdefault(path, []).append(detail)
    # Where a list or a number is allowed, pydantic reports two errors for a wrong list: one inside the list, and one
    # because the list is not a number. Report only the error inside the list.
    outer = alternatives & {path[:length] for path in found for length in range(len(path))}
    places = sorted((path for path in found if path not in outer), key=document.position)
    errors = [_merge([_one(detail, path, document, root) for detail in found[path]]) for path in places[:MOST_ERRORS]]
    return document.cut(errors, len(places))


def _merge(errors: list[ContractError]) -> ContractError:
    """Return one error that names all types that a value may have. errors: pydantic's errors about this value, one for
    each member of a union."""
    first = errors[0]
    for other in errors[1:]:
        if other.rule != first.rule:
            tail = other.rule.split(" must ", 1)[-1].removeprefix("be ")
            rule = f"{first.rule}, or {tail}"
            first = ContractError(rule, where=first.where, got=first.got, remedy=first.remedy)
    return first


def _without_tags(detail: Any, value: Any) -> tuple[Path, bool]:
    """Return the path of an error's value in the document, and whether pydantic's location ended with the name of a
    union member.

    pydantic's location of an error also contains `kind` tags and names of union members. The returned path contains
    only keys and indices of the document.
    """
    keys = list(detail["loc"])
    if keys[:1] == ["claims"] and len(keys) > 2:
        del keys[2]
        if keys[2:3] == ["parts"] and len(keys) > 4:
            del keys[4]
    path: list[Key] = []
    for index, key in enumerate(keys):
        if detail["type"] != "missing" and isinstance(value, dict | list) and value is detail["input"]:
            # The next word in the location is the name of a union member, and not a key, even if a key has this name.
            break
        inside = isinstance(value, dict) and key in value
        inside |= isinstance(value, list) and isinstance(key, int) and key < len(value)
        if inside:
            path.append(key)
            value = value[key]
        elif detail["type"] == "missing" and index == len(keys) - 1:
            return (*path, key), False
    return tuple(path), path != keys


def _one(detail: Any, path: Path, document: Document, root: type[BaseModel]) -> ContractError:
    kind, context, location = detail["type"], detail.get("ctx", {}), tuple(detail["loc"])
    name = _name(path)
    got, remedy, of_key = shown(detail["input"]), _remedy(kind, detail["input"]), False
    if kind == "missing":
        path, rule, got, remedy = path[:-1], f"the key '{name}' is required", "", "add it"
    elif kind == "extra_forbidden":
        rule, got, of_key = "unknown key", f"'{name}'", True
        remedy = nearest(name, _keys(location[:-1], root))
    elif kind == "union_tag_not_found":
        rule, got = "the key 'kind' is required", ""
        remedy = f"use one of: {', '.join(claim_kinds())}"
    elif kind == "union_tag_invalid":
        path, rule, got = (*path, "kind"), "unknown kind", shown(detail["input"]["kind"])
        remedy = nearest(context["tag"], _QUOTED.findall(context["expected_tags"]))
    elif kind == "literal_error" and location[-1] == "[key]":
        rule, of_key = "unknown key", True
        remedy = nearest(name, _QUOTED.findall(context["expected"]))
    elif kind == "literal_error":
        names = _QUOTED.findall(context["expected"])
        rule, remedy = f"'{name}' must be one of: {', '.join(names)}", nearest(detail["input"], names)
    elif kind == "contract_rule":
        path, rule, got = (*path, *context["path"]), context["message"], ""
    elif kind in _MAPPING_ERRORS:
        rule = f"'{name}' must be a mapping"
    elif location[-1:] == ("[key]",):
        rule, of_key = f"a name {_demand(detail['msg'])}", True
    else:
        rule = f"'{name}' {_demand(detail['msg'])}"
    return document.error(path, rule, got=got, remedy=remedy, of_key=of_key)


def _name(path: Path) -> str:
    """Return the name of the value at `path` for messages: its key, and also its index if it is an item of a list."""
    if not path:
        return "contract"
    return f"{_name(path[:-1])}[{path[-1]}]" if isinstance(path[-1], int) else path[-1]


def _demand(message: str) -> str:
    """Return pydantic's message with `must be …` instead of `Input should be …`."""
    message = re.sub(r" after validation, not \d+$", "", message)
    return re.sub(r"^(Input|String|List|Dictionary) should", "must", message)


def _remedy(kind: str, value: object) -> str:
    return number_remedy(value, whole=kind == "int_type") if kind in _NUMBER_ERRORS else ""


def number_remedy(value: object, *, whole: bool = False) -> str:
    """Return a remedy for a value that should be a number, or "" if there is none. whole: True for a whole number."""
    if value is None:
        return "write a number"
    number = number_of_text(value) if isinstance(value, str) else None
    return "" if number is None or (whole and not number.lstrip("-").isdigit()) else f"write `{number}`"


def shown(value: object) -> str:
    """Return a value as text for an error message. Lists, mappings and long values are abbreviated."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _keys(location: Path, root: type[BaseModel]) -> list[str]:
    """Return the valid keys of the model at a location within `root`. location: as in pydantic's errors."""
    model, rest = root, list(location)
    if rest[:1] == ["workloads"]:
        model, rest = Workload, rest[2:]
    elif rest[:1] == ["claims"]:
        model, rest = claim_model(str(rest[2])), rest[3:]
        if rest[:1] == ["parts"]:
            model, rest = part_model(str(rest[2])), rest[3:]
    for key in rest:
        if isinstance(key, str):  # an integer is an index in a list of models, so the model stays the same
            model = next(_models(model.model_fields[key].annotation))
    return [field.alias or name for name, field in model.model_fields.items()]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a field's annotation, also those of the items in a list or mapping."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for inside in get_args(annotation):
        yield from _models(inside)
