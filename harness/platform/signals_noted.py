"""Record the signals that request the end of the command, such as SIGTERM.

The handler of a signal raises an exception. An `except` in a library or in user code may drop this exception, but the
record remains.
"""

from __future__ import annotations

import signal

from harness.errors import ExitCode

CODES = {
    getattr(signal, name): code
    for name, code in (
        ("SIGINT", ExitCode.INTERRUPTED),
        ("SIGTERM", ExitCode.TERMINATED),
        ("SIGHUP", ExitCode.TERMINATED),
    )
    if hasattr(signal, name)
}
noted: list[int] = []


def raise_if_noted() -> None:
    """Raise SystemExit with the exit code of the first recorded signal, if there is one."""
    if noted:
        raise SystemExit(CODES[noted[0]])
