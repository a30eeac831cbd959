"""Read and restore what an optimizer keeps for each parameter, or under a name of its own.

Most keep a tensor under a name for each parameter. Some keep lists of them (Shampoo's statistics). Some keep a count
for all parameters together (MADGRAD's), next to the entries of parameters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.errors import HarnessError
from harness.system.protocol import WARM_STEPS
from harness.system.replay.first_values import FirstValues, writing_to
from harness.system.replay.places import Place, joined, parts_of
from harness.system.sharded_tensors import local

# torch's own whose lazily created tensors start at zero, so that "not created yet" and "zero" train alike.
_STARTS_AT_ZERO = (
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.Adadelta, torch.optim.RMSprop),
    *(torch.optim.RAdam, torch.optim.SGD),
)
_WHOLE = object()  # instead of a name: the entry is not a dictionary of a parameter's


class StateError(HarnessError):
    """A trial execution created optimizer state whose first value the harness does not know."""


class OptimizerState(Place):
    """Everything that an optimizer keeps now. A key is a parameter and a name; or a name of the optimizer's own and
    `_WHOLE`.
    """

    def read(self) -> dict[tuple[Any, Any], Any]:
        found: dict[tuple[Any, Any], Any] = {}
        for owner, entry in self.owner.state.items():
            of_parameter = isinstance(owner, Tensor) and isinstance(entry, dict)
            found |= {(owner, name): each for name, each in entry.items()} if of_parameter else {(owner, _WHOLE): entry}
        return found

    def name(self, key: tuple[Any, Any], _index: int) -> str:
        """Return the entry's name; parameters are named by their number."""
        number = next((str(number) for number, each in enumerate(self.owner.state) if each is key[0]), "")
        return joined(joined(self.path, f"state.{number}"), "" if key[1] is _WHOLE else str(key[1]))

    def put(self, key: tuple[Any, Any], value: object) -> None:
        owner, name = key
        if name is _WHOLE:
            self.owner.state[owner] = value
        else:
            self.owner.state.setdefault(owner, {})[name] = value

    def fill(self, entries: dict[Any, Any]) -> None:
        state = self.owner.state
        for owner, name in self.read().keys() - entries.keys():
            if name is not _WHOLE:
                del state[owner][name]
            if name is _WHOLE or not state[owner]:
                del state[owner]
        for key, value in entries.items():
            self.put(key, value)

    def begin_anew(self, key: tuple[Any, Any], value: Any, first_values: FirstValues) -> None:
        """Give state that was made lazily, under this key, the value that it began with.

        Raises `StateError` if it was made from anything but numbers.
        """
        parts = [part for part in parts_of(value) if part is not None]
        dampened = any(group.get("dampening", 0) for group in self.owner.param_groups)
        if type(self.owner) in _STARTS_AT_ZERO and not dampened and all(isinstance(part, Tensor) for part in parts):
            for part in parts:
                with writing_to(part):
                    local(part).zero_()
            return
        numbers = [part for part in parts if not isinstance(part, Tensor)]
        if numbers or not all(first_values.put_back(part) for part in parts):
            raise StateError(
                "a captured optimizer must have its state before the first step",
                where=type(self.owner).__name__,
                got=f"state {str(key[0] if key[1] is _WHOLE else key[1])!r} created lazily, {_described(numbers)}",
                remedy=f"{WARM_STEPS}; or keep it in a tensor: a captured step reads no Python number anew"
                if numbers
                else f"{WARM_STEPS}; or create the optimizer's state when building the trainer, and change it in place",
            )


def _described(numbers: list[Any]) -> str:
    kinds = ", ".join(sorted({type(each).__name__ for each in numbers}))
    return f"of what is no tensor: {kinds}" if numbers else "with an unknown first value"
