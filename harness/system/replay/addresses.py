"""Watch the addresses of static buffers that a capture reads and writes: a buffer that moves is no longer trained."""

from __future__ import annotations

from harness.system.replay.state import State
from harness.system.shards import address

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
        return {name: address(tensor) for name, tensor in self._static().items()}
