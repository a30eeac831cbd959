"""Repeat a run without the arm in which its worker died, for the claims that do not name that arm.

The arm's end is recorded before the next worker begins. What the dead worker wrote stays in `attempt.<n>/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from harness.evidence import layout
from harness.evidence.plan_records import Run
from harness.evidence.read_run import read_records
from harness.evidence.run_evidence import Death
from harness.evidence.run_records import ArmFailed
from harness.kinds import probe_named
from harness.numbers import dump_json


def without_the_arm(run: Run, directory: Path, death: Death, failed: dict[str, ArmFailed]) -> Run | None:
    """Prepare `directory` for the run without the arm in which its worker died, and return that run.

    None if the death is the run's own end: the phase names no arm, or every judgement names that arm and no other arm
    failed, whose cause would be lost. failed: how arms failed in earlier workers of the run, whose records this one may
    have removed; the arm is added. This ends after as many workers as the run has arms, since each leaves one out.
    """
    arm = _arm_in(run, death.phase)
    if arm is None:
        return None
    records, _ = read_records(directory)
    failed.update({record.arm: record for record in records if isinstance(record, ArmFailed)})
    failed.setdefault(
        arm, ArmFailed(arm=arm, cause=death.cause, detail=death.detail, phase=death.phase, stack=death.stack)
    )
    if set(failed) == {arm} and not run.needed(failed):
        return None
    rest = run.model_copy(update={"without": list(failed)})
    _set_aside(directory)
    write_run(rest, directory)
    _write(failed.values(), directory)
    return rest


def _write(records: Iterable[ArmFailed], directory: Path) -> None:
    lines = [dump_json(record.model_dump()) + "\n" for record in records]
    (directory / layout.RECORDS).write_text("".join(lines), encoding="utf-8")


def _arm_in(run: Run, phase: str | None) -> str | None:
    """Return the arm that a run's phase names (`arm.replica: what it does`); None if its probe has no such phases."""
    if not probe_named(run.probe).arm_by_arm or phase is None:
        return None
    return next((arm for arm in run.arms if re.match(rf"{re.escape(arm)}\.\d+: ", phase)), None)


def _set_aside(directory: Path) -> None:
    number = sum(path.name.startswith(layout.ATTEMPT) for path in directory.iterdir())
    kept = [path for path in directory.iterdir() if not path.name.startswith(layout.ATTEMPT)]
    aside = directory / f"{layout.ATTEMPT}{number}"
    aside.mkdir()
    for path in kept:
        path.rename(aside / path.name)


def write_run(run: Run, directory: Path) -> None:
    """Write `run.json`: what the worker reads, and what the evidence says was executed."""
    (directory / layout.RUN).write_text(run_text(run), encoding="utf-8")


def run_text(run: Run) -> str:
    """Return `run.json` as it is written. The order of the arms is the order of their execution."""
    return dump_json(run.model_dump(), indent=2, sort_keys=False) + "\n"
