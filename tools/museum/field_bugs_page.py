"""Fill docs/field-bugs.md from the entries of examples/field_bugs and the stored results of their trials.

Nothing is executed.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import field_bugs
import scorecard
from field_bug_results import CPU, FIRST, NOW, Said, read_results
from field_bugs import ENTRIES, Records
from page_tables import table

from examples.field_bugs.bug import Bug

CORRECT = """The same templates are also tried on correct trainers: the examples of this repository, and steps
in the style of public trainers (`tests/support/public_trainers.py`). A claim is not run if the step
lacks a function that the claim needs, or if the claim needs a GPU."""
GPU = "NVIDIA H200"
HEAD = ("bug", "thread", "found by", "after steps", "seconds", "fixed", "on an H200", "first try", "changed since")
NOT_WRITTEN = ENTRIES / "not_written.toml"


@dataclass(frozen=True)
class Entry:
    """An entry in examples/field_bugs: the bug, and the results of its trials."""

    path: Path
    bug: Bug
    first: Mapping[str, list[Said]] | None
    records: Records
    on_gpu: Mapping[str, list[Said]]

    @property
    def found(self) -> list[Said]:
        """Return the claims that found the bug with the first seed and hold for the fixed form, in contract order."""
        return scorecard.found_bugs(next(iter(self.records.values()), self.first or {}))

    @property
    def found_on_gpu(self) -> list[Said]:
        """Return the claims that found the bug in the trial on a GPU, as `found` does for a CPU."""
        return scorecard.found_bugs(self.on_gpu)


def entries() -> list[Entry]:
    """Return every entry with the results of its trials, sorted by name."""
    results = read_results()

    def tried_on(machine: str, path: Path, tried: str = NOW) -> Records:
        return field_bugs.record_of(path.stem, results, tried, machine)

    return [
        Entry(
            path,
            bug,
            next(iter(tried_on(CPU, path, FIRST).values()), None),
            tried_on(CPU, path),
            next(iter(tried_on(GPU, path).values()), {}),
        )
        for path, bug in field_bugs.entries().items()
    ]


def text() -> str:
    """Return the text to write between the two marks of the page: the counts, the tables and a section for each bug."""
    every, not_had = entries(), not_written()
    found = [entry for entry in every if entry.found or entry.found_on_gpu]
    missed = [entry for entry in every if entry not in found]
    parts = [
        _counts(every, found, not_had),
        scorecard.section(),
        "## Found",
        table(HEAD, map(_row, found)),
    ]
    if missed:
        rows = ((_link(entry), _thread(entry.bug.thread), entry.bug.missed) for entry in missed)
        parts += ["## Not found by any template", table(("bug", "thread", "what would find the bug"), rows)]
    parts += ["## Correct trainers", CORRECT, table(("trainer", "template", "holds", "not run"), _correct())]
    if not_had:
        lines = ((each["title"], _thread(each["thread"]), each["why"]) for each in not_had)
        parts += ["## Bugs without an entry", table(("bug", "thread", "why"), lines)]
    parts += ["## Each bug", *map(_section, every)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def not_written() -> list[Mapping[str, str]]:
    """Return a dictionary for each bug that could not be re-enacted, with its title, its thread and the reason."""
    return list(tomllib.loads(NOT_WRITTEN.read_text(encoding="utf-8")).values())


def _counts(every: Sequence[Entry], found: Sequence[Entry], not_had: Sequence[object]) -> str:
    tried = [entry for entry in every if entry.first is not None]
    first = sum(bool(scorecard.found_bugs(entry.first or {})) for entry in tried)
    accused = sum(any(each.found for each in (entry.first or {})["mended"]) for entry in tried)
    real = sum(bool(entry.bug.package) for entry in every)
    recorded = sum(bool(entry.records) for entry in every)
    return (
        f"In the first try, **{first} of {len(tried)} bugs were found**, and for {accused} fixed forms a claim failed "
        f"wrongly.\nToday {len(found)} of {len(every)} bugs are found; {recorded} bugs were tried again after later "
        f"changes.\n{real} bugs are tried in the real package, and {len(not_had)} bugs could not be tried."
    )


def _row(entry: Entry) -> tuple[str, ...]:
    shown, *others = entry.found or entry.found_on_gpu
    also = f", {', '.join(each.claim for each in others)}" if others else ""
    after = "—" if shown.step is None else f"{shown.step + 1:,}"
    seconds = "" if shown.seconds is None else f"{shown.seconds:.1f}"
    by = f"**{shown.claim}** `{shown.reason}`{also}"
    where = "" if entry.found else " on a GPU alone"
    changed = entry.bug.changed
    thread = _thread(entry.bug.thread)
    return _link(entry), thread, by + where, after, seconds, _mended(entry), _gpu(entry), _first(entry), changed


def _gpu(entry: Entry) -> str:
    """Return the claims that found the bug on a GPU, and whether the fixed form held."""
    if not entry.on_gpu:
        return ""
    by = ", ".join(each.claim for each in entry.found_on_gpu) or "not found"
    return f"{by}; fixed form {_wrong(entry.on_gpu['mended']) or 'holds'}"


def _wrong(said: Sequence[Said], mark: str = "") -> str:
    """Return a text with the claims that did not hold, each once with its reason."""
    wrong = {each.claim: each.reason for each in said if each.status not in field_bugs.GOOD}
    return ", ".join(f"{mark}{claim}{mark} `{reason}`" for claim, reason in wrong.items())


def _correct() -> Iterator[tuple[str, ...]]:
    """Yield a row for each correct trainer that was tried."""
    for name, said in field_bugs.correct_trainers().items():
        shipped = name in field_bugs.SHIPPED
        link = f"[{name}](../examples/{name}/train.py)" if shipped else f"`{name}`"
        within = any(each.claim == "WITHIN" for each in said)
        held = [each.claim for each in said if each.status == "PASS"]
        left = [each.claim for each in said if each.status == "NOT_RUN"]
        shown = ", ".join(filter(None, [*held, _wrong(said, "**")]))
        yield link, "optimized" if within else "captured", shown, ", ".join(left)


def _mended(entry: Entry) -> str:
    """Return the number of seeds for which the fixed form held, or the claims that did not hold, as text."""
    forms = [forms["mended"] for forms in entry.records.values()] or [(entry.first or {}).get("mended", [])]
    held = f"holds, {len(forms)} {'seed' if len(forms) == 1 else 'seeds'}"
    return _wrong([each for said in forms for each in said]) or held


def _first(entry: Entry) -> str:
    if entry.first is None:
        return "not kept"
    found, wrong = scorecard.found_bugs(entry.first), _wrong(entry.first["mended"])
    text = f"found by {found[0].claim}" if found else "not found"
    return f"{text}; fixed form: {wrong}" if wrong else text


def _section(entry: Entry) -> str:
    bug = entry.bug
    lines = [
        f"### {bug.title}",
        f"[{entry.path.stem}](../examples/field_bugs/{entry.path.name}), {_thread(bug.thread)}"
        + (f", in `{bug.package}`" if bug.package else ", re-enacted with a small model"),
        _filled(f"What users saw: {bug.users_saw}"),
        _filled(f"Cause: {bug.cause}"),
        *(_quoted(each.claim, each.message) for each in (entry.found or entry.found_on_gpu)[:2] if each.message),
        _filled(f"Fix: {bug.fix}"),
        *([_filled(f"About the harness: {bug.trouble}")] if bug.trouble else []),
    ]
    return "\n\n".join(lines)


def _link(entry: Entry) -> str:
    return f"[{entry.bug.title}](../examples/field_bugs/{entry.path.name})"


def _thread(thread: str) -> str:
    """Return a link if `thread` names a thread on GitHub, otherwise the text unchanged."""
    repository, _, number = thread.partition("#")
    linked = repository.count("/") == 1 and number.isdigit()
    return f"[{thread}](https://github.com/{repository}/issues/{number})" if linked else thread


def _quoted(claim: str, message: str, longest: int = 400) -> str:
    cut = f"{message[:longest]}{'…' if len(message) > longest else ''}"
    return f"{claim} reported:\n\n```text\n{_filled(cut)}\n```"


def _filled(text: str) -> str:
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)  # keep each piece of code on one line
    return textwrap.fill(whole, 100, break_long_words=False, break_on_hyphens=False).replace("\0", " ")
