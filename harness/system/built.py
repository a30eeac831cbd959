"""Define and check the functions that an adapter's `build` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import isfunction, signature
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.system.adapter_checks import AdapterError, describe_value, require_callable_with
from harness.system.batches import OWN_ORDER, LoaderBatches, shuffled_by_the_process
from harness.system.protocol import CaptureRecord, Expectation, FaultDescription, NotAvailable
from harness.system.users_code import definition, return_place

if TYPE_CHECKING:
    from torch import Tensor

Batch = Any  # what `batch` returns, in a structure that the module `batches` can split


@dataclass(frozen=True)
class StepFunction:
    """The functions of a training, as `build` returns them. `build` may return the first three or four as a tuple.

    step: trains on one batch and returns the loss. The loss is a floating-point tensor of one number, or a dictionary
    with that tensor under `loss`. The step must not wait for the device.

    batch: returns the batch of step `index`, which depends only on seed and index. A batch is a tensor, or tuples,
    lists and dictionaries of tensors, also nested. A data loader may be given instead of the function. Its batches are
    then read in its order, epoch after epoch. The elements of a tensor named `tokens` count as the step's tokens.
    Without such a tensor, the number of tokens is the workload's batch size times its sequence length.

    parameters: returns the trained tensors by name, all on one device. Instead, a `torch.nn.Module`, its
    `parameters()`, or a list or dictionary of modules and tensors is allowed. A step must update the tensors in place.

    state: returns, by name, tensors that training changes and that the harness cannot find from the step.

    evaluate: evaluates the model between two steps, and returns a number, or several by name (claim kind `evaluation`).

    save, load: `save` writes the training to a path. `load` resumes the training from this path in another process
    (claim kind `resume`).

    after: does the host's work after each step, such as a scheduler's step. This work is not captured, and must not
    wait for the device. Its operations are counted separately from those of the step, and the `capture` claim limits
    them.

    captured: for a step that makes its capture by itself. Returns the record of the capture, which the harness reads
    after each step (claim kind `capture`). The harness then captures nothing.

    metrics: returns, by name, further numbers of the last step in addition to the loss. Each is a tensor of one number
    that the step keeps (`self.accuracy = …`). The function must compute nothing, because a replay executes no Python.
    """

    step: Callable[[Batch], Tensor]
    batch: Callable[[int], Batch]
    parameters: Callable[[], Mapping[str, Tensor]]
    state: Callable[[], Mapping[str, Tensor]] = dict
    evaluate: Callable[[], object] | None = None
    save: Callable[[Path], object] | None = None
    load: Callable[[Path], object] | None = None
    after: Callable[[], object] = lambda: None
    metrics: Callable[[], Mapping[str, Tensor]] = dict
    captured: Callable[[], CaptureRecord] | None = None

    def given(self, name: str) -> Callable[..., Any]:
        """Return the optional function with this name. Raise `NotAvailable` if `build` did not return it."""
        function: Callable[..., Any] | None = getattr(self, name)
        if function is None:
            raise NotAvailable(
                f"{definition(self.step)}: the step lacks the capability `{_NEEDED_BY[name]}`, because build returns "
                f"no `{name}`; return StepFunction(…, {name}={name})"
            )
        return function


@dataclass(frozen=True)
class PlantedFault:
    """A fault that a system defines. The fault is a small change to what `build` returned, and is active only if it is
    planted.

    plant: takes the correct `StepFunction` and returns the faulty one: `lambda right: dataclasses.replace(right,
    step=…)`. breaks: id or kind of a claim -> the verdict that the claim must get because of the fault. arms: the arms
    of a claim in which the fault is planted. needs: `cuda` if only a GPU can show the fault.
    """

    summary: str
    plant: Callable[[StepFunction], StepFunction]
    breaks: Mapping[str, Expectation]
    arms: Literal["candidate", "baseline", "both"] = "candidate"
    needs: Literal["any", "cuda"] = "any"

    def described(self, name: str) -> FaultDescription:
        return FaultDescription(name, self.summary, self.arms, self.breaks, self.needs)


# For each function of `StepFunction`: the names of its arguments, each with an example value to check the signature.
_CALLS: dict[str, dict[str, Any]] = {
    "step": {"batch": {}},
    "batch": {"index": 0},
    "parameters": {},
    "state": {},
    "evaluate": {},
    "save": {"path": Path()},
    "load": {"path": Path()},
    "after": {},
    "metrics": {},
    "captured": {},
}
_ROLES = ("step", "batch", "parameters", "state")  # the values of a tuple that `build` may return, in order
# name of a function of `StepFunction` -> name of the capability that needs the function
_NEEDED_BY = {"evaluate": "evaluate", "save": "resume", "load": "resume", "captured": "capture"}


def as_step_function(returned: object, build: Callable[..., Any], name: str = "build") -> StepFunction:
    """Return a checked `StepFunction` from the result of `build` or of a fault's `plant`. Raise `AdapterError` if the
    result is wrong.

    The result may be a tuple of functions. In place of the function `parameters`, modules or tensors are allowed. name:
    the name of the function that returned the result, for messages.
    """
    if isinstance(returned, tuple | list) and len(returned) in (3, 4):
        returned = StepFunction(*returned)
    if not isinstance(returned, StepFunction):
        raise AdapterError(
            f"{name} must return StepFunction(step, batch, parameters), or a tuple of these three and optionally "
            "`state`",
            where=return_place(build),
            got=describe_value(returned),
            remedy="end it with `return StepFunction(step=step, batch=batch, parameters=parameters)`",
        )
    _require_order(returned, build, name)
    returned = _with_batches_by_index(_with_named_parameters(returned, build, name), build)
    for member, arguments in _CALLS.items():
        function = getattr(returned, member)
        if function is None and member in _NEEDED_BY:
            continue
        if not callable(function):
            raise AdapterError(
                f"`{member}`, as returned by {name}, must be a function",
                where=return_place(build),
                got=describe_value(function),
                remedy=f"define it as the harness calls it: `def {member}({', '.join(arguments)}): …`",
            )
        require_callable_with(function, member, arguments)
    return returned


def _require_order(returned: StepFunction, build: Callable[..., Any], name: str) -> None:
    """Raise `AdapterError` if a value cannot have the role of its place, and the values have the roles in another
    order."""
    given = {role: getattr(returned, role) for role in _ROLES if role != "state" or returned.state is not dict}
    if all(_may_be(role, value) for role, value in given.items()):
        return
    roles = [_roles_of(value) for value in given.values()]
    if any(all(map(set.__contains__, order, given)) for order in permutations(roles)):
        raise AdapterError(
            f"{name} must return, in this order: a function `step(batch)`, a function `batch(index)` or a data loader, "
            "the model or a function `parameters()`, and optionally a function `state()`",
            where=return_place(build),
            got=f"in this order: {', '.join(map(_shown, given.values()))}",
            remedy="return step, batch, model",
        )


def _may_be(role: str, value: object) -> bool:
    """Return True if a value can have this role. A module may also be a function, if its `forward` has the
    arguments."""
    return role in _roles_of(value) or _can_be_called(getattr(value, "forward", None), role)


def _roles_of(value: object) -> set[str]:
    """Return the roles that a value can have. A module and trained tensors count only as parameters."""
    import torch

    if isinstance(value, torch.nn.Module):
        return {"parameters"}
    if callable(value):
        return {role for role in _ROLES if _can_be_called(value, role)}
    if isinstance(value, str | torch.Tensor) or not isinstance(value, Iterable):
        return set()
    if isinstance(value, torch.utils.data.DataLoader):
        return {"batch"}
    held = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    if any(isinstance(each, torch.nn.Module) or getattr(each, "requires_grad", False) for each in held):
        return {"parameters"}
    return set() if isinstance(value, Mapping) else {"batch", "parameters"}


def _can_be_called(function: object, role: str) -> bool:
    try:
        require_callable_with(function, role, _CALLS[role])
    except AdapterError:
        return False
    return callable(function)


def _shown(value: object) -> str:
    """Return a text with the type of a value, or with the name and the arguments of a function."""
    return f"the function `{value.__name__}{signature(value)}`" if isfunction(value) else describe_value(value)


def _with_batches_by_index(function: StepFunction, build: Callable[..., Any]) -> StepFunction:
    loader: object = function.batch
    if callable(loader) or not isinstance(loader, Iterable) or isinstance(loader, Mapping | str):
        return function
    if shuffled_by_the_process(loader):
        raise AdapterError(
            "a loader must shuffle with its own generator; otherwise arms that draw different random numbers read "
            "different batches",
            where=return_place(build),
            got=f"{describe_value(loader)} that shuffles with the process's generator",
            remedy=OWN_ORDER,
        )
    return replace(function, batch=LoaderBatches(loader))


def _with_named_parameters(function: StepFunction, build: Callable[..., Any], name: str) -> StepFunction:
    import torch

    given: object = function.parameters
    if isinstance(given, torch.nn.Module):
        return replace(function, parameters=lambda: dict(given.named_parameters()))
    if callable(given) or not isinstance(given, Iterable) or isinstance(given, str | torch.Tensor):
        return function
    # Keep the same dictionary or list object. A step may put new tensors into it, and the harness must read these.
    several = given if isinstance(given, Mapping | list) else _up_to_a_wrong_value(given)
    wrong_values = [
        f"{describe_value(each)} under `{key}`" for key, each in _by_name(several).items() if not _trains(each)
    ]
    if wrong_values or not _by_name(several):
        raise AdapterError(
            f"`parameters`, as returned by {name}, must be modules and tensors",
            where=return_place(build),
            got=wrong_values[0] if wrong_values else "no parameter",
            remedy="return the trained model: `return step, batch, model`",
        )
    return replace(function, parameters=lambda: _parameters_of(_by_name(several)))


def _up_to_a_wrong_value(given: Iterable[Any]) -> list[Any]:
    """Return the values up to the first one that is neither a module nor a tensor, because a loader may be endless."""
    several = []
    for each in given:
        several.append(each)
        if not _trains(each):
            break
    return several


def _by_name(several: Mapping[str, Any] | list[Any]) -> Mapping[str, Any]:
    return several if isinstance(several, Mapping) else {str(number): each for number, each in enumerate(several)}


def _trains(thing: object) -> bool:
    import torch

    return isinstance(thing, torch.nn.Module | torch.Tensor)


def _parameters_of(several: Mapping[str, object]) -> dict[str, Any]:
    """Return the trained tensors by name. A tensor keeps its name. A module's parameter is named `module.parameter`."""
    import torch

    named: dict[str, Any] = {}
    for name, each in several.items():
        within = dict(each.named_parameters()) if isinstance(each, torch.nn.Module) else None
        named |= {name: each} if within is None else {f"{name}.{inner}": tensor for inner, tensor in within.items()}
    return named
