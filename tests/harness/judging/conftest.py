"""Builders and case tables lie in `tests/support`, the simulation in `tools/statistics`."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = (ROOT / "tests" / "support", *sorted((ROOT / "tools").glob("*")))
sys.path[:0] = [str(path) for path in FOLDERS if str(path) not in sys.path]
