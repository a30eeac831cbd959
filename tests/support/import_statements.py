"""The import statements of the sources, for the rules of `tests/architecture`."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for package in ("harness", "reference_impl") for path in (ROOT / package).rglob("*.py"))


class ImportStatement(NamedTuple):
    """One imported name, in full; `deferred` if it waits for a call or for a type checker."""

    name: str
    line: int
    deferred: bool


def module_name(path: Path) -> str:
    """The dotted name; a package's own file keeps its `__init__`, so that relative imports count from it."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def room(module: str) -> str:
    """Return the room of ARCHITECTURE.md that a module stands in, by its place in the tree.

    A room is what lies directly under `harness` or `reference_impl`. The folder of a family of kinds has three beside
    the table's: its models, judges and sections. What a module has, such as a class, stands in the module's room.
    """
    parts = module.removesuffix(".__init__").split(".")
    if parts[:2] == ["harness", "kinds"] and len(parts) > 3 and (ROOT / "harness" / "kinds" / parts[2]).is_dir():
        part = parts[3]
        if part != "rows":
            role = "models" if part == "model" else "sections" if part.endswith("section") else "judges"
            return f"harness.kinds:{role}"
    return ".".join(parts[:2])


@functools.cache  # several rules look at the same sources
def import_statements(module: str, source: str) -> tuple[ImportStatement, ...]:
    """Every import of `source`, in functions and under `if TYPE_CHECKING:` too.

    `from harness import judging` imports harness.judging: the name counts as a part of what is imported.
    """
    return tuple(_imports(module, ast.parse(source), deferred=False))


def _imports(module: str, node: ast.AST, *, deferred: bool) -> Iterator[ImportStatement]:
    for child in ast.iter_child_nodes(node):
        inside = deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.Import):
            yield from (ImportStatement(alias.name, child.lineno, deferred) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                parents = module.split(".")[: -child.level]
                base = ".".join([*parents, base]).rstrip(".")
            yield from (ImportStatement(f"{base}.{alias.name}", child.lineno, deferred) for alias in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            yield from _imports(module, ast.Module(child.body, []), deferred=True)
            yield from _imports(module, ast.Module(child.orelse, []), deferred=deferred)
        else:
            yield from _imports(module, child, deferred=inside)
