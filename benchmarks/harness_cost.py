"""Measure the cost of the harness itself, and compare each cost with its bar (the largest allowed value).

python -m benchmarks.harness_cost [--out folder]

- ``supervision``: the time that the harness adds to a step. A supervised worker runs the probe `paired`, which records
  losses, batch digests and clip counts of every step. A simple loop in another process runs the same system without
  the harness. Bar: 1 % of the step time, and 0.3 ms for each step of an arm that is captured as a CUDA graph. Without
  a GPU, the CPU time of the processes is compared, because other processes affect it least.
- ``judge``: the time in which the command line reads and judges a run directory of two arms with 10^6 steps each. Bar:
  2 s.
- ``check``: the time in which the command line checks 2,000 contracts. Bar: 5 s.

On a GPU, supervision is measured with 28 layers, on a CPU with the small model. The share is printed with twice its
standard error. If the share is nearer to its bar than this error, it is "not resolved". The exit code is 1 if a cost
exceeds its bar.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.clocked_system import CLOCK_FILE
from benchmarks.measure import environment
from benchmarks.synthetic_run import CLAIM, write_run_directory
from harness.devices.environment import machine
from harness.evidence.plan_records import PlannedArm, Run
from harness.execution.series_block import BLOCK_STEPS
from harness.execution.supervisor import execute
from harness.system.protocol import Arm, Workload

ROUNDS = 2
WINDOWS = 3  # number of windows of BLOCK_STEPS steps each, after a first window that captures and warms up
JUDGED_STEPS = 1_000_000
CHECKED_CONTRACTS = 2_000
RECORDER_BAR_MS = 0.3
SUPERVISION_BAR, JUDGE_BAR_S, CHECK_BAR_S = 0.01, 2.0, 5.0


@dataclass(frozen=True)
class Cost:
    """A measured cost and its bar. ``resolution``: the error of the measured figure, because the machine's speed
    varies."""

    what: str
    figure: float
    bar: float
    unit: str
    resolution: float = 0.0
    detail: str = ""

    @property
    def status(self) -> str:
        if self.figure - self.resolution > self.bar:
            return "missed"
        return "met" if self.figure + self.resolution <= self.bar else "not resolved"

    def line(self) -> str:
        shown = f"{self.figure:.2%}" if self.unit == "share" else f"{self.figure:.2f} {self.unit}"
        uncertain = f"{self.resolution:.2%}" if self.unit == "share" else f"{self.resolution:.2f} {self.unit}"
        spread = f" ± {uncertain}" if self.resolution else ""
        bar = f"{self.bar:.0%}" if self.unit == "share" else f"{self.bar:g} {self.unit}"
        return f"| {self.what} | {shown}{spread} | {bar} | {self.status} | {self.detail} |"


def window_ms(began: Sequence[float]) -> list[float]:
    """Return ms per step in each window of `BLOCK_STEPS` steps except the first, from the start times of the steps."""
    edges = began[BLOCK_STEPS::BLOCK_STEPS]
    return [(after - before) * 1e3 / BLOCK_STEPS for before, after in itertools.pairwise(edges)]


def supervision(capture: str) -> list[Cost]:
    """Run processes without the harness ("bare") and supervised processes in turns. Return the costs, from the medians
    over all windows."""
    on_gpu = torch.cuda.is_available()
    workload = Workload(
        model="qwen2-1.5b" if on_gpu else "tiny", batch_size=4, seq_len=512 if on_gpu else 64, steps=_steps()
    )
    arm = Arm.model_validate({"capture": capture})
    bare: list[float] = []
    supervised: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        clock = Path(folder) / "clock.json"
        os.environ[CLOCK_FILE] = str(clock)
        for number in range(ROUNDS):
            _bare(workload, arm)
            bare += window_ms(json.loads(clock.read_text()))
            clock.unlink()
            _supervised(workload, arm, Path(folder) / str(number))
            supervised += window_ms(json.loads(clock.read_text()))
            clock.unlink()
    shape = f"{workload.model}, seq {workload.seq_len}, capture {capture}"
    share, milliseconds = costs_of(bare, supervised, capture, shape)
    # The limit in milliseconds applies only to CUDA graphs. In a traced replay, the harness watches every operator.
    return [share, milliseconds] if on_gpu and capture != "none" else [share]


def costs_of(bare: Sequence[float], supervised: Sequence[float], capture: str, shape: str) -> tuple[Cost, Cost]:
    """Return the cost of supervision as a share of the bare step's time, and in milliseconds.

    bare, supervised: the time of a step in milliseconds, for each window.
    """
    before, after = float(np.median(bare)), float(np.median(supervised))
    # The standard error of the median of n values with standard deviation sigma is 1.25 * sigma / sqrt(n).
    variance = float(np.var(bare, ddof=1)) + float(np.var(supervised, ddof=1))
    error = 1.25 * (variance / len(bare)) ** 0.5
    detail = f"{before:.2f} ms bare, {after:.2f} ms supervised ({shape})"
    what = f"supervision, capture {capture}"
    return (
        Cost(what, after / before - 1, SUPERVISION_BAR, "share", 2 * error / before, detail),
        Cost(f"{what}, a step", after - before, RECORDER_BAR_MS, "ms", 2 * error, detail),
    )


def _steps() -> int:
    return BLOCK_STEPS * (WINDOWS + 1) + 1


def _bare(workload: Workload, arm: Arm) -> None:
    request = {"workload": workload.model_dump(mode="json"), "arm": arm.model_dump(mode="json")}
    settings = {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "benchmarks.clocked_system", json.dumps(request)]
    subprocess.run(command, check=True, env={**os.environ, **settings})


def _supervised(workload: Workload, arm: Arm, directory: Path) -> None:
    system = "benchmarks.clocked_system:ClockedSystem"
    run = Run(
        id="cost",
        contract="cost",
        probe="paired",
        workload_name="cost",
        workload=workload,
        arms={"only": PlannedArm(arm=arm, system=system)},
    )
    gpus = machine().gpus
    death = execute(run, directory, gpu_uuid=gpus[0].uuid if gpus else None)
    if death is not None:
        raise RuntimeError(f"the supervised worker died: {death}")


def command_seconds(*arguments: str) -> tuple[float, str]:
    """Return a command's wall time, including the interpreter's start, and its output. Raises if the command fails."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "harness", *arguments], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        raise RuntimeError(f"harness {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return seconds, done.stdout


def judging(steps: int) -> list[Cost]:
    """Return two costs: the time of the command `judge` on a run of `steps` steps, and the time of only the judge, with
    the evidence already in memory."""
    from harness.judging.registry import judge_unit
    from harness.run_directory.bundle import read_bundle

    with tempfile.TemporaryDirectory() as folder:
        contract, directory = write_run_directory(Path(folder), steps)
        whole, printed = command_seconds("judge", str(directory))
        if CLAIM not in printed:
            raise RuntimeError(f"nothing was judged:\n{printed}")
        began = time.perf_counter()
        bundle = read_bundle(directory)
        evidence = [bundle.evidence(name) for name in bundle.header.runs]
        reading = time.perf_counter() - began
        began = time.perf_counter()
        verdict = judge_unit(contract, contract.claims[0], bundle.header.units[0].workload, evidence, None)
        judge_alone = time.perf_counter() - began
    detail = f"reading {reading:.2f} s, judge alone {judge_alone:.2f} s, verdict {verdict.status}"
    return [
        Cost(f"judge of {steps} steps", whole, JUDGE_BAR_S, "s", detail=detail),
        Cost(f"judge of {steps} steps, evidence in memory", judge_alone, JUDGE_BAR_S, "s"),
    ]


def checking(number: int) -> Cost:
    """Return the time of the command `check` on `number` copies of one contract. Each copy has a different id."""
    original = Path("contracts/traced-step-v1.yaml").read_text()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree("contracts/shared", Path(folder) / "shared")
        for index in range(number):
            name = f"copy-{index}-v1"
            (Path(folder) / f"{name}.yaml").write_text(original.replace("traced-step-v1", name))
        seconds, _ = command_seconds("check", folder)
    return Cost(f"check of {number} contracts", seconds, CHECK_BAR_S, "s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for harness_cost.json and harness_cost.md")
    arguments = parser.parse_args()
    costs = [checking(CHECKED_CONTRACTS), *judging(JUDGED_STEPS), *supervision("none"), *supervision("step")]
    lines = ["| cost | figure | bar | | detail |", "| --- | --- | --- | --- | --- |", *(cost.line() for cost in costs)]
    text = f"# Cost of the harness\n\n{environment()['device']}\n\n" + "\n".join(lines) + "\n"
    print(text)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        rows = [{**asdict(cost), "status": cost.status} for cost in costs]
        document = {"environment": environment(), "costs": rows}
        (arguments.out / "harness_cost.json").write_text(json.dumps(document, indent=2) + "\n")
        (arguments.out / "harness_cost.md").write_text(text)
    return 1 if any(cost.status == "missed" for cost in costs) else 0


if __name__ == "__main__":
    sys.exit(main())
