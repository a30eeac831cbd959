"""A judge asks shared checks through `harness.judging.comparison` alone, so that it forgets none."""

from __future__ import annotations

import ast

import pytest
from import_statements import SOURCES, module_name, room

from harness.kinds import BUILT_IN

CHECKS = {
    "control_of",
    "require_equal_ends",
    "require_equal_start",
    "require_equal_start_state",
    "require_finite",
    "require_finite_end",
    "require_frozen",
    "require_guards",
    "require_moving",
    "require_recorded",
    "require_same_code",
    "require_same_parameters",
    "require_same_work",
    "require_trained",
    "require_uncaptured",
}
# `guards` defines checks, and asks one of the control of a training effect.
ASK = {
    "harness.judging.comparison": "asks them in one order",
    "harness.judging.registry": "asks one of every kind",
    "harness.judging.guards": "defines some",
}
FOLDERS = ("harness.judging", "harness.kinds:judges")
JUDGING = {module_name(path): path.read_text() for path in SOURCES if room(module_name(path)) in FOLDERS}
JUDGES = [name for name in JUDGING if name not in ASK]


def test_each_shared_check_is_defined_in_one_module() -> None:
    defined = [
        node.name
        for source in JUDGING.values()
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name in CHECKS
    ]
    assert sorted(defined) == sorted(CHECKS)


@pytest.mark.parametrize("judge", JUDGES)
def test_a_judge_module_uses_no_shared_check_directly(judge: str) -> None:
    tree = ast.parse(JUDGING[judge])
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    named |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert named & CHECKS - own == set()


@pytest.mark.parametrize("kind", [name for name, kind in BUILT_IN.items() if "recorded" not in kind.leaves_out])
def test_judges_of_trainings_pass_only_through_the_comparison(kind: str) -> None:
    judge = BUILT_IN[kind].judge.partition(":")[0]
    calls = [node for node in ast.walk(ast.parse(JUDGING[judge])) if isinstance(node, ast.Call)]
    doors = {
        ast.unparse(call.func) for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "held"
    }
    assert doors == {"comparison.held"}
