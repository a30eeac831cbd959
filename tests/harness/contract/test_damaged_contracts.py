"""Shipped contracts with one value damaged: read, or refused with a place; never another exception."""

from __future__ import annotations

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.contract import strict_yaml
from harness.contract.load import load_contract
from harness.errors import ContractError

FOLDER = Path(__file__).parents[3] / "contracts"
DOCUMENTS = [strict_yaml.read(path) for path in sorted(FOLDER.glob("*-v1.yaml"))]
PLACES = [(document, path) for document in DOCUMENTS for path in document.values if path]
DAMAGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "x", "within", "graphed", "capture", "a b", "composite", "F-CGT-001", "sm_90"]),
    st.sampled_from([[], [1], ["x", "x"], {}, {"kind": "capture"}, {"a": {"b": [None]}}, [[[]]]]),
)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def written(value: Any) -> str:
    """As a file in flow style, with scalars that every reader reads alike."""
    return yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=1_000_000, sort_keys=False)


def _replaced(value: Any, path: tuple[str | int, ...], new: object, *, rename: bool) -> str:
    damaged = inner = copy.deepcopy(value)
    for key in path[:-1]:
        inner = inner[key]
    if rename and isinstance(inner, dict):
        inner[str(new)] = inner.pop(path[-1])
    else:
        inner[path[-1]] = new
    return written(damaged)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), new=DAMAGE, rename=st.booleans())
def test_each_damaged_contract_value_is_reported_at_its_position(
    tmp_path: Path,
    place: tuple[strict_yaml.Document, tuple[str | int, ...]],
    new: object,
    rename: bool,
) -> None:
    document, path = place
    if not (tmp_path / "shared").exists():
        shutil.copytree(FOLDER / "shared", tmp_path / "shared")
    file = tmp_path / "c.yaml"
    file.write_text(_replaced(document.value, path, new, rename=rename))
    try:
        load_contract(file)
        messages = []
    except ContractError as error:
        messages = str(error).splitlines()
    assert [line for line in messages if not re.match(rf"{re.escape(str(file))}:\d+:\d+: ", line)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: Path(document.where).stem)
def test_the_undamaged_contract_is_read_in_flow_style(tmp_path: Path, document: strict_yaml.Document) -> None:
    shutil.copytree(FOLDER / "shared", tmp_path / "shared")
    file = tmp_path / "c.yaml"
    file.write_text(written(document.value))
    assert load_contract(file).contract.id == document.value["id"]
