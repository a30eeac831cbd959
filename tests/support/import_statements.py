"""The import statements of the sources, for the rules of `tests/architecture`."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from syntax_trees import parsed

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for package in ("harness", "reference_impl") for path in (ROOT / package).rglob("*.py"))


class ImportStatement(NamedTuple):
    """One imported name, in full. `deferred`: the import runs only in a call, or only for a type checker."""

    name: str
    line: int
    deferred: bool


def module_name(path: Path) -> str:
    """Return the dotted name; a package's own file keeps `__init__`, so that relative imports resolve from it."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def room(module: str) -> str:
    """Return the room of ARCHITECTURE.md that a module belongs to, by its place in the tree.

    A room is directly under `harness` or `reference_impl`. A folder of a family of kinds belongs to the room of the
    table, except for its models, judges and sections. Names inside a module belong to its room.
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
    """Return every import of `source`, also in functions and under `if TYPE_CHECKING:`.

    `from harness import judging` is an import of harness.judging: the imported name is part of the module's name.
    """
    return tuple(_imports(module, parsed(source), deferred=False))


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
