"""The reference trainer with a delay on the device after every step, to try the throughput rule at a known ratio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from harness.system.protocol import Arm, SystemDescription, Workload
from reference_impl.system import QLoRASystem

CYCLES = "delay_cycles"
OUTLIER, OUTLIER_CYCLES = "outlier_marker", "outlier_cycles"


class DelayedSystem:
    """`QLoRASystem`, whose arms may say `delay_cycles`: the GPU spins that many clock cycles after each step.

    With `outlier_marker`, a path, the arm of the first process that creates that file spins `outlier_cycles` instead.
    """

    def describe(self) -> SystemDescription:
        described = QLoRASystem().describe()
        options = {**described.arm_options, CYCLES: int, OUTLIER: str, OUTLIER_CYCLES: int}
        return SystemDescription(
            name="reference trainer with a delay on the device",
            summary=described.summary,
            models=described.models,
            arm_options=options,
            workload_options=described.workload_options,
            capabilities=described.capabilities,
            captures=described.captures,
        )

    def open(self, workload: Workload, arm: Arm, **keywords: Any) -> Any:
        settings = arm.settings()
        cycles = int(settings.pop(CYCLES, 0))
        marker, others = settings.pop(OUTLIER, None), int(settings.pop(OUTLIER_CYCLES, 0))
        if marker is not None and _creates(Path(str(marker))):
            cycles = others
        run = QLoRASystem().open(workload, Arm.model_validate({"capture": arm.capture, **settings}), **keywords)
        if cycles:
            _delay(run, cycles)
        return run


def _creates(marker: Path) -> bool:
    """Whether this process is the first."""
    try:
        marker.open("x").close()
    except FileExistsError:
        return False
    return True


def _delay(run: Any, cycles: int) -> None:
    step = run.step

    def delayed(index: int) -> torch.Tensor:
        loss: torch.Tensor = step(index)
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # a kernel that spins: time on the device, none on the host
        return loss

    run.step = delayed
