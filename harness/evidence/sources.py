"""Find the files and git commits of modules, and compute digests of the sources of a run, without importing a module.

Sources are the Python and CUDA C++ files of the harness, of the packages that contain the tested systems, and of every
user module that these packages import directly or indirectly. Digests are computed from files, because a copied tree
may not be a git repository. Imports are found in the text of the files, so that an import inside a function counts,
too. Libraries (below `site-packages`) and Python's own modules are left out, except the package of a tested system.
Each file is listed with its path inside its package, so that a digest does not depend on the location of the tree.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence.modules import INSTALLED, is_library, module_spec, place_in, places_of

if TYPE_CHECKING:
    from harness.evidence.environment_records import TrainerFacts

# The code below finds the imports of Python sources in their text, without executing them. An import names a module,
# uses a folder that the source adds to the import path, or loads a file by its path. Imports count wherever they stand,
# also in functions. A path is known only if the source composes it from constants, `__file__`, `Path` and `os.path`.
# Relative imports are not searched for, because all files of a package count anyway.

_START = r"(?:^|[;:])[ \t\f]*"
_FROM = re.compile(rf"{_START}from[ \t]+([^\W\d]\w*)[\w.]*[ \t]+import\b", re.MULTILINE)
_IMPORT = re.compile(rf"{_START}import[ \t]+([\w., \t]+?)[ \t]*(?=$|[;#])", re.MULTILINE)
_BY_NAME = re.compile(r"\b(?:import_module|__import__)\(\s*[rbuf]?[\"']([^\W\d]\w*)", re.IGNORECASE)
_CALLED = ("import_module", "__import__")
_BY_PATH = ("sys.path", "addsitedir", "run_path", "spec_from_file_location", "SourceFileLoader")
_FILE_ARGUMENT = {"run_path": 0, "spec_from_file_location": 1, "SourceFileLoader": 1}
_SAME = {"str", "fspath", "abspath", "normpath", "expanduser", "absolute", "as_posix"}
_REAL = {"resolve", "realpath"}


@dataclass
class Imports:
    """Collects the imports of the sources that are added to it. names: top-level packages. folders: folders that the
    sources add to the import path. files: files that the sources load by their paths."""

    names: set[str] = field(default_factory=set)
    folders: set[Path] = field(default_factory=set)
    files: set[Path] = field(default_factory=set)

    def add(self, source: bytes, file: Path) -> None:
        text = source.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").replace("\\\n", " ")
        self.names.update(name for name in imported_names(text) if name)
        if not any(word in text for word in _BY_PATH):
            return
        # a source that raises one of these errors here cannot be imported by Python either
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            tree = ast.parse(source)
            paths = _Paths(tree, file.absolute())
            for node in ast.walk(tree):
                self.folders.update(paths.known(_path_entries(node)))
                self.files.update(paths.known(_loaded_files(node)))


def imported_names(text: str) -> Iterator[str]:
    """Yield the packages that the text imports, by import statements or by `import_module` with a constant name."""
    lines = "\n".join(_lines_with("import", text))
    yield from (found[1] for found in _FROM.finditer(lines))
    if any(word in lines for word in _CALLED):
        yield from (found[1] for found in _BY_NAME.finditer(text))
    for found in _IMPORT.finditer(lines):
        for each in found[1].split(","):
            words = each.split()
            if len(words) == 1 or words[1:2] == ["as"]:
                yield words[0].partition(".")[0]


def _lines_with(word: str, text: str) -> Iterator[str]:
    """Yield the lines that contain a word. Searching for a word takes a tenth of the time that a search for a pattern
    takes."""
    at = text.find(word)
    while at >= 0:
        end = text.find("\n", at)
        end = end if end >= 0 else len(text)
        yield text[text.rfind("\n", 0, at) + 1 : end]
        at = text.find(word, end)


def _path_entries(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that a call or an assignment adds to `sys.path`."""
    match node:
        case ast.Call(func=ast.Attribute(value=changed), args=args) if _is_sys_path(changed):
            yield from (entry for each in args for entry in _elements(each))
        case ast.Call(func=ast.Attribute(attr="addsitedir") | ast.Name(id="addsitedir"), args=[entry, *_]):
            yield entry
        case ast.Assign(targets=[changed], value=value) | ast.AugAssign(target=changed, value=value):
            if _is_sys_path(changed.value if isinstance(changed, ast.Subscript) else changed):
                yield from _elements(value)


def _is_sys_path(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "path" and getattr(node.value, "id", "") == "sys"


def _elements(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.List(elts=inner) | ast.Tuple(elts=inner):
            yield from inner
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from (*_elements(left), *_elements(right))
        case _:
            yield node


def _loaded_files(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expression of a file's path for each file that the call `node` loads as a module or executes."""
    if isinstance(node, ast.Call) and (position := _FILE_ARGUMENT.get(_called(node))) is not None:
        yield from node.args[position : position + 1]
        yield from (each.value for each in node.keywords if each.arg in {"location", "path", "path_name"})


def _called(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", "") or getattr(node.func, "id", ""))


class _Paths:
    """Computes the values of path expressions in one source file, as far as the file itself determines them."""

    def __init__(self, tree: ast.Module, file: Path) -> None:
        self._file = file
        assigned = [(each.targets[0], each.value) for each in ast.walk(tree) if isinstance(each, ast.Assign)]
        self._values = {target.id: value for target, value in assigned if isinstance(target, ast.Name)}

    def known(self, nodes: Iterator[ast.expr]) -> Iterator[Path]:
        for node in nodes:
            if (path := self._of(node, frozenset())) is not None:
                yield Path(os.path.normpath(Path.cwd() / os.path.expanduser(path)))  # noqa: PTH111 - raises nothing

    def _of(self, node: ast.expr, within: frozenset[str]) -> Path | None:
        """Return the path that an expression stands for, or None if it is unknown. within: names that are being
        evaluated. If one of them occurs again, the evaluation ends, so that it cannot loop."""
        found: Path | None = None
        match node:
            case ast.Constant(value=str(text)) if "\0" not in text:
                found = Path(text)
            case ast.Name(id="__file__"):
                found = self._file
            case ast.Name(id=name) if name in self._values and name not in within:
                found = self._of(self._values[name], within | {name})
            case ast.Attribute(value=inner, attr="parent"):
                found = self._above(inner, 0, within)
            case ast.Subscript(value=ast.Attribute(value=inner, attr="parents"), slice=ast.Constant(value=int(number))):
                found = self._above(inner, number, within)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                found = self._joined([left, right], within)
            case ast.Call():
                found = self._of_call(node, within)
        return found

    def _of_call(self, node: ast.Call, within: frozenset[str]) -> Path | None:
        name, args = _called(node), list(node.args)
        if isinstance(node.func, ast.Attribute) and (name == "joinpath" or not args):
            # in a call of a path's method, the path itself counts as the first argument
            args = [node.func.value, *args]
        if name in {"cwd", "getcwd"}:
            return Path.cwd()
        if name == "with_name" and isinstance(node.func, ast.Attribute) and args:
            folder, file = self._above(node.func.value, 0, within), self._of(args[0], within)
            return folder / file if folder is not None and file is not None else None
        if name in {"Path", "PurePath", "join", "joinpath"}:
            return self._joined(args, within)
        if name == "dirname" and args:
            return self._above(args[0], 0, within)
        found = self._of(args[0], within) if args and name in {*_SAME, *_REAL} else None
        return Path(os.path.realpath(found)) if found is not None and name in _REAL else found

    def _above(self, node: ast.expr, number: int, within: frozenset[str]) -> Path | None:
        found = self._of(node, within)
        return found.parents[number] if found is not None and 0 <= number < len(found.parents) else None

    def _joined(self, nodes: list[ast.expr], within: frozenset[str]) -> Path | None:
        parts = [self._of(node, within) for node in nodes]
        known = [part for part in parts if part is not None]
        return Path(*known) if known and len(known) == len(parts) else None


_TIMEOUT_S = 10.0
# Git sets these variables for processes that it starts, such as hooks. They name the repository of the running git
# command. A git command here would then use that repository instead of the one in `folder`.
OF_A_CALL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
# These options prevent git from starting programs that the settings of an untrusted repository name.
_NO_PROGRAMS = ("-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false")


def git(folder: Path, *arguments: str) -> str | None:
    """Return git's output for a command in a folder. Return None if git fails, is missing, or takes over 10 s."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_A_CALL}
    try:
        done = subprocess.run(
            ["git", *_NO_PROGRAMS, "-C", str(folder), *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None


def trainers(systems: Iterable[str]) -> dict[str, TrainerFacts]:
    """Return the commit of each system's repository. The commit ends in `+changes` if files differ from it.

    The keys are the systems' names (`module:attribute`). A system whose file is not tracked counts as changed. A system
    has no commit if its module is not found, if its file is in no repository, or if it belongs to an installed package.
    No system is imported.
    """
    # import late, because `harness check` does not need these models
    from harness.evidence.environment_records import TrainerFacts

    return {system: TrainerFacts(commit=_commit(system.partition(":")[0])) for system in systems}


def _commit(module: str) -> str | None:
    from harness.evidence.environment_records import CHANGES

    spec = module_spec(module)
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    file = Path(spec.origin).resolve()
    held = git(file.parent, "ls-files", "--error-unmatch", "--", file.name) is not None
    if not held and is_library(file):
        return None
    commit = git(file.parent, "rev-parse", "HEAD")
    changes = not held or git(file.parent, "status", "--porcelain", "--untracked-files=no", "--", ":/")
    return f"{commit}{CHANGES}" if commit and changes else commit


SOURCE_LIMIT = 64 * 2**20  # largest size of one source file, in bytes
_OURS = "harness"
_CUDA = (".cu", ".cuh")  # suffixes of kernel sources that a package compiles when it runs


def source_digest(systems: Iterable[str] = (), listed: Mapping[str, str] | None = None) -> str:
    """Return one SHA-256 digest of all sources of the harness and the systems. listed: the result of `listed_sources`
    for these systems, if it is already known."""
    lines = listed_sources(systems) if listed is None else listed
    return hashlib.sha256("".join(lines.values()).encode()).hexdigest()


def package_digests(listed: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 digest of each package's sources, by package. listed: the result of `listed_sources`."""
    return {package: hashlib.sha256(lines.encode()).hexdigest() for package, lines in listed.items()}


def listed_sources(systems: Iterable[str] = ()) -> dict[str, str]:
    """Return, for each package, a text with one line for each source file: its path inside the package and its SHA-256.

    The packages are sorted. The text is empty for a system's package that cannot be found. Raises HarnessError for a
    file that cannot be read or has more than `SOURCE_LIMIT` bytes.
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


def broken_modules(systems: Iterable[str]) -> Iterator[tuple[Path, SyntaxError]]:
    """Yield each module that the systems import and that Python cannot compile, with the error. Nothing is executed.

    Only modules that consist of one file and are not in a library are compiled, because a package may have files that
    nothing imports. Raises HarnessError for a file that cannot be read or is too large.
    """
    named = {name.partition(":")[0].partition(".")[0] for name in systems}
    reached, read, places = Imports(), set[Path](), cache(places_of)
    while waiting := sorted({place for _, place in _places(named, reached, places) if not place.is_dir()} - read):
        for place in waiting:
            source = _content(place)
            reached.add(source, place)
            with warnings.catch_warnings(), suppress(ValueError, RecursionError, MemoryError):
                warnings.simplefilter("ignore")
                try:
                    compile(source, place, "exec", dont_inherit=True)
                except SyntaxError as error:
                    yield place, error
        read.update(waiting)


def _places(named: Iterable[str], reached: Imports, places: Callable[[str], list[Path]]) -> Iterator[tuple[str, Path]]:
    """Yield pairs of a package and one of its folders or files. A library is left out if it is not in `named`."""
    yield from ((package, place) for package in named for place in places(package))
    for package in reached.names - {_OURS}:
        beside = [place_in(folder, package) for folder in reached.folders]
        for place in [*places(package), *(found for found in beside if found is not None)]:
            if not is_library(place) and (place.suffix == ".py" or place.is_dir()):
                yield package, place
    files = (path for path in reached.files if os.path.isfile(path))  # noqa: PTH113 - as in `place_in`
    yield from ((path.stem, path) for path in files if not is_library(path))


def _below(root: str) -> Iterator[tuple[str, Path]]:
    """Yield every source file below a folder, without pipes (to read one would never end) and without links to missing
    files, which editors create as locks."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in INSTALLED]
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - hundreds of them: a Path takes ten times as long
            if name.endswith((".py", *_CUDA)) and os.path.isfile(path):  # noqa: PTH113 - likewise
                yield path[len(root) :].strip(os.sep).replace(os.sep, "/"), Path(path)


def _content(path: Path) -> bytes:
    sources_must_be_small_and_readable = "the sources of a system must be readable files of limited size"
    try:
        size = path.stat().st_size
        if size > SOURCE_LIMIT:
            keep_data_elsewhere = "keep data outside the package, or in files that do not end in .py"
            raise HarnessError(
                sources_must_be_small_and_readable,
                where=str(path),
                got=f"{size} bytes, but at most {SOURCE_LIMIT} are allowed",
                remedy=keep_data_elsewhere,
            )
        return path.read_bytes()
    except OSError as error:
        raise HarnessError(
            sources_must_be_small_and_readable, where=str(path), got=error.strerror or type(error).__name__
        ) from error
