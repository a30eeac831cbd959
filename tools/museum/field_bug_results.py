"""Read and write examples/field_bugs/results.csv: what each claim said of each form of the museum's entries.

A row is a claim of a trial. A trial tries a form with a seed on a machine, the first time or now (the last time). A
claim that holds has a status and a reason. One that found something also has the step, the seconds and the message,
which docs/field-bugs.md prints; no message keeps the number of a line, since entries change after they are tried.
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
    """One trial of one form.

    name: of the entry, or of a correct trainer. tried: FIRST or NOW. machine: CPU, or the name of the GPU. form:
    `buggy`, `mended`, or `correct` of a correct trainer.
    """

    name: str
    tried: str
    machine: str
    seed: int
    form: str


@dataclass(frozen=True)
class Said:
    """What one claim said of one form of an entry.

    claim: its name without the entry's (`SAME`). step: at which, counted from 0, a difference showed first; None where
    none is about steps. seconds: that the runs took which decided it.
    """

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
    """Return every trial with its claims, in the order of the rows; nothing where there is no such file."""
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
    """Write these trials in the place of what the file holds of them, and leave its other trials as they are."""
    results = {**read_results(path), **{trial: [_kept(trial, each) for each in said] for trial, said in new.items()}}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for trial in sorted(results):
        writer.writerows((*astuple(trial), *astuple(said)) for said in results[trial])
    write_text(path, text.getvalue())


def _kept(trial: Trial, said: Said) -> Said:
    """Return what the file keeps of a claim: of the first try, and of claims that found nothing, no figures."""
    if not said.found or trial.tried == FIRST:
        return Said(said.claim, said.status, said.reason)
    message = LINE.sub(r"\1", " ".join(said.message.split()))
    return Said(said.claim, said.status, said.reason, said.step, said.seconds, message)
