"""The gate over a real Slurm of two nodes against the gate of one machine: equal verdicts, whatever becomes of jobs.

    python scripts/fleet_gate.py [CONTRACTS ...]

Of the first jobs one is preempted, and the node of the other is lost, with all its processes. The last line has the
figures; the exit code is 1 where a verdict differs: its status, reason, denominators or a word of its sentence. Figures
may differ: torch's own products round by the number of threads, and a run has as many as those beside it leave. It
needs Slurm (Debian: `slurm-wlm`) and the extra `fleet`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import slurm_cluster

ROOT = Path(__file__).parents[1]
HARNESS = [sys.executable, "-m", "harness"]
LONGEST_S = 3600.0


def claims(printed: str) -> list[dict[str, Any]]:
    """The units of a gate as `--json` prints them, in an order of their own."""
    found: list[dict[str, Any]] = json.loads(printed)["claims"]
    return sorted(found, key=lambda claim: (claim["contract"], claim["claim"], claim["workload"]))


def of_one_machine(contracts: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    command = [*HARNESS, "verify", *contracts, "--gate", "--json", "--reports", str(folder), "--name", "whole"]
    return claims(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout)


def of_the_fleet(contracts: Sequence[str], folder: Path, cluster: slurm_cluster.Cluster) -> list[dict[str, Any]]:
    """The same over both nodes: the job on the first is preempted in mid-run, then the second node is lost."""
    on = f"slurm:cpus-per-task={slurm_cluster.CORES}"
    where = ["--reports", str(folder), "--name", "fleet"]
    with subprocess.Popen(
        [*HARNESS, "verify", *contracts, "--on", on, "--gate", "--json", *where],
        cwd=ROOT, env={**os.environ, **cluster.variables}, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        cluster.until(lambda: len(list((folder / "fleet").glob("*/evidence/*"))) >= 2, "two shards execute runs")
        cluster.preempt("node1")
        cluster.until(lambda: "PENDING" in str(cluster.jobs()), "the preempted job waits")
        cluster.lose("node2")
        printed, _ = process.communicate(timeout=LONGEST_S)
    return claims(printed)


def main() -> int:
    contracts = sys.argv[1:] or ["contracts"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.monotonic()
        with slurm_cluster.running(folder / "cluster") as cluster:
            fleet = of_the_fleet(contracts, folder, cluster)
        between = time.monotonic()
        whole = of_one_machine(contracts, folder)
        ended = time.monotonic()
        moved = len(list((folder / "fleet").glob("*.left-*")))
    differing, apart = [], []
    for one, other in zip(whole, fleet, strict=False):
        keys = sorted(key for key in {*one, *other} if one.get(key) != other.get(key))
        for key in keys:
            print(f"{one['claim']} on {one['workload']}: {key} {one.get(key)}, {other.get(key)}")
        if keys == ["figures"]:
            apart.append(one["claim"])
        elif keys:
            differing.append(one["claim"])
    counts = ", ".join(f"{count} {status}" for status, count in sorted(Counter(one["status"] for one in whole).items()))
    print(
        f"{len(whole)} units of one machine ({counts}) and {len(fleet)} of two nodes, {len(differing)} verdicts differ"
        f"{': ' + ', '.join(differing[:5]) if differing else ''}; {moved} shards went on elsewhere;"
        f" figures of {len(apart)} verdicts differ; {between - began:.0f} s and {ended - between:.0f} s"
    )
    return 0 if whole and len(whole) == len(fleet) and not differing else 1


if __name__ == "__main__":
    sys.exit(main())
