"""What fuzzing changes: bytes of a file, and values of a document. Hypothesis draws the changes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

Change = tuple[int, str, bytes, int]  # a place, what to do there, with which piece, how often
Damage = tuple[int, str, Any]  # a place in a document, what to do there, with which value
PIECES = [
    *(b"\0", b"\n", b"\r", b"\t", b" ", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\x85", b"\x1b["),
    *(b"'", b'"', b"[", b"]", b"{", b"}", b": ", b"- ", b"? ", b"&a ", b"*a", b"!!python/object:os ", b"|", b"%"),
    *(b",", b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"0x", b"1" * 40, b"9" * 30, b"\\ud800", b"../"),
    *(b"/*", b"*/", b"//", b".target ", b".version ", b".entry ", b"sm_90a", b"compute_", b"<a>", b"::", b"##["),
]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 0.0, -0.0, 1e-300, 1e300, "", " ", "x", "a" * 5_000, "\0"),
    *("\ud7ff", "\u202e", "1", "within", "bitwise", "composite", "capture", "F-CGT-001", "sm_90", "../x", "a:b"),
    *([], [1], [[]], ["x"] * 3, {}, {"kind": "capture"}, {"a": {"b": [None]}}, {"exactly": 0}, {"int": 1}, [{}] * 3),
]
WHAT = ("insert", "replace", "delete", "repeat", "swap", "cut", "flip")
OFTEN = (*[1] * 20, *[2, 5] * 8, *[100] * 3, 10_000, 100_000)
TO_A_VALUE = ("replace", "replace", "replace", "remove", "rename", "double", "move", "nest")


def _changes(drawn: bytes) -> list[Change]:
    """Seven bytes a change: one draw of bytes costs hypothesis a tenth of a draw of lists."""
    rows = (drawn[at : at + 7] for at in range(0, len(drawn) - 6, 7))
    return [
        (
            int.from_bytes(row[:4], "big"),
            WHAT[row[4] % len(WHAT)],
            PIECES[row[5]] if row[5] < len(PIECES) else row[5:6],
            OFTEN[row[6] % len(OFTEN)],
        )
        for row in rows
    ]


def _damages(drawn: bytes) -> list[Damage]:
    """Six bytes a damage."""
    rows = (drawn[at : at + 6] for at in range(0, len(drawn) - 5, 6))
    return [
        (
            int.from_bytes(row[:4], "big"),
            TO_A_VALUE[row[4] % len(TO_A_VALUE)],
            VALUES[row[5]] if row[5] < len(VALUES) else (row[5] - 150) * row[3],
        )
        for row in rows
    ]


CHANGES = st.binary(min_size=7, max_size=35).map(_changes)
DAMAGES = st.binary(min_size=6, max_size=24).map(_damages)
MOST_BYTES = 3 * 2**20  # of a mutated file: beyond every limit of a reader of text


def changed(content: bytes, changes: Sequence[Change]) -> bytes:
    """The bytes with each change made, one after the other."""
    for place, what, piece, often in changes:
        at = place % (len(content) + 1)
        until = min(len(content), at + 1 + place // 7 % 40)
        more = {
            "insert": lambda: content[:at] + piece * often + content[at:],  # noqa: B023 - called at once
            "replace": lambda: content[:at] + piece + content[at + len(piece) :],  # noqa: B023
            "delete": lambda: content[:at] + content[until:],  # noqa: B023
            "repeat": lambda: content[:until] + content[at:until] * often + content[until:],  # noqa: B023
            "swap": lambda: content[until:] + content[:at],  # noqa: B023
            "cut": lambda: content[:at],  # noqa: B023
            "flip": lambda: content[:at] + bytes(255 - byte for byte in content[at:until]) + content[until:],  # noqa: B023
        }[what]()
        content = more[:MOST_BYTES]
    return content


def damaged(document: Any, damages: Sequence[Damage]) -> Any:
    """A copy of the document with each damage done, at a place that the number chooses."""
    document = copy.deepcopy(document)
    for place, what, value in damages:
        places = list(_places(document))
        if not places:
            return value
        inner, key = places[place % len(places)]
        _damage(inner, key, what, copy.deepcopy(value), places[place // 3 % len(places)])
    return document


def _damage(inner: Any, key: Any, what: str, value: Any, other: tuple[Any, Any]) -> None:
    if what == "remove":
        del inner[key]
    elif what == "rename" and isinstance(inner, dict):
        inner[str(value)[:200]] = inner.pop(key)
    elif what == "double" and isinstance(inner, list):
        inner.insert(key, copy.deepcopy(inner[key]))
    elif what == "move":
        inner[key] = copy.deepcopy(other[0].get(other[1]) if isinstance(other[0], dict) else other[0][other[1]])
    elif what == "nest":
        inner[key] = [inner[key]]
    else:
        inner[key] = value


def _places(value: Any) -> Any:
    """Each container with each of its keys, depth first."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])
