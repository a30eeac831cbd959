"""A cache of compiled kernels, and a log of compiles and loads. The cache checks the PTX target of each kernel.

The key of a kernel names operation, shape, dtype, constants, warps, stages and target. Two different kernels with the
same key are an error. PTX without a target, or for another architecture, is also an error (F-PTX-001), and such a
kernel is not loaded. Triton and CUDA C++ each have their own cache of kernels, from which kernels are launched. The
cache of this module compiles each kernel into the cache of its language before the first launch, so every launched
kernel has been checked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from harness.devices.ptx import is_exact, parse_target, read_module
from harness.system.protocol import Kernel, KernelEvent, KernelLedger, KernelRefusedError
from reference_impl.kernels import nvrtc, registry
from reference_impl.kernels.spec import WARP_THREADS, KernelSpec

# Triton and NVRTC translate PTX into machine code of the device. Therefore the driver compiles nothing when it loads a
# kernel.
LOAD_ROUTE = "cubin, cuModuleLoadData"
UNPLANNED = "unplanned"
"""Prefix of the key in the log, for a kernel that was compiled or loaded without a `KernelCache`."""


class PtxTargetError(KernelRefusedError):
    """The PTX of a kernel has no readable target, or the target of another architecture (F-PTX-001)."""


class KeyCollisionError(KernelRefusedError):
    """Two different kernels have the same key, so the first one compiled would be launched in place of the second."""


def cache_key(spec: KernelSpec, target: str) -> str:
    """Return the key of a spec for a target, such as `rms_norm.forward/512x1536/bf16/eps=1e-06/w4s1@sm_90`."""
    return f"{spec.key}@{target}"


def ptx_text(_spec: KernelSpec, compiled: Any, _target: str) -> str:
    """Return the PTX of a compiled kernel."""
    text: str = compiled.asm["ptx"]
    return text


def check_target(kernel: Kernel, target: str) -> None:
    """Raise PtxTargetError unless the kernel has a `.target` line and every such line names `target`."""
    targets = read_module(kernel.ptx).targets
    if not targets:
        raise PtxTargetError(f"F-PTX-001: the PTX of {kernel.key} has no .target line, so the kernel is not loaded")
    for text in targets:
        try:
            fits = is_exact(parse_target(text), parse_target(target))
        except ValueError as error:
            raise PtxTargetError(f"F-PTX-001: the PTX target of {kernel.key} cannot be read: {error}") from error
        if not fits:
            raise PtxTargetError(f"F-PTX-001: the PTX of {kernel.key} is for {text}, but the device is {target}")


@dataclass(frozen=True)
class Device:
    """An architecture, with the functions that compile a kernel for it and load the kernel onto it."""

    target: str
    compile: Callable[[KernelSpec], Any]
    load: Callable[[KernelSpec, Any], None]


def current_device() -> Device:
    """Return the `Device` of the current CUDA device."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return Device(f"sm_{major}{minor}", registry.compile_for_device, registry.load_compiled)


def named_target(target: str) -> Device:
    """Return a `Device` for the architecture `target`, such as `sm_90`, without a GPU. Its `load` does nothing."""
    number = parse_target(target).number
    return Device(target, lambda spec: registry.offline_compile(spec, number), lambda _spec, _compiled: None)


class KernelCache:
    """The compiled kernels of one device. Thread-safe.

    `key`: a function that returns the key of a kernel. `ptx`: a function that returns the PTX of a compiled kernel.
    """

    def __init__(
        self,
        device: Device,
        key: Callable[[KernelSpec, str], str] = cache_key,
        ptx: Callable[[KernelSpec, Any, str], str] = ptx_text,
    ) -> None:
        self.device = device
        self._key, self._ptx = key, ptx
        self._lock = threading.RLock()
        self._described: dict[tuple[object, ...], Kernel] = {}
        self._compiled: dict[tuple[object, ...], Any] = {}
        self._loaded: dict[str, KernelSpec] = {}
        self._asked: dict[KernelSpec, None] = {}
        # Id of a spec -> spec. The id is the key, because hashing a spec at every launch would take longer. The stored
        # spec stays alive, so no other object can get the same id.
        self._ready: dict[int, KernelSpec] = {}
        self.ledger = Ledger()

    def describe(self, spec: KernelSpec) -> Kernel:
        """Return a spec's compiled kernel, with its PTX. The spec's first call compiles it. No call loads it."""
        key = self._key(spec, self.device.target)
        with self._lock, self.ledger.working_on(key):
            identity = (key, *spec.identity)
            if identity not in self._described:
                compiled = self.device.compile(spec)
                self._compiled[identity] = compiled
                self._described[identity] = Kernel(
                    key=key,
                    name=spec.function.name,
                    ptx=self._ptx(spec, compiled, self.device.target),
                    load_route=LOAD_ROUTE,
                    shared_memory_bytes=compiled.metadata.shared,
                    threads=compiled.metadata.num_warps * WARP_THREADS,
                )
            return self._described[identity]

    def load(self, spec: KernelSpec) -> None:
        """Compile, check and load the kernel of a spec, unless it is already loaded.

        Raises PtxTargetError for PTX of another architecture, and KeyCollisionError if another kernel has the same key.
        """
        key = self._key(spec, self.device.target)
        with self._lock, self.ledger.working_on(key):
            other = self._loaded.get(key)
            if other is not None:
                if other.identity != spec.identity:
                    raise KeyCollisionError(
                        f"{spec.function.name} and another kernel share the key {key}; "
                        "add what differs between the two kernels to the key"
                    )
                return
            check_target(self.describe(spec), self.device.target)
            self.device.load(spec, self._compiled[key, *spec.identity])
            self.ledger.resident(key)
            self._loaded[key] = spec

    def launch(self, spec: KernelSpec, arguments: tuple[Tensor, ...]) -> None:
        """Launch a kernel. Load it before its first launch. Pass this method to `registry.add_launcher`."""
        if self._ready.get(id(spec)) is not spec:
            with self._lock:
                self._asked.setdefault(spec)
                self.load(spec)
                self._ready[id(spec)] = spec
        registry.jit_launch(spec, arguments)

    def asked_for(self) -> list[KernelSpec]:
        """Return the kernels whose launch was requested so far, in the order of their first requests.

        Kernels that this cache refused to launch are included.
        """
        with self._lock:
            return list(self._asked)


class Ledger:
    """A log of this process: which kernels were compiled, read from the disk cache or loaded, when, and in which phase.

    Thread-safe. Hooks of Triton and of `nvrtc` report the events, so compiles outside of a `KernelCache` are included.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._lock = threading.Lock()
        self._events: list[KernelEvent] = []
        self._phases: dict[str, float] = {}
        self._handles: dict[str, float] = {}
        self._phase = "before"
        self._local = threading.local()
        self._previous_listener: Callable[..., None] | None = None
        self._watching = False

    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def phase(self, name: str) -> None:
        """Begin the phase `name`. Later events are recorded as part of this phase."""
        with self._lock:
            self._phase = name
            self._phases[name] = self.seconds()

    def handle(self, name: str) -> None:
        """Record the time at which the library handle `name` existed for the first time."""
        with self._lock:
            self._handles.setdefault(name, self.seconds())

    def resident(self, key: str) -> None:
        """Record that the kernel with this key is loaded, unless the log already has an event of this key.

        Triton reports no load if the same machine code was already loaded for another key, such as another grid.
        """
        with self._lock:
            if all(event.key != key for event in self._events):
                self._events.append(KernelEvent(key, "load", self._phase, self.seconds()))

    def working_on(self, key: str) -> _WorkingOn:
        """Return a context manager in which events of this thread are attributed to `key`."""
        return _WorkingOn(self._local, key)

    def as_evidence(self) -> KernelLedger:
        with self._lock:
            return KernelLedger(tuple(self._events), dict(self._phases), dict(self._handles))

    def watch(self) -> None:
        """Start listening to events of Triton and of `nvrtc`, in addition to other listeners."""
        from triton import knobs

        self._watching = True
        self._previous_listener = knobs.compilation.listener
        knobs.compilation.listener = self._compiled
        knobs.runtime.kernel_load_end_hook.add(self._loaded)
        nvrtc.listeners.append(self._add)

    def unwatch(self) -> None:
        """Stop listening to events of Triton and of `nvrtc`. A listener of Triton that was added later may still pass
        events to this ledger, which ignores them."""
        from triton import knobs

        self._watching = False
        knobs.runtime.kernel_load_end_hook.remove(self._loaded)
        if self._add in nvrtc.listeners:
            nvrtc.listeners.remove(self._add)
        if knobs.compilation.listener == self._compiled:
            knobs.compilation.listener = self._previous_listener

    def _compiled(self, **event: Any) -> None:
        if self._watching:
            self._add("disk_hit" if event["cache_hit"] else "compile", str(event["src"].name))
        if self._previous_listener is not None:
            self._previous_listener(**event)

    def _loaded(self, _module: Any, _function: Any, name: str, _group: Mapping[str, str], _hash: str) -> None:
        self._add("load", name)

    def _add(self, event: str, name: str) -> None:
        key = getattr(self._local, "key", None) or f"{UNPLANNED}/{name}"
        with self._lock:
            self._events.append(KernelEvent(key, event, self._phase, self.seconds()))  # type: ignore[arg-type]


class _WorkingOn:
    """A context manager that gives a key to events of this thread. At its end it restores the previous key."""

    def __init__(self, local: threading.local, key: str) -> None:
        self._local, self._key = local, key
        self._before: str | None = None

    def __enter__(self) -> None:
        self._before = getattr(self._local, "key", None)
        self._local.key = self._key

    def __exit__(self, *_: object) -> None:
        self._local.key = self._before
