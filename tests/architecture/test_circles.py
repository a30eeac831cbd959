"""No circle of imports, between files or between rooms. Every import statement counts, whenever it is executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import pytest
from import_statements import SOURCES, import_statements, module_name, room

Grouping = Callable[[str], str]


def file(module: str) -> str:
    return module


def circle(sources: Mapping[str, str], group: Grouping) -> list[str]:
    """The imports that make one circle between the groups of modules, `module:line imports name`; empty: none.

    `sources` is by module name, where a package's own file ends in `__init__`.
    """
    found: dict[tuple[str, str], str] = {}
    for importer, source in sources.items():
        for statement in import_statements(importer, source):
            imported = _module_of(statement.name, sources)
            ends = group(_without_init(importer)), group(imported)
            if imported and ends[0] != ends[1]:
                found.setdefault(ends, f"{importer}:{statement.line} imports {statement.name}")
    graph: dict[str, set[str]] = {}
    for importer, imported in found:
        graph.setdefault(importer, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # each member is imported by the next one
        return [found[ends] for ends in pairwise(reversed(error.args[1]))]
    return []


def _without_init(module: str) -> str:
    return module.removesuffix(".__init__")


def _module_of(name: str, sources: Mapping[str, str]) -> str:
    """The module that an imported name is, or lies in; nothing for other people's."""
    for module in (name, name.rpartition(".")[0]):
        if module in sources or f"{module}.__init__" in sources:
            return module
    return ""


@pytest.mark.parametrize("group", [file, room])
def test_source_modules_form_no_import_cycle(group: Grouping) -> None:
    sources = {module_name(path): path.read_text(encoding="utf-8") for path in SOURCES}
    assert circle(sources, group) == []


TYPE_CHECKING_IMPORT = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from harness.one import Name"


@pytest.mark.parametrize(
    ("back", "statement"),
    [
        ("import harness.one", "harness.two:1 imports harness.one"),
        ("from harness.one import Name", "harness.two:1 imports harness.one.Name"),
        ("from . import one", "harness.two:1 imports harness.one"),
        ("def later():\n    from harness import one", "harness.two:2 imports harness.one"),
        ("class Late:\n    def later(self):\n        import harness.one", "harness.two:3 imports harness.one"),
        (TYPE_CHECKING_IMPORT, "harness.two:3 imports harness.one.Name"),
        ("try:\n    import torch\nexcept ImportError:\n    import harness.one", "harness.two:4 imports harness.one"),
    ],
)
def test_a_planted_import_cycle_of_two_files_is_found(back: str, statement: str) -> None:
    sources = {"harness.one": "from harness import two", "harness.two": back}
    assert sorted(circle(sources, file)) == ["harness.one:1 imports harness.two", statement]


def test_a_planted_import_cycle_of_three_files_is_found() -> None:
    sources = {
        "harness.one": "import harness.two",
        "harness.two": "import harness.three",
        "harness.three": "import harness.one",
        "harness.outside": "import harness.one",
    }
    assert sorted(circle(sources, file)) == [
        "harness.one:1 imports harness.two",
        "harness.three:1 imports harness.one",
        "harness.two:1 imports harness.three",
    ]


def test_a_planted_import_cycle_through_a_packages_init_file_is_found() -> None:
    sources = {"harness.box.__init__": "from .inner import make", "harness.box.inner": "from harness.box import Box"}
    assert sorted(circle(sources, file)) == [
        "harness.box.__init__:1 imports harness.box.inner.make",
        "harness.box.inner:1 imports harness.box.Box",
    ]


@pytest.mark.parametrize(
    "back",
    [
        "from harness.left.entry import Name",
        "def later():\n    from harness.left import entry",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import harness.left.entry",
    ],
)
def test_a_planted_import_cycle_between_folders_through_different_files_is_found(back: str) -> None:
    sources = {
        "harness.left.entry": "import json",
        "harness.left.user": "import harness.right.entry",
        "harness.right.entry": "import json",
        "harness.right.user": back,
    }
    assert circle(sources, file) == []
    there, here = sorted(circle(sources, room))
    assert there == "harness.left.user:1 imports harness.right.entry"
    assert here.startswith("harness.right.user:")


def test_a_module_directly_under_the_root_counts_as_a_folder_for_import_cycles() -> None:
    sources = {
        "reference_impl.system": "from reference_impl.faults import step",
        "reference_impl.faults.step": "import torch",
        "reference_impl.faults.replay": "def plant():\n    from reference_impl.system import Run",
    }
    assert circle(sources, file) == []
    assert len(circle(sources, room)) == 2


def test_imports_in_one_direction_are_not_a_cycle() -> None:
    sources = {
        "harness.__init__": "",
        "harness.low.__init__": "",
        "harness.low.base": "from harness.low import names\nimport json, torch",
        "harness.low.names": "from harness import low",
        "harness.high.user": "from harness.low.base import Base\nimport harness.low.names",
        "harness.high.other": "from harness.high.user import User\nfrom harness.low import base",
    }
    assert circle(sources, file) == []
    assert circle(sources, room) == []
