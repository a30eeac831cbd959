"""Execute a command of the harness in this process."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from harness.cli import application


def called(*arguments: str | Path) -> tuple[int, str]:
    """Return the exit code of a command and its text on stderr."""
    err = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()), redirect_stderr(err):
        patch.setattr(sys, "argv", ["harness", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            application.main()
    assert isinstance(left.value.code, int)
    return left.value.code, err.getvalue()
