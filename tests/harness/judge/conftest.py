"""Builders and case tables lie in `tests/support`, where other tests find them too."""

import sys
from pathlib import Path

SUPPORT = str(Path(__file__).parents[2] / "support")
if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)
