"""What the harness asks of a probe stands in its row (`harness.kinds.probes`): no other code compares a probe's name.

A name may be written as data: what a kind is judged from, which run a judge reads. It may not decide anything.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

import pytest
from import_statements import ROOT, import_statements, module_name
from syntax_trees import parsed

from harness.kinds.probes import BUILT_IN

TABLE = ROOT / "harness" / "kinds"
SOURCES = sorted(path for path in (ROOT / "harness").rglob("*.py") if path.parent != TABLE)
# Other things that have names of their own, some of which a probe has, too.
OTHERS = {"kind", "phase", "per"}
_ASKED = {"startswith", "endswith", "removeprefix", "__eq__", "get", "__contains__", "index", "count"}


def named_so(sources: Mapping[str, str], names: Collection[str]) -> dict[str, set[str]]:
    """By module: its own and imported names of constants that are probes' names or a collection of them."""
    own: dict[str, set[str]] = {}
    for module, source in sources.items():
        for node in parsed(source).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _all_of(node.value, names):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                own.setdefault(module, set()).update(each.id for each in targets if isinstance(each, ast.Name))
    found = {module: set(own.get(module, ())) for module in sources}
    for module, source in sources.items():
        for statement in import_statements(module, source):
            origin, _, name = statement.name.rpartition(".")
            if name in own.get(origin, ()):
                found[module].add(name)
    return found


def compared(source: str, names: Collection[str], constants: Collection[str] = ()) -> Iterator[str]:
    """`line: code` for each place that compares a probe's name, or looks something up by one."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            asked = [each for each in operands if _has(each, names, constants)]
            if asked and not any(_called(each) in OTHERS for each in operands if each not in asked):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Match) and _called(node.subject) not in OTHERS:
            values = [each.value for each in ast.walk(node) if isinstance(each, ast.MatchValue)]
            if any(_has(value, names, constants) for value in values):
                yield f"{node.lineno}: match {ast.unparse(node.subject)}"
        elif isinstance(node, ast.Subscript) and "probe" in _called(node.slice):
            if _has(node.value, names, constants):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ASKED:
            of = (node.func.value, *node.args)
            if any("probe" in _called(each) for each in of) and any(_has(each, names, constants) for each in of):
                yield f"{node.lineno}: {ast.unparse(node)}"


def _has(node: ast.expr, names: Collection[str], constants: Collection[str]) -> bool:
    """Return True if the expression is, or displays, the name of a probe."""
    if isinstance(node, ast.Call):
        return any(_has(each, names, constants) for each in node.args) and _called(node.func) in {"frozenset", "set"}
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_has(each, names, constants) for each in node.elts)
    if isinstance(node, ast.Dict):
        return any(_has(each, names, constants) for each in node.keys if each is not None)
    if isinstance(node, ast.IfExp):
        return _has(node.body, names, constants) or _has(node.orelse, names, constants)
    if isinstance(node, ast.Constant):
        return node.value in names
    return isinstance(node, ast.Name) and node.id in constants


def _all_of(node: ast.expr, names: Collection[str]) -> bool:
    texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return bool(texts) and all(text in names for text in texts) and _has(node, names, ())


def _called(node: ast.expr) -> str:
    """The last part of a name; the empty string where an expression is none."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _texts() -> dict[str, str]:
    return {module_name(path): path.read_text(encoding="utf-8") for path in SOURCES}


def test_no_code_compares_the_name_of_a_probe() -> None:
    sources = _texts()
    constants = named_so(sources, BUILT_IN)
    found = {module: list(compared(source, BUILT_IN, constants[module])) for module, source in sources.items()}
    assert {module: places for module, places in found.items() if places} == {}


@pytest.mark.parametrize(
    "source",
    [
        'if run.probe == "paired": pass',
        'if "paired" != name: pass',
        'timed = run.probe in ("throughput", "steady")',
        'timed = probe not in frozenset({"throughput"})',
        'if "paired" not in (host.probe, guest.probe): pass',
        "if (host.probe, guest.probe) == (PAIRED, PAIRED): pass",
        "if run.probe in OF_RANKS: pass",
        'match run.probe:\n    case "kernels" | "prewarm":\n        pass',
        'steps = {"recapture": 3}[run.probe]',
        'steps = {"recapture": 3}.get(run.probe, 0)',
        'if run.probe.startswith("paired"): pass',
        'if header.runs.get(run) == "throughput": pass',
    ],
)
def test_a_planted_comparison_of_a_kind_name_is_found(source: str) -> None:
    assert list(compared(source, BUILT_IN, {"PAIRED", "OF_RANKS"}))


def test_a_kind_name_imported_as_a_constant_is_found() -> None:
    sources = {
        "harness.one": 'PAIRED = "paired"\n_SOME: tuple[str, ...] = ("seeds", "resume")\nOTHER = ("seeds", "else")',
        "harness.two": "from harness.one import OTHER, PAIRED",
    }
    assert named_so(sources, BUILT_IN) == {"harness.one": {"PAIRED", "_SOME"}, "harness.two": {"PAIRED"}}


@pytest.mark.parametrize(
    "source",
    [
        'run = context.only_run("paired")',
        'if part.kind == "resume": pass',
        'if event.phase != "prewarm": pass',
        "if run.probe == part.chosen_probe(): pass",
        'probes = {"kernels": ("target",)}',
    ],
)
def test_a_kind_name_used_as_data_is_not_a_comparison(source: str) -> None:
    assert list(compared(source, BUILT_IN)) == []
