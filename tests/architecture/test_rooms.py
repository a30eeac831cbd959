"""The drawing of rooms in ARCHITECTURE.md: each room stands there once, and imports none of its own line or above."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import pytest
from import_statements import ROOT, SOURCES, import_statements, module_name, room

DRAWING = re.compile(r"^```text\n(cli .*?)^```$", re.MULTILINE | re.DOTALL)
MAIN = "harness.__main__"  # begins the command line, and is no room


def drawn(text: str) -> list[list[str]]:
    """Return the rooms of each line of the drawing, the uppermost first; what follows `#` is said of them."""
    [found] = DRAWING.findall(text)
    return [[f"harness.{name}" for name in line.partition("#")[0].split()] for line in found.splitlines()]


def upward(lines: Iterable[Iterable[str]], sources: Mapping[str, str]) -> Iterator[str]:
    """Yield `module:line imports name` for each import of another room that does not stand below the importer's."""
    height = {name: -number for number, line in enumerate(lines) for name in line}
    for module, source in sources.items():
        for statement in import_statements(module, source):
            here, there = room(module), room(statement.name)
            if here != there and here in height and height.get(there, height[here] - 1) >= height[here]:
                yield f"{module}:{statement.line} imports {statement.name}"


def ours() -> dict[str, str]:
    named = {module_name(path): path.read_text(encoding="utf-8") for path in SOURCES}
    return {name: text for name, text in named.items() if name.startswith("harness.") and name != MAIN}


def test_each_package_appears_once_in_the_architecture_diagram() -> None:
    rooms = [name for line in drawn((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")) for name in line]
    assert sorted(rooms) == sorted({room(name) for name in ours()} - {"harness.__init__", "harness"})


def test_packages_import_only_packages_below_them_in_the_architecture_diagram() -> None:
    lines = drawn((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert list(upward(lines, ours())) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("harness.judging.sheet", "from harness.report import html"),
        ("harness.judging.sheet", "def later():\n    import harness.devices.environment"),
        ("harness.kinds.built_in", "from harness.kinds.speed.model import Limits"),
        ("harness.kinds.speed.timing", "from harness.kinds.speed import section"),
    ],
)
def test_a_planted_import_of_a_higher_package_is_found(module: str, source: str) -> None:
    lines = [["harness.kinds:sections"], ["harness.report"], ["harness.kinds:judges"]]
    lines += [["harness.judging", "harness.devices"], ["harness.kinds:models"], ["harness.kinds"]]
    [found] = upward(lines, {module: source})
    assert found.startswith(f"{module}:")


def test_only_the_charts_folder_imports_matplotlib() -> None:
    """Plots from a single folder all have the same colours, fonts and names of marks."""
    naming = {name for name, text in ours().items() if "from matplotlib" in text}
    assert {name.rpartition(".")[0] for name in naming} == {"harness.report.charts"}
