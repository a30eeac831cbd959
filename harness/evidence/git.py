"""Ask git about a folder; the answer is None without a program, without a repository, and when git takes too long."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from harness.evidence.environment_records import CHANGES, GitFacts
from harness.evidence.modules import is_library, module_spec

_TIMEOUT_S = 10.0
# of the repository in which git itself was called, in a hook say
OF_A_CALL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
# an untrusted repository may name programs that git would start to answer
_NO_PROGRAMS = ("-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false")


def git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints for a command in a folder; None where it fails, is missing or takes longer than 10 s."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_A_CALL}
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


def trainers(systems: Iterable[str]) -> dict[str, GitFacts]:
    """Return the commit of each system (`module:attribute`), with `+changes` when its repository's files differ.

    A file that its repository does not hold differs, too. A system has no commit if its module is not found, if its
    file lies in no repository, or if it is an installed package's. Nothing of the system is imported.
    """
    return {system: GitFacts(commit=_commit(system.partition(":")[0])) for system in systems}


def _commit(module: str) -> str | None:
    spec = module_spec(module)
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    file = Path(spec.origin).resolve()
    held = git(file.parent, "ls-files", "--error-unmatch", "--", file.name) is not None
    if not held and is_library(file):
        return None
    commit = git(file.parent, "rev-parse", "HEAD")
    changes = not held or git(file.parent, "status", "--porcelain", "--untracked-files=no", "--", ":/")
    return f"{commit}{CHANGES}" if commit and changes else commit
