"""Where a system's module is found: what is installed, then the working directory; processes find the same."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def add_working_directory() -> None:
    """Make the working directory importable, as `python -m` does, but last: it hides no installed package.

    A contract that lies beside its trainer can so name it without any installation.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def child_command(module: str) -> list[str]:
    """Start `module` so that it looks for modules where PYTHONPATH says, and not first in the working directory."""
    return [sys.executable, "-P", "-m", module]


def child_path() -> str:
    """PYTHONPATH of a process that is to find what this one finds, however that came to be on the path."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
