"""A machine without Chromium skips these tests with the reason; where they are required, that is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ONE = "tests/browser/test_checks_in_chromium.py::test_an_image_that_renders_nothing_is_found"


@pytest.mark.parametrize(
    ("required", "status", "said"),
    [("", 0, "SKIPPED [1]"), ("1", 1, "REQUIRE_TOOLS is set, and Chromium is not on this machine")],
)
def test_browser_tests_without_chromium_are_skipped_or_fail_when_required(
    tmp_path: Path, required: str, status: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ONE],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PATH": str(tmp_path), "REQUIRE_TOOLS": required, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, said in done.stdout) == (status, True)
    assert "Chromium is not on this machine" in done.stdout
