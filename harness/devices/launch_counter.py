"""Count graph launches with a CUPTI callback, also while blocks of steps are timed.

A profiler would slow the steps that it observes, so it cannot be used while steps are timed. The callback is enabled
only for graph launches. A step without a launch is not slowed, and a replay is slowed only by a short call into Python.

CUPTI allows one subscriber in each process. A profile that runs while the counter is subscribed is empty, without an
error, and all later profiles of the process are empty, too. After the first profile of a process, CUPTI refuses the
counter. A process must therefore only count, only profile, or count before its first profile.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch

_DRIVER, _RUNTIME = 1, 2  # values of CUpti_CallbackDomain in cupti_callbacks.h
_NAMES = {
    _DRIVER: re.compile(r"cuGraphLaunch(_v\d+)?(_ptsz)?"),
    _RUNTIME: re.compile(r"cudaGraphLaunch(_ptsz)?(_v\d+)?"),
}
_CALLBACK_IDS = range(1, 2000)  # the callback ids to search; CUDA 13 has about 800 ids in each domain
_ENTER = 0  # value of CUpti_ApiCallbackSite (before the call), the first field of the data that a callback receives
_REFUSED = 39  # value of CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
_SIGNATURES: dict[str, list[Any]] = {
    "cuptiSubscribe": [ctypes.POINTER(ctypes.c_void_p), _CALLBACK, ctypes.c_void_p],
    "cuptiEnableCallback": [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32],
    "cuptiGetCallbackName": [ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(ctypes.c_char_p)],
    "cuptiUnsubscribe": [ctypes.c_void_p],
}

Launch = Callable[[], object]


class _Unavailable(Exception):  # noqa: N818 - not an error of the run, but the reason why a count is missing
    """Graph launches cannot be counted in this process. The message gives the reason."""


class LaunchCounter:
    """Within its `with` block, counts the graph launches of this process, whichever library makes them.

    library: libcupti, or None if the process has not loaded it. planted: a function that launches one graph and waits
    for it. The functions of libcupti and the functions that `planted` calls are looked up when the counter is created,
    because user code that is imported later could replace them.
    sees_planted: True if the counter saw both planted launches, before and after the `with` block. failure: the reason
    why launches are not counted or the count is not reliable, or None.
    """

    def __init__(self, library: Any | None, planted: Launch) -> None:
        self.failure: str | None = None
        self.sees_planted = False
        self._planted = planted
        self._launches = [0, 0, 0]  # number of launches, indexed by the callback domain
        self._domain: int | None = None
        self._handle = ctypes.c_void_p()
        self._subscribed = False
        self._functions: dict[str, Any] = {}
        self._callback = _CALLBACK(_counting(self._launches))
        try:
            self._functions = _bound(library)
        except _Unavailable as why:
            self.failure = str(why)

    def __enter__(self) -> Self:
        """Subscribe to CUPTI, and test the counter with a planted launch. If this fails, store the reason in `failure`
        and raise nothing."""
        if self.failure is None:
            try:
                self._subscribe()
                self._see_planted()
            except _Unavailable as why:
                self.failure = str(why)
                self._unsubscribe()
            except BaseException:
                self._unsubscribe()
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_more: object) -> None:
        try:
            if kind is None and self._domain is not None and self._seen_of_planted()[self._domain] != 1:
                self.sees_planted = False
                self.failure = "the counter saw a planted graph launch before the timed blocks, but none after them"
        finally:
            self._unsubscribe()

    def count(self) -> int | None:
        """Return the number of graph launches in the `with` block so far, or None if launches cannot be counted."""
        return None if self._domain is None else self._launches[self._domain]

    def _subscribe(self) -> None:
        status = self._functions["cuptiSubscribe"](ctypes.byref(self._handle), self._callback, None)
        if status == _REFUSED:
            raise _Unavailable(f"CUPTI already has a subscriber (status {status}): a profiler ran in this process")
        if status != 0:
            raise _Unavailable(f"CUPTI's function cuptiSubscribe failed with status {status}")
        self._subscribed = True

    def _see_planted(self) -> None:
        """Choose the CUPTI domain (driver or runtime) whose callback sees a planted launch exactly once.

        The driver's domain is preferred, because it sees the launches of every library. If both domains were used, a
        launch through the runtime would be counted twice, because the runtime calls the driver.
        """
        callbacks = {domain: self._callbacks(domain) for domain in _NAMES}
        if not any(callbacks.values()):
            raise _Unavailable("this version of CUPTI has no callback for graph launches")
        for domain, identifiers in callbacks.items():
            self._enable(domain, identifiers, on=True)
        seen = self._seen_of_planted()
        counting = next((domain for domain in _NAMES if seen[domain] == 1), None)
        if counting is None:
            raise _Unavailable(
                f"the harness launched a graph once to test the counter, but the driver's callback saw {seen[_DRIVER]} "
                f"launches and the runtime's callback saw {seen[_RUNTIME]}"
            )
        for domain, identifiers in callbacks.items():
            if domain != counting:
                self._enable(domain, identifiers, on=False)
        self._domain, self.sees_planted = counting, True

    def _seen_of_planted(self) -> list[int]:
        before = list(self._launches)
        self._planted()
        return [after - earlier for after, earlier in zip(self._launches, before, strict=True)]

    def _callbacks(self, domain: int) -> list[int]:
        name, found = ctypes.c_char_p(), []
        for identifier in _CALLBACK_IDS:
            status = self._functions["cuptiGetCallbackName"](domain, identifier, ctypes.byref(name))
            if status == 0 and name.value and _NAMES[domain].fullmatch(name.value.decode(errors="replace")):
                found.append(identifier)
        return found

    def _enable(self, domain: int, identifiers: list[int], *, on: bool) -> None:
        for identifier in identifiers:
            status = self._functions["cuptiEnableCallback"](int(on), self._handle, domain, identifier)
            if status != 0:
                raise _Unavailable(
                    f"cuptiEnableCallback({int(on)}) failed with status {status} for callback {identifier} of "
                    f"domain {domain}"
                )

    def _unsubscribe(self) -> None:
        if self._subscribed:
            self._subscribed = False
            self._functions["cuptiUnsubscribe"](self._handle)


def _counting(launches: list[int]) -> Callable[[object, int, int, int], None]:
    """Return a CUPTI callback that increases `launches[domain]` by one for each launch. The callback uses only local
    names, so that it is quick."""
    site = ctypes.c_int.from_address

    def on_call(_user: object, domain: int, _callback: int, data: int) -> None:
        if site(data).value == _ENTER:
            launches[domain] += 1

    return on_call


def _bound(library: Any | None) -> dict[str, Any]:
    if library is None:
        raise _Unavailable("no libcupti is loaded in this process")
    functions = {}
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:
            raise _Unavailable(f"libcupti has no function {name}")
        function.argtypes, function.restype = arguments, ctypes.c_int
        functions[name] = function
    return functions


def counter_of_this_process() -> LaunchCounter:
    """Return a launch counter for this process. It tests itself by launching a small graph. Needs CUDA."""
    return LaunchCounter(_loaded_cupti(), PlantedGraph())


def _loaded_cupti() -> Any | None:
    path = mapped_cupti(Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"))
    try:
        return None if path is None else ctypes.CDLL(path)
    except OSError:
        return None


def mapped_cupti(maps: str) -> str | None:
    """Return the path of the libcupti that this process has loaded, or None. torch's profiler uses this library, too.
    maps: the text of `/proc/self/maps`, the list of mapped files."""
    found = re.search(r"(/[^\n]*/libcupti\.so[.\d]*)$", maps, re.MULTILINE)
    return found.group(1) if found else None


class PlantedGraph:
    """A CUDA graph of one addition. A call of this object launches the graph and waits for its end. Needs CUDA. The
    capture does not use `torch.cuda.graph`, which would return torch's unused memory to the driver."""

    def __init__(self) -> None:
        self._value = torch.zeros(16, device="cuda")
        self._value.add_(1.0)  # this loads the kernel, which must happen before the capture
        self._stream, self._graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
        self._wait = torch.cuda.synchronize
        self._wait()
        with torch.cuda.stream(self._stream):
            self._graph.capture_begin(capture_error_mode="thread_local")
            self._value.add_(1.0)
            self._graph.capture_end()
        self._replay = self._graph.replay
        self._wait()

    def __call__(self) -> None:
        self._replay()
        self._wait()
