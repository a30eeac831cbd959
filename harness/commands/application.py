"""The application: which commands there are, and how an error ends one. A command's module is imported by name."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from harness.commands import interruption
from harness.errors import ExitCode, HarnessError

if TYPE_CHECKING:
    import typer

COMMANDS = ("verify", "check", "judge", "report", "explain", "drill", "doctor", "compare", "history", "pack", "schema")


def application(arguments: list[str]) -> typer.Typer:
    """The application with the command that `arguments` begin with; with all of them when they name none.

    One command's imports are not paid by another: `check` starts without numpy.
    """
    import typer  # a signal must find its handler before this is read

    app = typer.Typer(
        name="harness",
        help="Verify contracts about GPU-training optimizations, with evidence that anybody can re-judge.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    named = [name for name in COMMANDS if arguments[:1] == [name]]
    for name in named or COMMANDS:
        app.command(name)(getattr(importlib.import_module(f"harness.commands.{name}"), name))
    app.callback()(lambda: None)  # with one command only, typer would drop its name
    return app


def main() -> None:
    """Entry point; maps errors and signals to exit codes in one place."""
    with interruption.watched():
        try:
            application(sys.argv[1:])()
        except HarnessError as error:
            sys.stderr.write(f"error: {error}\n")
            sys.exit(error.exit_code)
        except Exception:  # Python's own exit code 1 would read as a violated claim
            import traceback

            traceback.print_exc()
            sys.exit(ExitCode.ERROR)


if __name__ == "__main__":
    main()
