"""Write the table of docs/faults.md: every fault, the claims that name it, what they must say, and upstream's number.

    python scripts/write_faults_doc.py [DRILL_RECORD ...]

The first columns come from the contracts and from what faults declare. The last one comes from drill records, and
keeps what the page says where no record given here has the row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.contract.load import load_contracts
from harness.drill.evidence_faults import offered_faults
from harness.drill.expectations import expectation_for
from harness.run_directory.drill_record import read_record
from harness.system.described import describe
from harness.system.protocol import Expectation

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "faults.md"
BEGIN, END = "<!-- table: scripts/write_faults_doc.py -->", "<!-- end of table -->"
HEAD = ("fault", "what is planted", "claim", "must say", "upstream's number alone")
WORDS = {True: "would pass it", False: "catches it", None: "–"}


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Fault, summary, claim and declared triple, by fault, in the order of the contracts."""
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
    """`FAIL differs, first_differing_step = 1`."""
    figures = [f"{name} = {value}" for name, value in expected.figures.items()]
    return ", ".join([f"{expected.status} {expected.reason}", *figures])


def upstream(paths: list[Path]) -> dict[tuple[str, str], str]:
    """By fault and claim, what the records say of upstream's number alone."""
    return {
        (row.fault, row.claim): WORDS[row.upstream_alone_passes] for path in paths for row in read_record(path).rows
    }


def written(page: str) -> dict[tuple[str, str], str]:
    """By fault and claim, the last column of a page's table."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:2] == "| "]
    return {(row[0].strip("`"), row[2]): row[4] for row in cells if len(row) == len(HEAD)}


def table(seen: Mapping[tuple[str, str], str]) -> str:
    """The Markdown table."""
    lines = [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    for name, summary, claim, expected in rows():
        cells = [f"`{name}`", summary, claim, expected, seen.get((name, claim), "not drilled yet")]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def with_table(page: str, seen: Mapping[tuple[str, str], str]) -> str:
    """The page with its table made anew."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table(seen)}\n{END}{rest.split(END)[1]}"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    seen = {**written(page), **upstream([Path(path) for path in sys.argv[1:]])}
    PAGE.write_text(with_table(page, seen), encoding="utf-8")


if __name__ == "__main__":
    main()
