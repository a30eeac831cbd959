"""Builders and case tables lie in `tests/support`, the simulation in `scripts`."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(path) for path in (ROOT / "tests" / "support", ROOT / "scripts") if str(path) not in sys.path]
