"""Find the state of a training that the step can reach, by category and name.

| category | what is in it |
| --- | --- |
| `parameters` | parameters of every module that the step reaches, even if the adapter does not name them |
| `buffers` | registered buffers, such as running statistics and counters of batches |
| `optimizer` | moments and step counts, learning rates and other settings, schedulers, the scale of a `GradScaler` |
| `generators` | generators of torch, numpy and Python: the global ones and those that the step holds |
| `tensors` | tensors in attributes, lists and closures, such as averaged weights, and numpy's arrays |

The names of state do not depend on an adapter's variable names, unless two pieces of state would otherwise have the
same name. Prefixes of wrappers (`_orig_mod.` of `torch.compile`, `module.` of `DistributedDataParallel`) are removed.
Settings of optimizers and schedulers are compared by value. For example, a captured step may keep its learning rate in
a float32 tensor, and an uncaptured step in a Python number. Options of an optimizer that only select how it executes
its update (`capturable`, `fused`) are not state.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from harness.system.replay import generators
from harness.system.replay.holders import asked
from harness.system.replay.reachable import Reachable, reach
from harness.system.sharded_tensors import local

StateByCategory = dict[str, dict[str, Tensor]]
_COMPILED = "_orig_mod."
# A pattern for a number that `as_tensor` wrote as text, and the length in bytes of the longest text that `number_of`
# reads.
_NUMBER, _LONGEST = re.compile(rb"(?:int|float) (-?[0-9][0-9.e+-]*)"), 32
_NO_SETTINGS = {"params", "capturable", "differentiable", "foreach", "fused"}


class _Entry(NamedTuple):
    short: str
    long: str
    value: Any


def plain_name(name: str) -> str:
    """Return a name without the prefixes of `torch.compile`."""
    return name.replace(_COMPILED, "")


def found_state(*roots: object, parameters: Mapping[str, Tensor] | None = None) -> StateByCategory:
    """Return all state that is reachable from `roots`, except `parameters`. Values on the host become tensors."""
    return state_of(reach(*roots), parameters or {})


def state_of(found: Reachable, parameters: Mapping[str, Tensor]) -> StateByCategory:
    """Return the state in `found` as tensors by category and name, without the `parameters` that the adapter names."""
    known = {same(tensor) for tensor in parameters.values()}
    by_identity = {id(tensor): plain_name(name) for name, tensor in parameters.items()}
    registered: dict[str, list[_Entry]] = {"parameters": [], "buffers": []}
    for path, module in _of_one_process(found.modules).items():
        for category, tensors in (("parameters", module.named_parameters()), ("buffers", module.named_buffers())):
            for name, tensor in tensors:
                by_identity.setdefault(id(tensor), plain_name(name))
                if same(tensor) not in known:
                    registered[category].append(_Entry(plain_name(name), plain_name(f"{path}.{name}"), tensor))
    optimizer = [
        _Entry(name, f"{path}.{name}", value)
        for path, each in found.optimizers.items()
        for name, value in asked(lambda: [*_optimizer_state(each, by_identity)], [])  # noqa: B023 - called at once
    ]
    optimizer += [
        _Entry(f"scheduler.{name}", f"{path}.{name}", _setting(value))
        for path, each in found.schedulers.items()
        for name, value in _leaves("", asked(partial(_state_dict, each), vars(each)))
    ]
    optimizer += [
        _Entry(f"{path}.{name}", f"{path}.{name}", vars(each)[name])
        for path, each in found.scalers.items()
        for name in ("_scale", "_growth_tracker")
        if vars(each).get(name) is not None  # a disabled `GradScaler` lacks these attributes
    ]
    drawn = generators.states(found.generators)
    hanging = found.arrays | found.tensors
    loose = {plain_name(path): tensor for path, tensor in hanging.items() if same(tensor) not in known}
    return {
        # A copy of the model, such as an average, has the model's parameter names, which are already in use.
        "parameters": _named(registered["parameters"], {*map(plain_name, parameters)}),
        "buffers": _named(registered["buffers"]),
        "optimizer": _named(optimizer),
        "generators": {name: generators.as_tensor(state) for name, state in drawn.items()},
        "tensors": loose,
    }


def _of_one_process(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return modules by path. Each DistributedDataParallel module, compiled or not, is replaced by its inner model.

    If the step also holds the inner model directly, the inner model keeps the path of this direct reference.
    """
    found, held = {}, {id(module) for module in modules.values()}
    for path, module in modules.items():
        inner = getattr(module, _COMPILED.rstrip("."), module)
        if not isinstance(inner, nn.parallel.DistributedDataParallel):
            found[path] = module
        elif id(inner.module) not in held:
            found[path] = inner.module
    return found


def same(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that identifies a tensor's memory, data type, shape and strides. A view that is equal in these has
    the key of its tensor."""
    held: Any = local(tensor)  # a DTensor has no address, but its local part has one
    if held.layout is not torch.strided or held.numel() == 0:
        return (id(held),)
    # A wrapper such as a quantized weight has no address, but its inner tensors have.
    if is_traceable_wrapper_subclass(held):
        return type(held), *(same(getattr(held, name)) for name in held.__tensor_flatten__()[0])
    return held.device, held.data_ptr(), held.dtype, tuple(held.shape), held.stride()


def _optimizer_state(optimizer: Optimizer, names: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    position = 0
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            name = names.get(id(parameter), str(position))
            position += 1
            # A parameter without a name, such as a master copy, may be reachable only through the optimizer.
            if id(parameter) not in names:
                yield f"{name}.held", parameter
            if parameter in optimizer.state:
                yield from _leaves(name, optimizer.state[parameter])
        settings = {key: value for key, value in group.items() if key not in _NO_SETTINGS}
        yield from ((name, _setting(value)) for name, value in _leaves(f"group{number}", settings))
    yield from _leaves("", {key: value for key, value in optimizer.state.items() if not isinstance(key, Tensor)})


def _state_dict(scheduler: LRScheduler) -> dict[str, Any]:
    return scheduler.state_dict()


def _setting(value: Any) -> Any:
    """Return a setting rounded to float32 if it is a float or a 0-d floating-point tensor. Return other settings
    unchanged."""
    if isinstance(value, Tensor) and value.dim() == 0 and value.is_floating_point():
        value = value.item()
    return torch.tensor(value, dtype=torch.float32).item() if isinstance(value, float) else value


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of each tensor and plain value in dictionaries, lists and tuples. Skip other objects."""
    inside: list[tuple[str, Any]]
    if issubclass(type(value), dict):
        inside = asked(lambda: [(str(key), each) for key, each in value.items()], [])
    elif issubclass(type(value), list | tuple):
        inside = asked(lambda: [(str(index), each) for index, each in enumerate(value)], [])
    else:
        if issubclass(type(value), Tensor | bool | int | float | str):
            yield path, value
        return
    for key, each in inside:
        yield from _leaves(f"{path}.{key}" if path else key, each)


def _named(entries: list[_Entry], taken: Collection[str] = ()) -> dict[str, Tensor]:
    """Return tensors by name. A tensor gets its short name if this name is unique among all names, else its long name.

    taken: names outside `entries` that are already in use.
    """
    names, clashing = [entry.short for entry in entries], True
    while clashing:
        times = Counter([*names, *taken])
        longer = [entry.long if times[name] > 1 else name for name, entry in zip(names, entries, strict=True)]
        names, clashing = longer, longer != names
    seen = Counter(taken)
    found = {}
    for name, entry in zip(names, entries, strict=True):
        tensor = asked(partial(as_tensor, entry.value), None)
        if tensor is not None:
            seen[name] += 1
            found[name if seen[name] == 1 else f"{name} ({seen[name]})"] = tensor
    return found


def as_tensor(value: Any) -> Tensor:
    """Return a tensor unchanged. Return type and text of any other value as a tensor of bytes, uint8 [number of bytes].
    As text, NaN equals NaN."""
    if isinstance(value, Tensor):
        return value
    return torch.frombuffer(bytearray(f"{type(value).__name__} {value!r}".encode()), dtype=torch.uint8)


def is_text(tensor: Tensor) -> bool:
    """Return True if the tensor holds a value that `as_tensor` wrote as text: the name of a type, and the value."""
    if tensor.dtype is not torch.uint8 or tensor.dim() != 1 or tensor.device.type != "cpu":
        return False
    try:
        text = bytes(tensor.tolist()).decode()
    except UnicodeDecodeError:
        return False
    return text.isprintable() and text.partition(" ")[0].isidentifier() and " " in text


def number_of(tensor: Tensor) -> float | None:
    """Return the single finite number that a tensor contains. The tensor may also contain the bytes of the text that
    `as_tensor` writes for a Python number. Return None for other tensors."""
    if tensor.is_meta or tensor.is_complex():
        return None
    if tensor.numel() == 1:
        value = float(tensor.item())
    else:
        as_text = tensor.dtype is torch.uint8 and tensor.dim() == 1 and tensor.numel() <= _LONGEST
        written = _NUMBER.fullmatch(bytes(tensor.tolist())) if as_text else None
        value = float(written[1]) if written else math.inf
    return value if math.isfinite(value) else None
