"""How a command that writes a run directory ends when it is interrupted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from harness.errors import ExitCode


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM unwind what is being written, say what is kept, and end with the table's codes."""

    def leave(_number: int, _frame: object) -> None:
        raise SystemExit(ExitCode.TERMINATED)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        word, code = "interrupted", ExitCode.INTERRUPTED
        if isinstance(error, SystemExit):
            word, code = ("terminated", ExitCode.TERMINATED) if error.code == 143 else (f"{error!r}", ExitCode.ERROR)
        typer.echo("\n".join([word, *getattr(error, "__notes__", [])]), err=True)
        raise typer.Exit(code) from error
    finally:
        signal.signal(signal.SIGTERM, previous)
