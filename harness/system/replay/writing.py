"""Write to a tensor outside of the step that made it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from harness.system.shards import local


def writing_to(tensor: Tensor) -> AbstractContextManager[object]:
    """Within its block the tensor may be changed in place: torch lets inference alone write to what inference made."""
    return torch.inference_mode() if tensor.is_inference() else nullcontext()


def copy_into(tensor: Tensor, value: Tensor) -> None:
    """Of a tensor that ranks share, into this rank's part."""
    with writing_to(tensor):
        local(tensor).copy_(value)
