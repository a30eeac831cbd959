"""Check what the functions of an adapter return, directly after each call.

An adapter is the user's code that gives the harness a training step. Each error names the violated rule, the returned
value and its place in the code. This module also checks the settings of arms and workloads against the system's
description. Importing this module needs no torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.evidence.layout import METRIC_NAME, SERIES_COLUMNS
from harness.system.protocol import Scalar
from harness.system.users_code import definition, return_place

if TYPE_CHECKING:
    from torch import Tensor


def nearest(name: object, names: Iterable[str]) -> str:
    """Return a text that suggests the name in `names` that is most similar to `name` (see `strict_yaml.nearest`).

    `strict_yaml` is imported inside the function. Otherwise every process that opens a step would load a YAML library.
    """
    from harness.contract import strict_yaml

    return strict_yaml.nearest(name, names)


def option_error(what: str, name: str, value: Scalar, known: Mapping[str, object]) -> str:
    """Return a text that says what is wrong with a setting, or "" if nothing is wrong.

    what: the kind of setting for the text, such as `arm option`.
    known: the options of the system by name, each with its type or its choices.
    """
    if name not in known:
        return f"unknown {what} '{name}'; {nearest(name, known)}" if known else f"unknown {what} '{name}'"
    allowed = known[name]
    if isinstance(allowed, type):
        fits = isinstance(value, allowed) and (allowed is bool or not isinstance(value, bool))
        fits |= allowed is float and type(value) is int
        return "" if fits else f"{what} '{name}' must be of type {allowed.__name__}, not {value!r}"
    choices = list(allowed) if isinstance(allowed, tuple | list) else []
    if any(value == choice and type(value) is type(choice) for choice in choices):
        return ""
    return f"{what} '{name}' cannot be {value!r}; {nearest(value, map(str, choices))}"


SHOWN = 5  # largest number of names in a message, which only counts further names


class AdapterError(HarnessError):
    """A function of a user's adapter returned something that the harness cannot train with."""


def describe_value(value: object) -> str:
    """Return a text with the type and shape of a value, for a message to the author of the code that returned it."""
    import torch

    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        shape = "x".join(map(str, value.shape)) or "no dimensions"
        return f"a tensor of {shape} ({str(value.dtype).removeprefix('torch.')})"
    if isinstance(value, bool | int | str):
        return f"the {type(value).__name__} {value!r:.60}"
    if isinstance(value, tuple | list | set | frozenset):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with {names(value)}" if value else f"an empty {type(value).__name__}"
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def names(given: Iterable[object]) -> str:
    """Return a text with the first few names in quotes, and the number of further names."""
    listed = list(given)
    text = ", ".join(f"`{name}`" if isinstance(name, str) else repr(name) for name in listed[:SHOWN])
    return f"{text} and {len(listed) - SHOWN} more" if len(listed) > SHOWN else text


def require_callable_with(function: Any, name: str, arguments: Mapping[str, Any]) -> None:
    """Raise `AdapterError` unless the function `name` of an adapter can be called with these arguments in order."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # Python cannot read the signature of this function, so it is not checked before its first real call
    method = inspect.ismethod(function)
    defined = inspect.signature(function.__func__) if method else signature
    parameters = ", ".join([*(["self"] if method else []), *arguments])
    found = ""
    own_name = getattr(function, "__name__", f"{type(function).__name__}.__call__")
    if inspect.iscoroutinefunction(function):
        found = f"`async def {own_name}{defined}`"
    else:
        try:
            signature.bind(*arguments.values())
        except TypeError:
            found = f"`{'def ' if own_name.isidentifier() else ''}{own_name}{defined}`"
    if found:
        elsewhere = "" if method else "; the function can read further values from the enclosing function"
        raise AdapterError(
            f"the harness must be able to call `{name}({', '.join(arguments)})`",
            where=definition(function),
            got=found,
            remedy=f"define `def {name}({parameters})`{elsewhere}",
        )


def require_loss(loss: object, step: Callable[..., Any], call: str) -> Tensor:
    """Return the loss tensor from a step's return value, which is the loss or a dictionary with the key `loss`.

    Raise `AdapterError` unless the loss is a floating-point tensor of one element. call: the call of the step as text,
    for the message.
    """
    import torch

    if isinstance(loss, Mapping) and "loss" in loss:
        loss = loss["loss"]
    found, how_to_return_loss = describe_value(loss), "return the loss as the model computed it, with `loss.detach()`"
    if isinstance(loss, torch.Tensor):
        if loss.numel() == 1 and loss.is_floating_point() and not loss.is_meta:
            return loss
        if loss.numel() != 1:
            how_to_return_loss = "reduce it to one number on its device, with `.mean()` or `.sum()`"
        elif loss.is_meta:
            found += " on the device meta, which has no values"
    elif loss is None:
        how_to_return_loss = "end it with `return loss.detach()`"
    elif isinstance(loss, int | float) or type(loss).__module__ == "numpy":
        how_to_return_loss = (
            "return the tensor itself, because `.item()`, float() and `.numpy()` wait for the device in every step"
        )
    elif isinstance(loss, tuple | list | Mapping):
        how_to_return_loss = "return only the loss, or a dictionary with `loss`"
    raise AdapterError(
        f"{call} must return the loss: a floating-point tensor with one element",
        where=return_place(step),
        got=found,
        remedy=how_to_return_loss,
    )


def difference_of_names(ours: Collection[str], theirs: Collection[str], here: str, there: str) -> str:
    """Return a text with the names that are in only one of two sets. here, there: texts that say where `ours` and
    `theirs` come from."""
    only = ((sorted(set(ours) - set(theirs)), here), (sorted(set(theirs) - set(ours)), there))
    return " and ".join(f"{names(found)} only {place}" for found, place in only if found)


def require_parameters(found: object, function: Callable[..., Any]) -> dict[str, Tensor]:
    """Return the mapping that `parameters()` returned. Raise `AdapterError` unless it maps names to tensors on one
    device."""
    from torch.nn.parameter import is_lazy

    parameters = _named_tensors(found, "parameters()", function, "`dict(model.named_parameters())`")
    if not parameters:
        raise _wrong_parameters(function, "no parameter", "name the trained tensors: `dict(model.named_parameters())`")
    lazy = [name for name, tensor in parameters.items() if is_lazy(tensor)]
    if lazy:
        run_one_batch = (
            "run one batch through the model under torch.no_grad() when the model is created, so that its "
            "parameters get their shapes"
        )
        raise _wrong_parameters(
            function, f"{names(lazy)} of a lazy module that no batch has passed through", run_one_batch
        )
    by_device: dict[str, list[str]] = {}
    for name, tensor in parameters.items():
        by_device.setdefault(str(tensor.device), []).append(name)
    if len(by_device) > 1:
        found = "; ".join(f"on {device}: {names(held)}" for device, held in by_device.items())
        raise _wrong_parameters(function, found, "move the whole model to one device")
    if "meta" in by_device:
        give_values = "give the parameters values, with `model.to_empty(device=…)` and their initialization"
        raise _wrong_parameters(function, f"{names(parameters)} on the device meta, which has no values", give_values)
    return parameters


def require_updated(parameters: Mapping[str, Tensor], optimizers: Mapping[str, Any], function: Any) -> None:
    """Raise `AdapterError` if the step's optimizers update neither a tensor of `parameters` nor master weights (copies
    of the parameters in higher precision).

    Tensors of the optimizers count as master weights if they have as many elements as the parameters. This function
    does not notice a step that never copies its master weights to the parameters. Another check finds such a step,
    because its parameters do not change.
    """
    from harness.system.replay.found_state import same

    groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
    updated = {same(tensor): tensor for group in groups for tensor in group["params"]}
    if updated and not any(same(tensor) in updated for tensor in parameters.values()):
        again = function()
        kept = all(same(again[name]) == same(tensor) for name, tensor in parameters.items() if name in again)
        if kept and _elements(updated.values()) == _elements(parameters.values()):
            return
        kinds = " and ".join(sorted({type(optimizer).__name__ for optimizer in optimizers.values()}))
        raise _wrong_parameters(
            function,
            f"{names(parameters)}, and none of them is among the {len(updated)} tensors that {kinds} updates",
            "return the tensors themselves, not copies, of the model for which the optimizer was created",
        )


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def require_same_parameters(function: Callable[..., Any], first: Mapping[str, Tensor]) -> None:
    """Raise `AdapterError` if `parameters()` now returns tensors with other memory than in the first call.

    New tensor objects over the same memory are allowed, because the harness compares, restores and captures the memory.
    """
    from harness.system.replay.found_state import same

    found = function()
    if not isinstance(found, Mapping):
        return
    given = {name: tensor for name, tensor in found.items() if name in first and tensor is not first[name]}
    other = [name for name, tensor in given.items() if same(tensor) != same(first[name])]
    if other:
        got = f"different tensors under {names(other)} than at the beginning"
        remedy = "update the tensors in place, `parameter.copy_(updated)`, under torch.no_grad()"
        raise _wrong_parameters(function, got, remedy)


def require_state(found: object, function: Callable[..., Any]) -> dict[str, Tensor]:
    """Return the mapping that `state()` returned. Raise `AdapterError` unless it maps names to tensors."""
    return _named_tensors(found, "state()", function, '`{"average": average}`, for example')


def require_metrics(found: object, function: Callable[..., Any], known: Collection[str] = ()) -> dict[str, Tensor]:
    """Return the metrics that `metrics()` returned, by name.

    Raise `AdapterError` unless each value is a tensor of one real number, and each name is allowed for a recorded
    series. known: the names of the metrics at the first step; empty for the first step itself.
    """
    metrics = _named_tensors(found, "metrics()", function, '`{"accuracy": self.accuracy}`, for example')
    for name, tensor in metrics.items():
        if not METRIC_NAME.fullmatch(name) or name in SERIES_COLUMNS:
            allowed_names = f"use only letters, digits, `_`, `.` and `-`, and none of the names {names(SERIES_COLUMNS)}"
            raise _wrong_metrics(function, f"the name {name!r:.100}", allowed_names)
        if tensor.numel() != 1 or tensor.is_complex() or tensor.is_meta:
            reduce_to_one_number = "reduce the tensor to one number in the step, with `.mean()` or `.sum()`"
            raise _wrong_metrics(function, f"{describe_value(tensor)} under `{name}`", reduce_to_one_number)
    if known and set(metrics) != set(known):
        found = difference_of_names(metrics, known, "at this step", "at the first step")
        raise _wrong_metrics(function, found, "return the same names at every step")
    return metrics


def require_kept(first: Mapping[str, Tensor], again: Mapping[str, Tensor], function: Callable[..., Any]) -> None:
    """Raise `AdapterError` if two calls of `metrics()` after the same step returned tensors with different memory.

    Different memory means that `metrics()` itself, and not the step, computes the tensors. A replay then would not
    update them.
    """
    from harness.system.replay.found_state import same

    new_tensors = [name for name, tensor in first.items() if name not in again or same(tensor) != same(again[name])]
    if new_tensors:
        raise _wrong_metrics(
            function,
            f"a new tensor at each call under {names(new_tensors)}",
            "compute the tensor in the step and keep it, `self.accuracy = …`, because a replay does not execute "
            "metrics()",
        )


def _wrong_metrics(function: Callable[..., Any], found: str, remedy: str) -> AdapterError:
    rule = "metrics() must return tensors that the step keeps, each of one number, under the same names at every step"
    return AdapterError(rule, where=return_place(function), got=found, remedy=remedy)


def _named_tensors(found: object, call: str, function: Callable[..., Any], example: str) -> dict[str, Tensor]:
    import torch

    # Create an error only when it is needed, because `return_place` must parse source code to find the place that the
    # error names.
    def wrong(got: str, remedy: str) -> AdapterError:
        rule = f"{call} must return a dictionary of tensors by name"
        return AdapterError(rule, where=return_place(function), got=got, remedy=remedy)

    if not isinstance(found, Mapping):
        raise wrong(describe_value(found), f"return {example}")
    for name, tensor in found.items():
        if not isinstance(name, str):
            raise wrong(f"the name {name!r}", "give each tensor a string as its name")
        if not isinstance(tensor, torch.Tensor):
            raise wrong(f"{describe_value(tensor)} under `{name}`", f"return {example}")
    return dict(found)


def _wrong_parameters(function: Any, found: str, remedy: str) -> AdapterError:
    rule = "parameters() must return the tensors that training updates, by name, all on one device"
    return AdapterError(rule, where=return_place(function), got=found, remedy=remedy)


WHOLE = "value"  # the name of a number that was returned without a name


def require_values(returned: object, evaluate: Callable[[], object]) -> dict[str, float]:
    """Return the numbers that `evaluate` returned, by name, or {} if it returned None. Raise `AdapterError` for any
    other value.

    A single number gets the name `value`. Reading the numbers waits for the device.
    """
    from torch import Tensor

    if returned is None:
        return {}
    entries = returned.items() if isinstance(returned, Mapping) else [(WHOLE, returned)]
    values = {}
    for name, value in entries:
        number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            found = describe_value(value) if name == WHOLE else f"{describe_value(value)} under {name!r:.60}"
            raise AdapterError(
                "evaluate() must return a number, a tensor with one number, or several of them by name",
                where=return_place(evaluate),
                got=found,
                remedy="return, for example, the mean loss of the evaluated batches",
            )
        values[str(name)] = float(number)
    return values
