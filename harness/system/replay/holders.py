"""What holds a training's things beside attributes, dictionaries and lists: names of modules, data of classes, caches
of functions, frames of generators, and what iterators and views are over.
"""

from __future__ import annotations

import argparse
import collections
import dis
import functools
import gc
import inspect
import optparse
import queue
import sys
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    SimpleNamespace,
)
from typing import Any, TypeVar

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from harness.evidence.modules import is_users as is_users_code

ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
# Of the standard library: what scripts keep settings and state in. Others (threads, loggers, files) keep their own.
NAMESPACES = (
    *(SimpleNamespace, argparse.Namespace, optparse.Values, threading.local),
    *(collections.UserDict, collections.UserList, collections.ChainMap),
    *(queue.Queue, weakref.WeakKeyDictionary),
)
_VIEWS: tuple[type, ...] = (
    *(MappingProxyType, BuiltinMethodType, queue.SimpleQueue),
    *(type({}.keys()), type({}.values()), type({}.items())),
)
_FAMILIAR = {"torch", "numpy", "builtins"} | set(sys.stdlib_module_names)
_ITERATORS = ("builtins", "itertools")
_T = TypeVar("_T")
_U = TypeVar("_U")
LARGEST = 2**28  # bytes: a data set in one array is no training's state, and each trial execution would copy it
LOCALS = "<locals>"  # in the path to what a generator's variables hold
_SET, _DELETE = object.__setattr__, object.__delattr__
LruCache = functools._lru_cache_wrapper
# The class of a chain's links, which nothing else names.
_LINK = next(
    (each for each in gc.get_referents(functools.lru_cache(int)) if "list_elem" in getattr(each, "__name__", "")),
    None,
)


class Bindings:
    """Names of a module that code reads or binds, the data of a class, or an object's slots: what has no dictionary of
    its own, or one of which no other entry is a training's.
    """

    def __init__(self, owner: object, names: frozenset[str] = frozenset()) -> None:
        """owner: a module's dictionary, a class, or an object with slots; names: of a module's alone."""
        self.owner, self._names = owner, names

    @property
    def is_shared(self) -> bool:
        """Whether it is of a whole process: what an object has is its own."""
        return isinstance(self.owner, dict | type)

    def current(self) -> dict[str, Any]:
        """What is bound now, by name."""
        if isinstance(self.owner, dict):
            return {name: self.owner[name] for name in sorted(self._names) if name in self.owner}
        return dict(data_of(self.owner) if isinstance(self.owner, type) else slots_of(self.owner))

    def bind(self, name: str, value: Any) -> None:
        """Bind a name anew."""
        if isinstance(self.owner, dict):
            self.owner[name] = value
        elif isinstance(self.owner, type):
            setattr(self.owner, name, value)
        else:
            _SET(self.owner, name, value)  # past what a frozen dataclass says to it

    def unbind(self, name: str) -> None:
        """Take a name out."""
        if isinstance(self.owner, dict):
            del self.owner[name]
        elif isinstance(self.owner, type):
            delattr(self.owner, name)
        else:
            _DELETE(self.owner, name)


class OwnPart:
    """What user code keeps on an object of a library's class: a trainer, on which the library keeps its loop, too.

    Left out is what functions of the library's classes bind there, unless user code is called through it, and objects
    of the library's own classes.
    """

    def __init__(self, owner: object, libraries: frozenset[str]) -> None:
        """libraries: the top names of the packages that drive the object."""
        self.owner, self._libraries = owner, libraries

    def current(self) -> list[tuple[str, Any]]:
        """Return name and value of each attribute that is the user's."""
        kinds = filter(self._is_librarys, type(self.owner).__mro__)
        bound = frozenset[str]().union(*map(_bound_by, kinds))
        return [(name, value) for name, value in vars(self.owner).items() if self._is_users(name, value, bound)]

    def _is_users(self, name: str, value: Any, bound: AbstractSet[str]) -> bool:
        if name in bound:
            return callable(value) and is_users_callable(value)
        return not self._is_librarys(type(value))

    def _is_librarys(self, kind: type) -> bool:
        return module_of(kind).partition(".")[0] in self._libraries


@functools.cache
def _bound_by(kind: type) -> frozenset[str]:
    """Names of attributes that the functions of a class bind, of whatever object."""
    codes = [inspect.unwrap(function).__code__ for function in functions_of(kind)]
    instructions = (each for code in codes for each in dis.get_instructions(code))
    return frozenset(each.argval for each in instructions if each.opname == "STORE_ATTR")


class Memo:
    """The results that `functools.cache` or `lru_cache` keeps of a function. They can be forgotten together alone."""

    def __init__(self, function: LruCache[Any]) -> None:
        self.owner = function

    def size(self) -> int:
        """How many results are kept."""
        return self.owner.cache_info().currsize

    def results(self) -> list[Any]:
        """What is kept, as the collector of garbage sees it: before the function a dictionary, and before that, where
        it is bounded, a chain of keys with their results.
        """
        held = gc.get_referents(self.owner)
        function = max((index for index, each in enumerate(held) if each is self.owner.__wrapped__), default=0)
        if not function or not isinstance(held[function - 1], dict):  # `__wrapped__` was set anew
            return []
        cache, chain = held[function - 1], held[: function - 1]
        if self.owner.cache_parameters()["maxsize"] is None:
            return list(cache.values())
        return [chain[index - 1] for index, each in enumerate(chain) if each is _LINK]

    def forget(self, before: int, is_kept: Callable[[Any], bool]) -> None:
        """Undo what was cached since there were ``before`` results, unless that is to be kept.

        Beside earlier ones it stays, since these may be a training's own, but for fake tensors, which are nobody's.
        """
        if self.size() == before:
            return
        results = self.results()
        fake = any(isinstance(each, FakeTensor) for result in results for each in _leaves(result))
        if fake or (before == 0 and not is_kept(results)):
            self.owner.cache_clear()


class Values:
    """Data that is changed in place and holds no tensor: numpy's arrays, sets, arrays of bytes and of numbers."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    @staticmethod
    def has(value: object) -> bool:
        """Whether it is such data, that anybody can change. What nobody has room for a copy of is left alone."""
        if isinstance(value, np.ndarray):
            return bool(value.flags.writeable) and value.nbytes <= LARGEST
        return isinstance(value, set | bytearray | array) and sys.getsizeof(value) <= LARGEST

    def current(self) -> Any:
        """A copy."""
        return self.owner.copy() if isinstance(self.owner, np.ndarray | set) else self.owner[:]

    def is_as(self, before: Any) -> bool:
        """Whether it holds what the copy does, NaN for NaN; the bytes of an array of objects are their addresses."""
        if not isinstance(self.owner, np.ndarray):
            return bool(self.owner == before)
        return bool(self.owner.tobytes() == before.tobytes())

    def put_back(self, before: Any) -> None:
        """Make it hold what the copy does."""
        if isinstance(self.owner, set):
            self.owner.clear()
            self.owner.update(before)
        elif isinstance(self.owner, np.ndarray):
            self.owner[...] = before
        else:
            self.owner[:] = before


def data_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Name and value of what a class itself holds, without functions and what else is read through `__get__`."""
    for name, value in list(vars(kind).items()):
        kind_of_value: Any = type(value)
        read_through = asked(partial(hasattr, kind_of_value, "__get__"), True)
        if not name.startswith("__") and not read_through and not issubclass(kind_of_value, type):
            yield name, value


def functions_of(kind: type) -> Iterator[FunctionType | LruCache[Any]]:
    """The functions of a class: methods, and those of properties."""
    for value in list(vars(kind).values()):
        parts = [asked(partial(getattr, value, name, None), None) for name in ("__func__", "fget", "fset", "func")]
        for each in (value, *parts):
            if issubclass(type(each), FunctionType | LruCache):
                yield each


def seen_through(value: Any) -> list[Any] | None:
    """What a view, an iterator or a context variable is over; None where it is none of these."""
    if isinstance(value, ContextVar):
        return [value.get(None)]
    iterates = module_of(type(value)) in _ITERATORS and hasattr(type(value), "__next__")
    if isinstance(value, _VIEWS) or (iterates and not isinstance(value, GeneratorType)):
        return gc.get_referents(value)
    return None


def locals_of(generator: GeneratorType[Any, Any, Any]) -> list[tuple[str, Any]]:
    """Local variables of a generator that has not ended, which none but it can bind, and the one that it waits for."""
    if generator.gi_frame is None:
        return []
    names = list(generator.gi_frame.f_locals.items())
    return [*((f"{LOCALS}.{name}", each) for name, each in names), ("", generator.gi_yieldfrom)]


def globals_of(generator: GeneratorType[Any, Any, Any]) -> dict[str, Any]:
    return {} if generator.gi_frame is None else generator.gi_frame.f_globals


def key_name(key: Any, index: int) -> str:
    """How an entry of a dictionary is called: by its key, or by its place where the key is an object."""
    parts = key if issubclass(type(key), tuple) else (key,)
    return asked(partial(str, key), str(index)) if all(issubclass(type(part), ATOMS) for part in parts) else str(index)


def slots_of(value: object) -> Iterator[tuple[str, Any]]:
    """Name and value of every filled slot of an object."""
    for name, slot in slots_of_class(type(value)):
        with suppress(AttributeError):  # an empty one
            yield name, slot.__get__(value)


def slots_of_class(kind: type) -> list[tuple[str, MemberDescriptorType]]:
    """What a class and its bases declare in `__slots__`; private names as Python changes them."""
    return [
        (name, slot)
        for each in kind.__mro__
        if "__slots__" in vars(each)
        for name, slot in vars(each).items()
        if isinstance(slot, MemberDescriptorType)
    ]


def asked(question: Callable[[], _T], otherwise: _U) -> _T | _U:
    """Return what user code answers, or `otherwise` where it raises, as proxies and lazy properties may.

    This is the search's one way to ask an object that may answer by code of its own.
    """
    try:
        return question()
    except Exception:
        return otherwise


def module_of(thing: object) -> str:
    """The name of its module; of a class past what its metaclass says, which may raise."""
    if issubclass(type(thing), type):
        return str(type.__getattribute__(thing, "__module__") or "")
    return str(asked(lambda: getattr(thing, "__module__", ""), "") or "")


def names_of(code: CodeType) -> frozenset[str]:
    """Names that a function's code looks up or binds, those of functions inside it included.

    None is of those that pytest puts there for its assertions, which no source can have: they lead to all that it runs.
    """
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    own = frozenset(name for name in code.co_names if not name.startswith("@"))
    return own.union(*(names_of(each) for each in inner))


def is_filled(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def is_users(kind: type) -> bool:
    """Whether a class is of no installed package, so that its methods and its data are the training's own."""
    module = module_of(kind)
    file = getattr(sys.modules.get(module), "__file__", None)
    return module == "__main__" or (file is not None and is_users_file(file))


def is_foreign(value: Any) -> bool:
    """Whether it is a function, or an object of a class, of an installed package, and nothing that trains."""
    if issubclass(type(value), torch.Tensor | torch.nn.Module | torch.optim.Optimizer):
        return False
    if issubclass(type(value), FunctionType):
        return not is_users_file(value.__code__.co_filename)
    kind = value if issubclass(type(value), type) else type(value)
    return module_of(kind).partition(".")[0] not in _FAMILIAR and not is_users(kind)


def is_users_callable(value: Any) -> bool:
    """Whether what is called is of no installed package: a function, a method, an object of a class of the user's."""
    if issubclass(type(value), functools.partial):
        return is_users_callable(value.func)
    if issubclass(type(value), MethodType):
        return is_users_callable(value.__func__)
    if issubclass(type(value), FunctionType):
        return is_users_file(value.__code__.co_filename)
    return is_users(type(value))


@functools.cache
def is_users_file(file: str) -> bool:
    """Whether code is the user's own: what a library or the harness binds in its own modules is left to it."""
    return is_users_code(Path(file))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _leaves(each)
    else:
        yield value
