"""Programs that tests need on the machine in addition to Python packages."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def absent(what: str) -> NoReturn:
    """Skip the test. If `REQUIRE_TOOLS` is set, as in CI, fail instead, so that no test is skipped unnoticed."""
    if os.environ.get("REQUIRE_TOOLS"):
        pytest.fail(f"REQUIRE_TOOLS is set, and {what} is not on this machine", pytrace=False)
    pytest.skip(f"{what} is not on this machine")
