"""Files that Python finds before the modules that the harness needs: a `random.py` or `yaml.py` on PYTHONPATH.

It is asked when an import has failed, and any module may be one of those: it uses what every interpreter has in it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` may be such a file
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import NoReturn

REMEDY = "rename it, or take its folder off PYTHONPATH"
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_SUFFIXES = (".py", ".so", ".pyd")
_OWN = "harness"  # a source tree before an installation is how it is worked on


def found_first(error: BaseException, *, everywhere: bool = True) -> str | None:
    """What is found in the place of a module of Python or of an installed package, in a line; None for nothing.

    Among what `error` has come through; everywhere: and among the modules that there are.
    """
    modules = [*_of_traceback(error.__traceback__), *(_imported() if everywhere else ())]
    lines = [line for name, file in modules if (line := _line(name, file))]
    return "; ".join([*dict.fromkeys(lines), REMEDY]) if lines else None


def refuse_to_start(error: BaseException) -> NoReturn:
    """Say in a line why the harness does not start, and end with the code of an error."""
    found, why = f"{type(error).__name__}: {error}", found_first(error) or "its installation is not whole"
    line = f"error: the harness is imported and started; found {found}; {why}"
    sys.stderr.write(f"{_one_line(line)}\n")
    sys.exit(12)  # ExitCode.ERROR: its module may be what cannot be imported


def _one_line(text: str) -> str:
    line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    return line.replace("##", "#\\x23")


def _imported() -> Iterator[tuple[str, str]]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." not in name and isinstance(file, str):
            yield name, file


def _of_traceback(trace: TracebackType | None) -> Iterator[tuple[str, str]]:
    """The packages whose lines are in it, each with the file of such a line."""
    while trace is not None:
        names = trace.tb_frame.f_globals
        name, file = names.get("__name__"), names.get("__file__")
        if isinstance(name, str) and isinstance(file, str):
            yield name.partition(".")[0], file
        trace = trace.tb_next


def _line(name: str, file: str) -> str | None:
    folders = os.path.abspath(file).split(os.sep)  # noqa: PTH100, PTH206
    if name == _OWN or _INSTALLED & {*folders} or _is_of_python(file):
        return None
    while folders and folders[-1].partition(".")[0] != name:
        folders.pop()  # up to the package's own
    if not folders:
        return None
    place = os.sep.join(folders)  # noqa: PTH118
    if name in sys.stdlib_module_names:
        return f"{place} is found before Python's own {name}"
    return f"{place} is found before the installed {name}" if _is_installed(name) else None


def _is_of_python(file: str) -> bool:
    own = [os.__file__, *(f"{path}{os.sep}_" for path in sys.path if path.endswith(("lib-dynload", ".zip")))]
    real = os.path.realpath(file)
    return any(real.startswith(os.path.realpath(os.path.dirname(path)) + os.sep) for path in own)  # noqa: PTH120


def _is_installed(name: str) -> bool:
    folders = [folder for folder in sys.path if _INSTALLED & {*folder.split(os.sep)}]  # noqa: PTH206
    files = [f"{folder}{os.sep}{name}{end}" for folder in folders for end in ("", *_SUFFIXES)]
    return any(os.path.exists(file) for file in files)  # noqa: PTH110
