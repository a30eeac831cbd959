"""The table of claim kinds: no field of any row can be forgotten, and every name in it is there."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from harness.contract.base import Judged
from harness.drill.faults import EvidenceFault
from harness.errors import KindError
from harness.kinds import BUILT_IN, Kind, resolve
from harness.kinds.probes import BUILT_IN as BUILT_IN_PROBES
from harness.system.protocol import CAPABILITIES

KINDS = Path(__file__).parents[3] / "harness" / "kinds"
ANCHOR = re.compile(r"(?:\bSection\(\s*|\bANCHOR = )\"(\w+)\"")
FIELDS = [field.name for field in fields(Kind)]
WITH_DEFAULT = {"judges_unreadable_device", "compares", "reasons"}


def values(row: Kind) -> dict[str, Any]:
    return {field: getattr(row, field) for field in FIELDS}


@pytest.mark.parametrize("field", [field for field in FIELDS if field not in WITH_DEFAULT])
def test_a_row_without_a_field_is_refused(field: str) -> None:
    row = BUILT_IN["memory_steady"]
    given = values(row)
    del given[field]
    with pytest.raises(KindError) as caught:
        Kind(**given)
    name = "?" if field == "name" else row.name
    assert str(caught.value).startswith(f"claim kind '{name}': the field `{field}` must be given; found nothing")


def test_an_incomplete_table_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(importlib.import_module("harness.kinds.memory.rows"))
    line = '        card=("memory",),\n'
    assert line in source
    (tmp_path / "table_without_a_card.py").write_text(source.replace(line, ""))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KindError, match=r"claim kind 'memory_steady': the field `card` must be given"):
        importlib.import_module("table_without_a_card")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("name", ""),
        ("name", "Memory Steady"),
        ("probes", {}),
        ("capabilities", None),
        ("judges_unreadable_device", None),
        ("compares", ""),
        ("card", ()),
        ("evidence_faults", ()),
        ("leaves_out", None),
        ("leaves_out", {"clairvoyance": "It is no check."}),
        ("leaves_out", {"guards": "no sentence"}),
        ("model", "harness.kinds.memory.model.MemorySteady"),
        ("judge", "judge"),
        ("probes", {"recapture": "after"}),
        ("capabilities", {"parameters"}),
        ("card", "memory"),
        ("evidence_faults", ("missing_run",)),
        ("reasons", {"grew": ("PASS", "It grew.")}),
        ("reasons", {"grew": ("FAIL", "no sentence")}),
        ("reasons", {"grew": ("FAIL",)}),
    ],
)
def test_a_malformed_field_is_refused(field: str, wrong: object) -> None:
    with pytest.raises(KindError, match=f"the field `{field}` "):
        Kind(**values(BUILT_IN["memory_steady"]) | {field: wrong})


@pytest.mark.parametrize("row", BUILT_IN.values(), ids=BUILT_IN)
def test_every_reference_in_the_kind_table_can_be_imported(row: Kind) -> None:
    model = resolve(row.model)
    assert issubclass(model, Judged)
    assert get_args(model.model_fields["kind"].annotation) == (row.name,)
    assert list(inspect.signature(resolve(row.judge)).parameters) == ["part", "context", "sheet"]
    assert [fault for fault in row.evidence_faults if not isinstance(resolve(fault), EvidenceFault)] == []
    assert set(row.probes) <= set(BUILT_IN_PROBES)
    assert {field for fields in row.probes.values() for field in fields} <= set(model.model_fields)
    assert row.capabilities <= set(CAPABILITIES)
    sections = [path.read_text() for path in KINDS.glob("*/*section.py")]
    assert set(row.card) <= {anchor for text in sections for anchor in ANCHOR.findall(text)}


def test_every_kind_of_the_harness_has_its_row() -> None:
    """A model or a judge without a row in the table of kinds would never be used."""
    families = [path.parent.name for path in KINDS.glob("*/model.py")]
    modules = [importlib.import_module(f"harness.kinds.{family}.model") for family in families]
    models = {
        f"{module.__name__}:{name}"
        for module in modules
        for name, found in inspect.getmembers(module, inspect.isclass)
        if issubclass(found, Judged) and "kind" in found.model_fields and found.__module__ == module.__name__
    }
    assert {row.model for row in BUILT_IN.values()} == models


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("harness.judging.clairvoyance:judge", "ModuleNotFoundError: No module named 'harness.judging.clairvoyance'"),
        (
            "harness.kinds.captures.capture:guess",
            "AttributeError: module 'harness.kinds.captures.capture' has no attribute 'guess'",
        ),
    ],
)
def test_a_missing_module_or_name_in_the_kind_table_is_reported(reference: str, found: str) -> None:
    with pytest.raises(KindError) as caught:
        resolve(reference)
    assert str(caught.value).startswith(
        f"{reference}: an object that the table of claim kinds names cannot be imported; found "
    )
    assert found in str(caught.value)
