"""What libraries ask in order to do otherwise while a CUDA graph is captured.

transformers looks at the values of an attention mask unless the current stream is being captured; a recording, which
stands in for the capture on a CPU, would wait for them. So it is told that one is. torch's own questions (an optimizer
whether it has to be `capturable`) are of a real stream and get the real answer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.system.replay.frames import asked_at
from harness.system.replay.stand_ins import standing_in

_capturing = torch.cuda.is_current_stream_capturing


@contextmanager
def as_captured() -> Iterator[list[str]]:
    """Within its block `torch.cuda.is_current_stream_capturing()` is true, but for torch itself; who asked is noted.

    Of a real capture nobody needs it, and there compiled code may hold torch's own function to its identity.
    """
    asked: list[str] = []

    def answer() -> bool:
        module = sys._getframe(1).f_globals.get("__name__", "")
        of_torch = module.partition(".")[0] == "torch"
        if not of_torch and (place := asked_at()) not in asked:
            asked.append(place)
        return not of_torch or (torch.cuda.is_available() and _capturing())

    with standing_in((torch.cuda, torch.cuda.graphs), "is_current_stream_capturing", answer):
        yield asked
