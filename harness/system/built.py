"""Define and check the functions that an adapter's `build` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.system.adapter_checks import AdapterError, describe_value, require_callable_with
from harness.system.batches import OWN_ORDER, LoaderBatches, shuffled_by_the_process
from harness.system.protocol import CaptureRecord, Expectation, FaultDescription, NotAvailable
from harness.system.users_code import definition, return_place

if TYPE_CHECKING:
    from torch import Tensor

Batch = Any  # as `batch` makes it: what `batch_structure` knows


@dataclass(frozen=True)
class StepFunction:
    """What `build` returns; a tuple of the first three functions, or four, will do.

    step: trains on one batch; the loss, a floating-point tensor of one number, or a dictionary that has it as `loss`.
        Nothing in it waits for the device.
    batch: the batch of step `index`, a function of seed and index alone: a tensor, a tuple or list of tensors, a
        dictionary of them by name, or these within one another; or a data loader instead of the function, whose
        batches are read in its order, epoch after epoch. What is under the name `tokens` counts as the step's
        tokens; without it they are the workload's batch size times sequence length.
    parameters: what training updates, by name, on one device; or a dictionary of it, or the `torch.nn.Module` whose
        parameters these are, or several of these in a list or a dictionary, `model.parameters()` too. A step updates
        the tensors themselves: it puts no new ones in their place.
    state: tensors that training changes and that cannot be found from the step, by name.
    evaluate: evaluates the model between two steps, and returns a number, or several by name (kind `evaluation`).
    save, load: write the training to a path, and go on from it, in another process (kind `resume`).
    after: what the host does after each step, which no capture holds: a scheduler's step. It must not wait either.
        What it does is counted apart from the step, and bounded by the `capture` claim.
    captured: for a step that captures itself: the record of it, read after each step (kind `capture`). The harness then
        captures nothing.
    metrics: numbers of the last step besides its loss, by name, each a tensor of one number that the step itself keeps
        (`self.accuracy = …`); it names them and computes none, since a replay executes no Python.
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
        """Return the optional function of that name. Raises `NotAvailable` if the step has none."""
        function: Callable[..., Any] | None = getattr(self, name)
        if function is None:
            raise NotAvailable(
                f"{definition(self.step)}: the step lacks the capability `{_NEEDED_BY[name]}`: build returns no "
                f"`{name}`; return StepFunction(…, {name}={name})"
            )
        return function


@dataclass(frozen=True)
class PlantedFault:
    """A fault of a system's own: a small change of what `build` handed over, off by default.

    plant: takes the `StepFunction` and returns the faulty one: `lambda right: dataclasses.replace(right, step=…)`.
    breaks: what a claim must then say, by the claim's id or kind.
    arms: which arms of a claim get it; needs: `cuda` for a fault that only a GPU can show.
    """

    summary: str
    plant: Callable[[StepFunction], StepFunction]
    breaks: Mapping[str, Expectation]
    arms: Literal["candidate", "baseline", "both"] = "candidate"
    needs: Literal["any", "cuda"] = "any"

    def described(self, name: str) -> FaultDescription:
        return FaultDescription(name, self.summary, self.arms, self.breaks, self.needs)


# What each function is called with, by the name that its parameter has here.
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
_NEEDED_BY = {"evaluate": "evaluate", "save": "resume", "load": "resume", "captured": "capture"}  # capabilities


def as_step_function(returned: object, build: Callable[..., Any], name: str = "build") -> StepFunction:
    """Return what `build`, or a fault's `plant`, returned as a `StepFunction`; a tuple of its functions will do.
    Modules or tensors may stand for the function that names the parameters.

    Raises `AdapterError` for anything else; `name` is what the message calls the function that returned it.
    """
    if isinstance(returned, tuple | list) and len(returned) in (3, 4):
        returned = StepFunction(*returned)
    if not isinstance(returned, StepFunction):
        raise AdapterError(
            f"{name} returns StepFunction(step, batch, parameters), or a tuple of these three and maybe `state`",
            where=return_place(build),
            got=describe_value(returned),
            remedy="end it with `return StepFunction(step=step, batch=batch, parameters=parameters)`",
        )
    returned = _with_batches_by_index(_with_named_parameters(returned, build, name), build)
    for member, arguments in _CALLS.items():
        function = getattr(returned, member)
        if function is None and member in _NEEDED_BY:
            continue
        if not callable(function):
            raise AdapterError(
                f"`{member}` of what {name} returns is a function",
                where=return_place(build),
                got=describe_value(function),
                remedy=f"the harness calls it: `def {member}({', '.join(arguments)}): …`",
            )
        require_callable_with(function, member, arguments)
    return returned


def _with_batches_by_index(function: StepFunction, build: Callable[..., Any]) -> StepFunction:
    loader: object = function.batch
    if callable(loader) or not isinstance(loader, Iterable) or isinstance(loader, Mapping | str):
        return function
    if shuffled_by_the_process(loader):
        raise AdapterError(
            "a loader shuffles by a generator of its own: whatever else draws random numbers, arms read equal batches",
            where=return_place(build),
            got=f"{describe_value(loader)} that shuffles by the process's generator",
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
    # a dictionary or list itself: a step may put other tensors instead of these, and is reported
    several = given if isinstance(given, Mapping | list) else list(given)
    wrong = [f"{describe_value(each)} under `{key}`" for key, each in _by_name(several).items() if not _trains(each)]
    if wrong or not _by_name(several):
        raise AdapterError(
            f"`parameters` of what {name} returns are modules and tensors",
            where=return_place(build),
            got=wrong[0] if wrong else "none",
            remedy="return the model that is trained: `return step, batch, model`",
        )
    return replace(function, parameters=lambda: _parameters_of(_by_name(several)))


def _by_name(several: Mapping[str, Any] | list[Any]) -> Mapping[str, Any]:
    return several if isinstance(several, Mapping) else {str(number): each for number, each in enumerate(several)}


def _trains(thing: object) -> bool:
    import torch

    return isinstance(thing, torch.nn.Module | torch.Tensor)


def _parameters_of(several: Mapping[str, object]) -> dict[str, Any]:
    """Return the parameters of modules, below each module's name, and anything else as it is."""
    import torch

    named: dict[str, Any] = {}
    for name, each in several.items():
        within = dict(each.named_parameters()) if isinstance(each, torch.nn.Module) else None
        named |= {name: each} if within is None else {f"{name}.{inner}": tensor for inner, tensor in within.items()}
    return named
