"""What a process does first: it notes signals that ask it to end, until the command's own handlers stand.

Python's own handler of SIGINT raises wherever the process is, and imports have places that swallow what is raised (the
callbacks of weak references): the command went on, and ended with 0. `signal` itself imports for 10 ms; this does not.
"""

import _signal  # type: ignore[import-not-found]

_found: dict[int, object] = {}
_noted: list[int] = []


def hold() -> None:
    """Note these signals from now on. One that is ignored (nohup) stays so."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(_signal, name, None)
        if number is not None and _signal.getsignal(number) is not _signal.SIG_IGN:
            _found[number] = _signal.signal(number, lambda number, _frame: _noted.append(number))


def release() -> tuple[dict[int, object], list[int]]:
    """The handlers that `hold` found, and the signals that came since; both are forgotten here."""
    found, noted = dict(_found), list(_noted)
    _found.clear()
    _noted.clear()
    return found, noted
