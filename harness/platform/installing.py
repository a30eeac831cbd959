"""Give the command that installs what an extra adds, wherever the harness itself came from.

A checkout, a wheel and a repository are installed by different commands, and no package index has the harness.
But the user's index has the packages of an extra, and the metadata of the installed harness lists them.
"""

from __future__ import annotations

import re
import shlex
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec

_OF_EXTRA = re.compile(r"""\s*;\s*(?P<other>.*?)(?:\s+and\s+)?extra\s*==\s*["'](?P<extra>[\w-]+)["']\s*$""")


def command_for(extra: str) -> str:
    """Return the command that installs the packages of an extra next to the harness that is running."""
    try:
        listed = requires("contract-harness") or []
    except PackageNotFoundError:  # a source tree that was never installed
        return f"pip install '.[{extra}]'"
    found = [(text, match) for text in listed if (match := _OF_EXTRA.search(text)) and match["extra"] == extra]
    packages = [text[: match.start()] + (f"; {match['other']}" if match["other"] else "") for text, match in found]
    installer = ["pip"] if find_spec("pip") is not None else ["uv", "pip"]  # an environment that uv made has no pip
    return shlex.join([*installer, "install", *packages])
