"""The published error rates of the throughput rule, simulated again: equal to the last digit, and bounded.

Today's judge gets the published seed and number of experiments. Another version of numpy may draw other numbers; then
`scripts/error_rates.py` publishes anew.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "reports" / "statistics" / "error_rates.json"


def main() -> int:
    published = json.loads(PUBLISHED.read_text())
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "scripts/error_rates.py", "--seed", str(published["seed"]), "--output", folder]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        again = json.loads((Path(folder) / PUBLISHED.name).read_text())
    pairs = list(zip(again["points"], published["points"], strict=True))
    differing = [new for new, old in pairs if new != old]
    for point in differing:
        print(f"differs from {PUBLISHED.relative_to(ROOT)}: {json.dumps(point)}")
    missed = [point for point in again["points"] if point["met"] is False]
    for point in missed:
        print(f"{point['wanted']} is wanted: {json.dumps(point)}")
    wanted = sum(point["met"] is not None for point in again["points"])
    print(
        f"{len(pairs)} points of {pairs[0][0]['experiments']} comparisons, {len(differing)} differ from the published; "
        f"{len(missed)} of {wanted} miss what is wanted of them"
    )
    return 1 if differing or missed or again.keys() != published.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
