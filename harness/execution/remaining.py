"""After a worker that died in one arm: the same run without that arm, for the claims that do not name it.

The arm's end is recorded before the next worker begins; what the dead one wrote stays beside, in `attempt.<n>/`.
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
    """Prepare `directory` for the run without the arm in which its worker died; None where that is the run's own end.

    It is where every judgement names that arm, and none another one that failed, whose cause would be lost in it.
    failed: what earlier workers of the run came to, by arm, which this one may have removed; it is added to. Ends
    after as many workers as the run has arms, since each leaves one out.
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
    """The arm that the phase of a run names, where its probe goes arm by arm (`arm.replica: what it does`)."""
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
    """`run.json`: what the worker reads, and what the evidence says was executed."""
    # the order of the arms is the order of their execution
    text = dump_json(run.model_dump(), indent=2, sort_keys=False)
    (directory / layout.RUN).write_text(text + "\n", encoding="utf-8")
