"""Names in a first contract: of a module that Python imports under any, made of what ids and file names may have."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 60  # with the longest claim behind it, an id is within its 100 signs
_NO_TEXT = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}  # to YAML, in one version of it or another


def stem_of(module: str) -> str:
    """A name in ASCII for a module's adapter, an identifier: accents go, and letters that ASCII has nothing like."""
    last = unicodedata.normalize("NFKD", module.rpartition(".")[2])
    stem = re.sub(r"[^A-Za-z0-9_]", "", last)[:LONGEST]
    if not stem.strip("_"):
        return "step"
    return f"step_{stem}"[:LONGEST] if stem[0].isdigit() else stem


def id_of(stem: str) -> str:
    """The contract's id."""
    return f"{stem.strip('_').replace('_', '-')}-v1"


def yaml_text(name: str) -> str:
    """An identifier as YAML reads it for a text."""
    return f'"{name}"' if name.lower() in _NO_TEXT else name
