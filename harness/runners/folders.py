"""Evidence is published, and says nothing of the folders of the machine that made it."""

from __future__ import annotations

import sys
from pathlib import Path


def without_folders(text: str) -> str:
    """`text` with paths made relative to where modules come from, the working folder, and the interpreter."""
    roots = {*sys.path, str(Path.cwd()), sys.prefix, sys.base_prefix} - {"", "/"}
    for root in sorted(roots, key=len, reverse=True):
        text = text.replace(f"{root.rstrip('/')}/", "")
    return text
