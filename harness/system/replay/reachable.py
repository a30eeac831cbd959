"""What a step can reach: modules, optimizers, schedulers, scalers, generators, loose tensors, and what holds them.

The way leads from functions over closures, defaults and the globals that their code names, and from objects of
anybody's own classes over their attributes. Objects of torch, numpy and the standard library are not looked into,
but for containers.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from harness.system.replay.generators import Accessors, accessors_of

_LIBRARIES = {"torch", "numpy", "triton", "harness", "builtins", "functorch", "cuda"} | set(sys.stdlib_module_names)
# A Lightning module names its trainer, and a trainer everything: batches, loggers, what it has counted.
_TRAINERS = ("pytorch_lightning.trainer", "lightning.pytorch.trainer")
_ATOMS = (bool, int, float, complex, str, bytes, type, type(None), torch.dtype, torch.device)
# What nn.Module keeps for itself; its hooks are functions of others.
_OF_MODULES = frozenset(vars(nn.Module()))
# What torch keeps of every optimizer: state and groups are found as such, its hooks are functions of others.
_OF_OPTIMIZERS = re.compile(r"state|param_groups|defaults|_optimizer_.*")
Container = dict[Any, Any] | list[Any] | deque[Any] | CellType


@dataclass
class Reachable:
    """Everything found, by the path to it; a thing of several paths goes by the first."""

    modules: dict[str, nn.Module] = field(default_factory=dict)  # the outermost ones
    optimizers: dict[str, Optimizer] = field(default_factory=dict)
    schedulers: dict[str, LRScheduler] = field(default_factory=dict)
    scalers: dict[str, torch.amp.GradScaler] = field(default_factory=dict)
    generators: dict[str, Accessors] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    containers: list[Container] = field(default_factory=list)
    paths: dict[int, str] = field(default_factory=dict)  # to each container, by its identity

    def hold(self, container: Container, path: str) -> None:
        self.containers.append(container)
        self.paths[id(container)] = path


def reach(*roots: object) -> Reachable:
    """Walk from `roots`; nothing is called and no property is read."""
    walk = _Walk()
    walk.follow([("", root) for root in roots])
    registered = {id(tensor) for module in walk.found.modules.values() for tensor in tensors_of(module)}
    walk.found.tensors = {path: tensor for path, tensor in walk.found.tensors.items() if id(tensor) not in registered}
    return walk.found


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers of a module and its submodules."""
    yield from module.parameters()
    yield from module.buffers()


class _Walk:
    def __init__(self) -> None:
        self.found = Reachable()
        self._seen: dict[int, object] = {}  # the objects are held, so that no id is used twice

    def follow(self, entries: list[tuple[str, Any]]) -> None:
        """Depth first, in order; a list instead of recursion, since chains of objects may be long."""
        waiting = entries[::-1]
        while waiting:
            path, value = waiting.pop()
            if isinstance(value, _ATOMS) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            inside = [(_joined(path, name), each) for name, each in self._inside(path, value)]
            waiting += inside[::-1]

    def _inside(self, path: str, value: Any) -> list[tuple[str, Any]]:
        found = self.found
        if isinstance(value, Tensor):
            if not isinstance(value, FakeTensor) and not value.is_meta:
                found.tensors[_free(path, found.tensors)] = value
            return []
        if isinstance(value, nn.Module):
            return self._module(path, value)
        return self._of_training(path, value)

    def _of_training(self, path: str, value: Any) -> list[tuple[str, Any]]:
        found = self.found
        if isinstance(value, Optimizer):
            inner = _wrapped(value)
            if inner is not None:
                return [("", inner)]
            found.optimizers[_free(path, found.optimizers)] = value
            for number, group in enumerate(value.param_groups):
                found.hold(group, _joined(path, f"group{number}"))
            return [each for each in self._attributes(path, value) if not _OF_OPTIMIZERS.fullmatch(each[0])]
        if isinstance(value, LRScheduler):
            found.schedulers[_free(path, found.schedulers)] = value
            found.hold(vars(value), path or type(value).__name__)
            return [("optimizer", value.optimizer)]
        if isinstance(value, torch.amp.GradScaler):
            found.scalers[_free(path, found.scalers)] = value
            found.hold(vars(value), path or type(value).__name__)
            # a step that a trial left half made would be refused the next time
            stages: dict[int, dict[str, Any]] = value._per_optimizer_states
            found.hold(stages, path or type(value).__name__)
            for stage in stages.values():
                found.hold(stage, path or type(value).__name__)
            return []
        accessors = accessors_of(value)
        if accessors is not None:
            found.generators[_free(path, found.generators)] = accessors
            return []
        return self._of_python(path, value)

    def _module(self, path: str, module: nn.Module) -> list[tuple[str, Any]]:
        self.found.modules[_free(path, self.found.modules)] = module
        inside: list[tuple[str, Any]] = []
        for name, each in module.named_modules():
            self._seen[id(each)] = each
            held = _joined(path, name) or type(each).__name__
            for own in (each._parameters, each._buffers, each._modules):
                self.found.hold(own, held)
            if any(map(_is_own, type(each).__mro__)):  # FSDP2 makes a class of torch's of the user's
                self.found.hold(vars(each), held)
                inside += [(_joined(name, key), own) for key, own in vars(each).items() if key not in _OF_MODULES]
        return inside

    def _of_python(self, path: str, value: Any) -> list[tuple[str, Any]]:
        if isinstance(value, FunctionType):
            return self._function(value) if _is_own(value) else []
        if isinstance(value, MethodType):
            return [("", value.__self__), ("", value.__func__)]
        if isinstance(value, functools.partial):
            return [("", value.func), ("", value.args), ("", value.keywords)]
        if isinstance(value, CellType):
            self.found.hold(value, path)
            return [("", value.cell_contents)] if _is_filled(value) else []
        if isinstance(value, dict):
            self.found.hold(value, path)
            entries = [(str(key), each) for key, each in list(value.items())]
        elif isinstance(value, list | tuple | deque | set | frozenset):
            if isinstance(value, list | deque):
                self.found.hold(value, path)
            entries = [(str(index), each) for index, each in enumerate(value)]
        else:
            entries = []
        return entries + self._attributes(path, value)

    def _attributes(self, path: str, value: Any) -> list[tuple[str, Any]]:
        if not _is_own(type(value)) or isinstance(value, ModuleType):
            return []
        slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
        entries = [(name, getattr(value, name)) for name in slots if hasattr(value, name)]
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            self.found.hold(own, path or type(value).__name__)
            entries += list(own.items())
        return entries

    def _function(self, function: FunctionType) -> list[tuple[str, Any]]:
        entries: list[tuple[str, Any]] = list(
            zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        )
        entries += [("", each) for each in (function.__defaults__ or ())]
        entries += list((function.__kwdefaults__ or {}).items())
        names = _names(function.__code__)
        for name in sorted(names & set(function.__globals__)):
            value = function.__globals__[name]
            if isinstance(value, ModuleType):
                if _is_own_module(value):
                    entries += [(key, each) for key, each in vars(value).items() if key in names]
            else:
                entries.append((name, value))
        return entries


def _wrapped(optimizer: Optimizer) -> Optimizer | None:
    """What a library's wrapper around torch's optimizer shares its state with: accelerate's, Lightning's."""
    inner = getattr(optimizer, "optimizer", None) or getattr(optimizer, "_optimizer", None)
    return inner if isinstance(inner, Optimizer) and inner.state is optimizer.state else None


def _slots(kind: type) -> list[str]:
    slots = kind.__dict__.get("__slots__", ())
    return [name for name in ([slots] if isinstance(slots, str) else slots) if not name.startswith("__")]


def _names(code: CodeType) -> set[str]:
    """Names that a function's code looks up, those of functions inside it included."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*(_names(each) for each in inner))


def _is_own(thing: Any) -> bool:
    module = str(getattr(thing, "__module__", "") or "")
    return module.partition(".")[0] not in _LIBRARIES and not module.startswith(_TRAINERS)


def _is_own_module(module: ModuleType) -> bool:
    return module.__name__.partition(".")[0] not in _LIBRARIES


def _is_filled(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _free(path: str, taken: Mapping[str, object]) -> str:
    """The path, or with a number where another thing has it: two roots have none."""
    if path not in taken:
        return path
    count = sum(other == path or other.startswith(f"{path}#") for other in taken)
    return f"{path}#{count}"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
