"""Ask libcuda, the library of CUDA's driver, which GPUs CUDA programs can use on this machine.

This needs no torch, no CUDA context and no allocation. Unlike NVML, libcuda obeys CUDA_VISIBLE_DEVICES, and lists the
devices in the order in which worker processes number them.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Values of the enumerations CUresult and CUdevice_attribute in cuda.h.
_NO_DEVICE = 100
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76
_NAME_LENGTH = 100


@dataclass(frozen=True)
class Gpu:
    """One CUDA device. architecture: for example `sm_90`. uuid: the id of the device in NVML's format."""

    name: str
    uuid: str
    architecture: str
    memory_gib: float


@dataclass(frozen=True)
class Devices:
    """The GPUs that the driver reports. problem: the reason why no GPU can be used, or "". unreadable: True if there is
    a GPU that does not respond."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    unreadable: bool = False
    driver_version: str | None = None
    cuda_version: str | None = None  # the newest CUDA version that the driver supports


class DriverError(Exception):
    """A libcuda call failed. code: the CUresult that the call returned."""

    def __init__(self, call: str, code: int) -> None:
        self.code = code
        super().__init__(f"{call} gave error {code}")


def devices() -> Devices:
    """Return the GPUs that this machine's driver reports, or the reason why there are none."""
    library = _load()
    present = any(path.name[len("nvidia") :].isdigit() for path in Path("/dev").glob("nvidia*"))
    if library is None:
        problem = "there are NVIDIA devices, but libcuda.so.1 is missing" if present else "no NVIDIA driver"
        return Devices(problem=problem, unreadable=present)
    return read(library, present=present)


def read(library: Any, *, present: bool) -> Devices:
    """Return the GPUs that `library` reports: libcuda, or an object that replaces libcuda in a test. present: True if
    the operating system shows an NVIDIA device."""
    try:
        _call(library, "cuInit", 0)
        count, api = ctypes.c_int(), ctypes.c_int()
        _call(library, "cuDeviceGetCount", ctypes.byref(count))
        _call(library, "cuDriverGetVersion", ctypes.byref(api))
        gpus = tuple(_gpu(library, index) for index in range(count.value))
    except DriverError as error:
        hidden = error.code == _NO_DEVICE
        return Devices(problem=str(error), unreadable=present and not hidden)
    cuda = f"{api.value // 1000}.{api.value % 1000 // 10}"
    return Devices(gpus, "" if gpus else "no visible device", driver_version=_driver(), cuda_version=cuda)


def _gpu(library: Any, index: int) -> Gpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name, uuid, memory = ctypes.create_string_buffer(_NAME_LENGTH), (ctypes.c_ubyte * 16)(), ctypes.c_size_t()
    _call(library, "cuDeviceGet", ctypes.byref(device), index)
    _call(library, "cuDeviceGetName", name, _NAME_LENGTH, device)
    _call(library, "cuDeviceGetUuid", uuid, device)
    _call(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    for value, attribute in ((major, _COMPUTE_CAPABILITY_MAJOR), (minor, _COMPUTE_CAPABILITY_MINOR)):
        _call(library, "cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
    digits = bytes(uuid).hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return Gpu(
        name=name.value.decode("utf-8", "replace"),
        uuid="GPU-" + "-".join(parts),
        architecture=f"sm_{major.value}{minor.value}",
        memory_gib=round(memory.value / 2**30, 2),
    )


def _call(library: Any, name: str, *arguments: object) -> None:
    code = getattr(library, name)(*arguments)
    if code != 0:
        raise DriverError(name, code)


def _load() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _driver() -> str | None:
    """Return the version of the kernel driver from NVML; None without NVML or its Python bindings (extra `run`)."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
