"""Read YAML strictly: accept only scalars of the YAML 1.2 core schema, and no aliases, tags or duplicate keys.

The position of each value is stored. The limits of depth and of the number of values are checked on the stream of YAML
events, before values are built from the events. PyYAML's composer would overflow the stack at a depth of 2,000, and
would take seconds at a depth of 20,000.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import yaml

from harness.errors import ContractError

# The code below finds plain scalars that YAML 1.1 and YAML 1.2 read differently, and suggests a spelling that both read
# alike.
#
# PyYAML and most tools for YAML files read YAML 1.1. They read `on` as true, `1e-5` as a string, `010` as eight, `1:30`
# as ninety, and `2026-01-01` as a date.

MAX_NUMBER_LENGTH = 100
_RESOLVER: Any = yaml.resolver.Resolver()
_CONSTRUCTOR = yaml.constructor.SafeConstructor()
# First characters of plain scalars that YAML 1.1 or YAML 1.2 may read as something other than a string.
FIRST_CHARACTERS = frozenset(key for key in yaml.resolver.Resolver.yaml_implicit_resolvers if key)
# the standard of YAML 1.1 reads these words as booleans, but PyYAML does not
_TRUTH_VALUES = frozenset({"y", "Y", "n", "N"})
_FLOAT_PARTS = re.compile(r"(?P<sign>[-+]?)(?P<whole>[0-9]*)\.?(?P<rest>[0-9]*)(?:[eE](?P<exponent>[-+]?[0-9]+))?")


@lru_cache(maxsize=4096)
def portable(text: str, value: object) -> str | None:
    """Return a spelling that YAML 1.1 and 1.2 read alike, for a plain scalar that they read differently. Return None if
    both versions read the scalar alike. value: the scalar's value in YAML 1.2."""
    if text not in _TRUTH_VALUES and _reads_alike(text, value):
        return None
    if isinstance(value, str):
        return f'"{text}"'
    return _float_text(text) if isinstance(value, float) else str(value)


def number_of_text(text: str) -> str | None:
    """Return a number in a spelling that YAML 1.1 and 1.2 read alike, for a text that looks like a number, such as
    `1_000` or "1e-5". Return None for other texts."""
    bare = text.strip().replace("_", "")
    found = _FLOAT_PARTS.fullmatch(bare) if len(bare) <= MAX_NUMBER_LENGTH else None
    if found is None or not found["whole"] + found["rest"]:
        return None
    return str(int(bare)) if bare.lstrip("+-").isdigit() else _float_text(bare)


def _reads_alike(text: str, value: object) -> bool:
    tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))
    try:
        theirs = _CONSTRUCTOR.construct_object(yaml.ScalarNode(tag, text))
    except (yaml.YAMLError, ValueError):  # the text looks like a date but is not a valid date, or is `=`
        return False
    return type(theirs) is type(value) and bool(theirs == value)


def _float_text(text: str) -> str:
    """Return a number in a form that YAML 1.1 reads as a float.

    The form has digits around the point and a signed exponent.
    """
    found = _FLOAT_PARTS.fullmatch(text)
    if found is None:  # cannot happen, because the reader recognizes floats by the same pattern
        raise ValueError(f"`{text}` is not a float")
    exponent = found["exponent"]
    tail = "" if exponent is None else f"e{exponent if exponent[0] in '+-' else f'+{exponent}'}"
    return f"{found['sign']}{found['whole'] or 0}.{found['rest'] or 0}{tail}"


MAX_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_NODES = 50_000
MOST_ERRORS = 100  # largest number of errors that are listed for one file
MOST_NAMES = 200  # largest number of known names with which a wrong name is compared

Key = str | int
Position = tuple[int, int]

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NON_FINITE = re.compile(r"[-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN")
_TAB_INDENTATION = re.compile(r"^ *\t", re.MULTILINE)
_CONTROL = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Unportable:
    """A plain scalar (key or value) that YAML 1.1 and 1.2 read differently. instead: a spelling both read alike."""

    position: Position
    text: str
    instead: str

    def remedy(self) -> str:
        """Return the remedy for an error message. If the text looks like a number (`1_000`), the remedy suggests this
        number first."""
        number = number_of_text(self.text) if self.instead.startswith('"') else None
        return f"write `{self.instead}`" if number is None else f"write `{number}`, or `{self.instead}` for a text"


@dataclass(frozen=True)
class Document:
    """One YAML document with plain Python values and the position of each value. Lines and columns are counted from 1.

    written: the keys that this document's version of the language calls differently: name in version 2 -> name in this
    document. origins: for each workload or arm from a shared file, the document of this file, by section and name.
    """

    where: str
    text: str
    value: Any
    keys: dict[tuple[Key, ...], Position]
    values: dict[tuple[Key, ...], Position]
    unportable: Sequence[Unportable] = ()
    written: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[tuple[str, str], Document] = field(default_factory=dict)

    def position(self, path: tuple[Key, ...], *, of_key: bool = False) -> Position:
        """Return the position of the value at `path`, or of its key. If the file does not contain the value, return the
        position of the nearest parent that the file contains."""
        origin = self.origin_of(path)
        if origin is not None:
            return origin.position(path, of_key=of_key)
        if of_key and path in self.keys:
            return self.keys[path]
        while path not in self.values:
            path = path[:-1]
        return self.values[path]

    def at(self, path: tuple[Key, ...]) -> Any:
        """Return the value at a path. The value must exist."""
        value = self.value
        for key in path:
            value = value[key]
        return value

    def cut(self, errors: Sequence[ContractError], total: int) -> list[ContractError]:
        """Return at most `MOST_ERRORS` errors. If there are more, the last returned error states how many are left out.
        total: the number of all errors, including errors that are not in `errors`."""
        shown = list(errors[:MOST_ERRORS])
        if total > len(shown):
            remedy = "fix the errors above first"
            shown.append(
                ContractError(f"{total - len(shown)} more errors in this file", where=self.where, remedy=remedy)
            )
        return shown

    def error(
        self, path: tuple[Key, ...], rule: str, *, got: str = "", remedy: str = "", of_key: bool = False
    ) -> ContractError:
        """Return a ContractError at the position of `path`. Its text names keys as they are called in the document's
        version of the language."""
        line, column = self.position(path, of_key=of_key)
        where = self.file_of(path)
        for key, word in self.written.items():
            rule, remedy = (re.sub(rf"\b{key}\b", word, text) for text in (rule, remedy))
        return ContractError(rule, where=f"{where}:{line}:{column}", got=got, remedy=remedy)

    def file_of(self, path: tuple[Key, ...]) -> str:
        """Return the name of the file that defines the value at a path."""
        origin = self.origin_of(path)
        return self.where if origin is None else origin.where

    def origin_of(self, path: tuple[Key, ...]) -> Document | None:
        """Return the shared document that defines the value at a path, or None if this document defines it."""
        return self.origins.get((str(path[0]), str(path[1]))) if self.origins and len(path) > 1 else None

    def unportable_errors(self, instead: Mapping[Position, str] = MappingProxyType({})) -> list[ContractError]:
        """Return an error for each scalar that YAML 1.1 reads differently. instead: spellings to suggest, by position
        of the scalar."""
        errors = [
            ContractError(
                "a value must mean the same to every YAML reader",
                where=f"{self.where}:{found.position[0]}:{found.position[1]}",
                got=f"`{found.text}`, which YAML 1.1 reads differently",
                remedy=f"write `{instead[found.position]}`" if found.position in instead else found.remedy(),
            )
            for found in self.unportable[:MOST_ERRORS]
        ]
        return self.cut(errors, len(self.unportable))


def read(path: Path, what: str = "a contract") -> Document:
    """Read one YAML file. Raises ContractError with file, line, column, rule, wrong value and remedy. what: the words
    that messages use for the file."""
    return parse(read_text(path, what), where=str(path), what=what)


def read_text(path: Path, what: str = "a contract") -> str:
    """Return the text of a UTF-8 file of at most `MAX_BYTES`. Raises ContractError for any other file. A pipe or a
    device is refused without opening it."""
    where = str(path)
    try:
        if path.is_dir():
            raise ContractError(f"{what} must be a file", where=where, got="a directory")
        if path.is_symlink() and not path.exists():
            fix_link = "fix the link, or remove it"
            raise ContractError(
                f"{what} must be a file", where=where, got="a link to a file that does not exist", remedy=fix_link
            )
        if not path.exists():
            raise ContractError("no such file", where=where, remedy="check the path")
        if not path.is_file():
            raise ContractError(f"{what} must be a regular file", where=where, got="a pipe, a socket or a device")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ContractError("cannot read the file", where=where, got=reason) from error
    if len(data) > MAX_BYTES:
        raise ContractError(
            f"{what} must have at most {MAX_BYTES} bytes", where=where, got="a larger file", remedy="split it"
        )
    if data.startswith(b"\xef\xbb\xbf"):
        raise ContractError(
            "the file must not begin with a byte order mark",
            where=f"{where}:1:1",
            got="a UTF-8 BOM",
            remedy="save as UTF-8 without BOM",
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise ContractError(
            f"{what} must be UTF-8",
            where=f"{where}:{line}:{column}",
            got=f"byte 0x{data[error.start]:02x}",
            remedy="save as UTF-8",
        ) from error


def parse(text: str, *, where: str = "<text>", what: str = "a contract") -> Document:
    """Read one YAML document from a string. where: the file's name in errors; what: the word for the file in errors."""
    for pattern, forbidden_character, remedy in (
        (_CONTROL, "the file must not contain control characters", "remove it"),
        (_TAB_INDENTATION, "indentation must not contain tabs", "indent with spaces"),
    ):
        match = pattern.search(text)
        if match:
            at = match.end() - 1
            line = text.count("\n", 0, at) + 1
            column = at - text.rfind("\n", 0, at)
            code_point = f"U+{ord(text[at]):04X}"
            raise ContractError(forbidden_character, where=f"{where}:{line}:{column}", got=code_point, remedy=remedy)
    return _Reader(text, where, what).document()


def nearest(name: object, names: Iterable[str]) -> str:
    """Return `did you mean 'x'?` with the most similar of the known names, or else a list of all known names. Return ""
    if there are no known names, or more than `MOST_NAMES`."""
    known = sorted(islice(dict.fromkeys(names), MOST_NAMES + 1))
    if len(known) > MOST_NAMES:  # to compare so many names would take seconds, and to list them would fill pages
        return ""
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"use one of: {', '.join(known)}" if known else ""


def events(text: str) -> Callable[[], Any]:
    """Return a function that returns the next YAML event of the text at each call.

    The function uses libyaml's parser if PyYAML was built with it, because that parser is faster.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    get_event: Callable[[], Any] = loader(text).get_event
    return get_event


class _Reader:
    """Builds the values of one document from its YAML events, outer values first."""

    def __init__(self, text: str, where: str, what: str) -> None:
        self.text, self.where, self.what = text, where, what
        self.get_event = events(text)
        self.keys: dict[tuple[Key, ...], Position] = {}
        self.values: dict[tuple[Key, ...], Position] = {}
        self.unportable: list[Unportable] = []
        self.nodes = 0

    def document(self) -> Document:
        self._next()  # skip the event of the stream's start
        event = self._next()
        if isinstance(event, yaml.StreamEndEvent):
            raise ContractError(f"{self.what} must not be empty", where=f"{self.where}:1:1", got="an empty file")
        if event.version or event.tags:
            self._refuse(event, "the file must not use YAML directives", remedy="remove the line that begins with %")
        value = self._node(self._next(), ())
        self._next()  # skip the event of the document's end
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            self._refuse(
                event,
                "a file must contain only one document",
                got="a second one",
                remedy="use one file for each document",
            )
        return Document(self.where, self.text, value, self.keys, self.values, self.unportable)

    def _next(self) -> Any:
        try:
            return self.get_event()
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{self.where}:{mark.line + 1}:{mark.column + 1}" if mark else self.where
            problem = str(getattr(error, "problem", None) or error)
            rule, got = "the file must be well-formed YAML", problem.removeprefix("found ")
            if got == problem:  # PyYAML's text does not begin with "found ", as in `did not find expected key`
                rule, got = f"{rule}: {problem}", ""
            raise ContractError(rule, where=where, got=got) from error

    def _node(self, event: Any, path: tuple[Key, ...]) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self._refuse(event, f"{self.what} must have at most {MAX_NODES} values", got="more")
        if isinstance(event, yaml.AliasEvent):
            self._refuse(
                event, "the file must not use YAML aliases", got=f"*{event.anchor}", remedy="write the value itself"
            )
        if event.anchor is not None:
            self._refuse(event, "the file must not use YAML anchors", got=f"&{event.anchor}", remedy="remove it")
        if event.tag is not None:
            self._refuse(event, "the file must not use YAML tags", got=str(event.tag), remedy="remove it")
        self.values[path] = (event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, yaml.ScalarEvent):
            return event.value if event.style else self._plain(event)
        if len(path) >= MAX_DEPTH:
            self._refuse(event, f"values must be nested at most {MAX_DEPTH} deep", got="a deeper one")
        return self._mapping(path) if isinstance(event, yaml.MappingStartEvent) else self._sequence(path)

    def _sequence(self, path: tuple[Key, ...]) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._node(event, (*path, len(items))))
        return items

    def _mapping(self, path: tuple[Key, ...]) -> dict[str, Any]:
        items: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._node(event, (*path, "\0key"))
            if not isinstance(key, str):
                self._refuse(event, "a key must be a string", got=_shown(event), remedy="quote it")
            here = (*path, key)
            if key in items:
                line, _ = self.keys[here]
                remedy = f"keep one: the key is already defined in line {line}"
                self._refuse(event, "keys must be unique", got=f"'{key}' again", remedy=remedy)
            self.keys[here] = self.values[*path, "\0key"]
            items[key] = self._node(self._next(), here)
        self.values.pop((*path, "\0key"), None)
        return items

    def _plain(self, event: Any) -> Any:
        """Return the value of a plain scalar. If YAML 1.1 reads the scalar as another value, add it to `unportable`."""
        text: str = event.value
        if text and text[0] not in FIRST_CHARACTERS:
            return text
        value = self._by_core_schema(event, text)
        instead = portable(text, value)
        if instead is not None:
            start = event.start_mark
            self.unportable.append(Unportable((start.line + 1, start.column + 1), text, instead))
        return value

    def _by_core_schema(self, event: Any, text: str) -> Any:
        """Return a scalar's value by the YAML 1.2 core schema. For example, `1e-5` is a float, and `no` is a string.
        Dates, and numbers such as `1:30`, are strings."""
        if text in _BOOL:
            return _BOOL[text]
        if _NULL.fullmatch(text):
            return None
        if _NON_FINITE.fullmatch(text):
            self._refuse(event, "numbers must be finite", got=text)
        integer = _INT.fullmatch(text)
        if not integer and not _FLOAT.fullmatch(text):
            return text
        if len(text) > MAX_NUMBER_LENGTH:
            got = f"{len(text)} characters"
            self._refuse(event, f"a number must have at most {MAX_NUMBER_LENGTH} characters", got=got)
        if integer:
            number = int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
            # systems, and most programs that read records, accept only integers of 64 bits
            if not -(2**63) <= number < 2**63:
                remedy = f"write a smaller number, or a float: `{number}.0`"
                self._refuse(event, "a whole number must have at most 64 bits", got=text, remedy=remedy)
            return number
        if not math.isfinite(real := float(text)):
            self._refuse(event, "numbers must be finite", got=f"{text}, which is beyond the largest float")
        return real

    def _refuse(self, event: Any, rule: str, *, got: str = "", remedy: str = "") -> NoReturn:
        mark = event.start_mark
        where = f"{self.where}:{mark.line + 1}:{mark.column + 1}"
        raise ContractError(rule, where=where, got=got, remedy=remedy)


def _shown(event: Any) -> str:
    return str(event.value) if isinstance(event, yaml.ScalarEvent) else "a list or a mapping"
