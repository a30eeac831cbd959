"""Fill docs/statistics.md: the chance that each timed claim is decided, by the noise of its last published run.

    python tools/docs/power_of_claims.py

prints the table alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from harness.api.last_timing import last_timings
from harness.contract.load import load_contracts
from harness.contract.schema import parts_of
from harness.kinds.speed.speed_figures import LastTiming

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
TIMES = (1.05, 1.15, 1.30)  # the demanded ratio
HEAD = ("claim", "workload", "demanded", "processes", "noise of", *(f"decided at {times:.2f} times" for times in TIMES))


def table(timings: Iterable[LastTiming], units: Collection[tuple[str, str, str]]) -> str:
    """Return the Markdown table, a row for each timed unit: contract, claim and workload."""
    lines = [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    by_unit = {(one.contract, one.claim, one.workload): one for one in timings}
    for unit in units:
        cells = _row(by_unit[unit]) if unit in by_unit else ["–", "–", "none published", *["–"] * len(TIMES)]
        lines.append(f"| {' | '.join((*unit[1:], *cells))} |")
    return "\n".join(lines)


def _row(timing: LastTiming) -> list[str]:
    part = timing.part
    chances = (timing.recorded.power(part, times * part.at_least) for times in TIMES)
    return [f"{part.at_least:g}", f"{part.process_count()}", timing.run, *(f"{100 * one:.0f} %" for one in chances)]


def published() -> str:
    """Return the table of the shipped contracts, from the runs below reports/."""
    contracts = [loaded.contract for loaded in load_contracts([ROOT / "contracts"])]
    units = [
        (contract.id, claim.id, workload)
        for contract in contracts
        for claim in contract.claims
        if any(part.kind == "throughput_ratio" for part in parts_of(claim))
        for workload in claim.judged_on
    ]
    return table(last_timings(contracts, [ROOT / "reports"]), units)


def filled(page: str) -> str:
    """Return the page with its table between the marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{published()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    print(published())
