"""The published error rates, simulated again: equal to the last digit, and bounded.

Today's judges get the published seed and number of experiments. Another version of numpy may draw other numbers; then
`tools/statistics/error_rates.py` and `tools/statistics/seed_error_rates.py` publish anew.
"""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "reports" / "statistics"
SCRIPTS = ("error_rates", "seed_error_rates")  # each writes a file of its name


def points_in(path: Path) -> dict[str, Any]:
    """Return what one script wrote: its points and what it was asked."""
    read: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    return read


def check(name: str) -> tuple[str, bool]:
    """Return the figures of one script, and whether it finds what is published and what was wanted."""
    published = points_in(PUBLISHED / f"{name}.json.xz")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, f"tools/statistics/{name}.py", "--seed", str(published["seed"]), "--output", folder]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        again = points_in(Path(folder) / f"{name}.json.xz")
    pairs = list(zip(again["points"], published["points"], strict=True))
    differing = [new for new, old in pairs if new != old]
    for point in differing:
        print(f"differs from {name}.json.xz: {json.dumps(point)}")
    missed = [point for point in again["points"] if point["met"] is False]
    for point in missed:
        print(f"{point['wanted']} is wanted: {json.dumps(point)}")
    wanted = sum(point["met"] is not None for point in again["points"])
    figures = (
        f"{len(pairs)} points of {pairs[0][0]['experiments']} comparisons, {len(differing)} differ from the published; "
        f"{len(missed)} of {wanted} miss what is wanted of them"
    )
    return figures, not (differing or missed or again.keys() != published.keys())


def main() -> int:
    found = [check(name) for name in SCRIPTS]
    print("; of seeds ".join(figures for figures, _ in found))
    return 0 if all(sound for _, sound in found) else 1


if __name__ == "__main__":
    sys.exit(main())
