"""Make evidence of a simulated throughput comparison, so that the judge itself can decide a simulated experiment."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from harness.contract.schema import Contract
from harness.evidence.arm_records import ArmEnd, ArmStart, State
from harness.evidence.run_evidence import ArmEvidence, RunEvidence, Series
from harness.evidence.run_records import Block, Telemetry, TelemetrySample, TimingEvidence
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict

LEAST_PACE = 1e-3
ARMS = ("candidate", "baseline")
_TEXT = {
    "title": "t",
    "judged_on": ["w"],
    "why": "w",
    "if_fails": "f",
    "candidate": "candidate",
    "baseline": "baseline",
}


def contract_of(demanded: float, processes: int, blocks: int, measurements: int) -> Contract:
    """Return a contract that requires the speed ratio `demanded`.

    measurements: number of measurements. processes: of each measurement. blocks: of each arm in a process.
    """
    ratio = {
        "id": "RATIO",
        "kind": "throughput_ratio",
        "at_least": demanded,
        "processes": processes,
        "measurements": measurements,
        "blocks": blocks,
        "block_steps": 1,
        "trajectory": "SAME",
    }
    same = {
        "id": "SAME",
        "kind": "trajectory_match",
        "equality": "bitwise",
        "max_abs_difference": 0.1,
        "guards": {"steps": 1},
    }
    return Contract.model_validate(
        {
            "schema": "contract/v2",
            "id": "simulation",
            "title": "a simulated comparison",
            "system": "simulated:System",
            "workloads": {"w": {"model": "m", "batch_size": 1, "seq_len": 1, "steps": 1}},
            "arms": {"candidate": {"capture": "none", "fast": True}, "baseline": {"capture": "none"}},
            "claims": [_TEXT | ratio, _TEXT | same],
        }
    )


def verdict_of(contract: Contract, seconds: NDArray[np.float64], paces: NDArray[np.float64] | None = None) -> Verdict:
    """Return the judge's verdict on step times [arms, processes, rounds, 2] in seconds; everything else is in order.

    paces: of the processor beside the baseline's blocks, [processes, rounds, 2], relative to the least; None: not
    measured.
    """
    runs = [
        _run(process, seconds[:, process], None if paces is None else paces[process])
        for process in range(seconds.shape[1])
    ]
    return judge_unit(contract, contract.claims[0], "w", runs)


def _run(process: int, seconds: NDArray[np.float64], paces: NDArray[np.float64] | None) -> RunEvidence:
    """Return the evidence of one process: ABBA rounds of step times [arms, rounds, 2], later than those before it."""
    blocks: list[Block] = []
    began = 1e6 * process
    for index in range(seconds.shape[1]):
        (ours, ours_again), (theirs, theirs_again) = seconds[:, index]
        order = zip(
            ("candidate", "baseline", "baseline", "candidate"), (ours, theirs, theirs_again, ours_again), strict=True
        )
        blocks += [
            Block(
                arm=arm,
                round=index,
                position=position,
                steps=1,
                seconds=float(time),
                processor_seconds=float(time),
                first_step=0,
                began=began + position * float(seconds.max()),
                pace=None if paces is None else LEAST_PACE * (paces[index][position - 1] if arm == "baseline" else 1),
            )
            for position, (arm, time) in enumerate(order)
        ]
        began += 4 * float(seconds.max())
    quiet = [
        TelemetrySample(
            seconds=float(second),
            sm_clock_mhz=None,
            power_w=None,
            temperature_c=None,
            throttle_reasons=[],
            foreign_processes=0,
            host_load_per_core=0.0,
        )
        for second in range(math.ceil(began - 1e6 * process) + 1)
    ]
    return RunEvidence(
        run_id=f"process{process}",
        probe="throughput",
        arms={arm: [execution(arm, 2 * seconds.shape[1])] for arm in ARMS},
        timing=TimingEvidence(
            process=process,
            candidate="candidate",
            baseline="baseline",
            blocks=blocks,
            observed_steps=1,
            observed_graph_launches={"baseline": 0},
        ),
        telemetry=Telemetry(samples=quiet, began=1e6 * process),
    )


def execution(arm: str, steps: int) -> ArmEvidence:
    """Return the evidence of one execution of an arm in which everything is in order."""
    return ArmEvidence(
        start=ArmStart(
            arm=arm,
            replica=0,
            trainable_digest="start",
            frozen_digest="",
            trainable_tensors=1,
            facts={},
            state=_state("start"),
        ),
        end=ArmEnd(
            arm=arm,
            replica=0,
            trainable_digest="end",
            frozen_digest="",
            skipped_steps=0,
            steps_called=steps,
            state=_state("end"),
        ),
        series=Series(
            loss=np.linspace(2.0, 1.0, steps),
            batch_digest=["b"] * steps,
            clip_active_groups=np.ones(steps, dtype=np.int64),
            tokens=np.ones(steps, dtype=np.int64),
        ),
    )


def _state(parameter: str) -> State:
    return State(digests={"parameters": {"p": parameter}, "generators": {"torch.cpu": "g"}}, tensors=2)
