"""Where a step sets the state of torch's generator: no replay does it again, and draws other numbers then.

`torch.utils.checkpoint` does so before it computes a block again, to drop out what the first pass did.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from harness.system.replay.frames import asked_at
from harness.system.replay.stand_ins import standing_in

_set = torch.random.set_rng_state


@contextmanager
def noted_generator_states() -> Iterator[list[str]]:
    """Within its block each place that calls `torch.set_rng_state` is noted, once."""
    places: list[str] = []

    def noted(new_state: Tensor) -> None:
        if (place := asked_at()) not in places:
            places.append(place)
        _set(new_state)

    with standing_in((torch, torch.random), "set_rng_state", noted):
        yield places
