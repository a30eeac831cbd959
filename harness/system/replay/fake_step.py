"""Run user steps on fake tensors: an operator that torch cannot execute on them is executed on zeros, on a CPU.

Users' own operators are seldom registered for fake tensors, and torch's form of some is for another device
(`_grouped_mm` takes bfloat16 alone there). Their kernels show the shapes of their results. Whether users' own operators
wait for the device stays unseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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

from harness.system.error_text import named
from harness.system.replay.fake_leftovers import note_mode
from harness.system.replay.host_made import HostMade, tensors_in
from harness.system.replay.inside_operator import is_of_torch
from harness.system.replay.stand_ins import as_written, standing_in
from harness.system.users_code import own_frame_of_stack


class FakeStepMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """What numbers in the code alone make (`host`) is executed as it is, with values.

    unseen: the operators, none of torch's own, that were executed on zeros; refusal: where, and why torch
    refused, the first one.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.host = HostMade()
        self._within = False
        self.unseen: list[str] = []
        self.refusal = ""

    def dispatch(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] = {},
    ) -> object:
        if not self._within and isinstance(func, OpOverload):
            if self.host.alone(func, args, kwargs):
                returned = func(*args, **kwargs)
                self.host.note(func, args, kwargs, returned)
                return returned
            self.host.note(func, args, kwargs, None)
        if _reads_what_it_draws_from(func, *args, **kwargs):
            raise DataDependentOutputException(func)
        outer, self._within = self._within, True  # what torch's own form of an operator calls is of the device
        try:
            return _without_values(super().dispatch(func, types, args, kwargs))
        except (DataDependentOutputException, DynamicOutputShapeException):
            raise
        except RuntimeError as error:
            return self._on_zeros(func, args, kwargs, error)
        finally:
            self._within = outer

    def read(self, tensor: Tensor, called: str) -> Tensor:
        """Raise `DataDependentOutputException` for a tensor that the device has."""
        if not self.host.has(tensor):
            raise DataDependentOutputException(called)  # type: ignore[arg-type]
        return tensor

    def _on_zeros(self, func: Any, args: Sequence[object], kwargs: Mapping[str, object], error: RuntimeError) -> object:
        """Execute an operator on zeros. Raises `error` if its kernel refuses too, needs values, or is on a device."""
        needs_values = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
        if not isinstance(func, OpOverload) or needs_values & {*func.tags}:
            raise error
        flat, spec = _pytree.tree_flatten((args, kwargs))
        if any(isinstance(each, FakeTensor) and each.fake_device.type != "cpu" for each in flat):
            raise error  # a device has better watchers, and an untrusted kernel may do anything there with zeros
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
    """Return what an operator returned, without the values that torch computes for one element of a real tensor."""
    for tensor in tensors_in(returned):
        if isinstance(tensor, FakeTensor):
            tensor.constant = None
    return returned


@contextmanager
def on_fake_tensors() -> Iterator[FakeStepMode]:
    """Execute a block on fake tensors. Compiled code runs as written: it would write to memory that is not there."""
    with as_written(), standing_in((FakeTensor,), "tolist", Tensor.tolist), FakeStepMode() as mode:
        note_mode(mode)
        yield mode


def _reads_what_it_draws_from(func: Any, *args: Any, **kwargs: Any) -> bool:
    """Return True for a `multinomial` that draws once, or without putting back. On any device it then checks its
    probabilities on the host, and torch has no tag that says so.
    """
    if func is not torch.ops.aten.multinomial.default:
        return False
    given = dict(zip(("self", "num_samples", "replacement"), args, strict=False)) | kwargs
    return given["num_samples"] == 1 or not given.get("replacement", False)
