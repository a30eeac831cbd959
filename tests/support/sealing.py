"""Forge run directories: changed files that are sealed again pass the manifest, to test the checks after it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.run_directory.seal import manifest_of, write_manifest


def seal(directory: Path) -> str:
    """Seal a run directory as it is now; return the digest of its manifest."""
    return write_manifest(directory, manifest_of(directory))


def forge(path: Path, change: Callable[[Any], object]) -> None:
    """Change a JSON file at the top of a run directory, and seal the directory again."""
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    seal(path.parent)
