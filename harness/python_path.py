"""Where a system's module is found: what is installed, then the working directory; processes find the same."""

from __future__ import annotations

import sys
from pathlib import Path


def add_working_directory() -> None:
    """Make the working directory importable, as `python -m` does, but last: it hides no installed package.

    A contract that lies beside its trainer can so name it without any installation.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
