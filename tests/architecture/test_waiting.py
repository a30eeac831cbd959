"""No test depends on how fast its machine is: it waits for an event (`eventually` of tests/support/waiting.py)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from import_statements import ROOT
from syntax_trees import parsed
from waiting import LIMIT_S

TESTS = ROOT / "tests"
HANGS_S = 60.0  # what is to hang sleeps that long, and a limit that only bounds a hang is not shorter
WAITS = {"wait", "join", "communicate", "acquire", "result", "until"}
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time"}
SLEEP = re.compile(r"\bsleep\(([\d.e-]+)\)")
EXEMPT = {
    "architecture/test_waiting.py": "its examples",
    "docs/test_walkthroughs.py": "minutes are recorded, and nothing is asserted of them",
    "support/limits_passed.py": "a clock that tests move",
    "support/waiting.py": "the one that waits",
}


def hasty(source: str, *, loops: bool = False) -> Iterator[str]:
    """Yield `line: text` of each wait for a time, each short limit and each measured duration.

    loops: sleeping in a loop is allowed, as for programs that tests start. In the text of a program it always is.
    """
    tree = parsed(source)
    repeated = {id(node) for loop in ast.walk(tree) if isinstance(loop, ast.While | ast.For) for node in ast.walk(loop)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (f"{node.lineno}: {line}" for line in _sleeping_lines(node.value))
        elif isinstance(node, ast.Call):
            name = _name(node.func)
            sleeps = name == "sleep" and not _hangs(node) and not (loops and id(node) in repeated)
            if sleeps or any(0 < seconds < HANGS_S for seconds in _limits(node, name)):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _reads_clock(node.left):
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.While) and not loops and "monotonic()" in ast.unparse(node.test):
            yield f"{node.lineno}: while {ast.unparse(node.test)}"


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _limits(call: ast.Call, name: str) -> Iterator[float]:
    """Yield the limits of a call that are numbers, in seconds."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
    for value in [*given, *(call.args[:1] if name in WAITS else [])]:
        if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
            yield float(value.value)


def _hangs(call: ast.Call) -> bool:
    values = (seconds.value for seconds in call.args if isinstance(seconds, ast.Constant))
    return any(isinstance(value, int) and value >= HANGS_S for value in values)


def _reads_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) in CLOCKS


def _sleeping_lines(program: str) -> Iterator[str]:
    """Yield the lines of a program that sleep for a short time and in no loop."""
    before = ""
    for line in program.splitlines():
        if any(float(seconds) < HANGS_S for seconds in SLEEP.findall(line)) and not re.search(
            r"\b(while|for)\b", f"{before}\n{line}"
        ):
            yield line.strip()
        before = line


def test_tests_wait_for_events_and_never_for_a_fixed_time() -> None:
    found = {
        name: list(hasty(path.read_text(encoding="utf-8"), loops=name.startswith("support/")))
        for path in TESTS.rglob("*.py")
        if (name := path.relative_to(TESTS).as_posix()) not in EXEMPT
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_limit_for_waiting_tests_is_longer_than_any_planted_hang() -> None:
    assert LIMIT_S >= HANGS_S


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("time.sleep(0.2)", ["1: time.sleep(0.2)"]),
        ("sleep(seconds)", ["1: sleep(seconds)"]),
        ("while not path.exists():\n    sleep(0.1)", ["2: sleep(0.1)"]),
        ("time.sleep(600)", []),
        ("process.wait(30)", ["1: process.wait(30)"]),
        ("process.communicate(timeout=5)", ["1: process.communicate(timeout=5)"]),
        ("process.wait(LIMIT_S), process.wait(0), process.wait(120)", []),
        ("while time.monotonic() < until:\n    pass", ["1: while time.monotonic() < until"]),
        ("seconds = time.process_time() - began", ["1: time.process_time() - began"]),
        ("'import time; time.sleep(0.3)'", ["1: import time; time.sleep(0.3)"]),
        ("'while not there():\\n    time.sleep(0.01)'", []),
        ("'time.sleep(600)'", []),
    ],
)
def test_a_test_that_waits_for_a_fixed_time_is_found(source: str, found: list[str]) -> None:
    assert list(hasty(source)) == found
    assert list(hasty(source, loops=True)) == ([] if source.startswith("while") else found)
