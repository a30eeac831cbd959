"""The directory of a run, after its worker: a system may have removed it, or put something else in its place.

That costs the run its evidence, and no other run anything.
"""

from __future__ import annotations

import stat
from pathlib import Path

from harness.evidence import layout
from harness.evidence.own_places import empty_folder, kind, make_way
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import Death
from harness.numbers import dump_json
from harness.runners.recorder import HEARTBEAT
from harness.runners.remaining import write_run
from harness.runners.stacks import STACKS

OWN = (layout.RUN, layout.DEATH, layout.PROCESS, layout.TELEMETRY, layout.OUTPUT, HEARTBEAT, STACKS)


def put_back(run: Run, directory: Path, phase: str) -> Death | None:
    """Make `directory` one again, with its `run.json`, once the worker has ended; its death where it was none. `phase`
    is the last one that was seen.

    What has the name of a file of the supervisor's and is no plain file (a link, a pipe, a folder) goes away.
    """
    found = kind(directory)
    if found != "a folder":
        empty_folder(directory)
    elif directory.stat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
        directory.chmod(0o755)
    for name in OWN:
        make_way(directory / name)
    if found == "a folder" and (directory / layout.RUN).exists():
        return None
    write_run(run, directory)
    detail = f"the directory of the run was {found} when its worker had ended"
    if found == "a folder":
        detail = f"the directory of the run had no {layout.RUN} when its worker had ended"
    return Death(cause="incomplete", detail=detail, phase=phase or None, stack="")


def write_death(death: Death, directory: Path) -> None:
    """`death.json`: how the worker died."""
    (directory / layout.DEATH).write_text(dump_json(death.model_dump(), indent=2) + "\n", encoding="utf-8")
