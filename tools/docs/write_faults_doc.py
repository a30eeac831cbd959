"""Fill docs/faults.md: each fault, its claims, the expected verdicts, and whether the claim's tolerance alone finds it.

The last column comes from published drills, the other columns from the contracts and the declarations of faults.
"""

from __future__ import annotations

from collections.abc import Iterator

from index_reports import REPORTS, ROOT, drills
from page_tables import table

from harness.contract.load import load_contracts
from harness.drill.faults import expectation_for, offered_faults
from harness.system.described import describe
from harness.system.protocol import Expectation

HEAD = ("fault", "what is planted", "claim", "must say", "upstream's number alone")
WORDS = {True: "would pass it", False: "catches it", None: "–"}


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield (fault, summary, claim, expected verdict), sorted by fault and then in the order of the contracts."""
    named: dict[str, list[tuple[str, str, str, str]]] = {}
    for loaded in load_contracts([ROOT / "contracts"]):
        contract = loaded.contract
        systems = [contract.system, *(arm.system for arm in contract.arms.values() if arm.system is not None)]
        offered = offered_faults([describe(system) for system in systems])
        for claim in contract.claims:
            for name in claim.falsified_by:
                expected = expectation_for(claim, offered[name])
                if expected is not None:
                    row = (name, offered[name].summary, claim.id, triple(expected))
                    named.setdefault(name, []).append(row)
    for name in sorted(named):
        yield from named[name]


def triple(expected: Expectation) -> str:
    """Return an expected verdict as text, such as `FAIL differs, first_differing_step = 1`."""
    figures = [f"{name} = {value}" for name, value in expected.figures.items()]
    return ", ".join([f"{expected.status} {expected.reason}", *figures])


def text() -> str:
    """Return the table to write between the two marks of the page."""
    rows_of_drills = (row for record in drills(REPORTS) for row in record.rows)
    seen = {(row.fault, row.claim): WORDS[row.upstream_alone_passes] for row in rows_of_drills}
    lines = (
        [f"`{name}`", summary, claim, expected, seen.get((name, claim), "not drilled yet")]
        for name, summary, claim, expected in rows()
    )
    return table(HEAD, lines, bar="/")
