"""Build the application from its commands, run it, and turn errors into exit codes.

The module of a command is imported only if the command line names this command.
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import sys
from functools import partial, wraps
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import interruption
from harness.errors import ExitCode, HarnessError
from harness.platform.signals_noted import CODES, noted
from harness.platform.standard_streams import (
    print_line,
    print_lines,
    print_quoted,
    print_workflow_command,
    surviving_streams,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer


TASKS = {  # command names, in the order of `--help`
    "Begin with a step": ("try", "init", "doctor"),
    "Write contracts": ("check", "explain", "schema", "import"),
    "Run": ("verify", "drill"),
    "Read a run": ("report", "where", "judge", "compare", "history"),
    "Compare recorded loops": ("compare-runs",),
    "Publish": ("pack", "attest"),
}
COMMANDS = tuple(name for names in TASKS.values() for name in names)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = "make the path readable, and writable if the command writes there, or name another path"
_REMEDIES: dict[int | None, str] = {
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: "copy the folder to a place that is writable, and name the copy",
    **dict.fromkeys(_FULL, "make room, or name another folder"),
    errno.ENAMETOOLONG: "use a shorter name",
}
# The application must have at least one command. For `--version` it therefore imports the command that loads fastest.
LIGHTEST = ("init",)
# Name of a command -> name of its module, for commands whose name is a keyword of Python or contains a hyphen.
MODULES = {"import": "import_contracts", "try": "try_step", "compare-runs": "compare_runs"}
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "verify": (
        ("contracts/", "run all, judge, write a report"),
        ("contracts/ --gate", "fail unless every unit was decided and held"),
        ("contracts/ --claim F-GRAPH-BWD-001", "one claim"),
        ("as-main.yaml --baseline main", "the working tree against another commit"),
    ),
    "check": (("contracts/", "errors and warnings, with file and line"),),
    "judge": (
        ("reports/RUN", "judge the evidence again, without a GPU"),
        ("reports/RUN --check", "check that the verdicts are as recorded"),
        ("PART-1 PART-2 --gate", "judge the parts of one gate together"),
        ("PART-1 PART-2 --gate --out FOLDER", "also write one page of all parts"),
    ),
    "report": (
        ("harness-reports/RUN", "draw the pages again"),
        ("RUN OTHER-RUN --out FOLDER", "one page of several runs, or of a run and its drill"),
    ),
    "explain": (
        ("F-GRAPH-BWD-001", "what the claim requires, and what usually breaks it"),
        ("limits_exceeded", "what the reason code means"),
    ),
    "drill": (
        ("contracts/", "plant every fault that a claim names"),
        ("contracts/ --claim F-GRAPH-BWD-001 --fault stale_batch", "one of the faults"),
    ),
    "doctor": (("contracts/", "which units this machine can decide, and what it lacks"),),
    "compare": (("RUN LATER-RUN", "verdicts and figures that changed"),),
    "compare-runs": (
        ("run-a run-b", "two recordings of `harness.record`, in bits"),
        ("run-a run-b --repeat run-a2", "also check whether run-a repeats itself"),
    ),
    "where": (
        ("harness-reports/RUN MY-CLAIM", "the first operator that differs, and your line of code"),
        ("harness-reports/RUN MY-CLAIM --json", "the same as one JSON object"),
    ),
    "history": (("reports/", "every judged number over many runs, as a page"),),
    "pack": (("harness-reports/RUN --redact --out reports/RUN", "publish the run without names"),),
    "attest": (("reports/RUN --key private.pem", "sign its verdicts"),),
    "import": (("upstream/ --write mine.yaml", "contracts of another language as one contract of ours"),),
    "schema": (("> contract.schema.json", "for an editor"),),
    "init": (("train.py:make_step", "write an adapter and a contract from a measured trial"),),
    "try": (
        ("train.py:make_step", "does it capture, train the same, and how fast is it"),
        ("train.py:make_step --write-contract", "also keep this as a contract"),
        ("train.py:make_step --baseline main", "does it train as on main, and how fast is it"),
    ),
}


def application(arguments: list[str]) -> typer.Typer:
    """Return the application with only the command that `arguments` start with. If they name no command, add all
    commands. Modules of commands that are not added are not imported. For example, `check` starts without numpy."""
    import typer  # `typer` is imported late, after the signal handlers are installed
    from typer.core import TyperGroup

    class ByTask(TyperGroup):
        """Lists the commands by task in the help, each with its whole summary. Otherwise click would cut a summary that
        is longer than a line."""

        def format_commands(self, _context: Any, formatter: Any) -> None:
            for task, names in TASKS.items():
                with formatter.section(task):
                    shown = [(name, " ".join(f"{self.commands[name].help}".split("\n\n")[0].split())) for name in names]
                    formatter.write_dl(shown)

    app = typer.Typer(
        name="harness",
        cls=ByTask,
        help="Verify contracts about GPU-training optimizations, with evidence that anybody can re-judge.",
        add_completion=True,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    named = [name for name in COMMANDS if arguments[:1] == [name]]
    for name in named or (LIGHTEST if arguments == ["--version"] else COMMANDS):
        module = MODULES.get(name, name)
        function = getattr(importlib.import_module(f"harness.cli.{module}"), module)
        app.command(name, epilog=epilog(name))(_behind_no_code_of_the_project(function))
    shown = typer.Option(False, "--version", is_eager=True, callback=_show_version, help="Show the version and exit.")

    def harness(version: bool = shown) -> None:
        pass

    app.callback()(harness)  # without a callback, typer would not require the name of a command if there is only one
    return app


def _show_version(asked: bool) -> None:
    import typer

    if asked:
        print_line(f"contract-harness {version('contract-harness')}")
        raise typer.Exit


def main() -> None:
    """Run the command line. Every error and every signal is turned into an exit code here."""
    with surviving_streams(), interruption.watched():
        try:
            run = application(sys.argv[1:])
            _collect_from_now_on()
            code = run(standalone_mode=False) or ExitCode.HELD
        except HarnessError as error:
            sys.exit(_ended(error, error))
        except OSError as error:
            sys.exit(_refused(error) or _broken(error))
        except Exception as error:  # otherwise Python would exit with code 1, which means a violated claim
            sys.exit(_usage(error) or _broken(error))
        except SystemExit as leaving:
            sys.exit(_left(leaving))
        sys.exit(code)


def _behind_no_code_of_the_project(command: Callable[..., object]) -> Callable[..., object]:
    """Return a function that first checks if Python, at its start, ran code of the user's project. If so, the function
    raises HarnessError, otherwise it runs `command`. With --help or --version, the function is not called."""

    @wraps(command)
    def begun(*values: object, **options: object) -> object:
        _refuse_code_of_the_project()
        return command(*values, **options)

    return begun


def _refuse_code_of_the_project() -> None:
    """Raise HarnessError if Python, at its start, ran code of the working directory because PYTHONPATH contains it."""
    from harness.evidence.modules import is_users

    # The working directory may be a checkout of the harness, whose own `sitecustomize` is allowed.
    project, own = Path.cwd(), Path(__file__).resolve().parents[2]
    entries = {Path(entry).resolve() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    # At its start, Python imports these two modules if they exist.
    for name in ("sitecustomize", "usercustomize"):
        module = sys.modules.get(name)
        if module is None or module.__file__ is None:
            continue
        # Do not resolve links here: on Debian, the `sitecustomize` that belongs to Python is a link into /etc.
        above = Path(module.__file__).parents
        folder = above[1 if hasattr(module, "__path__") else 0].resolve()
        of_project = folder.is_relative_to(project) and not folder.is_relative_to(own) and is_users(folder)
        if folder in entries and of_project:
            raise HarnessError(
                "no code of the project may run before contracts are read",
                where=module.__file__,
                got="a module that Python imported at its start",
                remedy="take the module's folder off PYTHONPATH, or move the file (the harness finds the project "
                "without PYTHONPATH); put code that every process must run, such as the start of coverage, into a "
                "`.pth` file of the environment",
            )


def _collect_from_now_on() -> None:
    """Turn on garbage collection, except for objects that exist already. For the command `check`, garbage collection
    stays off, because `check` ends too soon to need it."""
    if not gc.isenabled() and sys.argv[1:2] != ["check"]:
        gc.freeze()
        gc.enable()


def _ended(error: HarnessError, noted_on: BaseException) -> int:
    """Print an error, and the notes of `noted_on`, the exception that ended the command. Return the exit code."""
    first, *more = error.lines()
    notes = _notes(noted_on)
    print_lines([f"error: {first}", *more, *notes], sys.stderr)
    return _shown(error.exit_code, ["; ".join([first, *notes]), *more])


def _shown(code: ExitCode, errors: list[str]) -> ExitCode:
    """On GitHub Actions, show in an annotation why the command ends without results. Return `code`."""
    from harness.report.workflow_commands import show_end

    show_end(code, errors, partial(print_workflow_command, file=sys.stderr))
    return code


def _usage(error: Exception) -> int:
    """Print an error about the command line and return its exit code. For any other error, print nothing and return
    0."""
    # Recognize an error of click by its method `show`, because its class differs between versions of typer.
    show = getattr(error, "show", None)
    if show is None:
        return 0
    buffer = io.StringIO()
    show(buffer)
    lines = buffer.getvalue().rstrip("\n").split("\n")
    print_lines(lines, sys.stderr)
    return _shown(ExitCode.USAGE, lines[-1:])


def _notes(error: BaseException) -> list[str]:
    """Return the notes that were added to an exception, such as the path where the evidence so far is kept."""
    return list(getattr(error, "__notes__", []))


def _left(leaving: SystemExit) -> int:
    """Return the exit code for a SystemExit that reached `main`: the code of a signal, or ERROR if there was no signal.

    A command ends by returning its exit code. A SystemExit without a signal therefore came from code that must not end
    the command, such as user code.
    """
    code = CODES[noted[0]] if noted else next((code for code in CODES.values() if code == leaving.code), None)
    if code is not None:
        return _shown(code, ["; ".join([code.name.lower(), *_notes(leaving.__cause__ or leaving)])])
    text = f"the command was ended before it had finished: {leaving!r}"
    print_line(f"error: {text}", file=sys.stderr)
    return _shown(ExitCode.ERROR, [text])


def _refused(error: OSError) -> int:
    """Print an error about a path or a full disk, and its notes, and return its exit code. For any other error, return
    0.

    Wrong paths in options do not reach this function, because each command checks its options. An error about a full
    disk is also printed if it names no path, as for a file that was already open.
    """
    path = error.filename2 or error.filename
    where = os.fsdecode(path) if isinstance(path, str | bytes) else ""
    full = error.errno in _FULL
    if error.strerror is None or not (where or full):
        return 0
    rule = (
        "the disk must have room for the command's output"
        if full
        else "the file system must allow the command's access"
    )
    remedy = _REMEDIES.get(error.errno, "fix this and call the command again")
    refused = HarnessError(rule, where=where, got=error.strerror, remedy=remedy)
    return _ended(refused, error)


def _broken(error: Exception) -> int:
    import traceback

    print_quoted("".join(traceback.format_exception(error)))
    return _shown(ExitCode.ERROR, traceback.format_exception_only(error)[:1])


if __name__ == "__main__":
    main()


def epilog(name: str) -> str:
    """Return the examples of a command as text for the command's help, one example on each line. The text's first line
    (`\\b`) tells click not to join the lines."""
    width = max(len(arguments) for arguments, _ in EXAMPLES[name])
    lines = [f"  harness {name} {arguments:<{width}}  {what}" for arguments, what in EXAMPLES[name]]
    return "\n".join(["\b", "Examples:", *lines])
