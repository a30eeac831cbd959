"""One registry of record types, `harness.evidence.run_evidence`; everything else that lists them is derived from it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from import_statements import ROOT, SOURCES, module_name
from syntax_trees import parsed

from harness.evidence.base import ArmRecord, RunRecord
from harness.evidence.run_evidence import _ROWS, BUILT_IN, ArmEvidence, RunEvidence

REGISTRY = "harness.evidence.run_evidence"
MOST = 2  # record types that code outside of the registry may name together: a pair is no list
_IS_TAG = re.compile(r"record: Literal\[")


def _declared(path: Path) -> Iterator[str]:
    """Yield the classes of a file that are record types: their field `record` is one word."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(parsed(source)) if _IS_TAG.search(source) else ():
        if isinstance(node, ast.ClassDef) and any(map(_IS_TAG.match, map(ast.unparse, node.body))):
            yield node.name


RECORD_TYPES = frozenset(name for path in SOURCES for name in _declared(path))


def _members(node: ast.AST) -> list[ast.expr | ast.pattern]:
    """Return what stands side by side in a list, a mapping, a union, a `match`, or the fields of a class."""
    match node:
        case ast.Tuple(elts=members) | ast.List(elts=members) | ast.Set(elts=members):
            return list(members)
        case ast.Dict(keys=keys, values=values):
            return [*(key for key in keys if key is not None), *values]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return [*(_members(left) or [left]), *(_members(right) or [right])]
        case ast.Match(cases=cases):
            return [case.pattern.cls for case in cases if isinstance(case.pattern, ast.MatchClass)]
        case ast.ClassDef(body=body):
            return [each for field in body if isinstance(field, ast.AnnAssign) for each in _parts(field.annotation)]
    return []


def _parts(annotation: ast.expr) -> list[ast.expr]:
    """Return an annotation's names, whatever container it wraps around them."""
    return [node for node in ast.walk(annotation) if isinstance(node, ast.Name | ast.Attribute)]


def _name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def lists_of_record_types(source: str) -> list[str]:
    """Return `line: names` for each place that names more record types together than a pair."""
    lists: dict[int, list[str]] = {}
    for node in ast.walk(parsed(source)):  # a union comes before the shorter ones that it is made of
        names = sorted({name for member in _members(node) if (name := _name(member)) in RECORD_TYPES})
        if len(names) > MOST:
            lists.setdefault(getattr(node, "lineno", 0), names)
    return [f"{line}: {', '.join(names)}" for line, names in lists.items()]


def test_no_file_but_the_registry_lists_record_types() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in SOURCES if module_name(path) != REGISTRY}
    assert [
        f"{path.relative_to(ROOT)}:{each}" for path in sources for each in lists_of_record_types(sources[path])
    ] == []


def test_every_record_type_is_in_the_registry() -> None:
    assert sorted(kind.__name__ for kind in BUILT_IN) == sorted(RECORD_TYPES)


@pytest.mark.parametrize("evidence", [ArmEvidence, RunEvidence])
def test_a_record_type_stored_several_times_is_a_collection_in_the_evidence(evidence: type) -> None:
    """A field for a single record would keep only the last record if the key allows several."""
    of_owner = ArmRecord.key if evidence is ArmEvidence else RunRecord.key
    single = {kind for kind, (_, shape) in _ROWS[evidence].items() if shape not in (list, dict, Mapping)}
    assert single == {kind for kind in _ROWS[evidence] if kind.key == of_owner}


@pytest.mark.parametrize(
    "planted",
    [
        "KNOWN = (ArmStart, ArmEnd, Gradients)",
        "KNOWN = [records.ArmStart, records.ArmEnd, records.Gradients]",
        "KNOWN = {ArmStart: 'start', ArmEnd: 'end', Gradients: 'gradients'}",
        "KNOWN = {'start': ArmStart, 'end': ArmEnd, 'gradients': Gradients}",
        "Known = ArmStart | ArmEnd | Gradients | None",
        "Known = Union[ArmStart, ArmEnd, Gradients]",
        "match record:\n    case ArmStart(): a\n    case ArmEnd(): b\n    case Gradients(): c",
        "class Seen:\n    start: ArmStart\n    end: ArmEnd | None\n    gradients: list[Gradients]",
    ],
)
def test_a_planted_second_list_of_record_types_is_found(planted: str) -> None:
    assert lists_of_record_types(planted) == ["1: ArmEnd, ArmStart, Gradients"]


@pytest.mark.parametrize(
    "proper", ["from harness.evidence.arm_records import ArmStart, ArmEnd, Gradients", "PAIR = (ArmStart, ArmEnd)"]
)
def test_an_import_or_a_pair_of_record_types_is_not_a_list(proper: str) -> None:
    assert lists_of_record_types(proper) == []
