"""Change an arm's parameters by a rounding before it starts, to see how far rounding alone changes its training.

Elements are multiplied by 1 + e or 1 - e. An element's name and place give the sign, alike in every process and rank.
In float32 and finer e is 8 of float32's epsilons (2^-20, about 1e-6: what some steps round) for every element. In a
coarser type it is one epsilon for every 16th element, since all of them would be more than a step's roundings. Where an
optimizer steps on copies of finer type (master weights), those are nudged and the parameters follow.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from harness.execution.watchers.loose_watch import LOOSE
from harness.execution.watchers.state_watch import named_parameters, watched_state
from harness.system.protocol import TrainingRun
from harness.system.shards import local

FLOAT32_EPSILONS = 8
OF_COARSE = 16


def nudge(training: TrainingRun) -> None:
    """Multiply the trainable parameters in place. Integers and 8-bit floats stay as they are, and zeros stay zero."""
    parameters = {name: local(tensor) for name, tensor in named_parameters(training).items()}
    state = watched_state(training)
    held = [local(each) for name in (LOOSE, "optimizer") for each in state.get(name, {}).values()]
    others = [each for each in held if _epsilon(each.dtype) is not None]
    with torch.no_grad():
        for name, tensors in _alike(parameters, others):
            _multiply(name, tensors)


def _multiply(name: str, tensors: list[Tensor]) -> None:
    finest = min(tensors, key=lambda tensor: _epsilon(tensor.dtype) or 1.0)
    finest.mul_(_factors(name, finest))
    for tensor in tensors:
        tensor.copy_(finest.reshape(tensor.shape))  # a view, where the memory's order has one


def _alike(parameters: Mapping[str, Tensor], others: Iterable[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield each parameter with the tensors that begin as its copies, also parts of one that holds all parameters.
    If all its numbers are equal and it has such a copy, it is left out: the copy may be something else.
    """
    floating = {name: part for name, part in parameters.items() if _epsilon(part.dtype) is not None}
    elements = sum(part.numel() for part in floating.values())
    flat = [each.view(-1) for each in others if each.numel() == elements and each.is_contiguous()]
    at = 0
    for name, part in floating.items():
        size = part.numel()
        found = [each for each in others if each.numel() == size and each.is_contiguous()]
        found += [each[at : at + size] for each in flat if len(floating) > 1]
        at += size
        copies = [each for each in found if _is_copy(each, part)]
        if not (copies and _is_constant(part)):  # of ones anything that holds ones may be taken for a copy
            yield name, [part, *copies]


def _is_constant(tensor: Tensor) -> bool:
    return tensor.numel() == 0 or bool((tensor == tensor.flatten()[0]).all())


def _is_copy(tensor: Tensor, of: Tensor) -> bool:
    apart = tensor.data_ptr() != of.data_ptr() and tensor.device == of.device
    return apart and torch.equal(tensor.view_as(of).to(of.dtype), of)


def _epsilon(dtype: torch.dtype) -> float | None:
    """Return the epsilon of a type; None for types that are not nudged."""
    if not (dtype.is_floating_point or dtype.is_complex) or dtype.itemsize == 1:
        return None
    return float(torch.finfo(dtype).eps)


def _factors(name: str, part: Tensor) -> Tensor:
    """Return what each element is multiplied by, in a type that holds it, drawn by a generator of its own."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    signs = torch.randint(0, 2, part.shape, generator=generator, dtype=torch.int8) * 2 - 1
    epsilon, fine = torch.finfo(part.dtype).eps, torch.finfo(torch.float32).eps
    if epsilon > fine:
        signs = signs * (torch.randint(0, OF_COARSE, part.shape, generator=generator, dtype=torch.int8) == 0)
    wide = torch.float64 if part.dtype in (torch.float64, torch.complex128) else torch.float32
    return 1 + max(FLOAT32_EPSILONS * fine, epsilon) * signs.to(part.device, wide)
