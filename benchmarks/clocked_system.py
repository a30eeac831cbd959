"""The reference system with a clock in its step, to time a step in any loop that calls it.

When the last step of the workload begins, the start times of all steps are written to the file that ``STEP_CLOCK_FILE``
names, as a JSON list of seconds. If the module is run as a script, it is a bare loop without the harness. It trains,
and reads the losses every 50 steps, which is as often as the harness does.

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
    """`QLoRASystem` whose runs record when their steps begin."""

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
        # On a GPU the step runs outside this process, so measure wall time. On a CPU measure the time of this process,
        # which other processes do not change.
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
