"""Write docs/field-bugs.md from the entries of examples/field_bugs, and from what is recorded of their trials.

    python scripts/write_field_bugs_page.py [--check]

Nothing is executed. `--check` writes nothing, and exits with 1 where the page would be another.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import field_bugs
from field_bugs import ENTRIES, ROOT, Said

from harness.evidence.files import write_text

PAGE = ROOT / "docs" / "field-bugs.md"
CORRECT = """The other side: correct trainers of others under the same templates. The shipped examples bring a system
of their own, with two arms; the others are steps in the style of public trainers (`tests/support/public_trainers.py`).
A claim is not run where the step lacks a capability, or the machine a GPU."""
HEAD = ("bug", "thread", "found by", "after steps", "seconds", "mended", "on an H200", "first try", "changed since")
INTRODUCTION = """<!-- written by scripts/write_field_bugs_page.py -->
# Field bugs

Would this gate have found them? These are published bugs of captured or otherwise optimized training, as they were and
mended, re-enacted in few lines of our own or in the release of the package that had them. All are tried under the
contracts that `harness init` writes for any step: three templates, committed before the first bug was re-enacted. No
entry has a field, a tolerance or a number of steps of its own ([an entry](../examples/field_bugs/README.md)).

A bug is found where a claim about the buggy form is violated or an error; the mended form has to hold every claim that
is run. "After steps" is when a difference showed first, of the 43 steps of most claims and the 10,000 of LONG;
"seconds" are those of the run that showed it. "First try" is what the templates of then said, before any change.

Since then the templates were bettered; all were tried again:

- CAPTURES demanded one capture. It takes one for each shape of batch that the run read, and none in every step.
- CAPTURES let a twentieth of the device's time be spent outside the graphs; copies and an optimizer are more of a small
  step that captures itself. It lets half of it, as it does of operations without a GPU; and a range that a library
  records, which the profiler shows like a kernel, counts no longer.
- MEMORY is new: on a GPU, what the captured step reserves is at most three times what the plain one does. The ratio is
  reasoned and not measured on a GPU yet, so `harness init` leaves this claim out; entries are tried under it.
- WITHIN compares BatchNorm's counts of batches, and where they differ how far the statistics end apart.
- WITHIN compares every tensor that both arms keep at its end (`ends`), beside a control that begins a rounding away. No
  entry showed this: bugs of no thread did, that stand in no loss (`tests/support/near_ends_systems.py`).
- GRADIENTS is not run where neither arm leaves any, as in a loop that ends with `zero_grad`.
- Steps were 40, saves came after 20 of them, evaluations after every tenth. They are primes (43, 19 and 23, 7): what a
  trainer does at every second, fifth or tenth step was always complete.
- RESUMES saves another checkpoint halfway, which nobody loads; one was saved, and the process ended with it.
- RESUMES saves after 20, 24 and 29 steps, each time from what the last process had loaded. It saved once, after 19, and
  RESUMES-LATER after 23, to load after two steps; that one found nothing that RESUMES had not found.
- EVALUATED compares what the evaluations return with what the plain step's do, within a hundredth.
"""
NEWEST = "*-h200-field-bugs"


@dataclass(frozen=True)
class Bug:
    """An entry, with its facts and what was said of it."""

    entry: Path
    facts: Mapping[str, Any]
    first: Mapping[str, list[Said]] | None
    records: field_bugs.Records
    on_gpu: Mapping[str, list[Said]]

    @property
    def found(self) -> list[Said]:
        """The claims that found it and hold of the mended form, of the first seed recorded, in the contracts' order."""
        return _found(next(iter(self.records.values()), self.first or {}))

    @property
    def found_on_gpu(self) -> list[Said]:
        """Likewise, of the run on a GPU."""
        return _found(self.on_gpu)

    @property
    def title(self) -> str:
        return str(self.facts["bug"])

    @property
    def anchor(self) -> str:
        return self.entry.stem.replace("_", "-")


def _found(forms: Mapping[str, list[Said]]) -> list[Said]:
    """What is said of the mended form too says nothing of the bug."""
    also = {each.claim for each in forms.get("mended", []) if each.status not in field_bugs.GOOD}
    return [each for each in forms.get("buggy", []) if each.found and each.claim not in also]


def bugs() -> list[Bug]:
    """Every entry, by name."""
    return [
        Bug(
            entry,
            field_bugs.facts_of(entry),
            field_bugs.first_try_of(entry),
            field_bugs.record_of(entry),
            _on_gpu(entry),
        )
        for entry in field_bugs.entries()
    ]


def _on_gpu(entry: Path) -> Mapping[str, list[Said]]:
    """What was said in the newest published run that tried it, or nothing."""
    published = sorted((ROOT / "reports").glob(f"{NEWEST}/{entry.stem}.json"))
    return field_bugs.records_in(published[-1])[0] if published else {}


def written(every: Sequence[Bug], not_had: Sequence[Mapping[str, Any]]) -> str:
    """The page's text."""
    found = [bug for bug in every if bug.found or bug.found_on_gpu]
    missed = [bug for bug in every if bug not in found]
    parts = [INTRODUCTION, _counts(every, found, not_had), _table(HEAD, map(_row, found))]
    if missed:
        rows = ((_link(bug), _thread(bug.facts), bug.facts.get("missed", "")) for bug in missed)
        parts += ["## Not found by any template", _table(("bug", "thread", "what would find it"), rows)]
    parts += ["## Correct trainers", CORRECT, _table(("trainer", "template", "holds", "not run"), _correct())]
    if not_had:
        lines = ((facts["bug"], _thread(facts), facts["not_had"]) for facts in not_had)
        parts += ["## What could not be had", _table(("bug", "thread", "why"), lines)]
    parts += ["## Each bug", *(_section(bug) for bug in every)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def facts_without_entry() -> list[Mapping[str, Any]]:
    """Bugs that could not be had: facts with `not_had` and no module beside them."""
    return [
        field_bugs.facts_of(path) for path in sorted(ENTRIES.glob("*.toml")) if not path.with_suffix(".py").exists()
    ]


def _counts(every: Sequence[Bug], found: Sequence[Bug], not_had: Sequence[object]) -> str:
    first = sum(bool(_found(bug.first or {})) for bug in every)
    real = sum("package" in bug.facts for bug in every)
    recorded = sum(bool(bug.records) for bug in every)
    return (
        f"**{len(found)} of {len(every)}** are found, {first} of them at the first try. {real} are tried in the real "
        f"package. {recorded} have been tried again since, as the columns say; {len(not_had)} could not be had."
    )


def _row(bug: Bug) -> tuple[str, ...]:
    shown, *others = bug.found or bug.found_on_gpu
    also = f", {', '.join(each.claim for each in others)}" if others else ""
    after = "—" if shown.step is None else f"{shown.step + 1:,}"
    seconds = "" if shown.seconds is None else f"{shown.seconds:.1f}"
    by = f"**{shown.claim}** `{shown.reason}`{also}"
    where = "" if bug.found else " on a GPU alone"
    changed = bug.facts.get("changed", "")
    thread = _thread(bug.facts)
    return _link(bug), thread, by + where, after, seconds, _mended(bug), _gpu(bug), _first(bug), changed


def _gpu(bug: Bug) -> str:
    """Which claims found it there, and whether the mended form held."""
    if not bug.on_gpu:
        return ""
    by = ", ".join(each.claim for each in bug.found_on_gpu) or "not found"
    wrong = [f"{each.claim} `{each.reason}`" for each in bug.on_gpu["mended"] if each.status not in field_bugs.GOOD]
    return f"{by}; mended form {', '.join(wrong) if wrong else 'holds'}"


def _correct() -> Iterator[tuple[str, ...]]:
    """A row for each correct trainer that was tried."""
    for name, said in field_bugs.correct_trainers().items():
        shipped = name in field_bugs.SHIPPED
        link = f"[{name}](../examples/{name}/train.py)" if shipped else f"`{name}`"
        within = any(each.claim == "WITHIN" for each in said)
        held = [each.claim for each in said if each.status == "PASS"]
        wrong = [f"**{each.claim}** `{each.reason}`" for each in said if each.status not in field_bugs.GOOD]
        left = [each.claim for each in said if each.status == "NOT_RUN"]
        yield link, "optimized" if within else "captured", ", ".join([*held, *wrong]), ", ".join(left)


def _mended(bug: Bug) -> str:
    """Over how many seeds the mended form held, or which claims did not."""
    forms = {seed: said["mended"] for seed, said in bug.records.items()} or {0: (bug.first or {}).get("mended", [])}
    wrong = {each.claim: each.reason for said in forms.values() for each in said if each.status not in field_bugs.GOOD}
    if wrong:
        return ", ".join(f"{claim} `{reason}`" for claim, reason in wrong.items())
    return f"holds, {len(forms)} {'seed' if len(forms) == 1 else 'seeds'}"


def _first(bug: Bug) -> str:
    if bug.first is None:
        return "not kept"
    found = [each.claim for each in _found(bug.first)]
    wrong = [f"{each.claim} `{each.reason}`" for each in bug.first["mended"] if each.status not in field_bugs.GOOD]
    text = f"found by {found[0]}" if found else "not found"
    return f"{text}; mended form: {', '.join(wrong)}" if wrong else text


def _section(bug: Bug) -> str:
    facts = bug.facts
    lines = [
        f"### {bug.title}",
        f"[{bug.entry.stem}](../examples/field_bugs/{bug.entry.name}), {_thread(facts)}"
        + (f", in `{facts['package']}`" if "package" in facts else ", re-enacted"),
        f"What its users saw: {facts['users_saw']}",
        f"Cause: {facts['cause']}",
        *(f"{each.claim}: {_quoted(each.message)}" for each in (bug.found or bug.found_on_gpu)[:2]),
        f"Mended: {facts['mend']}",
        *([f"About the harness: {facts['trouble']}"] if "trouble" in facts else []),
    ]
    return "\n\n".join(lines)


def _link(bug: Bug) -> str:
    return f"[{bug.title}](../examples/field_bugs/{bug.entry.name})"


def _thread(facts: Mapping[str, Any]) -> str:
    """A link to the thread on GitHub, where it names one."""
    thread = str(facts["thread"])
    repository, _, number = thread.partition("#")
    linked = repository.count("/") == 1 and number.isdigit()
    return f"[{thread}](https://github.com/{repository}/issues/{number})" if linked else thread


def _quoted(message: str, longest: int = 400) -> str:
    text = " ".join(message.split())
    return f"`{text[:longest].replace('`', chr(39))}{'…' if len(text) > longest else ''}`"


def _table(head: Sequence[str], rows: Iterator[Sequence[str]] | map[tuple[str, ...]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def main() -> int:
    text = written(bugs(), facts_without_entry())
    if "--check" in sys.argv[1:]:
        same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print("same" if same else f"{PAGE.relative_to(ROOT)} is not what the entries say: run this without --check")
        return 0 if same else 1
    write_text(PAGE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
