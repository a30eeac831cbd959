"""The functions that an adapter's `build` hands over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.system.adapter_checks import AdapterError, describe_value, require_callable_with
from harness.system.users_code import return_place

if TYPE_CHECKING:
    from torch import Tensor

Batch = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class StepFunction:
    """What `build` returns; a tuple of the first three functions, or four, will do.

    step: trains on one batch; the loss, a floating-point tensor of one number. Nothing in it waits for the device.
    batch: the tensors of step `index` by name, a function of seed and index alone. What is under the name `tokens`
        counts as the step's tokens; without it they are the workload's batch size times sequence length.
    parameters: what training updates, by name, on one device.
    state: tensors that training changes and nobody finds from the step, by name.
    """

    step: Callable[[dict[str, Tensor]], Tensor]
    batch: Callable[[int], Batch]
    parameters: Callable[[], Mapping[str, Tensor]]
    state: Callable[[], Mapping[str, Tensor]] = dict


# What each function is called with, by the name that its parameter has here.
_CALLS: dict[str, dict[str, Any]] = {"step": {"batch": {}}, "batch": {"index": 0}, "parameters": {}, "state": {}}


def as_step_function(returned: object, build: Callable[..., Any]) -> StepFunction:
    """What `build` returned. Raises `AdapterError` unless it is a `StepFunction`, or a tuple of its functions."""
    where = return_place(build)
    if isinstance(returned, tuple | list) and len(returned) in (3, 4):
        returned = StepFunction(*returned)
    if not isinstance(returned, StepFunction):
        raise AdapterError(
            "build returns StepFunction(step, batch, parameters), or a tuple of these three and maybe `state`",
            where=where,
            got=describe_value(returned),
            remedy="end it with `return StepFunction(step=step, batch=batch, parameters=parameters)`",
        )
    for name, arguments in _CALLS.items():
        function = getattr(returned, name)
        if not callable(function):
            raise AdapterError(
                f"`{name}` of what build returns is a function",
                where=where,
                got=describe_value(function),
                remedy=f"the harness calls it: `def {name}({', '.join(arguments)}): …`",
            )
        require_callable_with(function, name, arguments)
    return returned
