"""Note signals that ask a process to end, from its first line until the command's own handlers stand.

Python's own handler of SIGINT raises wherever the process is. Imports have places that swallow what is raised (the
callbacks of weak references): the command went on, and ended with 0. Importing `signal` takes 10 ms; this does not.
"""

import _signal  # type: ignore[import-not-found]

_found: dict[int, object] = {}
_noted: list[int] = []


def hold() -> None:
    """Note SIGINT, SIGTERM and SIGHUP from now on. A signal that is ignored (nohup) stays ignored."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(_signal, name, None)
        if number is not None and _signal.getsignal(number) is not _signal.SIG_IGN:
            _found[number] = _signal.signal(number, lambda number, _frame: _noted.append(number))


def release() -> tuple[dict[int, object], list[int]]:
    """Return the handlers that `hold` found and the signals that came since, and forget both here."""
    found, noted = dict(_found), list(_noted)
    _found.clear()
    _noted.clear()
    return found, noted
