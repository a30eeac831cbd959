"""Find the file of a module that is named by its path or its name, without running the module."""

from __future__ import annotations

import importlib.util
import keyword
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.evidence.modules import module_spec
from harness.platform.paths import add_working_directory, require_existing


def file_of(place: str) -> tuple[Path, Path, str]:
    """Return file, import folder and module of `path/to/file.py` or `package.module`.

    Raises UsageError where there is no such file, or where Python cannot import it by its name.
    """
    return _by_path(Path(place)) if place.endswith(".py") or "/" in place else _by_module(place)


def _by_path(path: Path) -> tuple[Path, Path, str]:
    """Return file, folder and module of a path, as `python path/to/file.py` sees it, or as its package does."""
    require_existing([path])
    if not path.is_file():
        raise UsageError("the file must exist", where=str(path), got="no file there")
    file = path.resolve()
    names, folder = [file.stem], file.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        names, folder = [folder.name, *names], folder.parent
    if not all(name.isidentifier() and not keyword.iskeyword(name) for name in names):
        raise UsageError(
            "a module is imported by its file's name, which is an identifier and no word of Python's own",
            where=str(path),
            got=".".join(names),
            remedy="rename the file",
        )
    _require_as_imported(names, path)
    _require_found_first(path, folder / names[0], hidden_by_all=folder == Path.cwd())
    return file, folder, ".".join(names)


def _require_as_imported(names: Sequence[str], path: Path) -> None:
    """Raise UsageError for a name that an `import` does not find: Python normalizes names in source code (NFKC)."""
    for name in names:
        if (imported := unicodedata.normalize("NFKC", name)) != name:
            raise UsageError(
                "a module is imported by its file's name as Python normalizes it (NFKC)",
                where=str(path),
                got=f"{name!a} for {imported!a}",
                remedy="rename it",
            )


def _require_found_first(path: Path, module: Path, *, hidden_by_all: bool) -> None:
    """Raise UsageError if Python finds another module of this name first: a standard one, or one on the path."""
    spec = module_spec(module.name)
    if spec is None or spec.origin is None or not (hidden_by_all or module.name in sys.stdlib_module_names):
        return
    if Path(spec.origin).resolve() not in {module.with_suffix(".py"), module / "__init__.py"}:
        where = spec.origin if spec.has_location else "Python's own"
        raise UsageError(
            "a module is imported by its name, which no other has that Python finds first",
            where=str(path),
            got=f"another `{module.name}`: {where}",
            remedy="rename it; or, where that is a copy of it, install it where it lies: `pip install -e .`",
        )


def _by_module(name: str) -> tuple[Path, Path, str]:
    """Return the file of a module that Python would find, with the working directory as folder, and the name."""
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split(".")):
        raise UsageError("a module's name is made of identifiers", got=f"`{name}`")
    add_working_directory()
    first, *rest = name.split(".")
    for folder in _places_of(first):
        base = folder.joinpath(first, *rest)
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                _require_as_imported([first, *rest], file)
                return file.resolve(), Path.cwd(), name
    raise UsageError(
        "the module must be one that Python finds",
        got=f"no `{name}` in {Path.cwd()} or among what is installed",
        remedy="run from the folder that holds it, or name its file: `path/to/file.py:function`",
    )


def _places_of(package: str) -> Iterator[Path]:
    """Yield folders that may hold the package: those on the path, and those an editable install's hook names."""
    yield from (Path(entry or ".") for entry in sys.path)
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError, AttributeError):
        return
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        yield Path(folder).parent
