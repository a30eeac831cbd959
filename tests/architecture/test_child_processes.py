"""One module starts the harness's own Python processes, and names the signal that ended one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from import_statements import SOURCES, module_name
from syntax_trees import parsed

CHILD = "harness.processes.child"
GIT, SLURM = "git, which is no Python of the harness", "Slurm's own commands"
EXEMPT = {
    "harness.processes.kept": "the keeper under which `child` starts a process",
    "harness.processes.keeper": "becomes the command that it keeps, and imports nothing",
    "harness.commits.checkout": GIT,
    "harness.evidence.sources": GIT,
    "harness.extras.fleet.gate": SLURM,
    "harness.extras.fleet.job": "the command `harness` as a person starts it: no model crosses",
}
STARTS = {"Popen", "KeptProcess", "check_call", "check_output", "getoutput", "fork", "forkpty"}
STARTERS = ("exec", "spawn", "posix_spawn")  # what such functions of `os` begin with
NAMES_A_SIGNAL = {"Signals", "strsignal"}
CODES = {"code", "returncode", "exitcode", "ended"}
HARNESS = [path for path in SOURCES if module_name(path).startswith("harness")]


def own_ways(source: str) -> Iterator[str]:
    """Yield `line: text` for each start of a process, command of this Python and name of a signal."""
    for node in ast.walk(parsed(source)):
        if _starts(node) or _is_a_command(node) or _names_a_signal(node):
            yield f"{node.lineno}: {ast.unparse(node).splitlines()[0][:80]}"  # type: ignore[attr-defined]


def _starts(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "subprocess" or (node.module or "").startswith("multiprocessing")
    if not isinstance(node, ast.Call):
        return False
    owner, name = _name(node.func)
    return name in STARTS or (owner == "subprocess" and name in {"run", "call"}) or _of_os(owner, name)


def _of_os(owner: str, name: str) -> bool:
    return owner == "os" and (name.startswith(STARTERS) or name in {"system", "popen"})


def _is_a_command(node: ast.AST) -> bool:
    """A list or tuple that begins with this Python."""
    return isinstance(node, ast.List | ast.Tuple) and any(ast.unparse(item) == "sys.executable" for item in node.elts)


def _names_a_signal(node: ast.AST) -> bool:
    """`signal.Signals(…)`, or an exit code that is negated to get at the signal's number."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _name(node.operand)[1] in CODES
    return isinstance(node, ast.Call) and _name(node.func)[1] in NAMES_A_SIGNAL


def _name(node: ast.expr) -> tuple[str, str]:
    """The name, and that of the module it is looked up in."""
    if isinstance(node, ast.Attribute):
        return ast.unparse(node.value), node.attr
    return "", node.id if isinstance(node, ast.Name) else ""


def test_only_one_module_starts_child_processes_and_names_their_signals() -> None:
    found = {module_name(path): list(own_ways(path.read_text(encoding="utf-8"))) for path in HARNESS}
    assert {module: lines for module, lines in found.items() if lines and module not in {CHILD, *EXEMPT}} == {}
    assert [module for module in (CHILD, *EXEMPT) if not found[module]] == [], "an exception without a use"


@pytest.mark.parametrize(
    "source",
    [
        "process = subprocess.Popen(child_command('harness.execution.rank'), stdin=theirs)",
        "KeptProcess(command)",
        "subprocess.run(command, check=True)",
        "from subprocess import run",
        "command = [sys.executable, '-m', module]",
        "os.execvp(file, words)",
        "from multiprocessing import Process",
        "name = signal.Signals(number).name",
        "name = f'signal {-code}'",
        "number = -process.returncode",
    ],
)
def test_every_direct_way_to_start_a_process_is_found(source: str) -> None:
    assert len(list(own_ways(source))) == 1


@pytest.mark.parametrize(
    "source", ["start_child('harness.execution.rank')", "plan.run(x)", "128 - code", "signal.signal(signal.SIGTERM, f)"]
)
def test_source_that_starts_no_process_has_no_finding(source: str) -> None:
    assert list(own_ways(source)) == []
