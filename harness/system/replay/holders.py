"""Read the less usual places in which a training keeps objects, in addition to attributes, dictionaries and lists.

These places are global names of Python modules, data of classes, caches of functions, variables of Python generators,
and the objects behind iterators and views.
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
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    SimpleNamespace,
)
from typing import Any, TypeVar

import torch

from harness.evidence.modules import is_users as is_users_code

# Matches a number in a key that may be an address, a hash or a time. Such a number is different in each process.
_OF_A_PROCESS = re.compile(r"(?<![.\d])\d{10,}|0x[0-9a-f]{8,}", re.IGNORECASE)
ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
# Standard classes in which scripts keep settings and state. Objects of other standard classes (threads, loggers, files)
# are not searched.
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
LOCALS = "<locals>"  # the part of a path that stands for the local variables of a generator function
LruCache = functools._lru_cache_wrapper


class OwnPart:
    """The attributes that user code set on an object of a library's class, such as the library's trainer.

    Attributes that the library's own functions assign are left out, except those whose values are user callables. Other
    attributes are left out if their values are objects of the library's own classes.
    """

    def __init__(self, owner: object, libraries: frozenset[str]) -> None:
        """Store the object and the libraries that control this object. libraries: the top-level names of the packages
        of these libraries."""
        self.owner, self._libraries = owner, libraries

    def current(self) -> list[tuple[str, Any]]:
        """Return name and value of each attribute that user code set."""
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
    """Return the names of all attributes that the functions of a class assign, on `self` or on any other object."""
    codes = [inspect.unwrap(function).__code__ for function in functions_of(kind)]
    instructions = (each for code in codes for each in dis.get_instructions(code))
    return frozenset(each.argval for each in instructions if each.opname == "STORE_ATTR")


def data_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each data attribute of a class. Skip functions and other values with a `__get__`."""
    for name, value in list(vars(kind).items()):
        kind_of_value: Any = type(value)
        read_through = asked(partial(hasattr, kind_of_value, "__get__"), True)
        if not name.startswith("__") and not read_through and not issubclass(kind_of_value, type):
            yield name, value


def functions_of(kind: type) -> Iterator[FunctionType | LruCache[Any]]:
    """Yield the functions of a class: its methods, and the functions of its properties."""
    for value in list(vars(kind).values()):
        parts = [asked(partial(getattr, value, name, None), None) for name in ("__func__", "fget", "fset", "func")]
        for each in (value, *parts):
            if issubclass(type(each), FunctionType | LruCache):
                yield each


def seen_through(value: Any) -> list[Any] | None:
    """Return the objects that a view, an iterator or a context variable refers to. Return None for a value of another
    type."""
    if isinstance(value, ContextVar):
        return [value.get(None)]
    iterates = module_of(type(value)) in _ITERATORS and hasattr(type(value), "__next__")
    if isinstance(value, _VIEWS) or (iterates and not isinstance(value, GeneratorType)):
        return gc.get_referents(value)
    return None


def locals_of(generator: GeneratorType[Any, Any, Any]) -> list[tuple[str, Any]]:
    """Return the local variables of an unfinished generator, and the generator to which it delegates, as (path,
    value)."""
    if generator.gi_frame is None:
        return []
    names = list(generator.gi_frame.f_locals.items())
    return [*((f"{LOCALS}.{name}", each) for name, each in names), ("", generator.gi_yieldfrom)]


def globals_of(generator: GeneratorType[Any, Any, Any]) -> dict[str, Any]:
    return {} if generator.gi_frame is None else generator.gi_frame.f_globals


def key_name(key: Any, index: int) -> str:
    """Return the name of a dictionary entry: its key as text or, for some keys, its index.

    The index is used if the key is an object, or if the key contains an address or a hash (`moments[id(parameter)]`).
    Such keys are different in each process.
    """
    parts = key if issubclass(type(key), tuple) else (key,)
    name = asked(partial(str, key), "") if all(issubclass(type(part), ATOMS) for part in parts) else ""
    return str(index) if not name or _OF_A_PROCESS.search(name) else name


def named_items(held: dict[Any, Any]) -> list[tuple[str, Any]]:
    """Return name and value of every entry of a dictionary, in order."""
    items = asked(lambda: list(held.items()), None)
    entries = list(dict.items(held)) if items is None else items
    return [(key_name(key, index), value) for index, (key, value) in enumerate(entries)]


def slots_of(value: object) -> Iterator[tuple[str, Any]]:
    """Yield name and value of every filled slot of an object."""
    for name, slot in slots_of_class(type(value)):
        with suppress(AttributeError):  # an empty slot raises AttributeError
            yield name, slot.__get__(value)


def slots_of_class(kind: type) -> list[tuple[str, MemberDescriptorType]]:
    """Return name and slot of each slot that a class and its bases declare in `__slots__`. Private names have Python's
    mangled form (`_Class__name`)."""
    return [
        (name, slot)
        for each in kind.__mro__
        if "__slots__" in vars(each)
        for name, slot in vars(each).items()
        if isinstance(slot, MemberDescriptorType)
    ]


def asked(question: Callable[[], _T], otherwise: _U) -> _T | _U:
    """Return the result of `question()`, or `otherwise` if the call raises an exception.

    The search for state must use this function for each read that may execute an object's code, such as a lazy
    property.
    """
    try:
        return question()
    except Exception:
        return otherwise


def module_of(thing: object) -> str:
    """Return the name of an object's module. For a class, do not ask the metaclass, because its code may raise an
    error."""
    if issubclass(type(thing), type):
        return str(type.__getattribute__(thing, "__module__") or "")
    return str(asked(lambda: getattr(thing, "__module__", ""), "") or "")


def names_of(code: CodeType) -> frozenset[str]:
    """Return the global and attribute names that a function's code and the functions inside the function use.

    Names that pytest adds for its assertions are left out, because they lead to all objects of pytest.
    """
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    own = frozenset(name for name in code.co_names if not name.startswith("@"))
    return own.union(*(names_of(each) for each in inner))


def is_users(kind: type) -> bool:
    """Return True if a class belongs to no installed package. The methods and data of such a class belong to the
    training."""
    module = module_of(kind)
    file = getattr(sys.modules.get(module), "__file__", None)
    return module == "__main__" or (file is not None and is_users_file(file))


def is_foreign(value: Any) -> bool:
    """Return True for a function or an object of an installed package, except tensors, modules and optimizers."""
    if issubclass(type(value), torch.Tensor | torch.nn.Module | torch.optim.Optimizer):
        return False
    if issubclass(type(value), FunctionType):
        return not is_users_file(value.__code__.co_filename)
    kind = value if issubclass(type(value), type) else type(value)
    return module_of(kind).partition(".")[0] not in _FAMILIAR and not is_users(kind)


def is_users_callable(value: Any) -> bool:
    """Return True if a callable (function, method or object of a class) belongs to no installed package."""
    if issubclass(type(value), functools.partial):
        return is_users_callable(value.func)
    if issubclass(type(value), MethodType):
        return is_users_callable(value.__func__)
    if issubclass(type(value), FunctionType):
        return is_users_file(value.__code__.co_filename)
    return is_users(type(value))


@functools.cache
def is_users_file(file: str) -> bool:
    """Return True if a file is user code. The harness restores global names only in Python modules of user code."""
    return is_users_code(Path(file))
