"""Observe steps with torch's profiler: their graph launches, and the work of the device. If other code uses CUPTI, a
profile can be empty without an error. Therefore the harness plants a host sync, which each profile must show."""

from __future__ import annotations

import ctypes
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from harness.devices.device import has_cuda, synchronize
from harness.devices.host_waits import AFTER, not_of_the_step
from harness.evidence.arm_records import DeviceWork, GraphNodes, Launched, OutsideWork

# The functions below divide the device's work in a profile of steps into work of graph launches and other work.

GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")
# beginnings of the profiler's names for copies and for fills, which are device work but not kernels
_COPY, _FILL = "Memcpy ", "Memset "
NANOSECONDS = 1e-9
# names of the profiled ranges around a step, and around a host sync that the harness planted
STEP, PLANTED = "harness.step", "harness.planted"
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
# Words in the names of kernels that wait for other ranks. The kernels belong to NCCL (also `ncclSymkDevKernel_…`), to
# NVSHMEM, or to torch's symmetric memory (torch/csrc/distributed/c10d/symm_mem).
_WAITING = (
    "nccl",
    "nvshmem",
    "one_shot_all_reduce",
    "two_shot_all_reduce",
    "multimem_",
    "_signal_kernel",
    "barrier_kernel",
)
# matches names of calls to the CUDA driver and runtime, but not names of operators
_API_CALL = re.compile(r"cu(da)?[A-Z]")


def launches_in(events: Iterable[Any]) -> int:
    """Return the number of graph launches among the raw events of a profile."""
    return sum(event.name() in GRAPH_LAUNCHES for event in events)


def device_work(events: Sequence[Any], steps: int, nodes: Sequence[GraphNodes]) -> DeviceWork:
    """Return the device's work in a profile of `steps` steps, in three groups: started by a graph launch, by another
    call in a step, or by a trainer's work after its step. Each step must be in a range named `STEP`.

    events: the raw events of the profile. nodes: the counts of each graph's nodes.
    Each device activity has the correlation number of the host call that started it: a graph launch, or another call in
    a step. Activities that were started between steps are left out, because they belong to the harness or to an
    evaluation, which may replay graphs too. Work that a trainer does after its step is counted separately. The profiler
    shows C++ names of kernels in readable form; they are replaced by the names in `nodes`.
    """
    launches = {event.correlation_id() for event in _begun_in(STEP, events) if event.name() in GRAPH_LAUNCHES}
    in_steps, after = _begun_by_calls_in(STEP, events), _begun_by_calls_in(AFTER, events)
    under: dict[int, list[Any]] = defaultdict(list)
    outside: list[Any] = []
    later: list[Any] = []
    for event in events:
        number = event.correlation_id()
        if not _on_device(event):
            continue
        if number in launches:
            under[number].append(event)
        elif number in in_steps:
            (later if number in after else outside).append(event)
    return DeviceWork(
        steps=steps,
        launched=_launched([under.get(number, []) for number in sorted(launches)], _census_names(nodes)),
        launched_seconds=_seconds(event for events in under.values() for event in events),
        outside_kernel_seconds=_kernel_seconds(outside),
        after_kernel_seconds=_kernel_seconds(later),
        outside=_outside(outside),
    )


def sees_sync(events: Sequence[Any]) -> bool:
    """Return True if a profile shows the planted host sync: the host call that waited, and the work of the device."""
    planted = _of_planted(events)
    return any(event.name() in WAITS for event in planted) and any(_on_device(event) for event in planted)


def without_planted(events: Sequence[Any]) -> list[Any]:
    """Return the events of a profile without those that belong to the host sync that the harness planted."""
    planted = {id(event) for event in _of_planted(events)}
    return [event for event in events if id(event) not in planted]


def _of_planted(events: Sequence[Any]) -> list[Any]:
    """Return the CUDA driver and runtime calls of the planted host sync, and the device activities they started."""
    calls = [event for event in _begun_in(PLANTED, events) if _API_CALL.match(event.name())]
    numbers = {event.correlation_id() for event in calls}
    return [*calls, *(event for event in events if _on_device(event) and event.correlation_id() in numbers)]


def _begun_by_calls_in(name: str, events: Sequence[Any]) -> set[int]:
    """Return the correlation numbers of the host's CUDA calls that began within a range named `name`.

    An operator in the range may have the same number as a CUDA call outside of the range. Numbers of operators are left
    out, because an operator itself starts no work on the device.
    """
    inside = _begun_in(name, events)
    known = {id(event) for event in inside}
    calls = (event for event in events if not _of_device(event) and _API_CALL.match(event.name()))
    return {event.correlation_id() for event in inside} - {
        event.correlation_id() for event in calls if id(event) not in known
    }


def _begun_in(name: str, events: Sequence[Any]) -> list[Any]:
    """Return the host's events that began within a range named `name`.

    The profiler shows each host range also on the device, for the time in which its kernels ran there. This device
    range is ignored, because host events after the end of the host's range may fall into it.
    """
    on_host = [event for event in events if not _of_device(event)]
    ranges = [(event.start_ns(), event.start_ns() + event.duration_ns()) for event in on_host if event.name() == name]
    return [event for event in on_host if any(begin <= event.start_ns() <= end for begin, end in ranges)]


def _on_device(event: Any) -> bool:
    """Return True for work of the device. Return False for a host range that the profiler also shows on the device. The
    range contains kernels. If the range counted as work, its kernels would be counted twice."""
    return _of_device(event) and not event.is_user_annotation()


def _of_device(event: Any) -> bool:
    return str(event.device_type()).endswith("CUDA")


def _seconds(events: Iterable[Any]) -> float:
    return float(NANOSECONDS * sum(event.duration_ns() for event in events))


def _kernel_seconds(events: Iterable[Any]) -> float:
    return _seconds(event for event in events if _type(event.name()) == "kernel")


def busy_seconds(events: Iterable[Any], *, ranks: int) -> float:
    """Return the seconds in which at least one device activity of a profile ran. Overlapping activities are counted
    once.

    With several ranks, kernels that wait for other ranks are not counted, because a profile makes such kernels slower:
    on two H200s they took seven times the time of a step. A single rank never waits, so all its kernels are counted.
    """
    alone = ranks == 1
    working = [event for event in events if _on_device(event) and (alone or not waits_for_ranks(event.name()))]
    spans = sorted((event.start_ns(), event.start_ns() + event.duration_ns()) for event in working)
    busy, until = 0, -1
    for start, end in spans:
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return NANOSECONDS * busy


def waits_for_ranks(kernel: str) -> bool:
    """Return True if the name of a kernel shows that the kernel waits for other ranks."""
    return any(word in kernel.lower() for word in _WAITING)


def _launched(launches: Sequence[Sequence[Any]], names: Mapping[str, str]) -> list[Launched]:
    """Group graph launches that did equal work. The groups are in the order of their first launches."""
    groups: Counter[tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]] = Counter()
    for events in launches:
        types = Counter(_type(event.name()) for event in events)
        kernels = Counter(names.get(event.name(), event.name()) for event in events if _type(event.name()) == "kernel")
        groups[tuple(sorted(types.items())), tuple(sorted(kernels.items()))] += 1
    return [
        Launched(launches=count, by_type=dict(types), kernels=dict(kernels))
        for (types, kernels), count in groups.items()
    ]


def _outside(events: Sequence[Any]) -> list[OutsideWork]:
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for event in events:
        counts[event.name()] += 1
        seconds[event.name()] += event.duration_ns()
    return [
        OutsideWork(name=name, count=counts[name], seconds=NANOSECONDS * spent) for name, spent in seconds.most_common()
    ]


def _type(name: str) -> str:
    if name.startswith(_COPY):
        return "memcpy"
    return "memset" if name.startswith(_FILL) else "kernel"


def _census_names(nodes: Sequence[GraphNodes]) -> dict[str, str]:
    """Return a dictionary from the name that the profiler shows for a kernel to the kernel's name in a graph's node.

    The profiler shows a C++ name in readable form, but a node has the symbol's name (`_Z…`). nodes: the counts of each
    graph's nodes, by the names of their kernels.
    """
    return {demangled(name): name for graph in nodes for name in graph.kernels}


def demangled(name: str) -> str:
    """Return the name of a C++ symbol in readable form, as the profiler shows it. Return any other name unchanged."""
    demangle = _demangler()
    if demangle is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    text = demangle(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(text))


@cache
def _demangler() -> Any | None:
    """Return `__cxa_demangle`, the C++ runtime's function that makes symbol names readable, or None if it is missing.
    The caller must free the text that the function returns."""
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return None
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return demangle


span = torch.profiler.record_function
"""A context manager that shows its `with` block as a named range in a profile that is being recorded."""


@dataclass
class Watched:
    """The observations of `graph_launches` in `steps` steps. A value is None if this machine cannot observe it."""

    steps: int = 0
    graph_launches: int | None = None
    operations: int | None = None
    # seconds in which at least one device activity ran; activities that overlap are counted once
    device_seconds: float | None = None
    replays: Sequence[Any] = ()  # raw profiler events of the steps; empty if a step captures
    replayed_steps: int = 0
    sees_planted: bool | None = None  # True: every profile showed the host sync that was planted after its steps


@contextmanager
def graph_launches(
    watched: Watched, steps: int, *, ranks: int, replays: bool = False, over: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Observe the `steps` steps in the `with` block with the profiler: graph launches and device activities. Needs
    CUDA.

    ranks: the number of ranks that train together. replays: True if no step captures a graph, so that the device's work
    can be compared with the nodes of the graphs. over: a function that is called when the steps are done, before the
    profile is read, which may take seconds.
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
    """Read a value of the device on the host, which makes the host wait. Every detector of host syncs must see this
    sync. The work that creates the value is hidden from the detectors."""
    with not_of_the_step():
        value = torch.ones(2, device=device)
    value.sum().item()


def in_step(profiled: object) -> AbstractContextManager[object]:
    """Return a range that marks a step for `device_work`. If the step is not profiled, return a context manager that
    does nothing."""
    return span(STEP) if profiled else nullcontext()


@contextmanager
def profiler(*, stacks: bool = False) -> Iterator[Any]:
    """Profile host calls and device activities with torch, in a way that is safe for replays of CUDA graphs.

    Two environment variables keep CUPTI running between replays. If CUPTI is shut down and set up again between
    replays, crashes are known to occur.
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
    """Run the first profile of the process, which sets up CUPTI.

    On an H200, the first profile took 4.2 s, and later profiles took 1 ms.
    """
    with profiler():
        synchronize()


def raw_events(profile: Any) -> list[Any]:
    """Return a profile's raw events. Unlike the events in torch's event tree, raw events have correlation numbers."""
    return list(profile.profiler.kineto_results.events())
