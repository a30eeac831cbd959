"""What a run directory cost, from the evidence in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.contract.schema import Contract
from harness.costs.account import Costs, costs, joined
from harness.costs.kinds import control_arms
from harness.evidence import layout
from harness.evidence.worker_times import WorkerTimes, read_times
from harness.run_directory.bundle import Bundle


def costs_of(bundle: Bundle, contracts: Sequence[Contract]) -> Costs:
    """What one run directory cost, whichever of its runs a verdict rests on.

    A run that was interrupted has parts by clocks of their own: the machine's may have begun anew.
    """
    controls = {contract.id: control_arms(contract) for contract in contracts}
    has_gpu = bundle.header.environment.gpu.uuid is not None
    times = _times(bundle)
    part_of = dict.fromkeys(times, 0)
    for number, resumption in enumerate(bundle.header.resumed, start=1):
        part_of |= {run: number for run in resumption.executed if run in times}
    numbers = sorted(set(part_of.values())) or [0]
    parts = [
        costs({run: times[run] for run in times if part_of[run] == number}, controls, has_gpu=has_gpu)
        for number in numbers
    ]
    return joined([("", part) for part in parts]) if len(parts) > 1 else parts[0]


def _times(bundle: Bundle) -> Mapping[str, list[WorkerTimes]]:
    """The workers of every run that left any; an id that leads out of the directory is none."""
    evidence = bundle.root / layout.EVIDENCE
    seen = {name: read_times(evidence / name) for name in bundle.header.runs if Path(name).name == name}
    return {name: workers for name, workers in seen.items() if workers}
