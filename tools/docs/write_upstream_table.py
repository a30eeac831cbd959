"""Fill the page docs/upstream-claims.md: every claim of upstream about training on a GPU, with its outcome.

Upstream are the projects that first made the claims. Claims and outcomes come from docs/upstream, verdicts from runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from index_reports import REPORTS, Published, published
from page_tables import table
from upstream_decisions import EXCERPTS, Decisions, Outcome, OutOfScope, Row, joined, read_decisions

from harness.contract.load import load_contracts
from harness.errors import ContractError
from harness.evidence import layout
from harness.extras.upstream.items import Item

ROOT = Path(__file__).parents[2]
NOT_PUBLISHED = "not published yet"
FOLDERS = ("accuracy", "gates")  # folders in reports/ that contain published runs
UNPUBLISHED = "decided, unpublished"
SUPPORTING = "follows another"
OUT_OF_SCOPE = "out of scope"
STATES = {
    "decided": "a claim of ours judges it, with upstream's number or a harder one, and its verdict is published",
    UNPUBLISHED: "the same, and no run of that claim is published yet",
    "restated": "not judged as it stands; the row says why, and what holds in its place",
    "refuted": "a correct program breaks it, in a test",
    SUPPORTING: "names or surrounds another item, which has its own row",
    OUT_OF_SCOPE: "in a file about something else",
}
LONGEST = 120  # largest number of characters of upstream's claim that are shown


@dataclass(frozen=True)
class OurClaim:
    """One claim of this project, with the id of its contract and its last published verdicts as one line."""

    contract: str
    published: str


def ours(contracts: Path = ROOT / "contracts", reports: Path = REPORTS) -> dict[str, OurClaim]:
    """Return every claim of this project, by id, with verdicts of a `verify` run or, if there is none, of a drill."""
    places = [reports, *(reports / name for name in FOLDERS)]
    runs = sorted((run for place in places for run in published(place)), key=lambda run: run.header.started_at)
    unplanted = [run for purpose in ("drill", "verify") for run in runs if run.header.purpose == purpose]
    claims = {}
    for loaded in load_contracts([contracts]):
        for claim in loaded.contract.claims:
            verdicts = _verdicts(loaded.contract.id, claim.id, unplanted)
            claims[claim.id] = OurClaim(loaded.contract.id, verdicts)
    return claims


def place(name: str) -> str:
    """Return the path of a run's page, relative to docs/. Without a folder of this name, assume one in reports/."""
    folders = [folder for folder in (REPORTS, *(REPORTS / name for name in FOLDERS)) if (folder / name).is_dir()]
    folder = folders[0] if folders else REPORTS
    # A run that another run's page shows has only a summary and no page of its own.
    shown = layout.PAGE if not folders or (folder / name / layout.PAGE).is_file() else layout.SUMMARY
    return f"../{folder.relative_to(ROOT).as_posix()}/{name}/{shown}"


def _verdicts(contract: str, claim: str, runs: Sequence[Published]) -> str:
    """Return the number of the claim's units with each status, in the last of these runs that contains the claim."""
    for run in reversed(runs):
        found = [one for one in run.verdicts.claims if (one.contract, one.claim) == (contract, claim)]
        if found:
            statuses = Counter(str(one.status) for one in found)
            counted = ", ".join(f"{number} {status}" for status, number in sorted(statuses.items()))
            return f"{counted} in [{run.name}]({place(run.name)})" + (
                " (its controls)" if run.header.purpose == "drill" else ""
            )
    return NOT_PUBLISHED


def state_of(outcome: Outcome | None, claims: Mapping[str, OurClaim]) -> str:
    """Return the state of a row about training on a GPU, from its outcome and the verdicts of the outcome's claims."""
    if outcome is None:
        return SUPPORTING
    unpublished = all(claims[name].published == NOT_PUBLISHED for name in outcome.by)
    return UNPUBLISHED if outcome.state == "decided" and unpublished else outcome.state


def checked(where: str, outcome: Outcome, claims: Mapping[str, OurClaim]) -> None:
    """Raise ContractError if an outcome names a claim or a test that does not exist."""
    if missing := [name for name in outcome.by if name not in claims]:
        raise ContractError("a row may name only claims of this project", where=where, got=", ".join(missing))
    for test in outcome.tests:
        file, _, function = test.partition("::")
        path = ROOT / file
        if not path.is_file() or f"def {function}(" not in path.read_text(encoding="utf-8"):
            raise ContractError("a row may name only tests that exist", where=where, got=test)


def tables(decisions: Decisions, claims: Mapping[str, OurClaim], excerpts: Path = EXCERPTS) -> str:
    """Return the page's tables. Raises ContractError for an item without a row or a row without items."""
    rows = joined(decisions, excerpts)
    for file, each in rows.items():
        for row in each:
            if row.outcome is not None:
                checked(f"{file} {row.items[0].id}", row.outcome, claims)
    for seed in decisions.seeds:
        checked(seed.id, seed, claims)
    scoped = {file: each for file, each in rows.items() if not isinstance(decisions.files[file], OutOfScope)}
    states = counts(rows, scoped, claims)
    total = f"{sum(states.values())} items in {len(rows)} files, of which {len(scoped)} are about training on a GPU:"
    meanings = ([name, str(states[name]), meaning] for name, meaning in STATES.items())
    parts = [total, table(("state", "items", "meaning"), meanings)]
    for file, each in scoped.items():
        parts += [f"## {file.removesuffix('.yaml')}", table(HEAD, (_row(row, claims) for row in each))]
    seeds = ([_code(seed.id), seed.says, *_outcome(seed, seed.why or "", claims)] for seed in decisions.seeds)
    parts += ["## The source files that the project starts from", table(HEAD, seeds)]
    named = {name for each in scoped.values() for row in each if row.outcome for name in row.outcome.by}
    named |= {name for seed in decisions.seeds for name in seed.by}
    own = ([name, claims[name].contract, claims[name].published] for name in claims if name in named)
    parts += ["## Our claims, and what was published", table(OURS, own)]
    out = (
        [file.removesuffix(".yaml"), str(len(each[0].items)), each[0].why]
        for file, each in rows.items()
        if file not in scoped
    )
    parts += [
        "## Files about other things than training on a GPU",
        table(("file", "items", "why it is out of scope"), out),
    ]
    return "\n\n".join(parts)


HEAD = ("upstream's claim", "what it says", "state", "ours, tests, and why")
OURS = ("claim", "contract", "last published verdicts")


def counts(
    rows: Mapping[str, Sequence[Row]], scoped: Mapping[str, Sequence[Row]], claims: Mapping[str, OurClaim]
) -> Counter[str]:
    """Count upstream's items by state."""
    states: Counter[str] = Counter()
    for file, each in rows.items():
        for row in each:
            states[state_of(row.outcome, claims) if file in scoped else OUT_OF_SCOPE] += len(row.items)
    return states


def _row(row: Row, claims: Mapping[str, OurClaim]) -> list[str]:
    ids = ", ".join(map(_code, _shortened([item.id for item in row.items])))
    if row.outcome is None:
        return [
            f"{len(row.items)} of {', '.join(sorted({item.section for item in row.items}))}",
            "–",
            SUPPORTING,
            row.why,
        ]
    return [ids, _says(row.items), *_outcome(row.outcome, row.why, claims)]


def _outcome(outcome: Outcome, why: str, claims: Mapping[str, OurClaim]) -> list[str]:
    named = [", ".join(outcome.by)]
    named += [_code(test.rpartition("/")[2]) for test in outcome.tests]
    text = ". ".join(part for part in [*named, why.rstrip(".")] if part)
    return [state_of(outcome, claims), text or "–"]


def _shortened(ids: Sequence[str]) -> list[str]:
    """Return the ids, with consecutive numbers joined, as in `equations.x.invariants.1-4`."""
    groups: list[tuple[str, list[int]]] = []
    for name in ids:
        stem, _, last = name.rpartition(".")
        number = int(last) if last.isdigit() else 0
        if groups and number and groups[-1][0] == stem and groups[-1][1][-1] == number - 1:
            groups[-1][1].append(number)
        else:
            groups.append((stem, [number]) if number else (name, [0]))
    return [
        stem if numbers == [0] else f"{stem}.{numbers[0]}" + (f"-{numbers[-1]}" if len(numbers) > 1 else "")
        for stem, numbers in groups
    ]


def _says(items: Sequence[Item]) -> str:
    """Return the title and prediction of the first item with a prediction; if none, with a formula; else a title."""
    worded = [(item, item.texts[key]) for key in ("prediction", "formal") for item in items if item.texts.get(key)]
    text = f"{worded[0][0].title}: {worded[0][1]}" if worded else items[0].title
    return _code(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")


def _code(text: str) -> str:
    return f"`{text.replace('`', '')}`"


def text() -> str:
    """Return the text to write between the two marks of the page."""
    return tables(read_decisions(), ours())
