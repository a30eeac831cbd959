"""Watch the addresses of static buffers that a capture reads and writes: a buffer that moves is no longer trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from harness.system.replay.state import State

MOVED = 0  # an address that no buffer has


class StaticAddresses:
    """Watches the buffers that `static` names; `check` before each replay costs one comparison a buffer."""

    def __init__(self, static: State) -> None:
        self._static = static
        self.captured: dict[str, int] = {}
        self.moved: set[str] = set()

    def remember(self) -> None:
        """Take the present addresses as those of the capture."""
        self.captured = self._addresses()

    def check(self) -> None:
        """Note every buffer that is elsewhere than at capture; once moved, it stays noted."""
        now = self._addresses()
        if now != self.captured:
            self.moved |= {name for name, place in self.captured.items() if now.get(name) != place}

    def seen(self) -> dict[str, int]:
        """Return present addresses, for a `CaptureRecord`; `MOVED` for a buffer that was elsewhere at any replay."""
        return {name: MOVED if name in self.moved else place for name, place in self._addresses().items()}

    def _addresses(self) -> dict[str, int]:
        return _addresses(self._static())


def _addresses(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return where tensors lie; of one that is made of others, as a rank's part or a quantized weight, where they do.

    Runs no operation: near a replay the step's operations are counted.
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
