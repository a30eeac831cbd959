"""All that the harness prints goes through `harness.platform.standard_streams`, or escaped through pytest's words."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from import_statements import ROOT
from syntax_trees import parsed

PRINTS = "harness/platform/standard_streams.py"
# What these write goes to a parent process that reads it: it is a pipe, and never a terminal.
TO_A_PARENT = {
    "harness/execution/worker.py": "the evidence of a worker's own words, kept by its supervisor",
    "harness/processes/keeper.py": "what its parent is told of the process",
}
ALONE = "harness/__main__.py"  # the line of a harness that cannot import what escapes; it escapes its own
SOURCES = sorted(path for path in (ROOT / "harness").rglob("*.py"))
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
WRITERS = {"print", "pprint", "echo", "secho", "print_exc", "print_exception", "print_stack", "print_tb", "breakpoint"}
PACKAGES = {"rich", "logging", "pprint", "click"}
PYTEST_PRINTS = {"write_line", "write_sep", "fail", "skip", "xfail", "exit", "CollectError"}
ESCAPED = {"escaped", "escaped_lines", "escaped_command"}


def printing(source: str) -> Iterator[str]:
    """`line: what` for everything in a source that prints on its own."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call) and _name(node.func) in WRITERS:
            yield f"{node.lineno}: {_name(node.func)}()"
        elif isinstance(node, ast.Call) and _writes_to_a_stream(node):
            yield f"{node.lineno}: {ast.unparse(node.func)}()"
        elif isinstance(node, ast.Import | ast.ImportFrom) and PACKAGES & {_package(node)}:
            yield f"{node.lineno}: imports {_package(node)}"
        elif isinstance(node, ast.Call) and _exits_with_a_text(node):
            yield f"{node.lineno}: {ast.unparse(node)}"


def _writes_to_a_stream(call: ast.Call) -> bool:
    """`sys.stdout.write(…)`, `os.write(2, …)`."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in {"write", "writelines"}:
        return False
    of_a_stream = isinstance(function.value, ast.Attribute) and function.value.attr in STREAMS
    to_a_descriptor = bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value in {1, 2}
    return of_a_stream or to_a_descriptor or "stderr" in ast.unparse(function) or "stdout" in ast.unparse(function)


def _exits_with_a_text(call: ast.Call) -> bool:
    """`sys.exit(f"…")`: Python prints it."""
    exits = ast.unparse(call.func) in {"sys.exit", "SystemExit", "exit"}
    return exits and any(isinstance(given, ast.JoinedStr) for given in call.args)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _package(node: ast.Import | ast.ImportFrom) -> str:
    return (node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]


def unescaped_in_pytest(source: str) -> Iterator[str]:
    """`line: call` for every text that is handed to pytest as it is."""
    for node in ast.walk(parsed(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        if _name(node.func) not in PYTEST_PRINTS and ast.unparse(node.func) != "pytest.UsageError":
            continue
        text = node.args[0]
        fixed = isinstance(text, ast.Constant)
        if not fixed and not (isinstance(text, ast.Call) and _name(text.func) in ESCAPED):
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_sources_print_through_one_module() -> None:
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in SOURCES}
    others = texts.keys() - {PRINTS, ALONE, *TO_A_PARENT}
    assert len(others) > 300
    assert {name: found for name in others if (found := [*printing(texts[name])])} == {}


def test_texts_that_the_plugin_passes_to_pytest_are_escaped() -> None:
    files = [path for path in SOURCES if "pytest_plugin" in path.parts]
    assert len(files) > 3
    assert {path: found for path in files if (found := [*unescaped_in_pytest(path.read_text(encoding="utf-8"))])} == {}


@pytest.mark.parametrize(
    "source",
    [
        "print(1)",
        "typer.echo(text)",
        "sys.stderr.write(text)",
        "out = sys.stdout\nimport rich.console",
        "from rich.console import Console",
        "os.write(2, text)",
        "traceback.print_exc()",
        "sys.__stderr__.write(text)",
        "sys.stdout.buffer.write(text)",
        "sys.exit(f'{path}: no')",
        "logging.warning(1)\nimport logging",
    ],
)
def test_each_direct_call_that_prints_is_found(source: str) -> None:
    assert len(list(printing(source))) == 1


@pytest.mark.parametrize("source", ["reporter.write_line(f'{path}')", "pytest.fail(text)", "pytest.skip(escape(text))"])
def test_a_text_passed_to_pytest_without_escaping_is_found(source: str) -> None:
    assert len(list(unescaped_in_pytest(source))) == 1
