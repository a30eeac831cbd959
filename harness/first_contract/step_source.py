"""Find the function that makes a training step, and its arguments, without executing its source.

The user names the function as `module:function` or `path/to/file.py:function`. The function must be defined with `def`
at module level. Each argument of the function must be one that the harness supplies (`GIVEN`), or have a default. The
function returns step, batch and model, or a library's trainer.

The contract's id and the file names are made from the module's name, without characters that are not allowed in them.
"""

from __future__ import annotations

import ast
import importlib.util
import keyword
import re
import sys
import tokenize
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.contract.strict_yaml import nearest
from harness.errors import UsageError
from harness.evidence.modules import module_spec
from harness.platform.paths import add_working_directory, require_existing

# Largest number of characters of the identifier from which ids are made. The id of a claim, which also contains the
# claim's name, then has at most 100 characters.
LONGEST = 60
# words that some version of YAML does not read as texts
_NO_TEXT = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def stem_of(module: str) -> str:
    """Return an ASCII identifier for a module, for use in file names. A letter with an accent loses the accent. A
    letter that has no ASCII form is left out."""
    last = unicodedata.normalize("NFKD", module.rpartition(".")[2])
    stem = re.sub(r"[^A-Za-z0-9_]", "", last)[:LONGEST]
    if not stem.strip("_"):
        return "step"
    return f"step_{stem}"[:LONGEST] if stem[0].isdigit() else stem


def id_of(stem: str) -> str:
    """Return the contract's id for `stem`, the module's identifier that `stem_of` returned."""
    return f"{stem.strip('_').replace('_', '-')}-v1"


def yaml_text(name: str) -> str:
    """Return an identifier as it is written in YAML: in quotes if YAML would not read it as a text."""
    return f'"{name}"' if name.lower() in _NO_TEXT else name


def file_of(place: str) -> tuple[Path, Path, str]:
    """Return three things for `path/to/file.py` or `package.module`: the file, the folder from which Python imports it,
    and the module's name.

    Raises UsageError if there is no such file, or if Python cannot import it under its module name.
    """
    return _by_path(Path(place)) if place.endswith(".py") or "/" in place else _by_module(place)


def _by_path(path: Path) -> tuple[Path, Path, str]:
    """Return the file at `path`, the folder from which Python imports it, and the module's name with its packages."""
    require_existing([path])
    if not path.is_file():
        raise UsageError("the file must exist", where=str(path), got="no file there")
    file = path.resolve()
    names, folder = [file.stem], file.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        names, folder = [folder.name, *names], folder.parent
    if not all(name.isidentifier() and not keyword.iskeyword(name) for name in names):
        raise UsageError(
            "the file's name must be a Python identifier that is not a keyword, and so must the names of its packages",
            where=str(path),
            got=".".join(names),
            remedy="rename the file or the folder",
        )
    _require_as_imported(names, path)
    _require_found_first(path, folder / names[0], hidden_by_all=folder == Path.cwd())
    return file, folder, ".".join(names)


def _require_as_imported(names: Sequence[str], path: Path) -> None:
    """Raise UsageError if Python would change one of these names when it imports the file. Python normalizes names in
    source code to the form NFKC."""
    for name in names:
        if (imported := unicodedata.normalize("NFKC", name)) != name:
            raise UsageError(
                "the file's name must be in the form to which Python normalizes module names (NFKC)",
                where=str(path),
                got=f"{name!a}, which Python changes to {imported!a}",
                remedy="rename the file or the folder with this name",
            )


def _require_found_first(path: Path, module: Path, *, hidden_by_all: bool) -> None:
    """Raise UsageError if Python would import another module of this name instead of this file."""
    spec = module_spec(module.name)
    if spec is None or spec.origin is None or not (hidden_by_all or module.name in sys.stdlib_module_names):
        return
    if Path(spec.origin).resolve() not in {module.with_suffix(".py"), module / "__init__.py"}:
        other_file = spec.origin if spec.has_location else "Python's own"
        raise UsageError(
            "Python must import this file, and no other module of the same name",
            where=str(path),
            got=f"another `{module.name}`: {other_file}",
            remedy="rename the file; or, if the other module is a copy of it, install this one in place: `pip install "
            "-e .`",
        )


def _by_module(name: str) -> tuple[Path, Path, str]:
    """Return three things for the module that `import name` would find: its file, the working directory, and its
    name."""
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split(".")):
        raise UsageError(
            "a module's name must consist of identifiers, joined by dots",
            got=f"`{name}`",
            remedy="for example `package.module`",
        )
    add_working_directory()
    first, *rest = name.split(".")
    for folder in _places_of(first):
        base = folder.joinpath(first, *rest)
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                _require_as_imported([first, *rest], file)
                return file.resolve(), Path.cwd(), name
    raise UsageError(
        "Python must be able to find the module",
        got=f"no `{name}` in {Path.cwd()} or among the installed packages",
        remedy="run from the folder that holds the module, or name its file: `path/to/file.py:function`",
    )


def _places_of(package: str) -> Iterator[Path]:
    """Yield the folders in which the package may be: the folders of the import path, and the folders of editable
    installations."""
    yield from (Path(entry or ".") for entry in sys.path)
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError, AttributeError):
        return
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        yield Path(folder).parent


GIVEN = {
    "workload": "workload",
    "arm": "arm",
    "seed": "workload.seed",
    "batch_size": "workload.batch_size",
    "seq_len": "workload.seq_len",
    "captured": 'arm.capture != "none"',
    "optimized": 'bool(arm.settings().get("optimized"))',
}
"""Arguments that the harness supplies: the name of the argument, and the expression that the adapter passes for it."""
PAGE = "docs/plugging-in-a-trainer.md"
RETURNED = "step, batch, model"
MOST_BYTES = 2**22  # largest size of a source file in bytes

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class StepSource:
    """A function that makes a step, and how it is imported."""

    asked: str  # the name of the function as the user gave it
    module: str  # the name by which the module is imported
    function: str
    folder: Path | None  # folder that the adapter must add to Python's import path; None: not needed
    file: Path
    line: int
    arguments: tuple[str, ...]  # names of the function's arguments that the harness supplies (see GIVEN)
    defaults: Mapping[str, int]  # default values of these arguments, if they are positive integers
    makes_trainer: bool = False  # True: the function returns a trainer of a library, which has its own loop

    @property
    def place(self) -> str:
        """Return `file:line`. The path is relative if the file is below the working directory."""
        return f"{_shown(self.file)}:{self.line}"


def find_step_source(asked: str) -> StepSource:
    """Return the function that `asked` names. Raises UsageError, with file and line, if it cannot make a step."""
    place, _, name = asked.rpartition(":")
    if not place or not name.isidentifier():
        raise UsageError(
            "a function must be named `module:function`, or `path/to/file.py:function`",
            got=f"`{asked}`",
            remedy="for example `train:make_step` or `train.py:make_step`",
        )
    # Python also normalizes the function's name in the source code to this form.
    name = unicodedata.normalize("NFKC", name)
    file, folder, module = file_of(place)
    return read_step_source(asked, name, file, folder, module)


def read_step_source(asked: str, name: str, file: Path, folder: Path, module: str) -> StepSource:
    """Return the function `name` of a file. Raises UsageError, with file and line, if it cannot make a step."""
    tree = _parsed(file)
    function = _function(tree, name, file)
    arguments = _arguments(function, file)
    makes_trainer = _makes_trainer(tree, function)
    if not makes_trainer:
        _require_returns(function, file)
    told = None if folder == Path.cwd() else folder
    given = tuple(argument for argument in GIVEN if argument in arguments)
    if {"captured", "optimized"} <= {*given}:
        raise UsageError(
            f"`{name}` must take either `captured`, for a step that captures itself, or `optimized`, for any other "
            "optimization",
            where=f"{_shown(file)}:{function.lineno}",
            got="both",
            remedy="write two functions, one with each argument, and name one of them",
        )
    if makes_trainer and "captured" in given:
        raise UsageError(
            f"`{name}` makes a trainer, so its argument must name an optimization other than a capture",
            where=f"{_shown(file)}:{function.lineno}",
            got="`captured`",
            remedy="rename the argument to `optimized`",
        )
    whole = {key: value for key in given if type(value := arguments[key]) is int and value > 0}
    return StepSource(asked, module, name, told, file, function.lineno, given, whole, makes_trainer)


def _parsed(file: Path) -> ast.Module:
    try:
        if (size := file.stat().st_size) > MOST_BYTES:
            file_too_large = f"a source file must have at most {MOST_BYTES} bytes"
            raise UsageError(file_too_large, where=_shown(file), got=f"{size} bytes")
        with tokenize.open(file) as stream:
            return ast.parse(stream.read(), filename=str(file))
    except SyntaxError as error:
        where = f"{_shown(file)}:{error.lineno}" if error.lineno else _shown(file)
        raise UsageError("the file must be valid Python", where=where, got=error.msg) from error
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        error_text = f"{type(error).__name__}: {error}"
        raise UsageError("the file must be readable as Python", where=_shown(file), got=error_text) from error


def _function(tree: ast.Module, name: str, file: Path) -> Function:
    """Return the last definition of `name` at module level. Definitions inside `if` and `try` count, too."""
    statements = list(_top(tree.body))
    functions = {each.name: each for each in statements if isinstance(each, Function)}
    if name in functions:
        return functions[name]
    for each in statements:
        names = [alias.asname or alias.name for alias in each.names] if isinstance(each, ast.ImportFrom) else []
        if isinstance(each, ast.ImportFrom) and name in names:
            source = each.names[names.index(name)].name
            raise UsageError(
                f"`{name}` must be defined with `def` in the named file",
                where=f"{_shown(file)}:{each.lineno}",
                got="an import",
                remedy=f"name the file that defines it: `{'.' * each.level}{each.module or ''}:{source}`",
            )
        if isinstance(each, ast.ClassDef) and each.name == name:
            where = f"{_shown(file)}:{each.lineno}"
            write_a_contract = f"if the class is a training system, write a contract for it: {PAGE}"
            raise UsageError(f"`{name}` must be a function", where=where, got="a class", remedy=write_a_contract)
    raise UsageError(
        f"`{name}` must be defined with `def` at the top level of the file",
        where=_shown(file),
        got=f"only {', '.join(functions)}" if functions else "no function there",
        remedy=nearest(name, functions) if functions else "",
    )


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _top([*statement.body, *statement.orelse])


def _arguments(function: Function, file: Path) -> dict[str, object]:
    """Return for each argument of the function, by name, its default if this is a literal, and otherwise None. Raises
    UsageError for an argument that has no default and that the harness cannot supply."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    pairs = [*zip(positional, defaults, strict=True), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    for argument, default in pairs:
        named = argument.arg in GIVEN and argument not in given.posonlyargs
        if default is None and not named:
            raise UsageError(
                f"`{function.name}` may require only the arguments {', '.join(GIVEN)}; any other argument must have a "
                "default",
                where=f"{_shown(file)}:{argument.lineno}",
                got=f"`{argument.arg}` without a default",
                remedy=f"give the argument a default, or name a function that calls `{function.name}` with it",
            )
    return {argument.arg: _literal(default) for argument, default in pairs if argument not in given.posonlyargs}


def _literal(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _require_returns(function: Function, file: Path) -> None:
    """Raise UsageError if the source of the function shows that it does not return a step."""
    where = f"{_shown(file)}:{function.lineno}"
    must_return_a_step = (
        f"`{function.name}` must make a step and leave the loop to its caller: it must return {RETURNED}"
    )
    own = list(_own(function))
    driven = _calls_of_trainers(own)
    end_with_return = f"end the function with `return {RETURNED}`: {PAGE}"
    if driven and not _loops(own):
        end_with_return = (
            f"return `{ast.unparse(driven[0].func).rpartition('.')[0]}` before that call, because the harness "
            "makes the call"
        )
    if isinstance(function, ast.AsyncFunctionDef) or any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own):
        raise UsageError(
            must_return_a_step, where=where, got="a generator, or an async function", remedy=end_with_return
        )
    returned = [node for node in own if isinstance(node, ast.Return) and node.value is not None]
    if not returned:
        raise UsageError(must_return_a_step, where=where, got=_loop(own), remedy=_split(own) or end_with_return)
    for each in returned:
        if problem := _problem(each.value):
            raise UsageError(
                must_return_a_step, where=f"{_shown(file)}:{each.lineno}", got=problem, remedy=end_with_return
            )


def _makes_trainer(tree: ast.Module, function: Function) -> bool:
    """Return True if the function seems to return a trainer of a library.

    If the function returns one value, one of these names must end with `trainer`: the function, its return annotation,
    the class of the value, or a base class of this class. If the function returns three values, the class of the first
    value must be `Trainer`.
    """
    bases = {each.name: map(ast.unparse, each.bases) for each in _top(tree.body) if isinstance(each, ast.ClassDef)}
    own = list(_own(function))
    called = {
        ast.unparse(target): ast.unparse(node.value.func)
        for node in own
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
    }
    returned = [node.value for node in own if isinstance(node, ast.Return) and node.value is not None]
    if any(isinstance(each, ast.Call) and ast.unparse(each.func).endswith("StepFunction") for each in returned):
        return False
    names = [ast.unparse(function.returns)] if function.returns else []
    for value in returned:
        several = isinstance(value, ast.Tuple) and len(value.elts) == 3
        first = value.elts[0] if isinstance(value, ast.Tuple) and several else value
        maker = ast.unparse(first.func) if isinstance(first, ast.Call) else called.get(ast.unparse(first), "")
        if not several:
            names += [function.name, maker, *bases.get(maker, [])]
        elif maker not in bases and maker.rpartition(".")[2] == "Trainer":
            return True
    return bool(returned) and any(name.lower().strip("'\"").endswith("trainer") for name in names)


def _problem(value: ast.expr | None) -> str:
    """Return a text that says why a returned expression cannot be step, batch and model. Return "" if it can be."""
    if isinstance(value, ast.Tuple | ast.List) and not any(isinstance(each, ast.Starred) for each in value.elts):
        return "" if len(value.elts) in (3, 4) else f"{len(value.elts)} values"
    if isinstance(value, ast.Constant | ast.Dict | ast.Set | ast.JoinedStr | ast.BinOp | ast.Compare | ast.Lambda):
        return f"`{ast.unparse(value)[:60]}`"
    return ""  # the value of a name or a call is known only at run time


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every syntax node of a function, except the nodes of functions and classes that are defined inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own(child)


def _calls(nodes: Iterator[ast.AST] | list[ast.AST], *names: str) -> list[ast.Call]:
    """Return the calls of methods with these names, in the order of `nodes`."""
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in names]


def _loop(own: list[ast.AST]) -> str:
    """Return the text `no return value`. If the function has a training loop or calls a trainer, the text also names
    the line."""
    for loop in _loops(own):
        [backward, *_] = _calls(list(_own(loop)), "backward")
        return f"no return value, and a training loop at line {loop.lineno} with `backward()` at line {backward.lineno}"
    for call in _calls_of_trainers(own):
        return f"no return value, and `{ast.unparse(call.func)}()` at line {call.lineno}, which runs its own loop"
    return "no return value"


def _calls_of_trainers(own: list[ast.AST]) -> list[ast.Call]:
    calls = _calls(own, "train", "fit")
    return [each for each in calls if each.args or each.keywords or _is_trainer(each)]


def _is_trainer(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[0].lower().endswith("trainer")


def _loops(own: list[ast.AST]) -> list[ast.For | ast.While]:
    """Return a list with the last loop that has a backward pass, or an empty list if there is none."""
    loops = [node for node in own if isinstance(node, ast.For | ast.While) and _calls(list(_own(node)), "backward")]
    return loops[-1:]


def _split(own: list[ast.AST]) -> str:
    for loop in _loops(own):
        first, last = loop.body[0].lineno, loop.body[-1].end_lineno
        return (
            f"of lines {first} to {last}, move the code that trains on one batch into `def step(batch)` and the "
            f"code that makes the batch into `def batch(index)`, and end with `return {RETURNED}`: {PAGE}"
        )
    return ""


def _shown(file: Path) -> str:
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)
