"""Make the names in a first contract: ids and file names allow fewer characters than names of Python modules."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 60  # with the longest claim behind it, an id is within its 100 signs
_NO_TEXT = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}  # to YAML, in one version of it or another


def stem_of(module: str) -> str:
    """Return an ASCII identifier for a module's adapter; drop accents, and letters without an ASCII equivalent."""
    last = unicodedata.normalize("NFKD", module.rpartition(".")[2])
    stem = re.sub(r"[^A-Za-z0-9_]", "", last)[:LONGEST]
    if not stem.strip("_"):
        return "step"
    return f"step_{stem}"[:LONGEST] if stem[0].isdigit() else stem


def id_of(stem: str) -> str:
    """Return the contract's id for a stem."""
    return f"{stem.strip('_').replace('_', '-')}-v1"


def yaml_text(name: str) -> str:
    """Return an identifier as YAML text, quoted where YAML would read it as another type."""
    return f'"{name}"' if name.lower() in _NO_TEXT else name
