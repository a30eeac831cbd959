"""Ask of entries of the museum of field bugs what differs first, by the first claim of each that fails by a difference.

    python tools/museum/where_field_bugs.py [NAME ...]

Runs are forks of one process (forked_runs.py). Whether a line is that of the fix is for a reader to say, who has the
entry's `fix` beside it: nothing here reads an entry's name or facts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import field_bugs
import forked_runs
from verify_field_bugs import drafted, wanted_of

from harness.api.first_difference import locate
from harness.evidence.plan_records import Run
from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import RunEvidence
from harness.judging.registry import judge_unit
from harness.judging.verdict import Status
from harness.planning.plan import where_run
from harness.report.located import located, path_rows
from harness.system.replay import sites

LIMIT_S = 120.0


def main() -> int:
    forked_runs.prepare()
    forget_scripts()
    named = [field_bugs.ENTRIES / f"{each}.py" for each in sys.argv[1:]]
    for entry in named or field_bugs.recorded():
        ask(entry)
    return 0


def forget_scripts() -> None:
    """Let nothing in this folder count as a user's code: it executes the forks."""
    for name in ("is_own", "is_users_or_library"):
        vars(sites)[name] = partial(_beside_scripts, vars(sites)[name])


def _beside_scripts(asked: Callable[[str], bool], file: str) -> bool:
    return "/tools/" not in file and asked(file)


def ask(entry: Path) -> None:
    """Print the answer for the first claim of an entry that fails by a difference."""
    with drafted(entry, "buggy", 0) as (draft, folder, contracts):
        plan = forked_runs.planned(contracts, wanted_of(draft, contracts, [], long=False))
        runs, evidence = {run.id: run for run in plan.runs}, {}
        for run in plan.runs:
            forked_runs.execute(run, folder / "evidence" / run.id, LIMIT_S)
            evidence[run.id] = read_run(folder / "evidence" / run.id)[1]
        for unit in plan.units:
            contract = next(each.contract for each in contracts if each.contract.id == unit.contract)
            claim = next(each for each in contract.claims if each.id == unit.claim)
            verdict = judge_unit(contract, claim, unit.workload, [evidence[name] for name in unit.runs], unit.obstacle)
            figures = {name: each.value for name, each in verdict.figures.items()}
            asked = where_run(claim, unit, [runs[name] for name in unit.runs], figures)
            if verdict.status is Status.FAIL and asked is not None:
                answer = locate(asked, executing(folder / "where" / unit.claim))
                print(f"{entry.stem} {verdict.reason}: {located(answer)}")
                print("   ", "; ".join(f"{part} {seen} {what}" for part, seen, what in path_rows(answer)))
                sys.stdout.flush()
                return
        print(f"{entry.stem}: no claim fails by a difference here")


def executing(folder: Path) -> Callable[[Run], Sequence[RunEvidence]]:
    """Return a function that executes a run in a fork, with its evidence below `folder`."""
    numbers = count()

    def execute(run: Run) -> Sequence[RunEvidence]:
        place = folder / str(next(numbers))
        forked_runs.execute(run, place, LIMIT_S)
        return [read_run(place)[1]]

    return execute


if __name__ == "__main__":
    sys.exit(main())
