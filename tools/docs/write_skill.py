"""Write docs/optimize-a-step/SKILL.md from AGENTS.md, for coding agents that read instructions as skill files.

python tools/docs/write_skill.py
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "docs" / "optimize-a-step" / "SKILL.md"
HEAD = """\
---
name: optimize-a-step
description: Check with the contract harness that an optimized PyTorch training step still trains the same. Use it
  when you capture, compile, fuse or lower the precision of a training step, and before you report on it.
---

"""


def skill() -> str:
    """Return AGENTS.md as a skill file, with links relative to the folder of the skill file."""
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    here = SKILL.parent.relative_to(ROOT)
    return HEAD + re.sub(r"\]\(([^)]+)\)", lambda link: f"]({posixpath.relpath(link[1], here)})", text)


if __name__ == "__main__":
    SKILL.write_text(skill(), encoding="utf-8")
