"""Undo what a trial execution of a training step did: values, `.grad`, optimizer state, random generators.

Warm-up steps, the fake pass and the recording of a traced step all execute the step's body before it counts.
Without undoing them the captured arm would start ahead, or its `.grad` would hold fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from harness.errors import HarnessError

State = Callable[[], Mapping[str, Tensor]]

# Optimizers whose lazily created tensors start at zero, so that "not created yet" and "zero" train alike.
_STARTS_AT_ZERO = ("Adam", "AdamW", "Adamax", "Adadelta", "RMSprop", "RAdam", "SGD")


class StateError(HarnessError):
    """A trial execution created optimizer state whose first value the harness does not know."""


class StateGuard:
    """Remembers on entry; `restore` puts everything back, in place, so that addresses stay.

    `state` names every tensor the body changes. Parameters and state of any `torch.optim` optimizer that steps
    meanwhile are found by a global pre-step hook, and need not be named.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._values: dict[int, tuple[Tensor, Tensor]] = {}
        self._grads: dict[int, tuple[Tensor, Tensor | None, Tensor | None]] = {}
        self._optimizers: dict[int, tuple[Optimizer, dict[Tensor, dict[str, tuple[Any, Any]]]]] = {}

    def __enter__(self) -> Self:
        for tensor in self._state().values():
            self._remember(tensor, known_gradient=True)
        self._generators = _generator_states()
        self._hook = register_optimizer_step_pre_hook(self._before_optimizer_step)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    @property
    def created_state(self) -> bool:
        """Whether some optimizer made its state during the guarded execution."""
        return any(
            key not in known.get(parameter, {})
            for optimizer, known in self._optimizers.values()
            for parameter, entry in optimizer.state.items()
            for key in entry
        )

    def restore(self, *, keep_created: bool = False) -> None:
        """Put everything back. `keep_created`: lazily made optimizer state stays, rewound to zero.

        A capture needs that: state created inside it would be created again by every replay. Raises
        `StateError` for an optimizer whose state does not start at zero.
        """
        with _disable_current_modes(), torch.no_grad():
            for tensor, value in self._values.values():
                tensor.copy_(value)
            for tensor, gradient, gradient_value in self._grads.values():
                tensor.grad = gradient
                if gradient is not None and gradient_value is not None:
                    gradient.copy_(gradient_value)
            for optimizer, known in self._optimizers.values():
                _restore_optimizer(optimizer, known, keep_created=keep_created)
            _set_generator_states(self._generators)

    def _remember(self, tensor: Tensor, *, known_gradient: bool) -> None:
        if id(tensor) in self._values:
            return
        with _disable_current_modes(), torch.no_grad():
            self._values[id(tensor)] = (tensor, _saved(tensor))
            if tensor.is_leaf and tensor.requires_grad:
                gradient = tensor.grad if known_gradient else None
                value = None if gradient is None else _saved(gradient)
                self._grads[id(tensor)] = (tensor, gradient, value)

    def _before_optimizer_step(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        if id(optimizer) in self._optimizers:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                # The backward pass has already run: what `.grad` held before is unknown, and None is its start.
                self._remember(parameter, known_gradient=False)
            if isinstance(group.get("lr"), Tensor):
                self._remember(group["lr"], known_gradient=False)
        with _disable_current_modes(), torch.no_grad():
            known = {
                parameter: {
                    key: (value, _saved(value) if isinstance(value, Tensor) else value) for key, value in entry.items()
                }
                for parameter, entry in optimizer.state.items()
            }
        self._optimizers[id(optimizer)] = (optimizer, known)


def _saved(tensor: Tensor) -> Tensor:
    """A copy on the host: it lives through warm-up and capture, when the device's memory is at its peak."""
    return tensor.detach().to("cpu", copy=True)


def _restore_optimizer(
    optimizer: Optimizer, known: dict[Tensor, dict[str, tuple[Any, Any]]], *, keep_created: bool
) -> None:
    for parameter in list(optimizer.state):
        entry = optimizer.state[parameter]
        for key in list(entry):
            if key in known.get(parameter, {}):
                original, value = known[parameter][key]
                if isinstance(original, Tensor):
                    original.copy_(value)
                entry[key] = original
            elif keep_created:
                _rewind_to_zero(optimizer, entry, key)
            else:
                del entry[key]
        if not entry:
            del optimizer.state[parameter]


def _rewind_to_zero(optimizer: Optimizer, entry: dict[str, Any], key: str) -> None:
    dampened = any(group.get("dampening", 0) for group in optimizer.param_groups)
    value = entry[key]
    if type(optimizer).__name__ not in _STARTS_AT_ZERO or dampened or not isinstance(value, Tensor | None):
        raise StateError(
            "a captured optimizer must have its state before the first step",
            where=type(optimizer).__name__,
            got=f"state {key!r} created lazily, with an unknown first value",
            remedy="create the optimizer's state when building the trainer",
        )
    if value is not None:
        value.zero_()


def _generator_states() -> list[Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states += torch.cuda.get_rng_state_all()
    return states


def _set_generator_states(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])
