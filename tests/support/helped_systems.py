"""Systems whose arms start their own threads or processes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from step_function_systems import Regression
from torch import Tensor

from harness.contract.schema import Arm, Workload
from harness.system.protocol import Scalar

AHEAD = 64
PASSES = 50  # far longer than a step: the thread is busy whenever a batch was taken


class PreparesAhead(Regression):
    """With `optimized`, prepare batches in a thread, ahead of all steps; otherwise prepare them in the steps."""

    arm_options: Mapping[str, Sequence[Scalar] | type] = MappingProxyType({"optimized": bool})

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        step, made, parameters = super().build(workload, arm)

        def prepared(index: int) -> dict[str, Tensor]:
            generator = torch.Generator().manual_seed(index)
            for _ in range(PASSES):
                torch.linalg.qr(torch.randn(32, 32, generator=generator))
            one: dict[str, Tensor] = made(index)
            return one

        if not arm.settings().get("optimized"):
            return step, prepared, parameters
        ahead: queue.Queue[tuple[int, dict[str, Tensor]]] = queue.Queue(AHEAD)

        def prepare() -> None:
            for index in range(10_000):
                ahead.put((index, prepared(index)))

        threading.Thread(target=prepare, daemon=True).start()
        taken: dict[int, dict[str, Tensor]] = {}

        def batch(index: int) -> dict[str, Tensor]:
            while index not in taken:
                number, one = ahead.get()
                taken[number] = one
            return taken[index]

        return step, batch, parameters


class WaitsForItsPool(Regression):
    """Prepare each batch in a thread within the step; the step waits for the thread."""

    arm_options: Mapping[str, Sequence[Scalar] | type] = MappingProxyType({"optimized": bool})

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        step, made, parameters = super().build(workload, arm)
        asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        answered: queue.SimpleQueue[dict[str, Tensor]] = queue.SimpleQueue()

        def work() -> None:
            while True:
                answered.put(made(asked.get()))

        threading.Thread(target=work, daemon=True).start()

        def batch(index: int) -> dict[str, Tensor]:
            asked.put(index)
            return answered.get()

        return step, batch, parameters
