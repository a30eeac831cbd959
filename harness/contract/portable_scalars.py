"""Find plain scalars that YAML 1.1 and YAML 1.2 read differently, and say how to write them for both.

PyYAML reads YAML 1.1, and so do most tools that look into YAML files. They read `on` as true, `1e-5` as a string, `010`
as eight, `1:30` as ninety, and `2026-01-01` as a date.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import yaml

MAX_NUMBER_LENGTH = 100
_RESOLVER: Any = yaml.resolver.Resolver()
_CONSTRUCTOR = yaml.constructor.SafeConstructor()
# of every plain scalar that is not a string to both, and of no other but by chance
FIRST_CHARACTERS = frozenset(key for key in yaml.resolver.Resolver.yaml_implicit_resolvers if key)
_TRUTH_VALUES = frozenset({"y", "Y", "n", "N"})  # booleans of YAML 1.1, which PyYAML leaves out
_FLOAT = re.compile(r"(?P<sign>[-+]?)(?P<whole>[0-9]*)\.?(?P<rest>[0-9]*)(?:[eE](?P<exponent>[-+]?[0-9]+))?")


@lru_cache(maxsize=4096)
def portable(text: str, value: object) -> str | None:
    """Return what to write instead of a plain scalar that YAML 1.1 reads differently; None if both read it alike.

    value: what YAML 1.2 reads.
    """
    if text not in _TRUTH_VALUES and _reads_alike(text, value):
        return None
    if isinstance(value, str):
        return f'"{text}"'
    return _float_text(text) if isinstance(value, float) else str(value)


def number_of_text(text: str) -> str | None:
    """Return how to write a number that was written as text, such as `1_000` or "1e-5"; None if it is not a number."""
    bare = text.strip().replace("_", "")
    found = _FLOAT.fullmatch(bare) if len(bare) <= MAX_NUMBER_LENGTH else None
    if found is None or not found["whole"] + found["rest"]:
        return None
    return str(int(bare)) if bare.lstrip("+-").isdigit() else _float_text(bare)


def _reads_alike(text: str, value: object) -> bool:
    tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))
    try:
        theirs = _CONSTRUCTOR.construct_object(yaml.ScalarNode(tag, text))
    except (yaml.YAMLError, ValueError):  # a date that is none, `=`
        return False
    return type(theirs) is type(value) and bool(theirs == value)


def _float_text(text: str) -> str:
    """Return the same digits in a form that YAML 1.1 reads as a float: digits around a point, a signed exponent."""
    found = _FLOAT.fullmatch(text)
    if found is None:  # the reader has taken it for a float by the same form
        raise ValueError(f"no float: {text}")
    exponent = found["exponent"]
    tail = "" if exponent is None else f"e{exponent if exponent[0] in '+-' else f'+{exponent}'}"
    return f"{found['sign']}{found['whole'] or 0}.{found['rest'] or 0}{tail}"
