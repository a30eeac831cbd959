"""Watch steps with torch's profiler: graph launches and what the device did.

A profile can be silently empty if something else has subscribed to CUPTI. So each is shown a sync after its steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from harness.devices.device import has_cuda, synchronize
from harness.devices.device_work import PLANTED, STEP, busy_seconds, launches_in, sees_sync, without_planted
from harness.devices.host_waits import not_of_the_step

span = torch.profiler.record_function
"""A range of that name, in a profile that is open."""


@dataclass
class Watched:
    """What was seen while `steps` steps were watched; None where this machine's watch cannot see it."""

    steps: int = 0
    graph_launches: int | None = None
    operations: int | None = None
    device_seconds: float | None = None  # time in which kernels ran, overlapping ones counted once
    replays: Sequence[Any] = ()  # the profile's raw events of steps that captured nothing
    replayed_steps: int = 0
    sees_planted: bool | None = None  # whether each profile saw the sync planted after its steps


@contextmanager
def graph_launches(
    watched: Watched, steps: int, *, ranks: int, replays: bool = False, over: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Watch `steps` steps with the profiler: graph launches and device activities. Needs CUDA.

    ranks: how many train together. replays: none of the steps captures, so that what they did can be compared with the
    census. over: called once their work is done, before the profile is closed and read, which takes up to seconds.
    """
    with profiler() as profile:
        yield
        synchronize()
        over()
        with span(PLANTED):
            planted_sync("cuda")
    recorded = raw_events(profile)
    watched.sees_planted = sees_sync(recorded) and watched.sees_planted is not False
    events = without_planted(recorded)
    watched.steps += steps
    watched.graph_launches = (watched.graph_launches or 0) + launches_in(events)
    watched.device_seconds = (watched.device_seconds or 0.0) + busy_seconds(events, ranks=ranks)
    if replays:
        watched.replays, watched.replayed_steps = events, steps


def planted_sync(device: str) -> None:
    """Read a value on the host, for a detector to see. Made outside of the watch, it is the device's even on a CPU."""
    with not_of_the_step():
        value = torch.ones(2, device=device)
    value.sum().item()


def in_step(profiled: object) -> AbstractContextManager[object]:
    """Return the range of a step, for `device_work`; an empty block if the step is not profiled."""
    return span(STEP) if profiled else nullcontext()


@contextmanager
def profiler(*, stacks: bool = False) -> Iterator[Any]:
    """Profile host calls and device activities with torch, in a way that is safe for replays of CUDA graphs.

    CUPTI must not be torn down and set up again between replays (a known crash), hence the two variables.
    """
    os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    activities = [torch.profiler.ProfilerActivity.CPU]
    if has_cuda():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    config = torch._C._profiler._ExperimentalConfig(verbose=True) if stacks else None
    with torch.profiler.profile(
        activities=activities, with_stack=stacks, experimental_config=config, acc_events=True
    ) as profile:
        yield profile


def prime_profiler() -> None:
    """Run the process's first profile, which sets CUPTI up: it took 4.2 s on an H200, every later one 1 ms."""
    with profiler():
        synchronize()


def raw_events(profile: Any) -> list[Any]:
    """Return a profile's events as Kineto gives them: with correlation numbers, without the tree that torch builds."""
    return list(profile.profiler.kineto_results.events())
