"""Run user steps on fake tensors, which have shapes but no values. On a CPU, operators that do not support fake tensors
run on zeros.

Few user-defined operators are registered for fake tensors. Some of torch's own fake versions are right only for a GPU.
For example, the fake `_grouped_mm` accepts only bfloat16. Execution on zeros gives the shapes of the results, but does
not show whether a user-defined operator waits for the device.
"""

from __future__ import annotations

import gc
import traceback
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CellType, FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    run_fallback_kernel,
)
from torch.utils import _pytree

from harness.errors import HarnessError
from harness.system.replay.cpu_as_device import HostMade, tensors_in
from harness.system.replay.holders import module_of
from harness.system.replay.launches import as_written, standing_in
from harness.system.replay.placement import is_of_torch
from harness.system.users_code import named, own_frame_of_stack

_DEEPEST = 6  # most levels of containers between a fake tensor and its holder; the search reads the heap at each level
_SEARCHED = 4
_SHOWN = 3
_modes: list[weakref.ref[FakeTensorMode]] = []


class FakeTensorsLeftError(HarnessError):
    """Objects of the training still hold the harness's fake tensors after an execution on fake tensors was undone."""


def note_mode(mode: FakeTensorMode) -> None:
    """Store a weak reference to a mode, by which `no_fake_tensors_left` finds fake tensors. Every fake tensor keeps its
    mode alive."""
    _modes.append(weakref.ref(mode))


@contextmanager
def no_fake_tensors_left() -> Iterator[None]:
    """Decorate a function that executes something on fake tensors and then undoes the execution.

    Raise `FakeTensorsLeftError` if a fake tensor still exists after the function has returned. The error names the
    objects that hold it.
    """
    # While the collector is disabled, no object moves to an older generation. Therefore the collection afterwards only
    # has to examine young objects. `gc.freeze` cannot be used, because `gc.unfreeze` releases everything that the
    # process froze, and each later collection would then take 0.25 s.
    enabled, earlier = gc.isenabled(), len(_modes)
    gc.disable()
    try:
        yield
    except BaseException as error:
        reason: BaseException | None = error
        while reason is not None:  # an error's tracebacks keep the step's local variables alive
            traceback.clear_frames(reason.__traceback__)
            for frame, _ in traceback.walk_tb(reason.__traceback__):
                _ = frame.f_locals  # reading `f_locals` again drops the values of the earlier reading
            reason = reason.__cause__ or reason.__context__
        _require_none(error, earlier)
        raise
    else:
        _require_none(None, earlier)
    finally:
        if enabled:
            gc.enable()


def _require_none(error: BaseException | None, earlier: int) -> None:
    """Raise `FakeTensorsLeftError` if fake tensors of a new mode still exist. earlier: the number of modes in `_modes`
    that are not new."""
    modes, places = _modes[earlier:], list[str]()
    del _modes[earlier:]
    gc.collect(1)  # the objects that the function created are in the young generations
    if _any_alive(modes):
        gc.collect()  # a collection that the function requested has moved them to the oldest generation
    if _any_alive(modes):
        frozen = gc.get_freeze_count()
        gc.unfreeze()
        gc.collect()
        alive = {id(mode) for mode in (each() for each in modes) if mode is not None}
        left = [each for each in gc.get_objects() if type(each) is FakeTensor and id(each.fake_mode) in alive]
        places = sorted(_holders(left[:_SEARCHED]))
        if frozen:  # otherwise each later collection would examine the objects that the process froze
            gc.freeze()
    if places:
        more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        raise FakeTensorsLeftError(
            "to test the step, the harness runs it on tensors without values, and no such tensor may remain in memory",
            got=f"tensors without values in {', '.join(places[:_SHOWN])}{more}",
            remedy="keep the state that a step changes where the harness finds it: in variables that the step closes "
            "over, or on the model, the optimizer, the trainer or its callbacks",
        ) from error


def _any_alive(modes: list[weakref.ref[FakeTensorMode]]) -> bool:
    return any(mode() is not None for mode in modes)


def _holders(values: list[Any]) -> set[str]:
    """Return the names of the objects that hold `values`: `Class.attribute`, `module.name` or `function`. An object
    that holds a value inside containers is found, too.

    Objects that torch's internals hold are left out, because they do not belong to the training.
    """
    found = set[str]()
    # object id -> the object, and the path from it to one of `values`
    level = {id(each): (each, "") for each in values}
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
    """Return the path from a holder to its entry `value`, followed by `path`."""
    if isinstance(holder, list | tuple | deque | set):
        return f"[]{path}"
    own = holder if isinstance(holder, dict) else getattr(holder, "__dict__", None)
    named = list(own.items()) if isinstance(own, dict) and own is not value else []
    return next((f".{name}{path}" for name, each in named if each is value), path)


def _is_internal(module: object) -> bool:
    return str(module).startswith(("torch._", "torch.fx", "torch.utils", "builtins"))


class FakeStepMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Executes operators on fake tensors. Operators that use only the host's memory (`host`) compute real values.

    unseen: the user-defined operators that were executed on zeros.
    refusal: the place of the first call of such an operator, and why torch cannot run the operator on fake tensors.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.host = HostMade()
        self._within = False
        self.unseen: list[str] = []
        self.refusal = ""

    def dispatch(
        self, func: OpOverload, types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] = {}
    ) -> object:
        if not self._within and isinstance(func, OpOverload):
            if self.host.alone(func, args, kwargs):
                returned = func(*args, **kwargs)
                self.host.note(func, args, kwargs, returned)
                return returned
            self.host.note(func, args, kwargs, None)
        if _reads_what_it_draws_from(func, *args, **kwargs):
            raise DataDependentOutputException(func)
        # Other operators that this operator calls count as running on the device.
        outer, self._within = self._within, True
        try:
            return _without_values(super().dispatch(func, types, args, kwargs))
        except (DataDependentOutputException, DynamicOutputShapeException):
            raise
        except RuntimeError as error:
            return self._on_zeros(func, args, kwargs, error)
        finally:
            self._within = outer

    def read(self, tensor: Tensor, called: str) -> Tensor:
        """Raise `DataDependentOutputException` if the tensor is on the device, because its value would be read and fake
        tensors have none."""
        if not self.host.has(tensor):
            raise DataDependentOutputException(called)  # type: ignore[arg-type]
        return tensor

    def _on_zeros(self, func: Any, args: Sequence[object], kwargs: Mapping[str, object], error: RuntimeError) -> object:
        """Execute an operator on zeros and return its result. Raise `error` if the operator fails on zeros, needs real
        values, or is on a device."""
        needs_values = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
        if not isinstance(func, OpOverload) or needs_values & {*func.tags}:
            raise error
        flat, spec = _pytree.tree_flatten((args, kwargs))
        if any(isinstance(each, FakeTensor) and each.fake_device.type != "cpu" for each in flat):
            # Run no operator on a real device here. An untrusted kernel may do anything there, and on a device other
            # checks exist.
            raise error
        try:
            found = run_fallback_kernel(self, func, flat, spec, error)
        except Exception:
            raise error from None
        name = func._schema.name
        if not is_of_torch(func) and name not in self.unseen:
            self.unseen.append(name)
            frame = own_frame_of_stack()
            self.refusal = self.refusal or (f"{frame}: " if frame else "") + named(error)
        return found


def _without_values(returned: Any) -> Any:
    """Remove the real value that torch stores on a fake tensor of one element. Return the operator's result."""
    for tensor in tensors_in(returned):
        if isinstance(tensor, FakeTensor):
            tensor.constant = None
    return returned


@contextmanager
def on_fake_tensors() -> Iterator[FakeStepMode]:
    """Execute the `with` block on fake tensors. Compiled code runs uncompiled, because fake tensors have no memory."""
    with as_written(), standing_in((FakeTensor,), "tolist", Tensor.tolist), FakeStepMode() as mode:
        note_mode(mode)
        yield mode


def _reads_what_it_draws_from(func: Any, *args: Any, **kwargs: Any) -> bool:
    """Return True for a `multinomial` with one sample or without replacement.

    On any device, such a call reads its probabilities on the host to check them. torch has no tag for this read.
    """
    if func is not torch.ops.aten.multinomial.default:
        return False
    given = dict(zip(("self", "num_samples", "replacement"), args, strict=False)) | kwargs
    return given["num_samples"] == 1 or not given.get("replacement", False)
