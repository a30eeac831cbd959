"""Pass tensors from a baseline of another commit to its candidates, whose process begins when the baseline's is over.

They lie in a folder of the session, are not evidence, and are loaded as tensors and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


class Exchange:
    """One run's folder; None: all its arms are of one commit, and nothing is left or taken."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def leave(self, arm: str, what: str, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors of an arm under the name `what`."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            torch.save({name: tensor.detach() for name, tensor in tensors.items()}, self._path(self._folder, arm, what))

    def take(self, arm: str, what: str, device: torch.device | str = "cpu") -> dict[str, Tensor] | None:
        """Return what an arm left under the name `what`, on a device; None if it left nothing."""
        if self._folder is None or not (path := self._path(self._folder, arm, what)).exists():
            return None
        found: dict[str, Tensor] = torch.load(path, map_location=device, weights_only=True)
        return found

    @staticmethod
    def _path(folder: Path, arm: str, what: str) -> Path:
        return folder / f"{arm}+{what}"  # no arm's name has a plus
