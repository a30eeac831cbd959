"""What run directories cost, from the evidence in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.contract.schema import Contract
from harness.costs.account import Costs, costs, joined
from harness.costs.kinds import control_arms
from harness.evidence import layout
from harness.evidence.worker_times import WorkerTimes, read_times
from harness.run_directory.bundle import Bundle


def costs_of(bundles: Sequence[Bundle], contracts: Sequence[Contract]) -> Costs:
    """What one run directory cost, or several together, whichever of their runs a verdict rests on."""
    controls = {contract.id: control_arms(contract) for contract in contracts}
    parts = [
        (bundle.path.name, costs(_times(bundle), controls, has_gpu=bundle.header.environment.gpu.uuid is not None))
        for bundle in bundles
    ]
    return joined(parts) if len(parts) > 1 else parts[0][1]


def _times(bundle: Bundle) -> Mapping[str, list[WorkerTimes]]:
    """The workers of every run that left any; an id that leads out of the directory is none."""
    evidence = bundle.root / layout.EVIDENCE
    seen = {name: read_times(evidence / name) for name in bundle.header.runs if Path(name).name == name}
    return {name: workers for name, workers in seen.items() if workers}
