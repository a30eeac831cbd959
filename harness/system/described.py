"""Get the descriptions of systems from another process, so that this process never runs untrusted code.

One child process (`describing.py`) describes all systems of a command, one after the other. The answers are cached. If
a system ends, blocks or breaks that process, only that system gets an error. A new process then describes the other
systems.

A description is sent as plain JSON values. Sender and receiver check the values strictly, because the system's code and
the child process are untrusted.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

from harness.commits.import_path import ImportPath
from harness.errors import SystemResolutionError
from harness.evidence.modules import is_harness, is_users
from harness.platform.paths import add_working_directory
from harness.processes.child import Child, Ending, Line, start_child
from harness.system.protocol import Expectation, FaultDescription, Scalar, SystemDescription

# Name of a type in a description -> the type. These types are for options without a list of choices.
FREE = {"bool": bool, "int": int, "float": float, "str": str}
MOST_ENTRIES, MOST_CHARACTERS, MOST_INTEGER = 10_000, 10_000, 2**63
T = TypeVar("T")


class NotADescription(ValueError):  # noqa: N818 - an error quotes its message
    """A field does not match `SystemDescription`. The message names the field and its value."""


def to_plain(description: object) -> dict[str, Any]:
    """Return a description as JSON values. Raise `NotADescription` for a value that a description cannot have,
    and any error that reading the description's mappings raises."""
    _exactly(description, SystemDescription, "what describe() returns")
    assert isinstance(description, SystemDescription)  # noqa: S101 - for the type checker
    return {
        "name": _text(description.name, "name"),
        "summary": _text(description.summary, "summary"),
        "models": _sequence(description.models, "models", _text),
        "arm_options": _mapping(description.arm_options, "arm_options", _option),
        "workload_options": _mapping(description.workload_options, "workload_options", _option),
        "capabilities": _set(description.capabilities, "capabilities"),
        "captures": _set(description.captures, "captures"),
        "faults": _mapping(description.faults, "faults", _fault),
    }


def from_plain(plain: Mapping[str, Any]) -> SystemDescription:
    """Return a description from JSON values of `to_plain` (lists become tuples). Raise `NotADescription` for others."""
    try:
        described = SystemDescription(
            name=plain["name"],
            summary=plain["summary"],
            models=tuple(plain["models"]),
            arm_options=_options(plain["arm_options"]),
            workload_options=_options(plain["workload_options"]),
            capabilities=frozenset(plain["capabilities"]),
            captures=frozenset(plain["captures"]),
            faults={name: _fault_of(fault) for name, fault in plain["faults"].items()},
        )
        same = to_plain(described) == plain
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotADescription(f"an answer that does not describe a system: {type(error).__name__}: {error}") from error
    if not same:
        raise NotADescription("an answer with more or fewer fields than a SystemDescription has")
    return described


def _exactly(value: object, kind: type, field: str) -> None:
    if type(value) is not kind:
        raise NotADescription(f"{field}: {_a(value)}, not a {kind.__name__}")


def _a(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _text(value: object, field: str) -> str:
    _exactly(value, str, field)
    text = str(value)
    if len(text) > MOST_CHARACTERS:
        raise NotADescription(f"{field}: {len(text)} characters, but at most {MOST_CHARACTERS} are allowed")
    if text.encode("utf-8", "replace").decode("utf-8") != text:
        raise NotADescription(f"{field}: a text that is not Unicode: {text[:80]!a}")
    return text


def _scalar(value: object, field: str) -> Scalar:
    if type(value) is str:
        return _text(value, field)
    if type(value) not in (bool, int, float):
        raise NotADescription(f"{field}: {_a(value)}, not a bool, int, float or str")
    assert isinstance(value, int | float)  # noqa: S101 - for the type checker
    if isinstance(value, float) and not math.isfinite(value):
        raise NotADescription(f"{field}: {value}, not a finite number")
    if abs(value) >= MOST_INTEGER and isinstance(value, int):
        raise NotADescription(f"{field}: an integer that does not fit into 64 bits")
    return value


def _sequence(value: object, field: str, entry: Callable[[Any, str], T]) -> list[T]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise NotADescription(f"{field}: {_a(value)}, not a tuple or list")
    return [entry(each, f"{field}[{index}]") for index, each in enumerate(_few(value, field))]


def _set(value: object, field: str) -> list[str]:
    if not isinstance(value, AbstractSet):
        raise NotADescription(f"{field}: {_a(value)}, not a frozenset")
    return sorted(_text(each, field) for each in _few(value, field))


def _mapping(value: object, field: str, entry: Callable[[Any, str], T]) -> dict[str, T]:
    if not isinstance(value, Mapping):
        raise NotADescription(f"{field}: {_a(value)}, not a mapping")
    items = _few(value.items(), field)
    return {_text(key, f"a key of {field}"): entry(each, f"{field}.{key}") for key, each in items}


def _few(values: Any, field: str) -> list[Any]:
    entries = list(islice(iter(values), MOST_ENTRIES + 1))
    if len(entries) > MOST_ENTRIES:
        raise NotADescription(f"{field}: more than {MOST_ENTRIES} entries")
    return entries


def _option(value: object, field: str) -> dict[str, Any]:
    """Return an option as JSON: a type's name or a list of choices. Raise `NotADescription` for types not in `FREE`."""
    if isinstance(value, type):
        if FREE.get(value.__name__) is not value:
            raise NotADescription(f"{field}: the type {value.__name__}, not one of {', '.join(FREE)}")
        return {"type": value.__name__}
    return {"choices": _sequence(value, field, _scalar)}


def _options(plain: Mapping[str, Any]) -> dict[str, tuple[Scalar, ...] | type]:
    return {name: FREE[it["type"]] if "type" in it else tuple(it["choices"]) for name, it in plain.items()}


def _one_of(value: object, field: str, choices: Sequence[str]) -> str:
    text = _text(value, field)
    if text not in choices:
        raise NotADescription(f"{field}: {text[:80]!r}, not one of {', '.join(choices)}")
    return text


def _fault(value: object, field: str) -> dict[str, Any]:
    _exactly(value, FaultDescription, field)
    assert isinstance(value, FaultDescription)  # noqa: S101 - for the type checker
    return {
        "name": _text(value.name, f"{field}.name"),
        "summary": _text(value.summary, f"{field}.summary"),
        "plant": _one_of(value.plant, f"{field}.plant", ("candidate", "baseline", "both")),
        "breaks": _mapping(value.breaks, f"{field}.breaks", _expectation),
        "needs": _one_of(value.needs, f"{field}.needs", ("any", "cuda")),
    }


def _fault_of(plain: Mapping[str, Any]) -> FaultDescription:
    breaks = {claim: Expectation(**expected) for claim, expected in plain["breaks"].items()}
    return FaultDescription(**{**plain, "breaks": breaks})


def _expectation(value: object, field: str) -> dict[str, Any]:
    _exactly(value, Expectation, field)
    assert isinstance(value, Expectation)  # noqa: S101 - for the type checker
    return {
        "status": _one_of(value.status, f"{field}.status", ("FAIL", "INCONCLUSIVE", "ERROR")),
        "reason": _text(value.reason, f"{field}.reason"),
        "figures": _mapping(value.figures, f"{field}.figures", _scalar),
    }


Description = SystemDescription | SystemResolutionError
LIMIT_S = 60.0  # seconds for each system; importing a large package from a slow disk takes long
MOST_BYTES = 16 * 2**20  # largest number of bytes of an answer, and of the output that is printed before it
STACK_S = 1.0  # seconds that a hanging process gets to print its stack
ENDING_S = 10.0  # seconds that a process gets to end after it has closed its pipes
SHOWN = 300  # number of characters that an error message shows from the end of the process's output
FRAME = re.compile(r'File "([^"<]+)", line (\d+) in')

_answers: dict[tuple[str, ...], Description] = {}


def describe(name: str) -> SystemDescription:
    """Return the description of the system `name` (`module:attribute`). Raise `SystemResolutionError` if the system
    cannot be described."""
    answer = describe_all([name])[name]
    if isinstance(answer, SystemResolutionError):
        raise answer
    return answer


def describe_all(
    names: Iterable[str], limit_s: float = LIMIT_S, at: ImportPath | None = None
) -> dict[str, Description]:
    """Return, for each name, the system's description or its error. limit_s: seconds for each system (max. `LIMIT_S`).

    at: the import path for the systems of another commit; None for the working tree.
    """
    add_working_directory()  # the child process gets this import path, and so finds systems in the working directory
    wanted = list(dict.fromkeys(names))
    unknown = [name for name in wanted if _key(name, at) not in _answers]
    if unknown:
        answers = _ask(unknown, min(limit_s, LIMIT_S), at)
        _answers.update({_key(name, at): answer for name, answer in answers.items()})
    return {name: _answers[_key(name, at)] for name in wanted}


def known_name(system: str) -> str | None:
    """Return the name from a system's latest description; None if the system was not described. Run no user code."""
    answers = (answer for (name, *_), answer in reversed(_answers.items()) if name == system)
    return next((answer.name for answer in answers if isinstance(answer, SystemDescription)), None)


def _key(name: str, at: ImportPath | None) -> tuple[str, ...]:
    """Return the cache key of an answer. The key contains the import path, because one name can mean different systems
    on different import paths."""
    return (name, os.getcwd(), *sys.path) if at is None else (name, at.folder, *at.path)  # noqa: PTH109


def _ask(names: Sequence[str], limit_s: float, at: ImportPath | None) -> dict[str, Description]:
    """Return the description or error of every system. Start a new process if a system may have damaged the previous
    process."""
    answers: dict[str, Description] = {}
    waiting = list(names)
    while waiting:
        with start_child("harness.system.describing", kept=True) as child:
            child.line.send(json.dumps(None if at is None else asdict(at)))
            describer = _Describer(child)
            answered: dict[str, Description] = {}
            for name in waiting:
                answer = describer.ask(name, limit_s)
                if answer is not None or not answered:
                    answered[name] = answer or describer.problem(name)
                if answer is None:
                    break
        if child.lost_keeper and len(answered) > 1:
            answered = {name: _ask([name], limit_s, at)[name] for name in answered}
        elif child.lost_keeper:
            answered = {name: _error(name, "a process that killed its parent") for name in answered}
        answers |= answered
        waiting = [name for name in waiting if name not in answers]
    return answers


def _error(name: str, got: str) -> SystemResolutionError:
    return SystemResolutionError(
        "importing and describing a system must neither end nor block the process",
        where=name,
        got=got,
        remedy="move heavy work into `open()`; the import of the system and describe() must only name what the system "
        "offers",
    )


class _Describer:
    """A process that describes systems until it fails to answer a request."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._printed, self._received, self._seconds = b"", 0, 0.0
        self._overran = False
        self._ended: Ending | None = None

    def ask(self, name: str, limit_s: float) -> Description | None:
        """Return the system's description or error. Return None if the process gives no answer. `problem` then returns
        the reason."""
        # The process's answer must repeat this number, which a system's code that forges an answer does not know.
        number = secrets.token_hex(8)
        self._printed, self._received, began = b"", 0, time.monotonic()
        self._child.line.send(json.dumps({"name": name, "number": number}))
        answer = self._next(partial(_answer, name, number), began + limit_s)
        self._seconds = time.monotonic() - began
        if isinstance(answer, Ending):
            self._ended = answer
            return None
        return answer

    def _next(self, read: Callable[[str], Description], until: float) -> Description | Ending | None:
        """Return the answer, or an `Ending` if the process sent no valid answer. Return None if the pipe closed, or if
        the time or the printed output reached its limit."""
        while (left := until - time.monotonic()) > 0 and self._received < MOST_BYTES:
            ready = _readable([self._child.line, self._child.output], left)
            if self._child.output in ready:
                self._keep_printed()
            if self._child.line in ready:
                answer = self._child.receive(read, 0.0)
                if answer is not None or self._child.line.ended:
                    return answer
        self._overran = True
        return None

    def _keep_printed(self) -> bool:
        """Read output of the process, and keep only the last 64 KiB. Return True if there was any output."""
        printed = os.read(self._child.output.fileno(), 2**16)
        self._received += len(printed)
        self._printed = (self._printed + printed)[-(2**16) :]
        return bool(printed)

    def problem(self, name: str) -> SystemResolutionError:
        """Return an error that says why the process did not answer: it was too slow, printed too much, or ended."""
        if self._ended is not None and self._ended.code is None:
            got = f"an answer that the harness did not write ({self._ended.problem})"
        elif self._overran:
            used_up = "no answer" if self._received < MOST_BYTES else f"more than {MOST_BYTES // 2**20} MiB of output"
            got = f"{used_up} after {self._seconds:.0f} s{self._place()}"
        else:
            got = f"{self._ending()} and no answer"
            printed = self._printed.decode("utf-8", "replace").strip()
            got += f", and its last output was {printed[-SHOWN:]!r}" if printed else ""
        return _error(name, got)

    def _place(self) -> str:
        """Return ` (file:line)` of the innermost frame outside libraries, where the system's code is blocked. Return ""
        if this place is unknown."""
        self._child.terminate()  # after SIGTERM the process prints its stack
        until = time.monotonic() + STACK_S
        frames: list[tuple[str, str]] = []
        while (left := until - time.monotonic()) > 0 and not (frames and frames[-1][0].endswith("describing.py")):
            if _readable([self._child.output], left) and not self._keep_printed():
                break
            frames = FRAME.findall(self._printed.decode("utf-8", "replace"))
        theirs = [frame for frame in frames if not is_harness(Path(frame[0]))]
        own = [frame for frame in theirs if is_users(Path(frame[0]))] or theirs
        return f" ({':'.join(own[0])})" if own else ""

    def _ending(self) -> str:
        ending = self._child.wait(ENDING_S)
        if ending is None:
            return "the process closed the pipe for its answers"
        while _readable([self._child.output], 0.0) and self._keep_printed():
            pass  # read the rest of the process's output
        return ending.name


def _readable(pipes: Sequence[Line | IO[bytes]], seconds: float) -> list[Line | IO[bytes]]:
    """Wait up to `seconds`. Return the pipes that have data or that the other end has closed."""
    poller = select.poll()
    for pipe in pipes:
        poller.register(pipe.fileno(), select.POLLIN)
    ready = {descriptor for descriptor, _ in poller.poll(seconds * 1e3)}
    return [pipe for pipe in pipes if pipe.fileno() in ready]


def _answer(name: str, number: str, line: str) -> Description:
    """Return the description or error in an answer. Raise `NotADescription` if the answer has a wrong form, or does not
    repeat the request's secret `number`."""
    try:
        answer: Any = json.loads(line)
        if answer["number"] == number and "description" in answer:
            return from_plain(answer["description"])
        error = {key: str(answer["error"][key]) for key in ("rule", "got", "remedy")} | {"where": name}
    except NotADescription:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise NotADescription(f"{type(problem).__name__}: {problem}") from problem
    if answer["number"] != number:
        raise NotADescription("an answer without the secret number of the harness's request")
    return SystemResolutionError(**error)
