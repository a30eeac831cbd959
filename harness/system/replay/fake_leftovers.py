"""Find fake tensors that outlive their execution: an object that holds one computes without values from then on."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import CellType, FrameType, FunctionType
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from harness.errors import HarnessError
from harness.system.replay.holders import module_of

_DEEPEST = 6  # containers within containers, up to the object that holds them: each level reads the whole heap
_SEARCHED = 4
_SHOWN = 3
_modes: list[weakref.ref[FakeTensorMode]] = []


class FakeTensorsLeftError(HarnessError):
    """Fake tensors of the harness are alive in objects of the training, which no trial restored."""


def note_mode(mode: FakeTensorMode) -> None:
    """Remember a mode, without holding it, for `no_fake_tensors_left`. Every fake tensor holds its mode."""
    _modes.append(weakref.ref(mode))


@contextmanager
def no_fake_tensors_left() -> Iterator[None]:
    """Decorate a function that executes something on fake tensors and undoes it.

    Raises `FakeTensorsLeftError` if a fake tensor is alive once the function has returned. The error names its holders.
    """
    # Nothing ages meanwhile: the collection afterwards looks at young objects alone. Freezing the old ones would end in
    # `gc.unfreeze`, of all that the process froze: each later collection would look through torch, for 0.25 s.
    enabled, earlier = gc.isenabled(), len(_modes)
    gc.disable()
    try:
        yield
    except BaseException as error:
        reason: BaseException | None = error
        while reason is not None:  # its tracebacks hold the local variables of the step
            traceback.clear_frames(reason.__traceback__)
            for frame, _ in traceback.walk_tb(reason.__traceback__):
                _ = frame.f_locals  # what a look at it showed is forgotten when it is looked at again
            reason = reason.__cause__ or reason.__context__
        _require_none(error, earlier)
        raise
    else:
        _require_none(None, earlier)
    finally:
        if enabled:
            gc.enable()


def _require_none(error: BaseException | None, earlier: int) -> None:
    """Raise if a fake tensor of a mode is alive that was remembered after so many earlier ones."""
    modes, places = _modes[earlier:], list[str]()
    del _modes[earlier:]
    gc.collect(1)  # what the function made is young
    if any(mode() is not None for mode in modes):
        gc.unfreeze()
        gc.collect()
        alive = {id(mode) for mode in (each() for each in modes) if mode is not None}
        left = [each for each in gc.get_objects() if type(each) is FakeTensor and id(each.fake_mode) in alive]
        places = sorted(_holders(left[:_SEARCHED]))
    if places:
        more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        raise FakeTensorsLeftError(
            "a trial on tensors without values must leave none of them behind",
            got=f"tensors without values in {', '.join(places[:_SHOWN])}{more}",
            remedy="keep what a step changes where the harness finds it: in what the step closes over, on the model, "
            "the optimizer, the trainer or its callbacks",
        ) from error


def _holders(values: list[Any]) -> set[str]:
    """Return what holds `values`, also through containers, as `Class.attribute`, `module.name` or `function`.

    Objects that torch's internals hold are left out: they are not the training's.
    """
    found = set[str]()
    level = {id(each): (each, "") for each in values}  # an object, and the path from it to a value
    seen = {id(level), id(values), *level}
    for _ in range(_DEEPEST):
        held = [each for each, _ in level.values()]
        referrers = gc.get_referrers(*held)
        seen |= {id(held), id(referrers)}
        further: dict[int, tuple[Any, str]] = {}
        for holder in referrers:
            if id(holder) in seen or isinstance(holder, FrameType) or type(holder) is FakeTensor:
                continue
            seen.add(id(holder))
            path = next((level[id(each)] for each in gc.get_referents(holder) if id(each) in level), (None, ""))
            name = _named(holder, *path)
            if isinstance(holder, dict | list | tuple | deque | set | CellType):
                if isinstance(holder, dict) and "__spec__" in holder:
                    found |= set() if _is_internal(holder["__name__"]) else {f"{holder['__name__']}{name}"}
                else:
                    further[id(holder)] = (holder, name)
            elif isinstance(holder, FunctionType):
                found |= set() if _is_internal(holder.__module__) else {f"{holder.__qualname__}, a closure"}
            elif not _is_internal(module_of(type(holder))):
                found.add(f"{type(holder).__qualname__}{name}")
        level = further
        seen |= {id(further), *further}
        if not level:
            break
    return found


def _named(holder: Any, value: object, path: str) -> str:
    """Return the path from a holder to a value: through `value`, and from there by `path`."""
    if isinstance(holder, list | tuple | deque | set):
        return f"[]{path}"
    own = holder if isinstance(holder, dict) else getattr(holder, "__dict__", None)
    named = list(own.items()) if isinstance(own, dict) and own is not value else []
    return next((f".{name}{path}" for name, each in named if each is value), path)


def _is_internal(module: object) -> bool:
    return str(module).startswith(("torch._", "torch.fx", "torch.utils", "builtins"))
