"""Define the smallest adapter: a plain `step(batch)`. The harness captures the step, and reads its gradients and
inputs.

    class MySystem(StepFunctionSystem):
        name = "my trainer"

        def build(self, workload, arm):
            model = ...                                   # seeded by workload.seed
            optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3), fused=True)

            def step(batch):                              # gets what `batch` returned; returns a 0-d loss; no host sync
                optimizer.zero_grad()
                loss = model(batch["x"], batch["y"])
                loss.backward()
                optimizer.step()
                return loss.detach()

            def batch(index): ...                         # a dict or tuple of tensors; depends on seed and index
            def parameters():
                return dict(model.named_parameters())

            return StepFunction(step=step, batch=batch, parameters=parameters)   # or a tuple of these three

The harness finds further state from the step: buffers, optimizer state, generators, averaged weights (see
`replay/found_state.py`). `StepFunction(…, state=…)` can name more state. `metrics=lambda: {"accuracy": self.accuracy}`
reports numbers in addition to the loss. The step must store each of them as a tensor. `adapter_checks.py` checks the
return values of `build` and of the functions that `build` returns.

On a GPU, torch captures only optimizers that were created with `capturable=True`. A value that changes from step to
step, such as a learning rate, must be part of the batch, because a captured step does not read Python numbers again.
`describe()` needs no torch if the module imports torch inside `build`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.system.adapter_checks import AdapterError, require_callable_with
from harness.system.built import PlantedFault as PlantedFault  # noqa: PLC0414 - adapters import this name from here
from harness.system.built import StepFunction as StepFunction  # noqa: PLC0414 - adapters import this name from here
from harness.system.built import as_step_function
from harness.system.protocol import Expectation as Expectation  # noqa: PLC0414 - adapters import this name from here
from harness.system.protocol import FaultDescription, Scalar, SystemDescription
from harness.system.ranks import shared
from harness.system.step_function_run import StepFunctionRun
from harness.system.users_code import attribute_place, definition

if TYPE_CHECKING:
    from harness.contract.schema import Arm, Workload


# Capabilities of a step function: `resume` needs the functions `save` and `load`, `evaluate` a function of this name.
_BETWEEN_STEPS = ("resume", "evaluate")


class StepFunctionSystem:
    """Base class of systems with a step function. A subclass sets the attributes and defines `build`."""

    name = "step function"
    summary = "a plain step function, captured by the harness"
    models: Sequence[str] = ()
    arm_options: Mapping[str, Sequence[Scalar] | type] = {"learning_rate": float}
    workload_options: Mapping[str, Sequence[Scalar] | type] = {}
    layers = 0
    # Faults that the system defines. The key is the name of the fault, which claims list under `falsified_by`.
    faults: Mapping[str, PlantedFault] = {}

    def build(self, workload: Workload, arm: Arm) -> StepFunction | tuple[Any, ...]:
        """Return step, batch and parameters of one arm, and optionally the further functions of `StepFunction`."""
        raise NotImplementedError

    def describe(self) -> SystemDescription:
        return SystemDescription(
            name=self.name,
            summary=self.summary,
            models=self.models,
            arm_options=self.arm_options,
            workload_options=self.workload_options,
            capabilities=frozenset(
                {"inputs", "parameters", "gradients", "capture", "state", "metrics", *_BETWEEN_STEPS, "warm_steps"}
            ),
            captures=frozenset({"none", "step"}),
            faults=self._described_faults(),
        )

    def _described_faults(self) -> dict[str, FaultDescription]:
        given: object = self.faults
        if not isinstance(given, Mapping):
            raise self._wrong_faults(f"a {type(given).__name__} instead of a dictionary")
        for name, fault in given.items():
            if not isinstance(fault, PlantedFault):
                raise self._wrong_faults(f"a {type(fault).__name__} instead of a PlantedFault for the fault {name!r}")
        return {name: fault.described(name) for name, fault in self.faults.items()}

    def _wrong_faults(self, got: str) -> AdapterError:
        return AdapterError(
            "`faults` must be a dictionary from the name of each fault to its PlantedFault",
            where=attribute_place(type(self), "faults"),
            got=got,
            remedy="see docs/plugging-in-a-trainer.md",
        )

    def open(
        self,
        workload: Workload,
        arm: Arm,
        *,
        fault: str | None = None,
        data: str | None = None,
        model_directory: str | None = None,
    ) -> StepFunctionRun:
        if data is not None or model_directory is not None:
            raise ValueError("a step function must be run without --data and --model")
        if fault is not None and fault not in self.faults:
            raise ValueError(f"{self.name} does not have the fault {fault!r}")
        function = self._built(workload, arm, fault)
        return StepFunctionRun(function, capture=arm.capture, layers=self.layers, warm_steps=arm.warm_steps)

    def _built(self, workload: Workload, arm: Arm, fault: str | None) -> StepFunction:
        self._require_settings(workload, arm)
        if type(self).build is StepFunctionSystem.build:
            raise AdapterError(
                "a step-function system must define `build(self, workload, arm)`",
                where=definition(type(self)),
                got=f"no `build` in {type(self).__name__}",
                remedy="docs/plugging-in-a-trainer.md shows a complete example",
            )
        require_callable_with(self.build, "build", {"workload": workload, "arm": arm})
        function = as_step_function(self.build(workload, arm), self.build)
        function = replace(function, batch=shared(function.batch, workload.batch_size))
        if fault is None:
            return function
        plant = self.faults[fault].plant
        return as_step_function(plant(function), plant, f"the plant of fault '{fault}'")

    def _require_settings(self, workload: Workload, arm: Arm) -> None:
        """Raise `AdapterError` for a setting that the system does not describe. Such a setting would have no effect."""
        from harness.system.adapter_checks import nearest, option_error

        found = {
            "models": [f"no model '{workload.model}'; {nearest(workload.model, self.models)}"]
            if self.models and workload.model not in self.models
            else [],
            "arm_options": [option_error("arm option", *each, self.arm_options) for each in arm.settings().items()],
            "workload_options": [
                option_error("workload option", *each, self.workload_options) for each in workload.options.items()
            ],
        }
        for attribute, problems in found.items():
            for problem in filter(None, problems):
                raise AdapterError(
                    f"a contract must use only values that the system's `{attribute}` lists",
                    where=attribute_place(type(self), attribute),
                    got=problem,
                )
