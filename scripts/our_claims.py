"""Our claims as tables show them: what each demands, which faults break it, and its last published verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from index_reports import REPORTS, Published, published

from harness.contract.claims import AnyClaim, CompositeClaim, part_names, parts_of
from harness.contract.load import load_contracts
from harness.drill.evidence_faults import offered_by
from harness.drill.expectations import expectation_for
from harness.drill.numbers import breaks, demanded
from harness.evidence import layout
from harness.system.described import describe
from harness.system.protocol import FaultDescription

ROOT = Path(__file__).parents[1]
NOT_PUBLISHED = "not published yet"
FOLDERS = ("accuracy", "gates")  # of published runs that do not lie in reports/ itself
SHOWN = 3  # faults that are named for one number; the others are counted


@dataclass(frozen=True)
class OurClaim:
    """One claim: its contract's id, its numbers with their faults, its verdicts, each as one line."""

    contract: str
    numbers: str
    published: str


def ours(contracts: Path = ROOT / "contracts", reports: Path = REPORTS) -> dict[str, OurClaim]:
    """Every claim by id, in the order of the contracts. A gate's verdicts go before those of a drill's controls."""
    places = [reports, *(reports / name for name in FOLDERS)]
    runs = sorted((run for place in places for run in published(place)), key=lambda run: run.header.started_at)
    unplanted = [run for purpose in ("drill", "verify") for run in runs if run.header.purpose == purpose]
    claims = {}
    for loaded in load_contracts([contracts]):
        offered = offered_by(loaded.contract, describe)
        for claim in loaded.contract.claims:
            verdicts = _verdicts(loaded.contract.id, claim.id, unplanted)
            claims[claim.id] = OurClaim(loaded.contract.id, _numbers(claim, offered), verdicts)
    return claims


def _numbers(claim: AnyClaim, offered: Mapping[str, FaultDescription]) -> str:
    texts = []
    names = part_names(claim) if isinstance(claim, CompositeClaim) else [""]
    for part, path, demand in demanded(claim):
        faults = [
            name for name in claim.falsified_by if breaks(claim, expectation_for(claim, offered[name]), part, demand)
        ]
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        named = ", ".join(f"`{name}`" for name in faults[:SHOWN]) + more if faults else "no fault"
        place = f"{names[part]}: " if names[part] else ""
        texts.append(f"{place}{path} {_shown(parts_of(claim)[part].value_at(path))}: {named}")
    return "; ".join(texts)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(one)}" for name, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def place(name: str) -> str:
    """The page of a published run, as a page in docs/ links it; one that is not there, as of the folder of all runs."""
    folders = [folder for folder in (REPORTS, *(REPORTS / name for name in FOLDERS)) if (folder / name).is_dir()]
    folder = folders[0] if folders else REPORTS
    # a part that the page of several runs shows has a summary alone
    shown = layout.PAGE if not folders or (folder / name / layout.PAGE).is_file() else layout.SUMMARY
    return f"../{folder.relative_to(ROOT).as_posix()}/{name}/{shown}"


def _verdicts(contract: str, claim: str, runs: Sequence[Published]) -> str:
    """Of the last of these runs that has the claim, how many units had which status."""
    for run in reversed(runs):
        found = [one for one in run.verdicts.claims if (one.contract, one.claim) == (contract, claim)]
        if found:
            statuses = Counter(str(one.status) for one in found)
            counted = ", ".join(f"{number} {status}" for status, number in sorted(statuses.items()))
            return f"{counted} in [{run.name}]({place(run.name)})" + (
                " (its controls)" if run.header.purpose == "drill" else ""
            )
    return NOT_PUBLISHED
