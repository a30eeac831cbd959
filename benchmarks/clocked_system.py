"""The reference system with a clock in its step, to time the steps in any loop that calls them.

The environment variable ``STEP_CLOCK_FILE`` names a file. When the last step of the workload begins, the start times of
all steps are written to this file, as a JSON list of seconds. If the module is run as a script, it trains in a simple
loop without the harness. This loop reads the losses every 50 steps, as the harness does.

python -m benchmarks.clocked_system '{"workload": {…}, "arm": {…}}'
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from harness.execution.series_block import BLOCK_STEPS
from harness.system.protocol import Arm, Workload
from reference_impl.system import QLoRARun, QLoRASystem

CLOCK_FILE = "STEP_CLOCK_FILE"


class ClockedSystem(QLoRASystem):
    """A `QLoRASystem` whose runs record the start time of each step."""

    def open(
        self,
        workload: Workload,
        arm: Arm,
        *,
        fault: str | None = None,
        data: str | None = None,
        model_directory: str | None = None,
    ) -> QLoRARun:
        run = super().open(workload, arm, fault=fault, data=data, model_directory=model_directory)
        plain, began = run.step, []
        # Measure wall time if the step runs on a GPU. On a CPU, measure the processor time of this process, because
        # other processes do not affect it.
        clock = time.perf_counter if torch.cuda.is_available() else time.process_time

        def step(index: int) -> Tensor:
            began.append(clock())
            if index == workload.steps - 1:
                Path(os.environ[CLOCK_FILE]).write_text(json.dumps(began))
            return plain(index)

        run.step = step  # type: ignore[method-assign]
        return run


def main() -> None:
    request = json.loads(sys.argv[1])
    workload, arm = Workload.model_validate(request["workload"]), Arm.model_validate(request["arm"])
    with ClockedSystem().open(workload, arm) as run:
        losses: list[Tensor] = []
        for index in range(workload.steps):
            losses.append(run.step(index))
            if len(losses) == BLOCK_STEPS:
                torch.stack(losses).tolist()
                losses.clear()


if __name__ == "__main__":
    main()
