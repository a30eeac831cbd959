"""Run every property test with many more examples. Tests that usually try some rows of a table then try all.

The number of examples is set by `--hypothesis-profile=long`. The last line shows the number of examples. Hypothesis
tries different examples in each run, and stores failing examples in `.hypothesis`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TAKES_A_BUDGET = re.compile(r"^from (?:hypothesis|budget) import", re.MULTILINE)
_EXAMPLES = re.compile(r"(\d+) passing examples, (\d+) failing examples, (\d+) invalid")


def properties() -> list[str]:
    """Return the test files that use hypothesis, or that run more rows of a table under the profile `long`."""
    files = sorted(ROOT.glob("tests/**/test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if _TAKES_A_BUDGET.search(path.read_text())]


def main() -> int:
    command = [sys.executable, "-m", "pytest", "--hypothesis-profile=long", "--hypothesis-show-statistics"]
    done = subprocess.run(
        [*command, "--numprocesses=2", *properties()], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout)
    generated = re.findall(r"during generate phase.*?(?=during|Stopped)", done.stdout, re.DOTALL)
    found = [match for text in generated if (match := _EXAMPLES.search(text))]
    passing, failing = (sum(int(match[group]) for match in found) for group in (1, 2))
    print(f"{len(found)} properties, {passing} examples held, {failing} failed")
    return done.returncode or (0 if found else 1)


if __name__ == "__main__":
    sys.exit(main())
