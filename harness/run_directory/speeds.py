"""Check that the machines that timed one claim are equally fast, by what was measured next to its blocks.

One kind of machine is not one speed: a card may have its clock locked, a host its governor. What a claim's workloads do
to a clock differs, so the highest clock is compared that each machine reached while it timed, by the spread that the
claim's own limits allow within a process. Of processors the least pace is compared, that of a fixed piece of work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.contract.claims import parts_of
from harness.contract.schema import Contract
from harness.errors import EvidenceError
from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import DISTURBED, disturbed
from harness.kinds.speed.model import ThroughputRatio
from harness.run_directory.bundle import Bundle
from harness.run_directory.shards import name_of, timed_by

RULE = "one claim is timed on machines of one speed"


@dataclass(frozen=True)
class Speed:
    """Of a machine, while it timed a unit: highest SM clock in MHz, least pace in processor seconds; None: unknown."""

    clock: float | None
    pace: float | None

    @classmethod
    def of(cls, evidence: Sequence[RunEvidence]) -> Speed:
        samples = [sample for run in evidence if run.telemetry is not None for sample in run.telemetry.samples]
        blocks = [block for run in evidence if run.timing is not None for block in run.timing.blocks]
        clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
        paces = [block.pace for block in blocks if block.pace is not None]
        return cls(max(filter(math.isfinite, clocks), default=None), min(filter(math.isfinite, paces), default=None))

    def apart(self, other: Speed, spread: float) -> str:
        """Return how far apart two machines are, where that is more than allowed; else "" (nothing)."""
        if self.clock and other.clock:
            low, high = sorted((self.clock, other.clock))
            if high - low > spread * high:
                return f"an SM clock of {low:.0f} MHz at most, and {high:.0f}; {spread:g} of it are allowed"
        if self.pace and other.pace:
            low, high = sorted((self.pace, other.pace))
            if disturbed(high, low):
                return f"processors {high / low:.2f} times as slow at best; {DISTURBED:g} are allowed"
        return ""


def speeds_apart(bundles: Sequence[Bundle], contracts: Sequence[Contract]) -> Iterator[EvidenceError]:
    """Yield an error for each directory that timed a claim's workload on a machine of another speed than the first."""
    deciding: dict[tuple[str, str], list[tuple[str, Bundle]]] = {}
    for (of_contract, of_claim, workload), bundle in timed_by(bundles).items():
        deciding.setdefault((of_contract, of_claim), []).append((workload, bundle))
    for contract in contracts:
        for claim in contract.claims:
            timed = deciding.get((contract.id, claim.id), [])
            limits = [part.limits for part in parts_of(claim) if isinstance(part, ThroughputRatio)]
            if limits and len({bundle.path for _, bundle in timed}) > 1:
                yield from _apart(contract.id, claim.id, timed, limits[0].sm_clock_spread)


def _apart(contract: str, claim: str, timed: Sequence[tuple[str, Bundle]], spread: float) -> Iterator[EvidenceError]:
    speeds = [_speed(bundle, (contract, claim, workload)) for workload, bundle in timed]
    for (_, bundle), speed in zip(timed, speeds, strict=True):
        if found := speeds[0].apart(speed, spread):
            yield EvidenceError(
                RULE,
                where=str(bundle.path),
                got=f"{claim} beside {timed[0][1].path} with {found}",
                remedy="run the claim again, all of it on one machine",
            )


def _speed(bundle: Bundle, name: tuple[str, str, str]) -> Speed:
    return Speed.of(
        [bundle.evidence(run) for unit in bundle.header.units if name_of(unit) == name for run in unit.runs]
    )
