"""Signals that ask the command to end, noted where they arrive: an exception can be swallowed on its way, a note not.

An import, a library or a stranger's `except` may make another exception of the one that a signal raises, or none.
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
    """Raise SystemExit with the first signal's code, where one has come."""
    if noted:
        raise SystemExit(CODES[noted[0]])
