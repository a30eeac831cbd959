"""Record signals that ask a process to end, until the command's handlers are installed.

Python's default handler of SIGINT raises an exception anywhere in the code. During imports, callbacks of weak
references can swallow this exception. The command would then continue and exit with 0. This module uses `_signal`,
because the import of `signal` takes 10 ms.
"""

import _signal  # type: ignore[import-not-found]

_found: dict[int, object] = {}
_noted: list[int] = []


def hold() -> None:
    """Record SIGINT, SIGTERM and SIGHUP from now on. A signal that was ignored before (nohup) stays ignored."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(_signal, name, None)
        if number is not None and _signal.getsignal(number) is not _signal.SIG_IGN:
            _found[number] = _signal.signal(number, lambda number, _frame: _noted.append(number))


def release() -> tuple[dict[int, object], list[int]]:
    """Return the handlers that `hold` replaced, and the signals that arrived since then. Both records are cleared."""
    found, noted = dict(_found), list(_noted)
    _found.clear()
    _noted.clear()
    return found, noted
