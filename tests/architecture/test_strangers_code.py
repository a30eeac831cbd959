"""The process that a person starts, and whose exit code counts, never imports a system: a stranger's code.

What imports one (`harness.system.resolve`) is reached by worker processes alone, which are started by name.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from import_statements import SOURCES, import_statements, module_name

IMPORTS_SYSTEMS = "harness.system.resolve"
# Modules of which a process of its own is made, or which such a process imports by name.
OF_WORKERS = ("harness.system.describing", "harness.execution.probes.step_memory")
STARTED_BY_PEOPLE = ("harness.cli", "harness.pytest_plugin", "harness.api.session", "harness.__main__")


def reached(sources: Mapping[str, str], first: tuple[str, ...]) -> dict[str, str]:
    """Every module that the modules under `first` import, at any remove and at any time: the one that imports it."""
    found = {name: "" for name in sources if any(name == one or name.startswith(f"{one}.") for one in first)}
    waiting = list(found)
    while waiting:
        importer = waiting.pop()
        for statement in import_statements(importer, sources[importer]):
            for name in (statement.name, statement.name.rpartition(".")[0]):
                module = name if name in sources else f"{name}.__init__"
                if module in sources and module not in found:
                    found[module] = importer
                    waiting.append(module)
    return found


def ours() -> dict[str, str]:
    return {module_name(path): path.read_text(encoding="utf-8") for path in SOURCES}


@pytest.mark.parametrize("module", [IMPORTS_SYSTEMS, *OF_WORKERS])
def test_the_process_that_people_start_never_imports_modules_that_load_user_systems(module: str) -> None:
    sources = ours()
    assert module in sources
    assert reached(sources, STARTED_BY_PEOPLE).get(module) is None


def test_describing_and_running_processes_import_user_systems() -> None:
    sources = ours()
    for first in (*OF_WORKERS, "harness.execution.probes.paired"):
        assert IMPORTS_SYSTEMS in reached(sources, (first,))


@pytest.mark.parametrize(
    "statement", ["from harness.system.resolve import resolve", "def f():\n    import harness.system.resolve"]
)
def test_a_planted_import_that_loads_user_systems_is_found(statement: str) -> None:
    sources = ours()
    sources["harness.planning.plan"] += f"\n{statement}\n"
    assert reached(sources, STARTED_BY_PEOPLE)[IMPORTS_SYSTEMS] == "harness.planning.plan"
