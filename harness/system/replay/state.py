"""Undo what a trial execution of a training step did: values, `.grad`, optimizer state, random generators, attributes.

Warm-up steps, the fake pass and the recording of a traced step all execute the step's body before it counts.
Without undoing them the captured arm would start ahead, or its `.grad` and attributes would hold fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from harness.system.replay import generators, optimizer_state
from harness.system.replay.attributes import Attributes
from harness.system.replay.first_values import FirstValues
from harness.system.replay.found_state import same
from harness.system.replay.optimizer_state import Slot, slots_of
from harness.system.replay.optimizer_state import StateError as StateError  # noqa: PLC0414 - what a guard raises
from harness.system.replay.optimizer_state import UnknownStartError as UnknownStartError  # noqa: PLC0414 - likewise
from harness.system.replay.reachable import Reachable, reach, tensors_of
from harness.system.replay.writing import copy_into
from harness.system.shards import local

State = Callable[[], Mapping[str, Tensor]]


class StateGuard:
    """Remembers on entry; `restore` puts everything back, in place, so that addresses stay.

    `state` names tensors that the body changes. What can be reached from `roots` need not be named (see `reachable`),
    nor parameters and state of any `torch.optim` optimizer that steps meanwhile: a global pre-step hook finds them.
    """

    def __init__(self, state: State, roots: Sequence[object] = ()) -> None:
        self._state, self._roots = state, roots
        self._values: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # each, one that shares its memory, and a copy
        self._grads: dict[int, tuple[Tensor, bool, Tensor | None, Tensor | None]] = {}  # with `requires_grad`
        self._optimizers: dict[int, tuple[Optimizer, dict[Slot, tuple[Any, Any]]]] = {}

    def __enter__(self) -> Self:
        found = reach(*self._roots)
        self._attributes = Attributes(found.containers)
        for tensor in [*self._state().values(), *_tensors(found)]:
            self._remember(tensor, known_gradient=True)
        for optimizer in found.optimizers.values():
            self._remember_optimizer(optimizer, known_gradient=True)
        self._attributes.know(self._values)
        self._own_generators = found.generators
        self._generators = generators.states(generators.global_generators() | self._own_generators)
        self._hook = register_optimizer_step_pre_hook(self._before_optimizer_step)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def executed_once(self) -> None:
        """Call after the first of several executions: it shows which tensors that came to be are then left alone."""
        self._attributes.note_created(self._roots)

    @property
    def created_state(self) -> bool:
        """Whether an optimizer made its state during the guarded execution, or an attribute changed."""
        return self._attributes.changed() or any(
            slot not in known for optimizer, known in self._optimizers.values() for slot in slots_of(optimizer)
        )

    def restore(self, *, keep_created: bool = False, first_values: FirstValues | None = None) -> None:
        """Put everything back. `keep_created`: lazily made state stays, an optimizer's, a gradient scaler's or a table,
        with the value that it began with.

        A capture needs that: state created inside it would be created again by every replay. `first_values` saw the
        first execution. Raises `UnknownStartError` for what changes and is not known to start at zero, where nobody
        saw it, and `StateError` where it is not made of numbers alone.
        """
        kept = self._created(first_values) if keep_created else set()
        with _disable_current_modes(), torch.no_grad():
            self._attributes.restore(kept)
            for tensor, memory, value in self._values.values():
                _put_back_memory(tensor, memory)
                _put_back(tensor, value)
            for tensor, requires_gradient, gradient, gradient_value in self._grads.values():
                _make_leaf(tensor, requires_gradient)
                tensor.grad = gradient
                if gradient is not None and gradient_value is not None:
                    copy_into(gradient, gradient_value)
            for optimizer, known in self._optimizers.values():
                optimizer_state.restore(optimizer, known, keep_created=keep_created, first_values=first_values)
            generators.restore(generators.global_generators() | self._own_generators, self._generators)

    def _created(self, first_values: FirstValues | None) -> set[int]:
        """Identities of the tensors that came to be and stay, each with the value that it began with."""
        kept, changed = self._attributes.created(self._roots)
        for path, tensor in changed:
            with _disable_current_modes(), torch.no_grad():
                known = first_values is not None and first_values.put_back(tensor)
            if not known:
                raise (UnknownStartError if first_values is None else StateError)(
                    "a captured step must have its state before the first step",
                    where=path,
                    got="a tensor created lazily of other tensors, and changed by the steps that follow",
                    remedy="create it when building the trainer",
                )
            kept.add(id(tensor))
        return kept

    def _remember(self, tensor: Tensor, *, known_gradient: bool) -> None:
        if id(tensor) in self._values:
            return
        with _disable_current_modes(), torch.no_grad():
            self._values[id(tensor)] = (tensor, tensor.detach(), _saved(tensor))
            # a frozen one, too: a step may freeze and thaw, as one against a critic does
            if tensor.is_leaf and (tensor.is_floating_point() or tensor.is_complex()) and not tensor.is_inference():
                gradient = tensor.grad if known_gradient else None
                value = None if gradient is None else _saved(gradient)
                self._grads[id(tensor)] = (tensor, tensor.requires_grad, gradient, value)

    def _before_optimizer_step(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        if id(optimizer) in self._optimizers:
            return
        self._attributes.add(optimizer.param_groups)
        # The backward pass has already run: what `.grad` held before is unknown, and None is its start.
        self._remember_optimizer(optimizer, known_gradient=False)

    def _remember_optimizer(self, optimizer: Optimizer, *, known_gradient: bool) -> None:
        for group in optimizer.param_groups:
            for tensor in [*group["params"], *(each for each in group.values() if isinstance(each, Tensor))]:
                self._remember(tensor, known_gradient=known_gradient)
        self._remember_state(optimizer)

    def _remember_state(self, optimizer: Optimizer) -> None:
        slots = slots_of(optimizer)
        within = reach([value for value in slots.values() if not isinstance(value, Tensor)])
        self._attributes.add(within.containers)
        for tensor in _tensors(within):
            self._remember(tensor, known_gradient=True)
        with _disable_current_modes(), torch.no_grad():
            known = {
                slot: (value, _saved(value) if isinstance(value, Tensor) else None) for slot, value in slots.items()
            }
        self._optimizers[id(optimizer)] = (optimizer, known)


def _tensors(found: Reachable) -> list[Tensor]:
    """What a step may change beside optimizer state: registered tensors, loose ones, loss scales."""
    registered = [tensor for module in found.modules.values() for tensor in tensors_of(module)]
    scales = [each for scaler in found.scalers.values() for each in vars(scaler).values() if isinstance(each, Tensor)]
    return [*registered, *found.tensors.values(), *found.memoized.values(), *scales]


def _make_leaf(tensor: Tensor, requires_gradient: bool) -> None:
    """Where a step froze a tensor, thawed it, or wrote to it what it had not detached."""
    if not tensor.is_leaf and not tensor._is_view():
        tensor.detach_()
    if tensor.is_leaf and tensor.requires_grad != requires_gradient:
        tensor.requires_grad_(requires_gradient)


def _put_back_memory(tensor: Tensor, memory: Tensor) -> None:
    """Where a step assigned to `.data`, as optimizers in eight bits and swapped averages do: an execution on fake
    tensors leaves memory without values there.
    """
    elsewhere = tensor.device != memory.device  # without values: nobody asks for its address
    if tensor.layout is torch.strided and (elsewhere or (memory.numel() and same(tensor) != same(memory))):
        tensor.data = memory


def _put_back(tensor: Tensor, value: Tensor) -> None:
    """Copy a saved value back. Nobody can write to an expanded tensor, whose elements share their memory."""
    held = local(tensor)
    strided = held.layout is torch.strided
    if not strided or all(stride or size <= 1 for size, stride in zip(held.shape, held.stride(), strict=True)):
        copy_into(tensor, value)


def _saved(tensor: Tensor) -> Tensor:
    """A copy on the host: it lives through warm-up and capture, when the device's memory is at its peak. Of a tensor
    that ranks share, this rank's part."""
    return local(tensor).detach().to("cpu", copy=True)
