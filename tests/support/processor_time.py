"""What a Python process costs, for ratios inside one run: no test asserts a time."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path


def processor_seconds(*arguments: str) -> float:
    """Processor time of `python ARGUMENTS` in the repository's root, its own children included."""
    root = Path(__file__).parents[2]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False, cwd=root)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
