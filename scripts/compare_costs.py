"""What two forms of the harness spent on the same units, kind by kind: a table in Markdown, from their evidence.

    python scripts/compare_costs.py BEFORE AFTER [BEFORE AFTER ...] > costs.md

BEFORE and AFTER are run directories, each pair of the same units. The seconds are those of the GPU: where several
processes share it, a second counts once and is divided among them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.costs.account import Costs, costs_of
from harness.costs.kinds import Kind
from harness.finished_runs.rejudge import copies
from harness.run_directory.bundle import Bundle, read_bundle


def units(bundle: Bundle) -> set[tuple[str, str]]:
    """(claim, workload) of every planned unit."""
    return {(unit.claim, unit.workload) for unit in bundle.header.units}


def rows(before: Costs, after: Costs) -> list[str]:
    """A row a kind of cost that either had, then the sum and the wall time."""
    kinds = [kind for kind in Kind if kind in before.gpu_by_kind or kind in after.gpu_by_kind]
    table = [(kind.words, before.gpu_by_kind.get(kind, 0.0), after.gpu_by_kind.get(kind, 0.0)) for kind in kinds]
    table.append(("**GPU in use**", before.gpu_seconds, after.gpu_seconds))
    table.append(("**by the clock**", before.wall_seconds, after.wall_seconds))
    return [f"| {name} | {was:.1f} | {now:.1f} |" for name, was, now in table]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", type=Path, nargs="+", metavar="DIRECTORY")
    directories = parser.parse_args(arguments).directories
    if len(directories) % 2:
        parser.error("directories come in pairs: before and after")
    for pair in zip(directories[::2], directories[1::2], strict=True):
        before, after = (read_bundle(directory) for directory in pair)
        if units(before) != units(after):
            differing = sorted(units(before) ^ units(after))
            print(f"not the same units: {', '.join(map(' on '.join, differing))}", file=sys.stderr)
            return 1
        print(f"{len(units(before))} units: {pair[0].name}, {pair[1].name}; seconds\n")
        print("| spent on | before | after |\n| --- | --- | --- |")
        spent = [costs_of(each, [loaded.contract for loaded in copies([each])]) for each in (before, after)]
        print("\n".join(rows(*spent)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
