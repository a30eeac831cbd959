"""Find where a step reads values of its tensors on the host, while it really executes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from harness.system.replay.cpu_as_device import HostMade
from harness.system.replay.observer import Observer
from harness.system.replay.sites import Place, of_current_stack

_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_SHOWN = 8


class Waits(Observer):
    """Within its block counts, by line, what needs values of tensors on `device`, or a shape that depends on them."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device, self.host = device, HostMade()
        self.seen: Counter[Place] = Counter()

    def read(self, tensor: Tensor, _called: str) -> Tensor:
        """Count a read of the device's memory that no operator shows."""
        if not self.host.has(tensor):
            self.seen[of_current_stack()] += 1
        return tensor

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not _READS.isdisjoint(func.tags) and any(
            isinstance(value, Tensor) and value.device.type == self._device.type and not self.host.has(value)
            for value in args
        ):
            self.seen[of_current_stack()] += 1
        returned = func(*args, **(kwargs or {}))
        if self._device.type == "cpu":
            self.host.note(func, args, kwargs or {}, returned)
        return returned

    def sentence(self) -> str:
        """Return `; its steps read values on the host at FILE:LINE (N times), …`, or "" if no read was seen."""
        if not self.seen:
            return ""
        places = [f"{place.file}:{place.line} ({count} times)" for place, count in self.seen.most_common()]
        more = f", and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        return f"; its steps read values on the host at {', '.join(places[:_SHOWN])}{more}"
