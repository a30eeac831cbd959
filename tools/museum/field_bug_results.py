"""Read and write examples/field_bugs/results.csv: the result of each claim for each form of each field bug.

An entry is a published bug, re-enacted in a buggy and a fixed form. A row is the result of one claim in a trial. A
trial tries a form with a seed on a machine, for the first time ("first") or most recently ("now"). The result of a
claim that holds is a status and a reason. If a claim does not hold, the result also has the step, the seconds and the
message, which docs/field-bugs.md prints. Line numbers in entries are removed from messages.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from harness.evidence.files import write_text

RESULTS = Path(__file__).parents[2] / "examples" / "field_bugs" / "results.csv"
FIRST, NOW, CPU = "first", "now", "CPU"
FOUND = ("FAIL", "ERROR")
LINE = re.compile(r"(examples/field_bugs/\w+\.py):\d+")


@dataclass(frozen=True, order=True)
class Trial:
    """One trial of one form. name: the name of the entry or of the correct trainer. tried: FIRST or NOW. machine: CPU
    or the GPU's name. form: `buggy`, `mended` (the fixed form), or `correct` for a correct trainer."""

    name: str
    tried: str
    machine: str
    seed: int
    form: str


@dataclass(frozen=True)
class Said:
    """The result of one claim for one form. claim: the claim's name without the entry's name, such as `SAME`. step: the
    first step (from 0) with a difference, or None. seconds: the time of the runs that decided the claim."""

    claim: str
    status: str
    reason: str
    step: int | None = None
    seconds: float | None = None
    message: str = ""

    @property
    def found(self) -> bool:
        return self.status in FOUND


Results = Mapping[Trial, Sequence[Said]]
COLUMNS = [column.name for kind in (Trial, Said) for column in fields(kind)]


def read_results(path: Path = RESULTS) -> dict[Trial, list[Said]]:
    """Return the results of the claims by trial, in the order of the rows. Return {} if the file does not exist."""
    results: dict[Trial, list[Said]] = {}
    if not path.exists():
        return results
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            trial = Trial(row["name"], row["tried"], row["machine"], int(row["seed"]), row["form"])
            step = int(row["step"]) if row["step"] else None
            seconds = float(row["seconds"]) if row["seconds"] else None
            said = Said(row["claim"], row["status"], row["reason"], step, seconds, row["message"])
            results.setdefault(trial, []).append(said)
    return results


def keep_results(new: Results, path: Path = RESULTS) -> None:
    """Write the results of these trials into the file, where they replace earlier results of the same trials."""
    results = {**read_results(path), **{trial: [_kept(trial, each) for each in said] for trial, said in new.items()}}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for trial in sorted(results):
        writer.writerows((*astuple(trial), *astuple(said)) for said in results[trial])
    write_text(path, text.getvalue())


def _kept(trial: Trial, said: Said) -> Said:
    """Return the stored part of a result, without step, seconds and message if it is a first try or found no bug."""
    if not said.found or trial.tried == FIRST:
        return Said(said.claim, said.status, said.reason)
    message = LINE.sub(r"\1", " ".join(said.message.split()))
    return Said(said.claim, said.status, said.reason, said.step, said.seconds, message)
