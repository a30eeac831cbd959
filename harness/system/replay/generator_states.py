"""Where a step sets the state of torch's generator: no replay does it again, and draws other numbers then.

`torch.utils.checkpoint` does so before it computes a block again, to drop out what the first pass did; a script seeds
it to draw the same in each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from harness.system.replay.frames import asked_at
from harness.system.replay.stand_ins import standing_in

_set, _seed = torch.random.set_rng_state, torch.random.manual_seed


@contextmanager
def noted_generator_states() -> Iterator[list[str]]:
    """Within its block each place that calls `torch.set_rng_state` or `torch.manual_seed` is noted, once."""
    told: list[str] = []

    def note(how: str) -> None:
        if (sentence := how.format(place=asked_at())) not in told:
            told.append(sentence)

    def set_state(new_state: Tensor) -> None:
        note("its state is set at {place}, as torch.utils.checkpoint does")
        _set(new_state)

    def seed(number: Any) -> torch.Generator:
        note("it is seeded at {place}")
        return _seed(number)

    modules = (torch, torch.random)
    with standing_in(modules, "set_rng_state", set_state), standing_in(modules, "manual_seed", seed):
        yield told
