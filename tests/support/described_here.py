"""Describe systems in the process of a test, for tests of something other than the process that describes them."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence

from harness.commits.import_path import ImportPath
from harness.system import described, describing


def described_here(names: Sequence[str], _limit_s: float, at: ImportPath | None) -> dict[str, described.Description]:
    """Replace `described._ask`: both ends of the pipe as they are, without the process between them."""
    assert at is None
    importlib.invalidate_caches()
    return {name: _described(name) for name in names}


def _described(name: str) -> described.Description:
    module = name.partition(":")[0]
    known = module in sys.modules
    try:
        return described._answer(name, "here", json.dumps({"number": "here", **describing._answer(name)}))
    finally:
        if not known:
            sys.modules.pop(module, None)  # the next draft may have another module of this name
