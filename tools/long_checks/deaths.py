"""Let workers die in every phase of an arm, from every cause, on a CPU, and check the verdicts: `.ci/long deaths`.

    PYTHONPATH=tests/support python tools/long_checks/deaths.py

The script prints a line for each combination of cause and phase, then a summary. The exit code is 1 if a combination
has a wrong result: a PASS, a verdict that does not name the cause, a changed verdict of another claim, a process that
still runs, an exit code of `verify` that is not 12, or a run directory that `judge --check` does not accept.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from death_table import STRANGER_PHASES, Combination, Group, Outcome, verified

PHASES = ("open", "first_step", "later_step", "capture", "replay", "gradients", "state", "end", "write")
LEFT = ("the `complete` record is missing",)
NAMED: dict[str, tuple[str, ...]] = {
    "raise": ("ValueError: this arm is broken",),
    "system_exit": ("SystemExit: 0",),
    "exit_0": LEFT,
    "exit_1": ("exit status 1",),
    "sigkill": ("SIGKILL",),
    "sigsegv": ("SIGSEGV",),
    "sigabrt": ("SIGABRT",),
    "hang": ("no progress for",),
    "overrun": ("still running after",),
    "output": ("printed more than 10 MiB",),
    "full_disk": ("File too large",),
    # Keep the causes from here on at the end: in a run, any cause after them would lose its last output.
    "closed_output": ("Bad file descriptor",),
    "no_directory": ("the directory of the run was nothing",),
    "orphan": LEFT,
    "memory": ("MemoryError",),
    "nonsense": ("'float' object", "found a float", "0.5", "records.jsonl:"),
}
LEFT_DESCRIBING = ("exit status 0 and no answer",)
NAMED_DESCRIBING = NAMED | {
    "exit_0": LEFT_DESCRIBING,
    "orphan": LEFT_DESCRIBING,
    "hang": ("no answer after",),
    "output": ("more than 16 MiB of output",),
    "nonsense": ("a float, not a SystemDescription",),
}
# Causes that are not tried in a process that describes systems: it writes no files, has no directory to lose, and has
# only one time limit, which `hang` exceeds.
NOT_DESCRIBING = {"no_directory", "full_disk", "overrun"}
TOGETHER = 5  # number of combinations in one run; if one ends the process, the harness executes the others again
WALL_LIMIT_S, HEARTBEAT_S = 400.0, 200.0
OVERRUN_S, HANG_S = 25.0, 15.0  # time limits in seconds for two causes; importing torch takes less, even on a busy CPU
DESCRIBE_S = 15.0
STEPS = 5


def combination(phase: str, cause: str) -> Combination:
    """Return the combination of a cause and a phase. phase: one of `PHASES` or of `STRANGER_PHASES`."""
    if phase not in STRANGER_PHASES:
        return Combination(phase, cause, NAMED[cause])
    named = NAMED if phase == "import_in_worker" else NAMED_DESCRIBING
    return Combination(phase, cause, named[cause], system=f"dies_{phase}_{cause}:System")


def table() -> list[Combination]:
    """Return every combination of cause and phase that can occur."""
    found = [combination(phase, cause) for phase in (*STRANGER_PHASES, *PHASES) for cause in NAMED]
    return [
        one
        for one in found
        if not (one.phase in {"import", "describe"} and one.cause in NOT_DESCRIBING)
        # Leave out `nonsense` (a wrong result) in these phases, because the harness ignores their functions' results.
        and not (one.phase in {"import", "import_in_worker", "end"} and one.cause == "nonsense")
    ]


def groups(combinations: Sequence[Combination], together: int = TOGETHER) -> list[Group]:
    """Group the combinations into runs. Workers that hang or overrun are in separate groups, with shorter limits."""
    found: list[Group] = []
    for kind, wall, heartbeat in (
        ("hang", WALL_LIMIT_S, HANG_S),
        ("overrun", OVERRUN_S, HEARTBEAT_S),
        ("other", WALL_LIMIT_S, HEARTBEAT_S),
    ):
        of_kind = [one for one in combinations if _kind(one) == kind]
        for number, first in enumerate(range(0, len(of_kind), together)):
            part = tuple(of_kind[first : first + together])
            found.append(Group(f"{kind}-{number}", part, wall, heartbeat))
    return found


def _kind(one: Combination) -> str:
    hangs = one.cause in {"hang", "overrun"} and one.phase not in {"import", "describe"}
    return one.cause if hangs else "other"


def print_outcomes(outcomes: Sequence[Outcome], began: float) -> int:
    """Print a line for each outcome, then a summary. Return the exit code: 1 if an outcome is wrong, else 0."""
    for outcome in outcomes:
        print(outcome.line())
    wrong = sum(bool(outcome.problems) for outcome in outcomes)
    passed = sum(outcome.verdict.status == "PASS" for outcome in outcomes)
    seconds = time.monotonic() - began
    print(f"{len(outcomes)} combinations of cause and phase, {passed} false PASS, {wrong} wrong, {seconds:.0f} s")
    return 1 if wrong else 0


def main() -> int:
    began = time.monotonic()
    outcomes = verified(groups(table()), {"device": "cpu"}, steps=STEPS, describe_s=DESCRIBE_S)
    return print_outcomes(outcomes, began)


if __name__ == "__main__":
    sys.exit(main())
