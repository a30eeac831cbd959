"""The syntax trees of sources. Rules about sources share them, in the one process that `by_file` gives these files."""

from __future__ import annotations

import ast
import functools


@functools.cache
def parsed(source: str) -> ast.Module:
    """Return the syntax tree of a source. Its readers do not change it."""
    return ast.parse(source)
