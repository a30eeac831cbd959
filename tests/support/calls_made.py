"""Count the function calls of a piece of work, which is the same number on every machine, at any load."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

LIBRARIES = "import pydantic, typer, yaml; pydantic.BaseModel"
Value = TypeVar("Value")
HERE = Path(__file__).parent


def counted(work: Callable[[], Value]) -> tuple[Value, int]:
    """Return the result of the work and the number of Python and C functions that it calls in this thread."""
    calls = 0

    def count(_frame: object, event: str, _of: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        value = work()
    finally:
        sys.setprofile(before)
    return value, calls


def calls_of_program(program: str) -> int:
    """Return the number of functions that a new Python calls to run a program in the repository's root."""
    counted = f"from calls_made import counted\n_, calls = counted(lambda: exec({program!r}, {{}}))"
    code = f"import sys\nsys.path.insert(0, {str(HERE)!r})\n{counted}\nprint(calls, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HERE.parents[1])
    return int(done.stderr.splitlines()[-1])
