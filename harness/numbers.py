"""Write numbers to JSON in a uniform way. Non-finite numbers become strings, and computed figures are rounded to 12
digits.

JSON has no NaN, and common writers turn infinity into null. A reader could then not distinguish a loss that diverged
from a missing loss. Computed figures are rounded so that two machines write the same bytes.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

_TAGS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: float) -> float | str:
    """Return a finite float unchanged, and any other float as a string (`NaN`, `Infinity`, `-Infinity`)."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def decode(value: object) -> object:
    """Return the float for a string that `encode` returned. Return any other value unchanged; pydantic validates
    the returned value."""
    return _TAGS.get(value, value) if isinstance(value, str) else value


def _not_negative(value: float) -> float:
    if value < 0:  # NaN is accepted here, because the judges decide what it means
        raise ValueError(f"{value} is negative, but this number cannot be negative")
    return value


def counted(number: int, noun: str) -> str:
    """Return a number and its noun in the right form: `1 fault`, `2 faults`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# After these nouns a number is an index, as in `rank 1`, and not a count.
_INDEXED = "block|lane|layer|measurement|output|process|rank|repetition|round|run|seed|step|version"
_VERBS = {" were": " was", " are": " is", " have": " has", " do": " does"}
_VERBS |= {f" {verb}": f" {verb}s" for verb in ("differ", "exceed", "leave", "lie")}
# Words that are not plural nouns, although most of them end in `s`.
_NO_NOUN = "as|differs|does|ends|has|its|lies|ms|proves|times|was"
_ONE_OF_MANY = re.compile(
    rf"(?:\b(?:(?P<index>{_INDEXED})|(?<![\d.,=-])(?P<share>[01] of)|(?P<within>after|by|for|in|of|over|with)) )?"
    rf"(?<![\d.,=-])\b1 (?P<kind>(?:[a-z]+ )??)(?P<noun>(?!(?:{_NO_NOUN})\b)[a-z-]*[a-z](?<![isu])s)\b"
    rf"(?:(?P<of>(?: of (?:[\d,]+|the)(?: [a-z]+)??)?)(?P<verb>{'|'.join(_VERBS)})\b)?"
)
_ONE_IS = re.compile(r"(?<![\d.,=-])\b1 are (?=(?:allowed|needed|recorded|required)\b)")


def agreed(sentence: str) -> str:
    """Return the sentence with nouns and verbs in the singular after a 1: `1 captures of 44 nodes` -> `1 capture of 44
    nodes`.

    Every sentence of a judge passes through this function, so judges need not choose the forms of nouns and verbs. Text
    in quotes or backquotes remains unchanged.
    """
    parts = re.split(r"(\"[^\"]*\"|`[^`]*`|“[^”]*”)", sentence)
    parts[::2] = [
        _ONE_IS.sub("1 is ", re.sub(r"\b(replayed|called|fell) 1 times\b", r"\1 once", _ONE_OF_MANY.sub(_as_one, part)))
        for part in parts[::2]
    ]
    return "".join(parts)


def _as_one(found: re.Match[str]) -> str:
    if found["index"]:  # the number is an index and not a count, as in `at step 1 losses differ`
        return found[0]
    verb, begins = found["verb"] or "", found["share"] or found["within"] or ""
    agreeing = verb if found["within"] else _VERBS.get(verb, verb)
    noun = found["noun"][: -2 if found["noun"].endswith(("ches", "shes", "sses", "xes")) else -1]
    return f"{begins} 1 {found['kind']}{noun}{found['of'] or ''}{agreeing}".lstrip()


def was(number: int) -> str:
    """Return the verb for a counted noun: `was` for 1, otherwise `were`."""
    return "was" if number == 1 else "were"


Real = Annotated[float, BeforeValidator(decode), PlainSerializer(encode, return_type=float | str)]
# A number that is not negative, such as a duration, an error or a norm.
Amount = Annotated[Real, AfterValidator(_not_negative)]
Count = Annotated[int, Field(ge=0)]


def rounded(value: float) -> float:
    """Return a computed figure rounded to 12 significant digits. NaN and infinities are returned unchanged."""
    return float(f"{value:.12g}") if math.isfinite(value) else value


def told_apart(one: float, other: float) -> tuple[str, str]:
    """Return two numbers as text with at least six significant digits. Use more digits if the texts would be equal."""
    digits = next((each for each in range(6, 17) if _with(each, one) != _with(each, other)), 17)
    return _with(digits, one), _with(digits, other)


def _with(digits: int, value: float) -> str:
    whole = value.is_integer() and abs(value) < 1e15
    return f"{value:.0f}" if whole else f"{value:.{digits}g}"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return encode(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def dump_json(value: Any, *, indent: int | None = None, sort_keys: bool = True) -> str:
    """Return a value as JSON text. Non-finite numbers become strings (see `encode`).

    sort_keys: False if the order of the keys has a meaning.
    """
    separators = (",", ":") if indent is None else None
    return json.dumps(
        _plain(value),
        sort_keys=sort_keys,
        indent=indent,
        separators=separators,
        ensure_ascii=False,
        allow_nan=False,
    )
