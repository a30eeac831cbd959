"""Count the harness's answers at first tries: found bugs, false alarms for correct trainers, and undecided answers.

At a first try, the harness has not been changed because of this bug or trainer. An entry in examples/field_bugs, or a
trainer in examples/third_party, is written before it is tried, and the first answer is stored.
`field_bugs_page.py` writes the tables of this module. A release has the tables as a separate file.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import field_bugs
from field_bug_results import CPU, FIRST, NOW, Said, read_results
from field_bugs import ENTRIES, ROOT
from page_tables import table

THIRD_PARTY = ROOT / "examples" / "third_party"
FIRST_ANSWERS = THIRD_PARTY / "first_answers.csv"
# For each file with answers of the last try: the date of the file's commit, and the machine of the tries.
LAST_ANSWERS = {
    "cpu.csv": ("2026-11-28", CPU),
    "h100.csv": ("2026-11-28", "NVIDIA H100"),
    "h200.csv": ("2026-11-28", "NVIDIA H200"),
    "h200_timed.csv": ("2026-11-30", "NVIDIA H200"),
}
FIRST_TRIES = ENTRIES / "first_tries.csv"
CHANGELOG = ROOT / "CHANGELOG.md"
BUG, CORRECT = "bug", "correct"
RIGHT, WRONG, UNDECIDED, CUT = "right", "wrong", "undecided", "cut off"
# Exit code of a gate -> kind of trainer -> rating. Code 0 means that all claims held, 1 that one was violated.
ANSWERS = {"0": {CORRECT: RIGHT, BUG: WRONG}, "1": {CORRECT: WRONG, BUG: RIGHT}}
KINDS = {"correct": CORRECT, "buggy": BUG}
EXPLANATION = """\
The first two tables count the harness's answers at the first try, when the harness had not yet been
changed because of the bug or the trainer. A bug is missed if no claim fails, or if the fixed form
fails the same claims. A fixed form counts as a correct trainer. "Cut off" means that the time on
the machine ended before the answer. All entries of one date were written before the first of these
entries was tried. The authors of the entries know the claims."""
AGAIN = "The next two tables count later tries, after changes that were partly made because of these bugs:"
FIELD_BUGS, TRAINERS = "[field bugs](../examples/field_bugs/README.md)", "[third-party](../examples/README.md)"


@dataclass(frozen=True, order=True)
class Verdict:
    """The harness's answer about a bug or a correct trainer. `answer`: right, wrong, undecided, or cut off."""

    date: str
    source: str
    machine: str
    kind: str
    answer: str


def found_bugs(forms: Mapping[str, Sequence[Said]]) -> list[Said]:
    """Return the claims that fail for the buggy form and do not fail for the fixed form."""
    also = {each.claim for each in forms.get("mended", []) if each.status not in field_bugs.GOOD}
    return [each for each in forms.get("buggy", []) if each.found and each.claim not in also]


def first_dates(path: Path = FIRST_TRIES) -> dict[str, str]:
    """Return the date of each entry's first try, by the name of the entry."""
    return {row["name"]: row["date"] for row in _rows(path)}


def keep_date(name: str, date: str, path: Path = FIRST_TRIES) -> None:
    """Add the date of an entry's first try."""
    dates = {**first_dates(path), name: date}
    lines = ["name,date", *(f"{each},{dates[each]}" for each in sorted(dates))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def of_field_bugs(tried: str) -> Iterator[Verdict]:
    """Yield the answers for both forms of each entry. A fixed form counts as a correct trainer."""
    results, dates = read_results(), first_dates()
    for path in field_bugs.entries():
        forms = next(iter(field_bugs.record_of(path.stem, results, tried).values()), None)
        if forms is None:
            continue
        date = dates[path.stem] if tried == FIRST else ""
        yield Verdict(date, FIELD_BUGS, CPU, BUG, answer_to_bug(forms))
        yield Verdict(date, FIELD_BUGS, CPU, CORRECT, answer_to_correct(forms["mended"]))


def answer_to_bug(forms: Mapping[str, Sequence[Said]]) -> str:
    """Return the rating of the answer to a bug: right (found), wrong (missed), undecided. forms: results by form."""
    if found_bugs(forms):
        return RIGHT
    statuses = {each.status for each in forms["buggy"]}
    return UNDECIDED if "INCONCLUSIVE" in statuses and not statuses & {"FAIL", "ERROR"} else WRONG


def answer_to_correct(said: Sequence[Said]) -> str:
    """Return the rating of the answer to a correct trainer: right (accepted), wrong (a claim failed), undecided."""
    if any(each.found for each in said):
        return WRONG
    return RIGHT if field_bugs.is_right("mended", said) else UNDECIDED


def of_trainers(tried: str) -> Iterator[Verdict]:
    """Yield the first or last answers for each form of the third-party trainers."""
    for row in _rows(FIRST_ANSWERS) if tried == FIRST else _last_answers():
        kind = KINDS[row["form"]]
        answer = CUT if row["exit"] == "timeout" else ANSWERS.get(row["exit"], {}).get(kind, UNDECIDED)
        yield Verdict(row["date"], TRAINERS, row["machine"], kind, answer)


def _last_answers() -> Iterator[dict[str, str]]:
    for name, (date, machine) in LAST_ANSWERS.items():
        yield from ({**row, "date": date, "machine": machine} for row in _rows(THIRD_PARTY / name))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def release_of(date: str, changelog: str | None = None) -> str:
    """Return the last release on or before a date, from the changelog. Return `none` if there was no release yet."""
    text = CHANGELOG.read_text(encoding="utf-8") if changelog is None else changelog
    releases = re.findall(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", text, re.MULTILINE)
    return max(((day, version) for version, day in releases if day <= date), default=("", "none"))[1]


def tables(tried: str) -> list[str]:
    """Return two tables of ratings, for bugs and correct trainers, with a row for each date, source and machine."""
    verdicts = sorted([*of_field_bugs(tried), *of_trainers(tried)])
    return [
        _table("bugs", "found", "missed", [each for each in verdicts if each.kind == BUG]),
        _table("correct trainers", "right", "falsely accused", [each for each in verdicts if each.kind == CORRECT]),
    ]


def _table(what: str, right: str, wrong: str, verdicts: Iterable[Verdict]) -> str:
    head = ("tried on", "after release", what, "machine", "tried", right, "share", wrong, UNDECIDED, CUT)
    rows = []
    for (date, source, machine), group in groupby(verdicts, lambda each: (each.date, each.source, each.machine)):
        counts = Counter(each.answer for each in group)
        tried = counts.total()
        when = (date, release_of(date)) if date else ("now", "main")
        share = f"{100 * counts[RIGHT] / tried:.0f} %"
        numbers = (tried, counts[RIGHT], share, *(counts[each] for each in (WRONG, UNDECIDED, CUT)))
        rows.append((*when, source, machine, *map(str, numbers)))
    return table(head, rows)


def section() -> str:
    """Return the scorecard as Markdown."""
    return "\n\n".join((EXPLANATION, *tables(FIRST), AGAIN, *tables(NOW)))


if __name__ == "__main__":
    print(f"## Scorecard\n\n{section()}")
