"""Systems with substitute kernels, for the probes of kernels and prewarm."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from harness.contract.schema import Arm, Workload
from harness.system.protocol import (
    Expectation,
    FaultDescription,
    Kernel,
    KernelEvent,
    KernelInventory,
    KernelLedger,
    KernelRefusedError,
    SystemDescription,
)

PTX = ".version 8.7\n.target sm_90a, debug\n.visible .entry scale() {}"
FAULT = FaultDescription("odd_key", "a key is odd", "candidate", {"prewarm": Expectation("FAIL", "x")})


def kernel(key: str, ptx: str = PTX) -> Kernel:
    return Kernel(key, "scale", ptx, "a route", 2048, 256)


class Run:
    """Launch one kernel in each step. fails_at: the step that raises. refuses: it raises by refusing a kernel."""

    def __init__(self, fails_at: int | None = None, *, refuses: bool = False) -> None:
        self.steps: list[int] = []
        self._fails_at, self._refuses = fails_at, refuses

    def step(self, index: int) -> Tensor:
        if index == self._fails_at:
            if self._refuses:
                raise KernelRefusedError("the PTX of one has no .target line")
            raise torch.OutOfMemoryError("CUBLAS_STATUS_ALLOC_FAILED\nand more")
        self.steps.append(index)
        return torch.zeros(())

    def facts(self) -> dict[str, Any]:
        return {}

    def kernel_inventory(self) -> KernelInventory:
        return KernelInventory([kernel("planned")], [kernel(f"step {index}") for index in self.steps])

    def kernel_ledger(self) -> KernelLedger:
        return KernelLedger(
            [KernelEvent("planned", "compile", "prewarm", 0.5)],
            {"prewarm": 0.0, "upload": 1.0, "train": 2.0},
            {"cublas": 0.7},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Healthy:
    """Can also cross-compile; the fault changes the key."""

    def describe(self) -> SystemDescription:
        return SystemDescription("stand-in", "s", (), {}, {}, frozenset({"kernels"}), faults={FAULT.name: FAULT})

    def open(self, workload: Workload, arm: Arm, **_: Any) -> Run:
        return Run()

    def cross_compiled(self, workload: Workload, arm: Arm, target: str, **options: Any) -> KernelInventory:
        key = f"{target}, {options['fault']}"
        return KernelInventory([kernel(key)], [kernel(key, "no ptx at all")] if options["with_used"] else [])


class Refusing(Healthy):
    def open(self, workload: Workload, arm: Arm, **_: Any) -> Run:
        return Run(fails_at=1, refuses=True)


class Failing(Healthy):
    def open(self, workload: Workload, arm: Arm, **_: Any) -> Run:
        return Run(fails_at=1)


class WithoutKernels:
    def describe(self) -> SystemDescription:
        return SystemDescription("stand-in", "s", (), {}, {}, frozenset())

    def open(self, workload: Workload, arm: Arm, **_: Any) -> WithoutKernels:
        return self

    def step(self, index: int) -> Tensor:
        return torch.zeros(())

    def facts(self) -> dict[str, Any]:
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
