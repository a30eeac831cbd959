"""Note the signals that ask the command to end where they arrive: an exception can be swallowed, a note cannot.

An import, a library or user code with an `except` may replace or drop the exception that a signal raises.
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
    """Raise SystemExit with the code of the first signal that was noted, if there was one."""
    if noted:
        raise SystemExit(CODES[noted[0]])
