"""End a command on SIGINT, SIGTERM or SIGHUP, with the exit code of the first signal.

The first signal raises SystemExit in the main thread, so that the command can complete its files. The signal is also
recorded: if code swallows the SystemExit, the command still ends with the signal's exit code. Later signals are only
recorded, so that they do not interrupt the cleanup. If the command still runs after a grace period, the process is
ended at once.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.cli import first_signals
from harness.errors import ExitCode
from harness.platform.signals_noted import CODES, noted, raise_if_noted
from harness.platform.standard_streams import print_lines

# Seconds from the first signal until the process is ended by force. Judging and writing pages have the longer time.
GRACE_S, LONG_GRACE_S = 10.0, 120.0
_grace: list[float] = [GRACE_S]


@contextmanager
def watched() -> Iterator[None]:
    """Let signals end the command within the `with` block. A signal that was ignored before (as under `nohup`) stays
    ignored.

    A signal that arrived between the start of the process and the `with` block ends this block at once, because
    `first_signals.hold` recorded the signal. After the `with` block, signals raise no exception.
    """
    noted.clear()
    previous: dict[int, Any] = {number: signal.getsignal(number) for number in CODES}
    for number, handler in previous.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _note)
    found, early = first_signals.release()
    previous |= found
    noted.extend(early)
    try:
        raise_if_noted()
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, _while_it_ends(handler) if found else handler)
        raise_if_noted()  # raise again, because code may have replaced or swallowed the exception


def _while_it_ends(handler: Any) -> Any:
    """Return the handler of a signal for the time after the `with` block of `watched`. handler: the signal's handler
    before this block.

    After the block, the signal is ignored if it was ignored before the block, or if an earlier signal has already
    determined the exit code. Otherwise the returned handler ends the process.
    """
    return signal.SIG_IGN if noted or handler is signal.SIG_IGN else _end_now


def _end_now(number: int, _frame: object) -> None:
    os._exit(CODES[number])


@contextmanager
def interruptible(grace_s: float = GRACE_S) -> Iterator[None]:
    """Print which files are kept if a signal ends the `with` block, and exit with the exit code of the signal.

    grace_s: seconds after the signal in which the process must end.
    """
    _grace.append(grace_s)
    try:
        yield
        raise_if_noted()
    except (KeyboardInterrupt, SystemExit) as error:
        word, code = _meaning(error)
        print_lines([word, *getattr(error, "__notes__", [])], sys.stderr)
        raise SystemExit(code) from error
    finally:
        _grace.pop()


def _meaning(error: KeyboardInterrupt | SystemExit) -> tuple[str, ExitCode]:
    code = CODES[signal.SIGINT] if isinstance(error, KeyboardInterrupt) else error.code
    if code == ExitCode.INTERRUPTED:
        return "interrupted", ExitCode.INTERRUPTED
    if code == ExitCode.TERMINATED:
        return "terminated", ExitCode.TERMINATED
    return repr(error), ExitCode.ERROR  # an error ended the process, not a signal


def _note(number: int, _frame: object) -> None:
    noted.append(number)
    if len(noted) == 1:
        # Do not use `threading` in a signal handler: the main thread may hold locks of that module while it is
        # interrupted.
        _thread.start_new_thread(_end_hard, (_grace[-1], CODES[number]))
        raise SystemExit(CODES[number])


def _end_hard(seconds: float, code: int) -> None:
    """End the process without cleanup after `seconds`. Helper processes of the harness then end all other processes
    that the harness started."""
    time.sleep(seconds)
    os._exit(code)
