"""Plain scalars that readers of YAML 1.1 take for something else than YAML 1.2 does, and how to write them for both.

PyYAML reads YAML 1.1, and so do most tools that look into YAML files: `on` is true to them, `1e-5` a string, `010`
eight, `1:30` ninety, `2026-01-01` a date.
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
    """What to write instead of a plain scalar that YAML 1.1 reads otherwise; None where both read it alike.

    value: what YAML 1.2 reads.
    """
    if text not in _TRUTH_VALUES and _reads_alike(text, value):
        return None
    if isinstance(value, str):
        return f'"{text}"'
    return _float_text(text) if isinstance(value, float) else str(value)


def number_of_text(text: str) -> str | None:
    """How to write a number that was written as a text, such as `1_000` or "1e-5"; None where it is none."""
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
    """The same digits with what YAML 1.1 wants of a float: digits around a point, and a sign in the exponent."""
    found = _FLOAT.fullmatch(text)
    if found is None:  # the reader has taken it for a float by the same form
        raise ValueError(f"no float: {text}")
    exponent = found["exponent"]
    tail = "" if exponent is None else f"e{exponent if exponent[0] in '+-' else f'+{exponent}'}"
    return f"{found['sign']}{found['whole'] or 0}.{found['rest'] or 0}{tail}"
