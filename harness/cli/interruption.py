"""End a command that is asked to end: SIGINT, SIGTERM and SIGHUP end it with the table's codes, and once.

The first signal raises SystemExit in the main thread, which unwinds what is being written. The signal is noted, too: if
something swallows the exception, the command still ends with the signal's code. Later signals are only noted, so that
they cut off nothing that the first has begun. A command that has not ended some seconds after the first ends hard.
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

GRACE_S, LONG_GRACE_S = 10.0, 120.0  # from the first signal to a hard end; the long one judges and draws pages
_grace: list[float] = [GRACE_S]


@contextmanager
def watched() -> Iterator[None]:
    """Let signals end the command within the block. A signal that was ignored before it (nohup) stays ignored.

    A signal that came since the process's first line (`first_signals`) ends it at once. A process that noted signals
    from there on runs this command alone, and after the block it only ends: there a signal raises nothing.
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
        raise_if_noted()  # also where something has made another exception of it, or none


def _while_it_ends(handler: Any) -> Any:
    """Return the handler for the interpreter's end: a signal behind an earlier one, whose code stands, does nothing."""
    return signal.SIG_IGN if noted or handler is signal.SIG_IGN else _end_now


def _end_now(number: int, _frame: object) -> None:
    os._exit(CODES[number])


@contextmanager
def interruptible(grace_s: float = GRACE_S) -> Iterator[None]:
    """Print what is kept if the block is interrupted, and end with the table's code, within `grace_s` seconds."""
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
    return repr(error), ExitCode.ERROR  # something else has ended the process


def _note(number: int, _frame: object) -> None:
    noted.append(number)
    if len(noted) == 1:
        # not by `threading`: the signal may have come while the main thread holds its locks
        _thread.start_new_thread(_end_hard, (_grace[-1], CODES[number]))
        raise SystemExit(CODES[number])


def _end_hard(seconds: float, code: int) -> None:
    """End the process hard after `seconds`; the keepers of its processes see that, and leave nothing behind."""
    time.sleep(seconds)
    os._exit(code)
