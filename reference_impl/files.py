"""Read files of a user or of a model hub. Refuse very large files, and anything that is not a plain file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reference_impl.errors import ReferenceImplError

TEXT_LIMIT = 4 * 2**30  # largest size of all text files together, in bytes; memory holds all bytes twice
JSON_LIMIT = 64 * 2**20


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Return the JSON object in the file `path`. Raises `ReferenceImplError` with `remedy` for an unusable file."""
    try:
        size = path.stat().st_size
        if not path.is_file() or size > JSON_LIMIT:
            found = f"has {size} bytes, more than {JSON_LIMIT}" if path.is_file() else "is not a plain file"
            raise ReferenceImplError(str(path), found, remedy)
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ReferenceImplError):
            raise
        raise ReferenceImplError(str(path), f"cannot be read ({type(error).__name__}: {error})", remedy) from error
    if not isinstance(content, dict):
        raise ReferenceImplError(str(path), "is not a JSON object", remedy)
    return content


def read_all(files: list[Path]) -> bytes:
    """Return the bytes of all files, joined by line ends.

    Raises `ReferenceImplError` if the files together have more than `TEXT_LIMIT` bytes.
    """
    total = 0
    for path in files:
        total += path.stat().st_size
        if total > TEXT_LIMIT:
            found = f"has {total} bytes up to the file {str(path)!r}, more than {TEXT_LIMIT}"
            raise ReferenceImplError("data", found, "pass a shorter text")
    return b"\n".join(path.read_bytes() for path in files)
