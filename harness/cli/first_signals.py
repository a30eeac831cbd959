"""Record signals that ask the process to end, until the command installs handlers for these signals.

Python's default handler of SIGINT raises an exception in whatever code is running. If that code is the callback of a
weak reference during an import, Python ignores the exception. The command would then continue and exit with 0. This
module uses `_signal`, because the import of `signal` takes 10 ms.
"""

import _signal  # type: ignore[import-not-found]

_found: dict[int, object] = {}
_noted: list[int] = []


def hold() -> None:
    """Record SIGINT, SIGTERM and SIGHUP from now on, instead of acting on them. A signal that the process ignores
    already (as under `nohup`) stays ignored."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(_signal, name, None)
        if number is not None and _signal.getsignal(number) is not _signal.SIG_IGN:
            _found[number] = _signal.signal(number, lambda number, _frame: _noted.append(number))


def release() -> tuple[dict[int, object], list[int]]:
    """Return and forget the signal handlers that `hold` replaced, and the numbers of the signals that arrived since."""
    found, noted = dict(_found), list(_noted)
    _found.clear()
    _noted.clear()
    return found, noted
