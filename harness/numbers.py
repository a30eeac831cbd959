"""Write numbers in one way: non-finite ones as tagged strings, derived figures rounded to 12 digits.

JSON has no NaN, and a common writer turns infinity into null; a loss curve that went wrong must not be read back as
something milder. Two machines agree byte for byte because derived figures are rounded.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

_TAGS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: float) -> float | str:
    """Return a finite float as itself, a non-finite one as its tag."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def decode(value: object) -> object:
    """Return the float behind a tag; anything else unchanged, for the model to refuse or accept."""
    return _TAGS.get(value, value) if isinstance(value, str) else value


def _not_negative(value: float) -> float:
    if value < 0:  # a NaN is neither, and is for the judges
        raise ValueError(f"{value} is below zero")
    return value


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 fault`, `2 faults`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def was(number: int) -> str:
    """Return the verb behind a counted noun: `was` or `were`."""
    return "was" if number == 1 else "were"


Real = Annotated[float, BeforeValidator(decode), PlainSerializer(encode, return_type=float | str)]
Amount = Annotated[Real, AfterValidator(_not_negative)]  # a duration, an error, a norm
Count = Annotated[int, Field(ge=0)]


def rounded(value: float) -> float:
    """Return a derived figure rounded to 12 significant digits."""
    return float(f"{value:.12g}") if math.isfinite(value) else value


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return encode(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def dump_json(value: Any, *, indent: int | None = None, sort_keys: bool = True) -> str:
    """Return JSON with tagged non-finite numbers, keys sorted unless their order means something.

    Raises ValueError for a NaN that slips through.
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
