"""Where libraries keep what they have compiled: below the home folder, or, where that takes no file, below TMPDIR.

Matplotlib asks for another place with two lines on stderr, and Triton raises PermissionError.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_BELOW_HOME = {"TRITON_CACHE_DIR": ".triton/cache", "MPLCONFIGDIR": ".config/matplotlib"}


def moved_caches(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that name caches elsewhere; none where the home folder can be written, or they are set already."""
    home = environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - where there is none it raises nothing
    moved = {
        name: place
        for name, place in _BELOW_HOME.items()
        if name not in environment and not _can_be_made(Path(home) / place)
    }
    if not moved or not hasattr(os, "getuid"):
        return {}
    from harness.errors import HarnessError
    from harness.private_folder import private_folder

    try:
        # nobody else's: what lies in Triton's cache is executed
        return {name: str(private_folder() / place.lstrip(".")) for name, place in moved.items()}
    except HarnessError:
        return {}


def _can_be_made(folder: Path) -> bool:
    """Whether the folder can be written, or made where it is not there."""
    if not folder.is_absolute():  # `~` stays as it is for a user without a home
        return False
    while not os.path.lexists(folder):
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)
