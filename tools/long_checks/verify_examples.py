"""Verify every example on this machine, each in its own run directory, and print the results of the claims.

    python tools/long_checks/verify_examples.py [EXAMPLE ...]

The exit code is 1 if a verdict is ERROR, or if a verdict differs from the verdict in the published run on the same kind
of machine (`tools/docs/write_examples_page.py`). The last line has the number of verdicts and the time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from write_examples_page import names, verdicts

ROOT = Path(__file__).parents[2]
Found = dict[tuple[str, str], tuple[str, str]]  # (claim, workload) -> (status, reason) of the verdict


def verify(name: str, reports: Path) -> list[dict[str, Any]]:
    """Return the verdicts of one example, verified in its own run directory."""
    options = ("--reports", str(reports), "--name", name, "--json")
    command = [sys.executable, "-P", "-m", "harness", "verify", f"examples/{name}", *options]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=ROOT, env=here, stdout=subprocess.PIPE, text=True, check=False)
    claims: list[dict[str, Any]] = json.loads(ended.stdout)["claims"]
    return claims


def differences(name: str, found: Found) -> list[str]:
    """Return a line for each verdict that differs from the unit's published verdict on this kind of machine."""
    machine = "h200" if torch.cuda.is_available() else "cpu"
    expected = {(each.claim, each.workload): (each.status.value, each.reason) for each in verdicts(name, machine)}
    return [
        f"{claim} on {workload}: {' '.join(found[claim, workload])}, but published as "
        f"{' '.join(expected[claim, workload])}"
        for claim, workload in sorted(set(expected) & set(found))
        if found[claim, workload] != expected[claim, workload]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help="folders below examples/; default: all")
    arguments = parser.parse_args()
    began, count, apart = time.monotonic(), Counter[str](), []
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.examples or names():
            started = time.monotonic()
            claims = verify(name, Path(scratch))
            print(f"== {name}: {time.monotonic() - started:.0f} s", flush=True)
            for claim in claims:
                print(f"   {claim['status']} {claim['reason']}  {claim['claim']} on {claim['workload']}")
            found = {(each["claim"], each["workload"]): (each["status"], each["reason"]) for each in claims}
            apart += differences(name, found)
            count.update(status for status, _ in found.values())
    for line in apart:
        print(f"another verdict: {line}")
    counted = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
    print(f"{counted}, {len(apart)} differ from the published verdicts, {time.monotonic() - began:.0f} s")
    return 1 if count["ERROR"] or apart else 0


if __name__ == "__main__":
    sys.exit(main())
