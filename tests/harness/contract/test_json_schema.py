"""The published JSON Schema is current, complete, and agrees with the reader on the shipped contracts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness.contract import strict_yaml, version_1
from harness.contract.json_schema import SCHEMA_PATH, contract_json_schema, schema_text

CONTRACTS = sorted((Path(__file__).parents[3] / "contracts").glob("*-v1.yaml"))


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def value_of(path: Path) -> Any:
    """What a contract says, in the present version."""
    document = strict_yaml.read(path)
    return (version_1.in_version_2(document).document if "contract/v1" in document.text else document).value


def test_the_checked_in_schema_is_current() -> None:
    assert SCHEMA_PATH.read_text(encoding="utf-8") == schema_text(with_packages=False), (
        "run python -m harness.contract.json_schema"
    )


def test_every_field_of_the_contract_schema_is_described() -> None:
    generated = contract_json_schema(with_packages=False)
    bare = [
        f"{name}.{field}"
        for name, definition in {"Contract": generated, **generated["$defs"]}.items()
        for field, value in definition["properties"].items()
        if not value.get("description")
    ]
    assert bare == []
    steps = generated["$defs"]["Workload"]["properties"]["steps"]
    assert steps["description"] == "Training steps of each arm, counted from 0."


@pytest.mark.parametrize("path", CONTRACTS, ids=lambda path: path.stem)
def test_a_shipped_contract_satisfies_the_schema(validator: Any, path: Path) -> None:
    assert [error.message for error in validator.iter_errors(value_of(path))] == []


def test_at_least_six_contracts_are_shipped() -> None:
    assert len(CONTRACTS) >= 6


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("claims", 0, "basline"), "plain"),
        (("workloads", "smoke", "steps"), 0),
        (("arms", "traced", "capture"), "sometimes"),
        (("claims", 0, "kind"), "guess"),
    ],
)
def test_the_json_schema_refuses_an_invalid_value(validator: Any, path: tuple[str | int, ...], value: object) -> None:
    document = value_of(next(one for one in CONTRACTS if one.stem == "traced-step-v1"))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert [list(error.absolute_path)[:2] for error in validator.iter_errors(document)] == [list(path[:2])]
