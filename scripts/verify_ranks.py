"""Verify a contract whose arms have several ranks, then end its last rank in several ways, and say what becomes of it.

    python scripts/verify_ranks.py [--workload NAME] [--claim ID] [--only-signals] [--reports FOLDER] [CONTRACT]

First the contract as it stands and its drill. Then, each time in a run of its own: the last rank is killed, stopped,
and made to diverge, in the middle of its steps. Printed of each: verdicts, and the seconds from that moment until all
ranks are gone. Exit code 1 where the rank is not told by its number, or a process is left behind; of a rank that is
ended, also where that takes more than 30 seconds. (One that diverges is judged when its arm is over.)
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WITHIN_S = 30.0
BEGUN_STEPS = 3
DIVERGES = "diverging_rank"  # the fault; of a contract whose claims name it
STARTS_WITHIN_S = 300.0
_ROOM = b"harness.execution.rank"


def harness(*words: str) -> subprocess.Popen[str]:
    """The command, of this tree."""
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-P", "-m", "harness", *words]
    return subprocess.Popen(command, cwd=ROOT, env=here, stdout=subprocess.PIPE, text=True)


def ranks_below(process: int) -> list[int]:
    """The rank processes that came of a process, in the order of their numbers."""
    parents: dict[int, int] = {}
    ranks: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if _ROOM in (entry / "cmdline").read_bytes().split(b"\0"):
                ranks.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile
    return sorted(rank for rank in ranks if process in ancestors(rank, parents))


def ancestors(process: int, parents: dict[int, int]) -> set[int]:
    """The processes that it came of."""
    found: set[int] = set()
    while process in parents and process not in found:
        found.add(process)
        process = parents[process]
    return found


def steps_begun(evidence: Path) -> int:
    """Steps that the last rank of any run under way has begun in its present arm."""
    from harness.execution.rank_marks import MARKS, Marks

    marks = sorted(evidence.glob(f"*/{MARKS}.*"))
    return Marks(marks[-1]).read()[0].steps if marks else 0


def ranks_in_mid_run(process: subprocess.Popen[str], evidence: Callable[[], list[Path]], steps: int) -> list[int]:
    """The ranks, once the last one has begun so many steps; none where the run ended before, which is printed."""
    began = time.monotonic()
    while process.poll() is None and time.monotonic() < began + STARTS_WITHIN_S:
        ranks = ranks_below(process.pid)
        if ranks and max(map(steps_begun, evidence()), default=0) >= steps:
            return ranks
        time.sleep(0.01)
    process.kill()
    print(f"the run ended, or {STARTS_WITHIN_S:g} s were over, before a rank had begun {steps} steps")
    return []


def signalled(number: signal.Signals, contract: str, narrowed: Sequence[str], reports: Path) -> bool:
    """Send the last rank a signal in the middle of its steps; whether it was told in time, and nothing is left."""
    name = f"ranks-{number.name.lower()}"
    process = harness("verify", contract, *narrowed, "--reports", str(reports), "--name", name, "--json")
    ranks = ranks_in_mid_run(process, lambda: evidence_of(reports, name), BEGUN_STEPS)
    if not ranks:
        return False
    os.kill(ranks[-1], number)
    sent = time.monotonic()
    while any(alive(rank) for rank in ranks) and time.monotonic() < sent + 2 * WITHIN_S:
        time.sleep(0.05)
    seconds = time.monotonic() - sent
    claims: list[dict[str, Any]] = json.loads(process.communicate()[0])["claims"]
    told = [claim for claim in claims if "rank" in claim["message"] and claim["status"] == "ERROR"]
    for claim in claims:
        print(f"{number.name}: {claim['claim']} {claim['status']} {claim['reason']}: {claim['message']}")
    left = [rank for rank in ranks if alive(rank)]
    print(f"{number.name}: all ranks were gone {seconds:.1f} s after the signal; left: {left or 'none'}")
    return bool(told) and seconds < WITHIN_S and not left


def diverged(contract: str, claims: Sequence[str], reports: Path) -> bool:
    """Plant a last rank that moves a parameter of its own; whether it was told by its number, and nothing is left."""
    from harness.system.faulty_run import FAULTY_STEP

    name = f"ranks-{DIVERGES}"
    process = harness(
        "drill", contract, *claims, "--fault", DIVERGES, "--reports", str(reports), "--name", name, "--json"
    )

    def evidence() -> list[Path]:
        return [run for folder in evidence_of(reports, name) for run in folder.glob(f"*+{DIVERGES}")]

    ranks = ranks_in_mid_run(process, lambda: [run.parent for run in evidence()], FAULTY_STEP + 1)
    began, rows = time.monotonic(), json.loads(process.communicate()[0])["rows"]
    for row in rows:
        print(f"{DIVERGES}: {row['claim']} {row['seen']['status']} {row['seen']['reason']}: {row['message']}")
    left = [rank for rank in ranks if alive(rank)]
    print(f"{DIVERGES}: the verdict {time.monotonic() - began:.1f} s after the step; left: {left or 'none'}")
    return bool(ranks and rows) and all(row["killed"] and "rank" in row["message"] for row in rows) and not left


def evidence_of(reports: Path, name: str) -> list[Path]:
    """The evidence of a run directory, which has another name while it is written."""
    return [path / "evidence" for path in reports.glob(f"*{name}*") if path.is_dir()]


def alive(process: int) -> bool:
    """Whether it is there, and not merely not yet taken leave of."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main() -> int:
    """Verify, drill, end ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("contract", nargs="?", default="examples/ranks/ddp_loop")
    parser.add_argument("--workload", default="cuda")
    parser.add_argument("--reports", type=Path, default=Path("reports"))
    parser.add_argument("--claim", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--only-signals", action="store_true", help="leave out gate and drill")
    asked = parser.parse_args()
    claims = [word for claim in asked.claim for word in ("--claim", claim)]
    narrowed = {"verify": [*claims, "--workload", asked.workload], "drill": claims}  # a drill takes the smallest
    sys.path.insert(0, str(ROOT))
    codes = []
    for command in () if asked.only_signals else narrowed:
        where = ("--reports", str(asked.reports), "--name", f"ranks-{command}")
        process = harness(command, asked.contract, *narrowed[command], *where)
        print(process.communicate()[0])
        codes.append(process.returncode)
        print(f"{command}: exit code {process.returncode}")
    signals = (signal.SIGKILL, signal.SIGSTOP)
    told = [signalled(number, asked.contract, narrowed["verify"], asked.reports) for number in signals]
    told.append(diverged(asked.contract, claims, asked.reports))
    return 0 if all(told) and not any(codes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
