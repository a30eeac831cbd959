"""The adapter for the transformers twin: a second implementation of the trainer, with the transformers library.
Contracts name it as an arm, with which the trainer's arms are compared. Describing the twin imports no torch."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from harness.system.protocol import NotAvailable, SystemDescription
from reference_impl.transformers_twin.declared import ARM_OPTIONS, WORKLOAD_OPTIONS, declared

if TYPE_CHECKING:
    from harness.system.protocol import Arm, Workload
    from reference_impl.transformers_twin.run import TwinRun

MODULES = ("transformers", "peft")


class TransformersTwin:
    """QLoRA built from transformers, peft, bitsandbytes and torch.optim, on the CPU. It uses only the contract's
    settings."""

    def describe(self) -> SystemDescription:
        return SystemDescription(
            name="transformers twin",
            summary="transformers + peft + bitsandbytes + torch.optim, with only the settings of the contract",
            models=(),
            arm_options=ARM_OPTIONS,
            workload_options=WORKLOAD_OPTIONS,
            capabilities=frozenset({"inputs", "parameters", "state", "gradients", "gradient_norms", "single_steps"}),
        )

    def open(
        self,
        workload: Workload,
        arm: Arm,
        *,
        fault: str | None = None,
        data: str | None = None,
        model_directory: str | None = None,
    ) -> TwinRun:
        if fault is not None:
            raise ValueError("no fault can be planted in a transformers twin; plant it in the trainer's arm")
        missing = [name for name in MODULES if find_spec(name) is None]
        if missing:
            raise NotAvailable(f"needs the Python modules {' and '.join(missing)}, which are not installed")
        from reference_impl.transformers_twin.run import TwinRun

        return TwinRun(declared(workload, arm, data, model_directory))
