"""Steps that keep an average in every kind of Python container: changed in place, or bound to a new tensor.

An entry returns (step, read): `step()` updates the average, and `read()` returns the one that is bound now.
"""
# ruff: noqa: PLW0603 - globals that are bound anew are what some scripts have

from __future__ import annotations

import argparse
import collections
import functools
import itertools
import optparse
import queue
import threading
import weakref
from array import array
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Kept = tuple[Callable[[], object], Callable[[], Tensor]]
GLOBAL: Tensor | None = None
TABLES: dict[int, Tensor] = {}


def fresh() -> Tensor:
    return torch.zeros(2)


def in_attribute(holder: Any) -> Kept:
    """Bind a new average to `holder.average` in each step."""
    holder.average = fresh()

    def step() -> None:
        holder.average = holder.average + 1

    return step, lambda: holder.average


def in_entry(holder: Any, key: Any = 0) -> Kept:
    """Bind a new average to `holder[key]` in each step."""

    def step() -> None:
        holder[key] = holder[key] + 1

    return step, lambda: holder[key]


def seen_through(holder: Any, average: Tensor) -> Kept:
    """Change the average in place, in a container that binds nothing anew."""
    return (lambda: (holder, [each.add_(1) for each in _tensors(holder)]), lambda: average)


def _tensors(holder: Any) -> list[Tensor]:
    given = holder() if callable(holder) else holder
    return [given] if isinstance(given, Tensor) else list(given)


def of_class() -> Kept:
    class Trainer:
        average = fresh()

    class Inner(Trainer):
        def update(self) -> None:
            Trainer.average = Trainer.average + 1

    return Inner().update, lambda: Trainer.average


def of_class_alone() -> Kept:
    class Settings:
        pass

    return in_attribute(Settings)


def of_function() -> Kept:
    def step() -> None:
        step.average = step.average + 1  # type: ignore[attr-defined]

    step.average = fresh()  # type: ignore[attr-defined]
    return step, lambda: step.average  # type: ignore[attr-defined]


def of_module() -> Kept:
    global GLOBAL
    GLOBAL = fresh()

    def step() -> None:
        global GLOBAL
        assert GLOBAL is not None
        GLOBAL = GLOBAL + 1

    return step, _global


def _global() -> Tensor:
    assert GLOBAL is not None
    return GLOBAL


@dataclass(slots=True)
class Slotted:
    average: Tensor | None = None


class SlottedBelow(Slotted):
    """A class with a dictionary in addition to the slots of its base class."""


class Private:
    """A class whose slot has a private name, which Python changes."""

    __slots__ = ("__average",)

    def __init__(self) -> None:
        self.__average = fresh()

    def step(self) -> None:
        self.__average = self.__average + 1

    def read(self) -> Tensor:
        return self.__average


@dataclass(frozen=True, slots=True)
class Frozen:
    average: Tensor


def of_private_slot() -> Kept:
    holder = Private()
    return holder.step, holder.read


def of_frozen_slot() -> Kept:
    holder = Frozen(fresh())
    return (lambda: object.__setattr__(holder, "average", holder.average + 1)), lambda: holder.average


class Helped:
    """A class whose step calls methods that use a global variable."""

    def step(self) -> None:
        self._update()
        _ = self.current

    def _update(self) -> None:
        global GLOBAL
        GLOBAL = _global() + 1

    @property
    def current(self) -> Tensor:
        return _global()


def of_a_method() -> Kept:
    global GLOBAL
    GLOBAL = fresh()
    return Helped().step, _global


class Layer(nn.Module):
    """A module whose forward pass uses a global variable."""

    def forward(self) -> None:
        global GLOBAL
        GLOBAL = _global() + 1


def of_a_forward_pass() -> Kept:
    global GLOBAL
    GLOBAL = fresh()
    layer = Layer()
    return (lambda: (layer(), None)[1]), _global


def of_queue() -> Kept:
    holder: queue.Queue[Tensor] = queue.Queue()
    average = fresh()
    holder.put(average)
    return (lambda: holder.queue[0].add_(1)), lambda: holder.queue[0]


def of_weak_keys() -> Kept:
    owner = Helped()
    holder: weakref.WeakKeyDictionary[Helped, Tensor] = weakref.WeakKeyDictionary({owner: fresh()})
    return in_entry(holder, owner)


def of_generator() -> Kept:
    average = fresh()

    def loop(held: Tensor) -> Any:
        while True:
            held.add_(1)
            yield

    running = loop(average)
    next(running)
    average.zero_()
    return (lambda: next(running)), lambda: average


def of_context() -> Kept:
    variable: ContextVar[Tensor] = ContextVar("average")
    average = fresh()
    variable.set(average)
    return (lambda: variable.get().add_(1)), lambda: average


def of_cycle() -> Kept:
    average = fresh()
    turns = itertools.cycle([average])
    return (lambda: next(turns).add_(1)), lambda: average


def of_builtin_method() -> Kept:
    averages = [fresh()]
    first = averages.__getitem__
    return (lambda: first(0).add_(1)), lambda: averages[0]


def of_a_parameter() -> Kept:
    layer = nn.Linear(2, 1)
    step, read = in_attribute(layer.weight)
    return (lambda: (layer, step())[1]), read


def of_a_hook(average: Tensor) -> Kept:
    layer = nn.Linear(2, 1)
    layer.register_forward_hook(lambda *_: (average.add_(1), None)[1])
    return (lambda: (layer(torch.ones(1, 2)), None)[1]), lambda: average


def of_a_gradients_hook(average: Tensor, *, accumulated: bool) -> Kept:
    layer = nn.Linear(2, 1)
    weight: Any = layer.weight
    register = weight.register_post_accumulate_grad_hook if accumulated else weight.register_hook
    register(lambda _: (average.add_(1), None)[1])
    return (lambda: layer(torch.ones(1, 2)).sum().backward()), lambda: average


def of_an_optimizers_hook(average: Tensor) -> Kept:
    optimizer = torch.optim.SGD([nn.Parameter(fresh())], lr=0.1)
    optimizer.register_step_post_hook(lambda *_: (average.add_(1), None)[1])
    return optimizer.step, lambda: average


def of_numpy() -> Kept:
    array = np.zeros(2, dtype=np.float32)
    average = torch.from_numpy(array)

    def step() -> None:
        array[:] += 1

    return step, lambda: average


def of_mapping(average: Tensor) -> Kept:
    return seen_through(MappingProxyType({"average": average}).values(), average)


REBOUND: dict[str, Callable[[], Kept]] = {
    "SimpleNamespace": lambda: in_attribute(SimpleNamespace()),
    "argparse": lambda: in_attribute(argparse.Namespace()),
    "optparse": lambda: in_attribute(optparse.Values()),
    "threading.local": lambda: in_attribute(threading.local()),
    "slot": lambda: in_attribute(Slotted()),
    "slot of a base": lambda: in_attribute(SlottedBelow()),
    "private slot": of_private_slot,
    "frozen slot": of_frozen_slot,
    "UserDict": lambda: in_entry(collections.UserDict({0: fresh()})),
    "UserList": lambda: in_entry(collections.UserList([fresh()])),
    "ChainMap": lambda: in_entry(collections.ChainMap({0: fresh()})),
    "OrderedDict": lambda: in_entry(collections.OrderedDict({0: fresh()})),
    "keyed by a tensor": lambda: in_entry({(key := fresh()): fresh()}, key),
    "keyed by an object": of_weak_keys,
    "class": of_class,
    "a class alone": of_class_alone,
    "function": of_function,
    "module": of_module,
    "a method's module": of_a_method,
    "a forward pass's module": of_a_forward_pass,
    "parameter": of_a_parameter,
}
IN_PLACE: dict[str, Callable[[], Kept]] = {
    "Queue": of_queue,
    "generator": of_generator,
    "ContextVar": of_context,
    "cycle": of_cycle,
    "builtin method": of_builtin_method,
    "numpy's array": of_numpy,
    "a layer's hook": lambda: of_a_hook(fresh()),
    "a gradient's hook": lambda: of_a_gradients_hook(fresh(), accumulated=False),
    "an accumulated gradient's hook": lambda: of_a_gradients_hook(fresh(), accumulated=True),
    "an optimizer's hook": lambda: of_an_optimizers_hook(fresh()),
    "mapping's values": lambda: of_mapping(fresh()),
    "partial": lambda: seen_through(functools.partial(lambda each: each, average := fresh()), average),
}


Data = tuple[Callable[[], object], Callable[[], object]]  # a step that changes it, and what it holds


def of_array(held: Any, key: Any = 0) -> Data:
    holder = SimpleNamespace(held=held)

    def step() -> None:
        holder.held[key] += 1

    return step, holder.held.tolist


def of_objects() -> Data:
    holder = SimpleNamespace(held=np.array([None, "a"], dtype=object))

    def step() -> None:
        holder.held[0] = "another"

    return step, lambda: list(holder.held)


def of_set() -> Data:
    holder = SimpleNamespace(held={1})
    return (lambda: holder.held.add(2)), lambda: set(holder.held)


def of_bytes() -> Data:
    held = bytearray(b"ab")
    return (lambda: held.extend(b"c")), lambda: bytes(held)


DATA: dict[str, Callable[[], Data]] = {
    "numpy": lambda: of_array(np.zeros(3)),
    "numpy, every other one backwards": lambda: of_array(np.zeros(6)[::-2]),
    "numpy in two dimensions": lambda: of_array(np.zeros((2, 2), dtype=np.float16), (1, 0)),
    "numpy of structures": lambda: of_array(np.zeros(2, dtype=[("reward", "f4"), ("done", "?")])["reward"]),
    "numpy masked": lambda: of_array(np.ma.masked_array(np.zeros(2), [False, True])),
    "numpy without dimensions": lambda: of_array(np.zeros(()), ()),
    "numpy with NaN": lambda: of_array(np.array([0.0, np.nan])),
    "numpy of objects": of_objects,
    "set": of_set,
    "bytes": of_bytes,
    "numbers": lambda: of_array(array("d", [0.0, 1.0])),
}


@functools.lru_cache
def bounded(size: int) -> Tensor:
    return torch.ones(size)


@functools.cache
def unbounded(size: int) -> dict[str, Tensor]:
    return {"table": torch.ones(size)}


SLOTTED = Slotted()


def table_in_a_slot() -> Tensor:
    if SLOTTED.average is None:
        SLOTTED.average = torch.ones(2)
    return SLOTTED.average


def global_table() -> Tensor:
    global GLOBAL
    if GLOBAL is None:
        GLOBAL = torch.ones(2)
    return GLOBAL


def table_in_global_dictionary() -> Tensor:
    if 2 not in TABLES:
        TABLES[2] = torch.ones(2)
    return TABLES[2]


LISTED: list[Tensor | None] = [None]


def table_in_a_list() -> Tensor:
    table = torch.ones(2) if LISTED[0] is None else LISTED[0]
    LISTED[0] = table
    return table


class Tables:
    """A class that keeps one average for all of its instances."""

    table: Tensor | None = None

    @classmethod
    def get(cls) -> Tensor:
        if cls.table is None:
            cls.table = torch.ones(2)
        return cls.table

    @functools.lru_cache  # noqa: B019 - what many scripts have
    def cached(self) -> Tensor:
        return torch.ones(2)


def function_table() -> Tensor:
    if not hasattr(function_table, "table"):
        function_table.table = torch.ones(2)  # type: ignore[attr-defined]
    table: Tensor = function_table.table  # type: ignore[attr-defined]
    return table


TABLE: dict[str, Callable[[], Tensor]] = {
    "lru_cache": lambda: bounded(2),
    "cache": lambda: unbounded(2)["table"],
    "global": global_table,
    "global dictionary": table_in_global_dictionary,
    "list": table_in_a_list,
    "slot": table_in_a_slot,
    "class": Tables.get,
    "cached method": Tables().cached,
    "function": function_table,
}


def forget_tables() -> None:
    """Clear the averages of classes, as in a new process."""
    global GLOBAL
    GLOBAL = Tables.table = SLOTTED.average = LISTED[0] = None
    TABLES.clear()
    bounded.cache_clear()
    unbounded.cache_clear()
    Tables.cached.cache_clear()
    vars(function_table).clear()
