"""Undo an execution of a step that only prepares a capture: its effects on values, `.grad`, optimizer state, generators
and attributes.

Warm-up steps, the fake pass (an execution on tensors without values) and the recording of a traced step all execute the
step's body before the first counted step. If these executions were not undone, the captured arm would start from a
later state, or its `.grad` and attributes would hold fake tensors.

This module also watches the addresses of a capture's static buffers. If a buffer moves, replays no longer train it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from harness.system.protocol import WARM_STEPS
from harness.system.replay import generators
from harness.system.replay.found_state import same
from harness.system.replay.ledger import FirstValues, copy_into
from harness.system.replay.places import OptimizerState, Place, Slot
from harness.system.replay.places import StateError as StateError  # noqa: PLC0414 - others import it from here
from harness.system.replay.reachable import reach, tensors_of
from harness.system.replay.snapshots import Snapshot
from harness.system.sharded_tensors import local

State = Callable[[], Mapping[str, Tensor]]


class _Known(NamedTuple):
    """The earlier state of a tensor.

    memory: a tensor that shares the earlier memory of `tensor`.
    value: a copy of the earlier values of `tensor`, on the host.
    """

    tensor: Tensor
    memory: Tensor
    value: Tensor
    is_trained: bool  # True: the tensor can have a gradient
    requires_gradient: bool
    gradient: Tensor | None


class StateGuard:
    """Stores the state at the beginning of a `with` block, and restores the state at the end. Values are restored in
    place, so addresses do not change.

    A call of `restore` restores the state already within the `with` block, and can keep newly created state. `state`
    returns, by name, tensors that the step's body changes. It need not return tensors that are reachable from `roots`
    (see `reachable`), or parameters and state of a `torch.optim` optimizer that makes a step in the `with` block,
    because a global pre-step hook finds them.
    """

    def __init__(self, state: State, roots: Sequence[object] = ()) -> None:
        self._state, self._roots = state, roots
        self._known: dict[int, _Known] = {}
        self._first_values = FirstValues()
        self._stepped: set[int] = set()  # ids of the optimizers that made a step
        # tensors that the first execution created, each with a copy of its value
        self._created: dict[int, tuple[Tensor, Tensor]] = {}

    def __enter__(self) -> Self:
        found = reach(*self._roots)
        self._places = Snapshot([*found.places, *found.of_optimizers])
        for tensor in [*self._state().values(), *(tensor for _, tensor in found.named_tensors())]:
            self._remember(tensor, known_gradient=True)
        for optimizer in found.optimizers.values():
            self._remember_optimizer(optimizer, known_gradient=True)
        self._before = {*self._known}
        self._own_generators = found.generators
        self._generators = generators.states(generators.global_generators() | self._own_generators)
        self._is_restored = False
        # The hook runs after the backward pass, when the earlier value of `.grad` is no longer known. For a parameter
        # that only the hook finds, `.grad` is restored as None.
        self._hook = register_optimizer_step_pre_hook(
            lambda optimizer, *_: self._remember_optimizer(optimizer, known_gradient=False)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()
        if not self._is_restored:
            self.restore()

    @contextmanager
    def first_execution(self) -> Iterator[None]:
        """Record which tensors the step's first execution creates, and their values. Run the first execution in this
        `with` block.

        `restore` then checks whether later executions change these tensors.
        """
        with self._first_values:
            yield
        self._places.grown()
        with _disable_current_modes(), torch.no_grad():
            self._created = {id(each): (each, each.detach().clone()) for _, each in self._new_tensors()}

    @property
    def created_state(self) -> bool:
        """Return True if an optimizer created its state during the guarded execution, or if an attribute changed."""
        return self._places.changed()

    def restore(self, *, keep_created: bool = False) -> None:
        """Restore everything. With `keep_created`, do not remove state that the first execution created, but reset it
        to its first value.

        Such state belongs to an optimizer or a gradient scaler, or is another new tensor, such as a table. The state
        must exist before a capture, because every replay would otherwise create it again. Raise `StateError` for state
        that later executions change and that was not created only from numbers.
        """
        with _disable_current_modes(), torch.no_grad():
            kept = self._begin_anew() if keep_created else set()

            def stays(slot: Slot, value: Any) -> bool:
                if keep_created and isinstance(slot.place, OptimizerState):
                    slot.place.begin_anew(slot.key, value, self._first_values)
                    return True
                return _is_made_of(value, kept)

            self._places.restore(stays)
            for known in self._known.values():
                _put_back_memory(known.tensor, known.memory)
                _put_back(known.tensor, known.value)
            for known in self._known.values():
                if known.is_trained:
                    _put_back_gradient(known)
            generators.restore(generators.global_generators() | self._own_generators, self._generators)
        self._is_restored = True

    def _new_tensors(self) -> list[tuple[str, Tensor]]:
        """Return (path, tensor) for each reachable tensor that was not reachable when this object's `with` block
        began."""
        if not self._places.changed():
            return []
        return [(path, each) for path, each in reach(*self._roots).named_tensors() if id(each) not in self._before]

    def _begin_anew(self) -> set[int]:
        """Reset the tensors that only the first execution created to their first values. Return the tensors' ids.

        Tensors that every execution creates again are not kept.
        """
        stay = [(path, tensor) for path, tensor in self._new_tensors() if id(tensor) in self._created]
        for path, tensor in stay:
            _, value = self._created[id(tensor)]
            if torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(value)):
                continue
            if not self._first_values.put_back(tensor):
                raise StateError(
                    "a captured step must have its state before the first step",
                    where=path,
                    got="a tensor that a step computes from other tensors, and that later steps change",
                    remedy=f"{WARM_STEPS}; or create the tensor when the trainer is built",
                )
        return {id(tensor) for _, tensor in stay}

    def _remember(self, tensor: Tensor, *, known_gradient: bool) -> None:
        if id(tensor) in self._known:
            return
        with _disable_current_modes(), torch.no_grad():
            # Frozen tensors count as trained, because an adversarial training freezes tensors and trains them later.
            is_number = tensor.is_floating_point() or tensor.is_complex()
            is_trained = tensor.is_leaf and is_number and not tensor.is_inference()
            gradient = tensor.grad if is_trained and known_gradient else None
            known = _Known(tensor, tensor.detach(), _saved(tensor), is_trained, tensor.requires_grad, gradient)
        self._known[id(tensor)] = known
        if gradient is not None:
            self._remember(gradient, known_gradient=True)

    def _remember_optimizer(self, optimizer: Optimizer, *, known_gradient: bool) -> None:
        if id(optimizer) in self._stepped:
            return
        self._stepped.add(id(optimizer))
        state = OptimizerState(optimizer, "")
        within = reach([*state.read().values()])
        self._places.add([state, *within.places, *(Place(group, "") for group in optimizer.param_groups)])
        for group in optimizer.param_groups:
            for tensor in [*group["params"], *(each for each in group.values() if isinstance(each, Tensor))]:
                self._remember(tensor, known_gradient=known_gradient)
        for _, tensor in within.named_tensors():
            self._remember(tensor, known_gradient=True)


def _is_made_of(value: Any, kept: set[int]) -> bool:
    """Return True if a value contains tensors, and if the ids of all these tensors are in `kept`."""
    if not kept:
        return False
    found = reach(value)
    tensors = [*found.tensors.values(), *(each for module in found.modules.values() for each in tensors_of(module))]
    return bool(tensors) and all(id(tensor) in kept for tensor in tensors)


def _put_back_gradient(known: _Known) -> None:
    """Restore the tensor's gradient and `requires_grad`. Before that, detach the tensor if the step wrote values to the
    tensor that are still part of an autograd graph."""
    tensor = known.tensor
    if not tensor.is_leaf and not tensor._is_view():
        tensor.detach_()
    if tensor.is_leaf and tensor.requires_grad != known.requires_gradient:
        tensor.requires_grad_(known.requires_gradient)
    tensor.grad = known.gradient


def _put_back_memory(tensor: Tensor, memory: Tensor) -> None:
    """Give the tensor its earlier memory back if a step assigned other memory to `.data`.

    8-bit optimizers and swapped averages assign memory in this way. After an execution on fake tensors, the assigned
    memory has no values.
    """
    # Memory without values has no address. In this case only the devices are compared.
    elsewhere = tensor.device != memory.device
    if tensor.layout is torch.strided and (elsewhere or (memory.numel() and same(tensor) != same(memory))):
        tensor.data = memory


def _put_back(tensor: Tensor, value: Tensor) -> None:
    """Copy a stored value back. Skip expanded tensors, which cannot be written to because several elements share
    memory."""
    held = local(tensor)
    strided = held.layout is torch.strided
    if not strided or all(stride or size <= 1 for size, stride in zip(held.shape, held.stride(), strict=True)):
        copy_into(tensor, value)


def _saved(tensor: Tensor) -> Tensor:
    """Return a copy of the tensor, or of this rank's part of it, on the host.

    The copy is on the host, because most of the device's memory is in use during warm-up and capture.
    """
    return local(tensor).detach().to("cpu", copy=True)


MOVED = 0  # stands for the address of a moved buffer; no buffer has this address


class StaticAddresses:
    """Watches the addresses of the buffers that `static` returns. `check` runs before each replay, and compares one
    address for each buffer."""

    def __init__(self, static: State) -> None:
        self._static = static
        self.captured: dict[str, int] = {}
        self.moved: set[str] = set()

    def remember(self) -> None:
        """Store the present addresses as the addresses at the capture."""
        self.captured = self._addresses()

    def check(self) -> None:
        """Add to `moved` the name of every buffer that is no longer at its address of the capture. No name is ever
        removed from `moved`."""
        now = self._addresses()
        if now != self.captured:
            self.moved |= {name for name, place in self.captured.items() if now.get(name) != place}

    def seen(self) -> dict[str, int]:
        """Return each buffer's address for a `CaptureRecord`. For a buffer that was not at the address of the capture
        when `check` ran, the address is `MOVED`."""
        return {name: MOVED if name in self.moved else place for name, place in self._addresses().items()}

    def _addresses(self) -> dict[str, int]:
        return _addresses(self._static())


def _addresses(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the tensors' addresses by name. For a tensor that wraps other tensors (a DTensor, a quantized weight),
    return the addresses of the inner tensors.

    The function runs no torch operation, because an operation near a replay would count as an operation of the step.
    """
    found: dict[str, int] = {}
    for name, tensor in tensors.items():
        if hasattr(type(tensor), "__tensor_flatten__"):
            held: Any = tensor
            parts = {part: getattr(held, part) for part in held.__tensor_flatten__()[0]}
            inner = {part: each for part, each in parts.items() if isinstance(each, Tensor)}
            found |= _addresses({name if len(inner) == 1 else f"{name}.{part}": each for part, each in inner.items()})
        else:
            found[name] = tensor.data_ptr()
    return found
