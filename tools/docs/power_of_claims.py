"""Print the table of docs/statistics.md with the probability that a run decides each timed claim.

python tools/docs/power_of_claims.py

The probability is computed from the noise of the claim's last published run. The script does not change the page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from page_tables import table

from harness.api.last_timing import last_timings
from harness.contract.load import load_contracts
from harness.contract.schema import parts_of
from harness.kinds.speed.speed_figures import LastTiming

ROOT = Path(__file__).parents[2]
TIMES = (1.05, 1.15, 1.30)  # true ratios, as multiples of the required ratio
HEAD = ("claim", "workload", "demanded", "processes", "noise of", *(f"decided at {times:.2f} times" for times in TIMES))


def chances(timings: Iterable[LastTiming], units: Collection[tuple[str, str, str]]) -> str:
    """Return a Markdown table with a row for each timed unit (contract, claim, workload)."""
    by_unit = {(one.contract, one.claim, one.workload): one for one in timings}
    none = ["–", "–", "none published", *["–"] * len(TIMES)]
    return table(HEAD, ([*unit[1:], *(_row(by_unit[unit]) if unit in by_unit else none)] for unit in units))


def _row(timing: LastTiming) -> list[str]:
    part = timing.part
    chances = (timing.recorded.power(part, times * part.at_least) for times in TIMES)
    return [f"{part.at_least:g}", f"{part.process_count()}", timing.run, *(f"{100 * one:.0f} %" for one in chances)]


def text() -> str:
    """Return the table for the shipped contracts, from the runs below reports/."""
    contracts = [loaded.contract for loaded in load_contracts([ROOT / "contracts"])]
    units = [
        (contract.id, claim.id, workload)
        for contract in contracts
        for claim in contract.claims
        if any(part.kind == "throughput_ratio" for part in parts_of(claim))
        for workload in claim.judged_on
    ]
    return chances(last_timings(contracts, [ROOT / "reports"]), units)


if __name__ == "__main__":
    print(text())
