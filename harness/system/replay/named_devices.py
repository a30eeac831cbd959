"""Decide where a call of torch puts its result, while a CPU stands in for the device."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from types import FrameType
from typing import Any

import torch
from torch import Tensor

MOVES = {Tensor.to, Tensor.cuda, Tensor.type_as}


def names_a_device(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    frame: FrameType,
    is_on_device: Callable[[Tensor], bool | None],
) -> bool | None:
    """Return True if a call puts its result on the device, False for the host, None where it names neither.

    frame: that of the caller. is_on_device: asked where the call names another tensor instead of a device.
    """
    if func is Tensor.cuda:
        return True
    named = kwargs.get("device", args[0] if func is Tensor.new_tensor else None)
    if func in MOVES:
        given = (*args[1:], kwargs.get("other"))
        places = (each for each in given if isinstance(each, str | torch.device | Tensor) or type(each) is int)
        named = next(places, named)
    if isinstance(named, Tensor):
        return is_on_device(named)
    return None if named is None else not _means_the_host(named, frame)


def caller() -> FrameType:
    """Return the frame that called a torch function, past the modes that passed the call on to the one that asks."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    return frame


def is_of_an_optimizer(frame: FrameType) -> bool:
    """Return True within torch's own optimizers: in a captured step they keep their state on the device."""
    return str(frame.f_globals.get("__name__", "")).startswith("torch.optim")


def _means_the_host(device: object, frame: FrameType) -> bool:
    """Return True for a literal "cpu". A variable that holds "cpu" without a GPU would hold the GPU elsewhere."""
    if str(device) != "cpu":
        return False
    if is_of_an_optimizer(frame):
        return isinstance(device, str)
    first, last, *_ = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    numbers = range(first or frame.f_lineno, (last or frame.f_lineno) + 1)
    call = "".join(linecache.getline(frame.f_code.co_filename, number) for number in numbers)
    return ('"cpu"' in call or "'cpu'" in call) and "cuda" not in call
