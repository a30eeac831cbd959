"""Find which demanded numbers of a claim its planted faults break. Pure; imports neither torch nor a judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.contract.base import Demand, marks
from harness.contract.claims import AnyClaim, CompositeClaim, part_names, parts_of
from harness.drill.expectations import expectation_for
from harness.system.protocol import Expectation, FaultDescription


@dataclass(frozen=True)
class Unbroken:
    """A field that can turn PASS into FAIL and that no fault of its claim breaks."""

    part: int  # its position among the claim's parts
    path: str
    value: object
    demand: Demand
    offered: tuple[str, ...]  # faults that would break it, and that the claim does not name

    def sentence(self, claim: str) -> str:
        """Return what is missing, and what to do."""
        reasons = " or ".join(f"`{reason}`" for reason in self.demand.reasons)
        figures = "".join(f", {name} = {value}" for name, value in self.demand.figures.items())
        there = f"; offered: {', '.join(self.offered)}" if self.offered else ""
        return (
            f"no fault of '{claim}' breaks `{self.path}` ({self.value}), so any other value would pass its drill: "
            f"name one that expects {reasons}{figures}{there}"
        )


def unbroken(claim: AnyClaim, faults: Mapping[str, FaultDescription]) -> Iterator[Unbroken]:
    """Yield the demanded numbers of all parts that no fault of `falsified_by` breaks, in the order of the fields."""
    planted = [expectation_for(claim, faults[name]) for name in claim.falsified_by if name in faults]
    for part, path, demand in demanded(claim):
        if any(breaks(claim, expected, part, demand) for expected in planted):
            continue
        offered = {name: expectation_for(claim, fault) for name, fault in faults.items()}
        fitting = tuple(sorted(name for name, expected in offered.items() if breaks(claim, expected, part, demand)))
        yield Unbroken(
            part,
            path,
            parts_of(claim)[part].bounds().get(path) or parts_of(claim)[part].value_at(path),
            demand,
            fitting,
        )


def demanded(claim: AnyClaim) -> Iterator[tuple[int, str, Demand]]:
    """Yield position of the part, path and demand of every number that the claim demands."""
    for position, part in enumerate(parts_of(claim)):
        for path, demand in part.demanded().items():
            yield position, path, demand


def breaks(claim: AnyClaim, expected: Expectation | None, part: int, demand: Demand) -> bool:
    """Return True if a fault with this expectation must make the judge say that this demand is not met."""
    if expected is None or expected.reason not in demand.reasons or not _concerns(claim, expected, part):
        return False
    return all(
        any(seen == value for name, seen in expected.figures.items() if name.rpartition(".")[2] == figure)
        for figure, value in demand.figures.items()
    )


def _concerns(claim: AnyClaim, expected: Expectation, part: int) -> bool:
    """Return True if an expectation is about this part: its figures name this part, or no part at all."""
    if not isinstance(claim, CompositeClaim):
        return True
    names = part_names(claim)
    named = {name for name in names for figure in expected.figures if figure.startswith(f"{name}.")}
    return not named or names[part] in named


def left_out_for(claim: AnyClaim, fault: FaultDescription) -> str:
    """Return the field that a fault would break if the claim set it; "" if the fault breaks a field that is set."""
    left_out, expected = "", expectation_for(claim, fault)
    for position, part in enumerate(parts_of(claim)):
        for path, demand in marks(type(part), Demand).items():
            if breaks(claim, expected, position, demand):
                if part.value_at(path) is not None:
                    return ""
                left_out = left_out or path
    return left_out
