"""What git says of a folder, or nothing where it says none: no program, no repository, no answer in time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_TIMEOUT_S = 10.0
# of the repository in which git itself was called, in a hook say
_OF_A_CALL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
# a stranger's repository may name programs that git would start to answer
_NO_PROGRAMS = ("-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false")


def git(folder: Path, *arguments: str) -> str | None:
    """What git prints for a command in a folder; None where it fails, is missing or takes longer than 10 s."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_CALL}
    try:
        done = subprocess.run(
            ["git", *_NO_PROGRAMS, "-C", str(folder), *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None
