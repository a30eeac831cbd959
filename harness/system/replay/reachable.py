"""Find all objects that a step can reach: modules, optimizers, schedulers, scalers, generators, and other tensors.

The search follows a function to its closure, defaults and attributes, and to the globals that its code names. It
follows modules, optimizers and tensors to user-defined hooks. It follows tensors, and objects of user classes, to their
attributes. It also follows classes that belong to no installed package to their data and methods. It does not enter
objects of torch, numpy and the standard library, except for containers and the objects that the module `holders` reads.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import CellType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from harness.system.replay import holders
from harness.system.replay.generators import Accessors, accessors_of
from harness.system.replay.holders import ATOMS, NAMESPACES, LruCache, OwnPart
from harness.system.replay.places import (
    ABSENT,
    Bindings,
    Elements,
    Memo,
    OptimizerState,
    Place,
    Values,
    contents,
    joined,
)

_LIBRARIES = {"torch", "numpy", "triton", "harness", "builtins", "functorch", "cuda"} | set(sys.stdlib_module_names)
# Classes of trainers, which are not searched. A Lightning module refers to its trainer, and the trainer refers to
# batches, loggers and counters, which are not state.
_TRAINERS = ("pytorch_lightning.trainer", "lightning.pytorch.trainer")
# Attributes that every nn.Module has. Of these, the search follows only hooks that are user code.
_OF_MODULES = frozenset(vars(nn.Module()))
# Attributes of every torch optimizer. The search handles state, parameter groups and hooks separately.
_OF_OPTIMIZERS = re.compile(r"state|param_groups|defaults|_optimizer_.*")
_HOOKS_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_HOOKS_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_LAYERS = "torch.nn.modules."  # Python package of torch's layers; a step may set attributes such as a dropout's `p`
_RESULT = "()"  # the part of a path that stands for the cached results of a function


@dataclass
class Reachable:
    """All objects that were found, by path. If an object has several paths, the first path counts."""

    modules: dict[str, nn.Module] = field(default_factory=dict)  # only the outermost modules
    optimizers: dict[str, Optimizer] = field(default_factory=dict)
    schedulers: dict[str, LRScheduler] = field(default_factory=dict)
    scalers: dict[str, torch.amp.GradScaler] = field(default_factory=dict)
    generators: dict[str, Accessors] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    # Numpy arrays, as tensors that share the memory of the arrays.
    arrays: dict[str, Tensor] = field(default_factory=dict)
    memoized: dict[str, Tensor] = field(default_factory=dict)  # cached results of functions; they are not state
    places: list[Place] = field(default_factory=list)
    of_optimizers: list[OptimizerState] = field(default_factory=list)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (path, tensor) for all tensors except those of optimizers and numpy arrays. Tensors that belong to no
        module come first, then those of modules and scalers."""
        yield from self.tensors.items()
        yield from self.memoized.items()
        for path, module in self.modules.items():
            named = [*module.named_parameters(), *module.named_buffers()]
            yield from ((joined(path, name), each) for name, each in named)
        for path, scaler in self.scalers.items():
            of_scaler = ((name, each) for name, each in vars(scaler).items() if isinstance(each, Tensor))
            yield from ((joined(path, name), each) for name, each in of_scaler)


def reach(*roots: object) -> Reachable:
    """Return all objects that can be reached from `roots`. If reading an object raises an error, the object is treated
    as an object without state."""
    walk = _Walk()
    walk.follow([("", root) for root in roots])
    registered = {id(tensor) for module in walk.found.modules.values() for tensor in tensors_of(module)}
    walk.found.tensors = {path: tensor for path, tensor in walk.found.tensors.items() if id(tensor) not in registered}
    return walk.found


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of a module and its submodules."""
    yield from module.parameters()
    yield from module.buffers()


class _Walk:
    def __init__(self) -> None:
        self.found = Reachable()
        self._seen: dict[int, object] = {}  # keeps the objects alive, so that their ids are not used again
        # Objects to follow at the end of the search. If the search finds such an object earlier in another place, the
        # object gets the path of that place.
        self._last: list[tuple[str, Any]] = []
        self._shared: set[int] = set()  # ids of objects that Python modules and classes hold, directly or indirectly
        self._is_shared = False  # True while the search is inside an object of `_shared`
        self._methods: set[int] = set()  # ids of the functions that user classes define

    def follow(self, entries: list[tuple[str, Any]]) -> None:
        """Follow the entries depth first, in order. A list of entries replaces recursion, because chains of objects may
        be long."""
        waiting = entries[::-1]
        while waiting or self._last:
            if not waiting:
                waiting, self._last = self._last[::-1], []
            path, value = waiting.pop()
            # Use `type`, because `isinstance` reads `__class__`, which raises an error for a proxy without an object.
            if id(value) in self._seen or issubclass(type(value), ATOMS):
                continue
            self._seen[id(value)] = value
            self._is_shared = id(value) in self._shared
            held: list[tuple[str, Any]] | None = holders.asked(partial(self._inside, path, value), None)
            # A value that has no content according to its type, or that could not be read, may still have attributes.
            if held is None:
                held = holders.asked(partial(self._attributes, path, value), [])
            inside = [(joined(path, name), each) for name, each in held]
            if id(value) in self._shared:
                self._share(inside)
            waiting += inside[::-1]

    def _hold(self, place: Place) -> None:
        place.is_shared |= self._is_shared
        self.found.places.append(place)

    def _share(self, entries: Iterable[tuple[str, Any]]) -> None:
        self._shared.update(id(each) for _, each in entries)

    def _inside(self, path: str, value: Any) -> list[tuple[str, Any]]:
        found = self.found
        if isinstance(value, Tensor):
            if not isinstance(value, FakeTensor) and not value.is_meta:
                tensors = found.memoized if _RESULT in path else found.tensors
                tensors[_free(path, tensors)] = value
            return self._tensor(path, value)
        if isinstance(value, nn.Module):
            return self._module(path, value)
        return self._of_training(path, value)

    def _of_training(self, path: str, value: Any) -> list[tuple[str, Any]]:
        found = self.found
        if isinstance(value, Optimizer):
            inner = holders.asked(partial(_wrapped, value), None)
            if inner is not None:
                return [("", inner)]
            # Reading a broken optimizer raises an error here, before the optimizer is added to the found optimizers.
            groups, _ = value.param_groups, value.state
            found.optimizers[_free(path, found.optimizers)] = value
            self.found.of_optimizers.append(OptimizerState(value, path))
            for number, group in enumerate(groups):
                self._hold(Place(group, joined(path, f"group{number}")))
            own = [each for each in self._attributes(path, value) if not _OF_OPTIMIZERS.fullmatch(each[0])]
            own += _inner(value)  # search torch's own wrappers, too: ZeroRedundancyOptimizer keeps no state itself
            return [*own, *_hooks(value, _HOOKS_OF_OPTIMIZERS)]
        if isinstance(value, LRScheduler):
            found.schedulers[_free(path, found.schedulers)] = value
            self._hold(Place(vars(value), path or type(value).__name__))
            return [("optimizer", vars(value).get("optimizer"))]
        if isinstance(value, torch.amp.GradScaler):
            found.scalers[_free(path, found.scalers)] = value
            self._hold(Place(vars(value), path or type(value).__name__))
            # An execution that is undone later may leave a step of the scaler unfinished. The scaler would then refuse
            # the next step, so its stages are restored. A disabled scaler has no stages.
            stages: dict[int, dict[str, Any]] = vars(value).get("_per_optimizer_states", {})
            self._hold(Place(stages, path or type(value).__name__))
            for stage in stages.values():
                self._hold(Place(stage, path or type(value).__name__))
            return []
        accessors = accessors_of(value)
        if accessors is not None:
            found.generators[_free(path, found.generators)] = accessors
            return []
        return self._of_python(path, value)

    def _module(self, path: str, module: nn.Module) -> list[tuple[str, Any]]:
        # Reading a broken module raises an error here, before the module is added to the found modules.
        named, _ = list(module.named_modules()), list(tensors_of(module))
        self.found.modules[_free(path, self.found.modules)] = module
        inside: list[tuple[str, Any]] = []
        for name, each in named:
            self._seen[id(each)] = each
            held = joined(path, name) or type(each).__name__
            for own in (each._parameters, each._buffers, each._modules):
                self._hold(Place(own, held))
            tensors = [*each._parameters.items(), *each._buffers.items()]
            inside += [(joined(name, key), tensor) for key, tensor in tensors]
            inside += [(name, hook) for _, hook in _hooks(each, _HOOKS_OF_MODULES)]
            # FSDP2 derives a class from the user's class, and the derived class belongs to torch. Therefore examine all
            # base classes.
            if any(map(_is_own, type(each).__mro__)):
                self._hold(Place(vars(each), held))
                own = [entry for entry in holders.named_items(vars(each)) if entry[0] not in _OF_MODULES]
                inside += [(joined(name, key), value) for key, value in own]
                inside.append((name, type(each)))
            elif holders.module_of(type(each)).startswith(_LAYERS):
                # Restore these attributes, but do not search them, because each pass creates their tensors.
                self._hold(Place(vars(each), held))
        return inside

    def _tensor(self, path: str, tensor: Tensor) -> list[tuple[str, Any]]:
        """Return the attributes that user code set on a tensor (`p.velocity`), and the user hooks on its gradient."""
        if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):  # other tensor types have attributes of torch
            return []
        self._hold(Place(vars(tensor), path))
        return [*holders.named_items(vars(tensor)), *_hooks(tensor, _HOOKS_OF_TENSORS)]

    def _own_part(self, path: str, part: OwnPart) -> list[tuple[str, Any]]:
        # Mark the owner as seen, so that the search does not follow other paths to it.
        self._seen[id(part.owner)] = part.owner
        self._hold(Place(vars(part.owner), type(part.owner).__name__))
        self._last += [(joined(path, name), each) for name, each in part.current()]
        return [("", type(part.owner))]

    def _of_python(self, path: str, value: Any) -> list[tuple[str, Any]]:
        if isinstance(value, OwnPart):
            return self._own_part(path, value)
        inside = self._of_code(path, value)
        if inside is None:
            over = holders.seen_through(value)
            inside = self._of_data(path, value) if over is None else [("", each) for each in over]
        return inside

    def _of_code(self, path: str, value: Any) -> list[tuple[str, Any]] | None:
        """Return (path, object) of all objects that `value` holds, if it is a class, function, function's cache,
        generator, method or partial. Return None for any other value."""
        inside: list[tuple[str, Any]] | None = None
        if isinstance(value, type):
            inside = self._class(path, value)
        elif isinstance(value, FunctionType):
            inside = self._function(path, value) if _is_own(value) else []
        elif isinstance(value, LruCache):
            inside = self._memo(path, value) if _is_own(value.__wrapped__) else []
        elif isinstance(value, GeneratorType):
            inside = [*holders.locals_of(value), *self._named(path, value.gi_code, holders.globals_of(value))]
        elif isinstance(value, MethodType):
            inside = [("", value.__self__), ("", value.__func__)]
        elif isinstance(value, functools.partial):
            inside = [("", value.func), ("", value.args), ("", value.keywords)]
        return inside

    def _of_data(self, path: str, value: Any) -> list[tuple[str, Any]]:
        if isinstance(value, CellType):
            self._hold(Bindings(value, path))
            return [] if (held := contents(value)) is ABSENT else [("", held)]
        if Values.has(value):
            self._hold(Values(value, path))
            if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and _RESULT not in path:
                # An array cannot share its memory with a tensor if torch lacks the array's type, or if the array's
                # strides are negative.
                with suppress(TypeError, ValueError):
                    self.found.arrays[_free(path, self.found.arrays)] = torch.from_numpy(value)
        entries: list[tuple[str, Any]] = []
        if isinstance(value, dict):
            self._hold(Place(value, path))
            entries = holders.named_items(value)
        elif isinstance(value, list | tuple | deque | set | frozenset):
            if isinstance(value, list | deque):
                self._hold(Elements(value, path))
            elements: list[Any] = holders.asked(partial(list, value), [])
            entries = [(str(index), each) for index, each in enumerate(elements)]
        elif isinstance(value, np.ndarray) and value.dtype.hasobject:
            entries = [(str(index), each) for index, each in enumerate(value.flat)]
        return entries + self._attributes(path, value)

    def _attributes(self, path: str, value: Any) -> list[tuple[str, Any]]:
        if not (_is_own(type(value)) or issubclass(type(value), NAMESPACES)) or issubclass(type(value), ModuleType):
            return []
        entries: list[tuple[str, Any]] = []
        if holders.slots_of_class(type(value)):
            self._hold(Bindings(value, path or type(value).__name__))
            entries = [*holders.slots_of(value)]
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            self._hold(Place(own, path or type(value).__name__))
            entries += holders.named_items(own)
        return [*entries, ("", type(value))]

    def _class(self, path: str, kind: type) -> list[tuple[str, Any]]:
        """Return (path, object) of the data, methods and bases of a user-defined class. For other classes, return only
        the bases."""
        bases = [("", base) for base in kind.__bases__ if base is not object]
        if not _is_own(kind) or not holders.is_users(kind):
            return bases
        self._hold(Bindings(kind, path or kind.__name__))
        data, methods = [*holders.data_of(kind)], [*holders.functions_of(kind)]
        self._share(data)
        self._methods.update(id(each) for each in methods)
        return [*data, *(("", each) for each in methods), *bases]

    def _memo(self, path: str, function: LruCache[Any]) -> list[tuple[str, Any]]:
        memo = Memo(function, f"{path}{_RESULT}")
        self._hold(memo)
        results = [(f"{_RESULT}{index}", each) for index, each in enumerate(memo.results())]
        return [("", function.__wrapped__), *results]

    def _function(self, path: str, function: FunctionType) -> list[tuple[str, Any]]:
        entries: list[tuple[str, Any]] = list(
            zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        )
        entries += [("", each) for each in (function.__defaults__ or ())]
        entries += list((function.__kwdefaults__ or {}).items())
        if holders.is_users_file(function.__code__.co_filename):
            # A function that is not defined inside another function exists once in the process, so it is shared.
            self._is_shared |= "<locals>" not in function.__qualname__
            self._hold(Place(vars(function), path or function.__name__))
            entries += holders.named_items(vars(function))
        # A function that torch wraps has the module name of the user's function, but the globals of torch.
        is_own = _is_own_code(function.__globals__)
        named = self._named(path, function.__code__, function.__globals__) if is_own else []
        # The step may never call a method. Therefore skip objects of libraries that only the code of a method names.
        return entries + [
            each for each in named if id(function) not in self._methods or not holders.is_foreign(each[1])
        ]

    def _named(self, path: str, code: CodeType, module: dict[str, Any]) -> list[tuple[str, Any]]:
        """Return (path, object) of each global that the code names. If a global is a Python module, return instead the
        attributes of the module that the code names."""
        entries: list[tuple[str, Any]] = []
        names, is_users = holders.names_of(code), holders.is_users_file(code.co_filename)
        if is_users:
            self._hold(Bindings(module, path, names))
        for name in sorted(names & set(module)):
            value = module[name]
            if not issubclass(type(value), ModuleType):
                entries.append((name, value))
            elif _is_own_module(value):
                if is_users:
                    self._hold(Bindings(vars(value), joined(path, name), names))
                entries += [(key, each) for key, each in vars(value).items() if key in names]
        self._share(entries)
        return entries


def _hooks(owner: object, kinds: Iterable[str]) -> list[tuple[str, Any]]:
    """Return the object's hooks that are user code. kinds: the names of the attributes that hold hooks."""
    held = [hook for kind in kinds for hook in (getattr(owner, kind, None) or {}).values()]
    return [("", hook) for hook in held if holders.is_users_callable(hook)]


def _wrapped(optimizer: Optimizer) -> Optimizer | None:
    """Return the optimizer inside `optimizer` if `optimizer` is a wrapper of accelerate, Lightning or torch that shares
    the state of the inner optimizer. Otherwise return None."""
    return next((inner for _, inner in _inner(optimizer) if inner.state is optimizer.state), None)


def _inner(optimizer: Optimizer) -> list[tuple[str, Optimizer]]:
    """Return the optimizers that an optimizer holds as attributes."""
    return [(name, each) for name, each in vars(optimizer).items() if isinstance(each, Optimizer)]


def _is_own(thing: Any) -> bool:
    module = holders.module_of(thing)
    return module.partition(".")[0] not in _LIBRARIES and not module.startswith(_TRAINERS)


def _is_own_module(module: ModuleType) -> bool:
    return _is_own_code(holders.asked(lambda: vars(module), {}))


def _is_own_code(module: Mapping[str, Any]) -> bool:
    return str(module.get("__name__", "")).partition(".")[0] not in _LIBRARIES


def _free(path: str, taken: Mapping[str, object]) -> str:
    """Return the path if it is not in `taken`, otherwise the path with a number, such as `net.weight#1`. Several
    objects can have one path: for example, all objects with which the search starts have the empty path."""
    if path not in taken:
        return path
    count = sum(other == path or other.startswith(f"{path}#") for other in taken)
    return f"{path}#{count}"
