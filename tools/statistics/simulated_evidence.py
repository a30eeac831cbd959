"""Make evidence of a simulated throughput comparison, so that the judge can decide a simulated experiment.

The evidence is made by functions of the tests. Everything in it that is not simulated is correct.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from evidence_builders import TRAJECTORY, contract_of, timed_run

from harness.contract.schema import Contract
from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import Block
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict

LEAST_PACE = 1e-3


def contract_of_ratio(demanded: float, processes: int, blocks: int, measurements: int) -> Contract:
    """Return a contract that requires the speed ratio `demanded`. processes: number of processes in each measurement.
    blocks: number of blocks of each arm in a process."""
    ratio = {
        "id": "RATIO",
        "kind": "throughput_ratio",
        "mechanism": "cuda_graph",
        "candidate": "graphed",
        "baseline": "ungraphed",
        "at_least": demanded,
        "processes": processes,
        "measurements": measurements,
        "blocks": blocks,
        "block_steps": 1,
        "trajectory": TRAJECTORY["id"],
    }
    return contract_of(ratio, TRAJECTORY)


def verdict_of(contract: Contract, seconds: NDArray[np.float64], paces: NDArray[np.float64] | None = None) -> Verdict:
    """Return the judge's verdict on step times [arms, processes, rounds, 2] in seconds. All other evidence is correct.
    paces [processes, rounds, 2]: times of equal work next to the baseline's blocks, divided by the smallest time."""
    runs = [
        _run(process, seconds[:, process], None if paces is None else paces[process])
        for process in range(seconds.shape[1])
    ]
    return judge_unit(contract, contract.claims[0], "w", runs)


def _run(process: int, seconds: NDArray[np.float64], paces: NDArray[np.float64] | None) -> RunEvidence:
    """Return the evidence of the process with the number `process`, which begins after the one before. seconds: step
    times [arms, rounds, 2]; the blocks of a round have the order ABBA."""
    candidate, baseline = seconds.reshape(2, -1).tolist()
    run = timed_run(process, candidate, baseline, steps=1)
    assert run.timing is not None  # noqa: S101 - `timed_run` returns both records
    assert run.telemetry is not None  # noqa: S101
    blocks: list[Block] = []
    began = 1e6 * process
    telemetry = run.telemetry.model_copy(update={"began": began})
    for block in run.timing.blocks:
        relative = 1.0 if paces is None or block.arm != "ungraphed" else paces[block.round, block.position - 1]
        pace = None if paces is None else LEAST_PACE * relative
        blocks.append(block.model_copy(update={"began": began, "pace": pace}))
        began += block.seconds
    return replace(run, timing=run.timing.model_copy(update={"blocks": blocks}), telemetry=telemetry)
