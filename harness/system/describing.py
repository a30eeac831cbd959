"""Describe systems in a separate process: `python -m harness.system.describing`.

The process reads JSON from its standard input, one value per line. The first value is null, or the `ImportPath` of the
commit whose systems are described. Each further line is a request: a system's name and a secret number. The answer
contains that number, and the description or an error. Text that a system prints goes to stdout and stderr.

Importing a system executes untrusted code. This code may end or block this process, or change its modules. The parent
process (`described.py`) treats a missing answer as an error.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from json import dumps, loads
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.commits.import_path import ImportPath
from harness.errors import HarnessError, SystemResolutionError
from harness.evidence.modules import is_harness, is_users
from harness.processes.child import take_standard_input
from harness.system.described import NotADescription, to_plain
from harness.system.resolve import resolve
from harness.system.users_code import attribute_place, named, text_of

MOST = 500  # largest number of characters of an error's message in an answer
_exit = os._exit  # keep the original function, because code of a system may replace `os._exit`


def main() -> None:
    """Answer requests until the input ends. Then end this process."""
    line = take_standard_input()
    # The parent sends SIGTERM if an answer takes too long. At SIGTERM this process prints the stack of the code that is
    # blocked.
    faulthandler.register(signal.SIGTERM, os.dup(2), all_threads=False)
    if at := loads(line.receive(None) or "null"):
        ImportPath(**at).use()
    while said := line.receive(None):
        request = loads(said)
        line.send(dumps({"number": request["number"], **_answer(request["name"])}))
    _exit(0)


def _answer(name: str) -> dict[str, Any]:
    system: object = None
    try:
        system = resolve(name)
        return {"description": to_plain(system.describe())}
    except SystemResolutionError as error:
        return _error(error.rule, f"{error.got}{_place(error.__cause__)}", error.remedy)
    except NotADescription as error:
        rule = "describe() must return a SystemDescription with plain values in all of its fields"
        return _error(rule, f"{_short(text_of(error))}{_declared(system, _short(text_of(error)))}")
    except HarnessError as error:
        return _error(error.rule, f"{error.got} ({error.where})", error.remedy)
    except (SystemExit, KeyboardInterrupt) as error:
        rule = "importing and describing a system must not end the process"
        return _error(rule, f"{_short(named(error))}{_place(error)}")
    except BaseException as error:
        rule = "importing and describing a system must not raise an exception"
        return _error(rule, f"{_short(named(error))}{_place(error)}")


def _error(rule: str, got: str, remedy: str = "") -> dict[str, Any]:
    return {"error": {"rule": rule, "got": got, "remedy": remedy}}


def _short(text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= MOST else text[: MOST - 1] + "…"


def _place(error: BaseException | None) -> str:
    """Return ` (file:line)` of the innermost frame in the system's own code; "" if no frame is known."""
    if error is None:
        return ""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}:{error.lineno})"
    frames = _frames(error.__traceback__)
    theirs = [frame for frame in frames if not frame[0].startswith("<frozen ") and not is_harness(Path(frame[0]))]
    own = [frame for frame in theirs if not frame[0].startswith("<") and is_users(Path(frame[0]))] or theirs
    return f" ({own[-1][0]}:{own[-1][1]})" if own else ""


def _declared(system: object, problem: str) -> str:
    """Return ` (file:line)` of the line at which the system's class sets the field that `problem` names. If the class
    does not set this field, return the line of its `describe`; "" if the class has no source or reading it fails."""
    field = re.split(r"[.:\[ ]", problem.removeprefix("a key of "), maxsplit=1)[0]
    with suppress(Exception):  # reading an attribute of untrusted code may raise any exception
        if place := attribute_place(type(system), field, "describe"):
            return f" ({place})"
    return ""


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


if __name__ == "__main__":
    main()
