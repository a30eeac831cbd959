"""Which GPU of this machine keeps its clock while the reference trainer is timed: look before a throughput claim runs.

    python scripts/steady_gpus.py [--seq-len 128]

Each GPU, all at once, takes turns between captured and uncaptured steps as the throughput probe does; its SM clock is
sampled as the probe's is. Prints a line a GPU, the steadiest first: UUID, (highest - lowest) / median clock, the two
clocks, the mean power. No step is timed, so choosing a GPU by this chooses no ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean
from typing import Any

import torch

from harness.contract.schema import Arm, Workload
from harness.evidence.cuda_driver import devices
from harness.judge.machine import clock_spread
from harness.runners.recorder import TIMED_PHASE
from harness.runners.telemetry import Sampler
from reference_impl.system import QLoRASystem

MODEL, BLOCK_STEPS, SECONDS = "qwen2-1.5b", 20, 8.0


def watch(uuid: str | None, model: str, seq_len: int, seconds: float) -> dict[str, Any]:
    """Rounds of captured, uncaptured, uncaptured, captured blocks for so many seconds, and the clocks meanwhile."""
    workload = Workload.model_validate({"model": model, "batch_size": 4, "seq_len": seq_len, "steps": 10**6})
    arms = [Arm.model_validate({"capture": capture}) for capture in ("step" if uuid else "none", "none")]
    phase = "opening"
    with (
        QLoRASystem().open(workload, arms[0]) as dense,
        QLoRASystem().open(workload, arms[1]) as plain,
        Sampler(uuid, os.getsid(0), lambda: phase) as sampler,
    ):
        step = 0
        for run in (dense, plain):
            run.step(step)
        phase, until = TIMED_PHASE, time.monotonic() + seconds
        while time.monotonic() < until:
            for run in (dense, plain, plain, dense):
                for index in range(step, step + BLOCK_STEPS):
                    run.step(index)
                if uuid:
                    torch.cuda.synchronize()
            step += BLOCK_STEPS
    samples = sampler.telemetry().samples
    clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz]
    power = [sample.power_w for sample in samples if sample.power_w]
    return {
        "uuid": uuid,
        "spread": clock_spread(samples),
        "lowest_mhz": min(clocks, default=0.0),
        "highest_mhz": max(clocks, default=0.0),
        "power_w": fmean(power) if power else 0.0,
    }


def watch_elsewhere(uuid: str, seq_len: int) -> dict[str, Any]:
    """`watch` in a process that sees this GPU alone; what that process complains of goes to the terminal."""
    command = [sys.executable, __file__, "--alone", uuid, "--seq-len", str(seq_len)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid}
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seq-len", type=int, default=128, help="tokens of each of the batch's four sequences")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone is not None:
        print(json.dumps(watch(arguments.alone, MODEL, arguments.seq_len, SECONDS)))
        return 0
    gpus = [gpu.uuid for gpu in devices().gpus]
    if not gpus:
        parser.error("no CUDA device was found")
    with ThreadPoolExecutor(len(gpus)) as pool:
        found = list(pool.map(lambda uuid: watch_elsewhere(uuid, arguments.seq_len), gpus))
    for gpu in sorted(found, key=lambda each: float(each["spread"])):
        clocks = f"{gpu['lowest_mhz']:.0f} to {gpu['highest_mhz']:.0f} MHz"
        print(f"{gpu['uuid']}  spread {gpu['spread']:.4f}  {clocks}  {gpu['power_w']:.0f} W")
    return 0


if __name__ == "__main__":
    sys.exit(main())
