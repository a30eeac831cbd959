"""Stand-ins of the actions that this project's workflows use: folders of this machine in place of GitHub's storage.

Each is as strict as the action where a workflow could be wrong: names, files that must be there, digests' format.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

Options = Mapping[str, Any]


class ActionError(Exception):
    """What an action would fail with."""


@dataclass
class Job:
    """Where a job's steps run. `source` is what is checked out; artifacts and caches are the whole rehearsal's.

    installed: an environment that the job finds in place of an empty one; None: it makes its own.
    """

    source: Path
    workspace: Path
    temporary: Path
    artifacts: Path
    caches: Path
    environment: dict[str, str]
    to_save: list[Callable[[], object]]
    installed: Path | None = None


def checkout(job: Job, _: Options) -> None:
    """The workspace becomes the source's files: those of its repository, with what is not yet committed."""
    shutil.rmtree(job.workspace)
    job.workspace.mkdir()
    if job.installed is not None:
        (job.workspace / ".venv").symlink_to(job.installed)
    if not (job.source / ".git").exists():
        shutil.copytree(job.source, job.workspace, symlinks=True, dirs_exist_ok=True)
        return
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=job.source, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (job.source / name).is_file():
            (job.workspace / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(job.source / name, job.workspace / name, follow_symlinks=False)
    for words in (["init", "--quiet"], ["add", "--all"], [*_AUTHOR, "commit", "--quiet", "--message", "checked out"]):
        subprocess.run(["git", *words], cwd=job.workspace, check=True)


_AUTHOR = ("-c", "user.name=rehearsal", "-c", "user.email=rehearsal@localhost")


def setup_python(job: Job, _: Options) -> None:
    """A virtual environment of the job's own with this machine's Python, first on the path."""
    place = job.installed or job.temporary / "python"
    if job.installed is None:
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    job.environment["PATH"] = f"{place / 'bin'}{os.pathsep}{job.environment['PATH']}"


def cache(job: Job, options: Options) -> None:
    """Restore the key's folder, else the newest one of `restore-keys`; save the key's once the job has succeeded."""
    place = job.workspace / str(options["path"]).strip()
    exact = job.caches / str(options["key"])
    prefixes = str(options.get("restore-keys", "")).split()
    older = [each for each in job.caches.glob("*") if any(each.name.startswith(prefix) for prefix in prefixes)]
    found = [exact] if exact.exists() else sorted(older, key=lambda each: each.stat().st_mtime)[-1:]
    for each in found:
        shutil.copytree(each, place, dirs_exist_ok=True)
    if not exact.exists():
        job.to_save.append(lambda: shutil.copytree(place, exact) if place.is_dir() else None)


def upload_artifact(job: Job, options: Options) -> None:
    """The files below the folder that all paths share, under a name that no other artifact has."""
    patterns = [line.strip() for line in str(options["path"]).splitlines() if line.strip()]
    found = [each for pattern in patterns for each in _matching(job.workspace, pattern)]
    files = [each for one in found for each in (sorted(one.rglob("*")) if one.is_dir() else [one]) if each.is_file()]
    if not files:
        if options.get("if-no-files-found") == "error":
            raise ActionError(f"no files were found: {', '.join(patterns)}")
        return
    alone = options.get("archive") is False
    if alone and len(files) != 1:
        raise ActionError(f"one file is uploaded as it is, not {len(files)}")
    target = job.artifacts / (files[0].name if alone else str(options["name"]))
    if target.exists():
        raise ActionError(f"there is an artifact {target.name} already")
    root = Path(os.path.commonpath([one if one.is_dir() and len(found) == 1 else one.parent for one in found]))
    for each in files:
        (target / each.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(each, target / each.relative_to(root))


def _matching(workspace: Path, pattern: str) -> list[Path]:
    return sorted(workspace.glob(pattern.rstrip("/")))


def download_artifact(job: Job, options: Options) -> None:
    """One artifact by its name, which must be there; or all that fit a pattern, each in a folder unless merged."""
    target = job.workspace / str(options.get("path", "."))
    if "name" in options:
        if not (job.artifacts / options["name"]).is_dir():
            raise ActionError(f"there is no artifact {options['name']}")
        shutil.copytree(job.artifacts / options["name"], target, dirs_exist_ok=True)
        return
    for each in sorted(job.artifacts.glob("*")):
        if fnmatch(each.name, str(options["pattern"])):
            place = target if options.get("merge-multiple") else target / each.name
            shutil.copytree(each, place, dirs_exist_ok=True)


def attest(job: Job, options: Options) -> None:
    """Subjects are `SHA256  NAME`, a line each; the predicate is JSON, and has a type."""
    for line in (job.workspace / options["subject-checksums"]).read_text().splitlines():
        if re.fullmatch(r"[0-9a-f]{64}  \S.*", line) is None:
            raise ActionError(f"no subject: {line}")
    json.loads((job.workspace / options["predicate-path"]).read_text())
    if not str(options["predicate-type"]).startswith("https://"):
        raise ActionError("a predicate has a type")


def publish(job: Job, _: Options) -> None:
    """A source distribution and a wheel lie in `dist/`; nothing is uploaded."""
    kinds = sorted("".join(each.suffixes[-2:]) for each in (job.workspace / "dist").iterdir())
    if not any(kind.endswith(".whl") for kind in kinds) or not any(kind.endswith(".tar.gz") for kind in kinds):
        raise ActionError(f"dist/ has a wheel and a source distribution, not {kinds}")


ACTIONS: dict[str, Callable[[Job, Options], None]] = {
    "actions/checkout": checkout,
    "actions/setup-python": setup_python,
    "actions/cache": cache,
    "actions/upload-artifact": upload_artifact,
    "actions/download-artifact": download_artifact,
    "actions/attest": attest,
    "pypa/gh-action-pypi-publish": publish,
}


def perform(action: str, job: Job, options: Options) -> str:
    """`success` or `failure`. Raises ValueError for an action that has no stand-in."""
    name = action.partition("@")[0]
    if name not in ACTIONS:
        raise ValueError(f"a rehearsal does not know {action}")
    try:
        ACTIONS[name](job, options)
    except ActionError as error:
        print(f"{name}: {error}", flush=True)
        return "failure"
    return "success"
