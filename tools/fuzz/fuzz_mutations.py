"""The changes that fuzzing makes to bytes of a file and to values of a document.

The changes are determined by a row of random bytes, which hypothesis draws quickly.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence
from typing import Any

# A change of bytes: a position, the kind of change, the piece of bytes to use, and the number of repetitions.
Change = tuple[int, str, bytes, int]
Damage = tuple[int, str, Any]  # a change of a document (JSON values): a position, the kind of change, the value to use
PIECES = [
    *(b"\0", b"\n", b"\r", b"\t", b" ", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\x85", b"\x1b["),
    *(b"'", b'"', b"[", b"]", b"{", b"}", b": ", b"- ", b"? ", b"&a ", b"*a", b"!!python/object:os ", b"|", b"%"),
    *(b",", b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"0x", b"1" * 40, b"9" * 30, b"\\ud800", b"../"),
    *(b"/*", b"*/", b"//", b".target ", b".version ", b".entry ", b"sm_90a", b"compute_", b"<a>", b"::", b"##["),
    *(b"{},", b"[],", b'"",', b'"a":[],', b'{"":{}},', b"- {}\n", b"? \n", b"\n "),
]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 0.0, -0.0, 1e-300, 1e300, "", " ", "x", "a" * 5_000, "\0"),
    *("\ud7ff", "\u202e", "1", "within", "bitwise", "composite", "capture", "F-CGT-001", "sm_90", "../x", "a:b"),
    *([], [1], [[]], ["x"] * 3, {}, {"kind": "capture"}, {"a": {"b": [None]}}, {"exactly": 0}, {"int": 1}, [{}] * 3),
]
WHAT = ("insert", "replace", "delete", "repeat", "swap", "cut", "flip")
OFTEN = (*[1] * 20, *[2, 5] * 8, *[100] * 3, 10_000, 100_000)
TO_A_VALUE = ("replace", "replace", "replace", "remove", "rename", "double", "move", "nest")
NUMBERS = (0, 1, 2, 3, 7, 10**6, 2**31, -1, 0.5, 1e-9, 1e9, 0.999999)
ROW = 40  # number of bytes that determine one input completely
_CHOICES = 5  # bytes at the start of a row that determine no change; the caller chooses file and reader by them
MOST_BYTES = 3 * 2**20  # largest size of a changed file in bytes; readers of text have smaller limits


def changes(row: bytes) -> list[Change]:
    """Return one to five changes, each determined by seven bytes of the row."""
    parts = (row[at : at + 7] for at in range(_CHOICES, _CHOICES + 7 * (1 + row[-1] % 5), 7))
    return [
        (
            int.from_bytes(part[:4], "big"),
            WHAT[part[4] % len(WHAT)],
            PIECES[part[5]] if part[5] < len(PIECES) else part[5:6],
            OFTEN[part[6] % len(OFTEN)],
        )
        for part in parts
    ]


def damages(row: bytes) -> list[Damage]:
    """Return one to four damages (changes of a document), each determined by six bytes of the row."""
    parts = (row[at : at + 6] for at in range(_CHOICES, _CHOICES + 6 * (1 + row[-1] % 4), 6))
    return [
        (
            int.from_bytes(part[:4], "big"),
            TO_A_VALUE[part[4] % len(TO_A_VALUE)],
            VALUES[part[5]] if part[5] < len(VALUES) else (part[5] - 150) * part[3],
        )
        for part in parts
    ]


_HOW: dict[str, Callable[[bytes, int, int, bytes, int], bytes]] = {
    "insert": lambda content, at, _, piece, often: content[:at] + piece * often + content[at:],
    "replace": lambda content, at, _, piece, __: content[:at] + piece + content[at + len(piece) :],
    "delete": lambda content, at, until, _, __: content[:at] + content[until:],
    "repeat": lambda content, at, until, _, often: content[:until] + content[at:until] * often + content[until:],
    "swap": lambda content, at, until, _, __: content[until:] + content[:at],
    "cut": lambda content, at, _, __, ___: content[:at],
    "flip": lambda content, at, until, _, __: (
        content[:at] + bytes(255 - byte for byte in content[at:until]) + content[until:]
    ),
}


def changed(content: bytes, each: Sequence[Change]) -> bytes:
    """Return the content after all changes. Each change applies to the result of the change before it."""
    for place, what, piece, often in each:
        at = place % (len(content) + 1)
        until = min(len(content), at + 1 + place // 7 % 40)
        content = _HOW[what](content, at, until, piece, often)[:MOST_BYTES]
    return content


def damaged(document: Any, each: Sequence[Damage]) -> Any:
    """Return a copy of the document with all damages. The position in a damage selects a place in the document."""
    document = _copy(document)
    for place, what, value in each:
        places = _places(document)
        if not places:
            return value
        inner, key = places[place % len(places)]
        _damage(inner, key, what, _copy(value), places[place // 3 % len(places)])
    return document


def altered(document: Any, row: bytes, others: Any) -> Any:
    """Return a copy of the document with one to three values altered so that it probably stays valid. An alteration
    replaces a value by one of `others` with the same key and type, changes a number, or drops or repeats an item."""
    document = _copy(document)
    known = _places(others)
    for at in range(_CHOICES, _CHOICES + 6 * (1 + row[-1] % 3), 6):
        places = _places(document)
        place, what, other = int.from_bytes(row[at : at + 4], "big"), row[at + 4], row[at + 5]
        inner, key = places[place % len(places)]
        value = inner[key]
        if isinstance(value, int | float) and not isinstance(value, bool) and what % 2:
            inner[key] = NUMBERS[other % len(NUMBERS)]
        elif isinstance(inner, list) and what % 3 == 0:
            _damage(inner, key, "remove" if other % 2 else "double", None, (inner, key))
        else:
            alike = [one[key] for one, name in known if name == key and type(one[key]) is type(value)]
            inner[key] = _copy(alike[(place // 7 + other) % len(alike)]) if alike else value
    return document


def _copy(value: Any) -> Any:
    return marshal.loads(marshal.dumps(value))  # noqa: S302 - the fastest copy of plain data, a tenth of deepcopy's time


def _damage(inner: Any, key: Any, what: str, value: Any, other: tuple[Any, Any]) -> None:
    if what == "remove":
        del inner[key]
    elif what == "rename" and isinstance(inner, dict):
        inner[str(value)[:200]] = inner.pop(key)
    elif what == "double" and isinstance(inner, list):
        inner.insert(key, _copy(inner[key]))
    elif what == "move":
        inner[key] = _copy(other[0].get(other[1]) if isinstance(other[0], dict) else other[0][other[1]])
    elif what == "nest":
        inner[key] = [inner[key]]
    else:
        inner[key] = value


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Return all pairs of a container in the document and one of its keys or indices."""
    places, containers = [], [document]
    while containers:
        container = containers.pop()
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, value in items if isinstance(container, dict | list) else ():
            places.append((container, key))
            if isinstance(value, dict | list):
                containers.append(value)
    return places
