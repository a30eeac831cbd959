"""Compute digests of the sources that a run is of, in Python and CUDA C++: the harness's, those of the packages that
systems live in, and those of every module of the user's own that these import, at any remove.

Digests are of files, because a copied tree may have no git, and of their text, so that this process imports none of
them and an import that only a run executes counts, too. Libraries (below `site-packages`) and Python's own modules are
left out, except a system's own package. Each file counts with its path inside its package, so that a digest does not
depend on where the tree lies.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from harness.errors import HarnessError
from harness.evidence.imports import Imports
from harness.evidence.modules import INSTALLED, is_library, place_in, places_of

SOURCE_LIMIT = 64 * 2**20  # bytes of one source file
_OURS = "harness"
_CUDA = (".cu", ".cuh")  # kernels that a package compiles when it runs


def source_digest(systems: Iterable[str] = (), listed: Mapping[str, str] | None = None) -> str:
    """Return the SHA-256 over all sources of the systems (`module:attribute`), and the harness's."""
    lines = listed_sources(systems) if listed is None else listed
    return hashlib.sha256("".join(lines.values()).encode()).hexdigest()


def package_digests(listed: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 over the sources of each package, by its name."""
    return {package: hashlib.sha256(lines.encode()).hexdigest() for package, lines in listed.items()}


def listed_sources(systems: Iterable[str] = ()) -> dict[str, str]:
    """Return by package, sorted, a line for each source file: its path inside the package and its SHA-256.

    A system's package that cannot be found has no line. Raises HarnessError for a file of more than `SOURCE_LIMIT`
    bytes, or one that cannot be read.
    """
    named = {_OURS, *(name.partition(":")[0].partition(".")[0] for name in systems)}
    listed: dict[str, set[tuple[str, str]]] = {package: set() for package in named}
    reached, read, places = Imports(), set[tuple[str, Path]](), cache(places_of)
    while waiting := sorted({*_places(named, reached, places)} - read):
        for package, place in waiting:
            for inner, path in sorted(_below(str(place))) if place.is_dir() else [("", place)]:
                source = _content(path)
                listed.setdefault(package, set()).add((inner, hashlib.sha256(source).hexdigest()))
                if package != _OURS and path.suffix not in _CUDA:
                    reached.add(source, path)
        read.update(waiting)
    return {
        package: "".join(f"{package}/{inner} {digest}\n" for inner, digest in sorted(listed[package]))
        for package in sorted(listed)
    }


def _places(named: Iterable[str], reached: Imports, places: Callable[[str], list[Path]]) -> Iterator[tuple[str, Path]]:
    """Yield each package with its folders and files: a system's wherever they lie, else only the user's own."""
    yield from ((package, place) for package in named for place in places(package))
    for package in reached.names - {_OURS}:
        beside = [place_in(folder, package) for folder in reached.folders]
        for place in [*places(package), *(found for found in beside if found is not None)]:
            if not is_library(place) and (place.suffix == ".py" or place.is_dir()):
                yield package, place
    files = (path for path in reached.files if os.path.isfile(path))  # noqa: PTH113 - as in `place_in`
    yield from ((path.stem, path) for path in files if not is_library(path))


def _below(root: str) -> Iterator[tuple[str, Path]]:
    """Yield every source file below a folder. An editor's lock (a dangling link with such a name) is not a source file.
    Nor is a pipe, whose reading would never end."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in INSTALLED]
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - hundreds of them: a Path takes ten times as long
            if name.endswith((".py", *_CUDA)) and os.path.isfile(path):  # noqa: PTH113 - likewise
                yield path[len(root) :].strip(os.sep).replace(os.sep, "/"), Path(path)


def _content(path: Path) -> bytes:
    rule = "the sources of a system are files that can be read, none endless"
    try:
        size = path.stat().st_size
        if size > SOURCE_LIMIT:
            remedy = "keep data out of the package, or under another ending than .py"
            raise HarnessError(rule, where=str(path), got=f"{size} bytes, more than {SOURCE_LIMIT}", remedy=remedy)
        return path.read_bytes()
    except OSError as error:
        raise HarnessError(rule, where=str(path), got=error.strerror or type(error).__name__) from error
