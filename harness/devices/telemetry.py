"""Sample the machine during a run: clocks, power, throttling, other processes, host load, processor speed."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Collection

# Import this function before user code is imported, because user code could replace it in its module.
from os import listdir
from pathlib import Path
from threading import get_native_id

# Import these functions before user code is imported, because user code could replace them in their module.
from time import monotonic, process_time_ns, thread_time_ns
from typing import Any, Self

from harness.evidence.run_records import TIMED_PHASE, Block, Telemetry, TelemetrySample, disturbed
from harness.numbers import dump_json

# The samples are taken in a thread of the process that starts the worker, so that they do not disturb the worker.

# seconds between samples of an untimed phase; few samples are enough, because only timings are judged by samples
INTERVAL_S = 5.0
# Seconds between samples of a timed phase. A timed block may last only 0.1 s. Reading NVML took 0.05 ms on an H200.
TIMED_INTERVAL_S = 0.1
# Reasons for lower clocks, from nvmlClocksEventReasons in nvml.h. Three reasons are left out, because they do not slow
# a GPU under load: idle (0x1), the clock setting of applications (0x2), and the clock setting of displays (0x100).
THROTTLE_REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
IDLE = 0x1
UNKNOWN = -1  # value of `foreign_processes` if the driver does not list the processes on the GPU


class Sampler:
    """Samples the machine within its `with` block. Afterwards, `write` stores the samples as one Telemetry record.

    gpu_uuid: the GPU to observe, or None to observe only the host. workers: ids of the harness's processes (session
    leaders) that use the GPU now. phase: a function that returns the name of the worker's phase. before: processes that
    used the GPU before all workers started. If the run has a timed phase, only samples of this phase are kept.
    """

    def __init__(
        self,
        gpu_uuid: str | None,
        workers: Collection[int],
        phase: Callable[[], str],
        before: Collection[int] | None = None,
    ) -> None:
        self._gpu = open_gpu(gpu_uuid, workers, before) if gpu_uuid is not None else None
        self._without_gpu = HOST_ONLY if gpu_uuid is None else UNREADABLE
        self._phase = phase
        self._samples: list[tuple[str, TelemetrySample]] = []
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, name="telemetry", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._gpu is not None:
            self._gpu.close()

    def telemetry(self) -> Telemetry:
        """Return the samples. If the run had a timed phase, only its samples are returned."""
        timed = [sample for phase, sample in self._samples if _is_timed(phase)]
        # The time from the first to the last sample of the timed phase. The phase itself may be longer by two sampling
        # intervals.
        seconds = timed[-1].seconds - timed[0].seconds if timed else None
        return Telemetry(
            samples=timed or [sample for _, sample in self._samples], began=self._started, timed_seconds=seconds
        )

    def write(self, path: Path) -> None:
        """Write the samples to a file, as one line of JSON."""
        path.write_text(dump_json(self.telemetry().model_dump()) + "\n", encoding="utf-8")

    def _sample_until_stopped(self) -> None:
        """Take a sample every INTERVAL_S seconds. While steps are timed, take one every TIMED_INTERVAL_S seconds."""
        due = self._started
        while not self._stop.is_set():
            now, phase = time.monotonic(), self._phase()
            if now >= due or _is_timed(phase):
                self._samples.append((phase, self._sample()))
                due = now + INTERVAL_S
            self._stop.wait(min(TIMED_INTERVAL_S, INTERVAL_S))

    def _sample(self) -> TelemetrySample:
        reading: dict[str, Any] = self._gpu.read() if self._gpu is not None else self._without_gpu
        return TelemetrySample(
            seconds=time.monotonic() - self._started,
            host_load_per_core=os.getloadavg()[0] / (os.cpu_count() or 1),
            **reading,
        )


def _is_timed(phase: str) -> bool:
    """Return True if `phase` is the timed phase. If an arm is named `timed`, the names of its phases begin with
    `timed`, too, but a point or a colon follows."""
    return phase.partition(" ")[0] == TIMED_PHASE


HOST_ONLY: dict[str, Any] = {
    "sm_clock_mhz": None,
    "power_w": None,
    "temperature_c": None,
    "throttle_reasons": [],
    "foreign_processes": 0,
}
UNREADABLE = {**HOST_ONLY, "foreign_processes": UNKNOWN}


def processes_on(uuid: str) -> set[int]:
    """Return the ids of the processes that use the GPU now, according to NVML. Without NVML, return an empty set."""
    gpu = open_gpu(uuid, ())
    if gpu is None:
        return set()
    try:
        return gpu.process_ids() or set()
    finally:
        gpu.close()


def open_gpu(uuid: str, workers: Collection[int], before: Collection[int] | None = None) -> Gpu | None:
    """Open the GPU through NVML. Return None if NVML or the GPU is not available."""
    import pynvml

    try:
        return Gpu(uuid, workers, pynvml, before)
    except pynvml.NVMLError:
        return None


class Gpu:
    """One GPU, read through NVML. A value that the driver does not report is None; a count is `UNKNOWN`."""

    def __init__(self, uuid: str, workers: Collection[int], nvml: Any, before: Collection[int] | None = None) -> None:
        self._nvml, self._workers = nvml, workers
        nvml.nvmlInit()
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._before = set(before) if before is not None else self.process_ids() or set()

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def read(self) -> dict[str, Any]:
        """Return the fields of a TelemetrySample that are about the GPU."""
        nvml, handle = self._nvml, self._handle
        reasons = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        clock = self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        power = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return {
            # an idle GPU lowers its clock, so its current clock does not show the clock under load
            "sm_clock_mhz": None if reasons is not None and reasons & IDLE else clock,
            "power_w": None if power is None else power / 1000.0,
            "temperature_c": self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "throttle_reasons": [name for bit, name in THROTTLE_REASONS.items() if (reasons or 0) & bit],
            "foreign_processes": self._foreign_processes(),
        }

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._nvml.NVMLError:
            return None

    def process_ids(self) -> set[int] | None:
        """Return the ids of the processes that use the GPU, or None if the driver does not list them."""
        nvml, handle = self._nvml, self._handle
        compute = self._ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        graphics = self._ask(lambda: nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)) or []
        return None if compute is None else {int(process.pid) for process in [*compute, *graphics]}

    def _foreign_processes(self) -> int:
        """Return the number of processes on the GPU that do not belong to the harness's workers.

        A process belongs to a worker if it is in the worker's session. In a container, NVML reports process ids that
        are valid outside of the container, so no worker can be recognized. The result is then the number of processes
        that were on the GPU before all workers started, plus the number by which newer processes exceed the workers.
        """
        processes = self.process_ids()
        if processes is None:
            return UNKNOWN
        foreign = {process for process in processes if not self._is_workers(process)}
        if len(foreign) < len(processes):
            return len(foreign)
        return len(foreign & self._before) + max(0, len(foreign - self._before) - len(self._workers))

    def _is_workers(self, process: int) -> bool:
        try:
            return os.getsid(process) in self._workers
        except (ProcessLookupError, PermissionError):
            return False


# The code below measures the current pace of a processor: the processor time that a thread needs for a fixed piece of
# Python code. A lower clock slows every step that the host submits, and so does other work on the same core. Such work
# may run on the core's other hyperthread, often in a process that is not visible here. Both effects raise the pace.
# Time in which the thread waits for a processor or for the interpreter's lock is not counted.

PASSES = 20_000  # loop passes of the fixed piece of code; together they take about a millisecond
LOOKS = 5  # number of measurements by which `Paces.look` updates the smallest pace
# The pace is unknown if, during the measurement, the other threads of this process worked longer than this share of the
# measuring thread's processor time. The number is a choice, and larger than the share that reading the clocks takes.
OWN_SHARE = 0.1


def pace() -> float | None:
    """Return the processor seconds of a fixed piece of Python code (the pace). Return None if other threads of this
    process worked meanwhile."""
    process, thread = process_time_ns(), thread_time_ns()
    value = 0
    for number in range(PASSES):
        value += number * number
    thread = thread_time_ns() - thread
    others = process_time_ns() - process - thread
    return thread / 1e9 if others <= OWN_SHARE * thread and not _others_work() else None


def _others_work() -> bool:
    """Return True if another thread of this process is running now. The processor time of the process does not show
    this, because the time of a running thread is added to it only later."""
    own = str(get_native_id())
    try:
        return any(_works(thread) for thread in listdir("/proc/self/task") if thread != own)  # noqa: PTH208
    except FileNotFoundError:  # /proc/self/task does not exist, because this is not Linux
        return False


def _works(thread: str) -> bool:
    try:
        with open(f"/proc/self/task/{thread}/stat", "rb") as file:  # noqa: PTH123 - once for each of many threads
            return file.read().rpartition(b") ")[2].startswith(b"R")
    except OSError:  # the thread has ended
        return False


class Paces:
    """The measured paces (processor seconds for a fixed piece of code) of one process. least: the smallest pace so far,
    which stands for an undisturbed processor."""

    def __init__(self) -> None:
        self.least = math.inf

    def measure(self) -> float | None:
        """Measure the pace (seconds of a fixed piece of code) and return it. Return None if other threads of this
        process disturbed the measurement."""
        measured = pace()
        self.least = min(self.least, measured or math.inf)
        return measured

    def look(self) -> None:
        """Measure the pace `LOOKS` times, to update `least`. This takes a few milliseconds."""
        for _ in range(LOOKS):
            self.measure()

    def disturbed(self, block: Block) -> bool:
        """Return True if other work slowed the processor during `block`, judged by the seconds of a fixed piece of code
        that the block recorded."""
        return block.pace is not None and disturbed(block.pace, self.least)


def slower(one: float | None, other: float | None) -> float | None:
    """Return the slower of two paces (seconds of a fixed piece of code), which is the larger number. Return None if one
    of them is unknown."""
    return None if one is None or other is None else max(one, other)


# The code below waits until no work of another process delays the kernels of this process.

# A short kernel counts as delayed if it takes more seconds than this, including the wait for its end. The number is a
# choice: on a free device the kernel takes far less, and a time slice of another process takes more.
SHORT_S = 0.5e-3
QUIET_S = 0.02  # time without a delayed kernel, in seconds; a choice, longer than several time slices of a GPU
# Longest wait for a quiet device, in seconds. A process that was stopped has at most 50 submitted steps left, which the
# device finishes in this time.
LIMIT_S = 5.0


def wait_for_quiet_device() -> None:
    """Launch a short kernel repeatedly, until QUIET_S seconds pass without a delay, but at most for LIMIT_S seconds."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    torch.cuda.synchronize()
    value = torch.zeros(1, device="cuda")
    began = quiet_since = monotonic()
    while (now := monotonic()) - quiet_since < QUIET_S and now - began < LIMIT_S:
        value.add_(1)
        torch.cuda.synchronize()
        if monotonic() - now > SHORT_S:
            quiet_since = monotonic()
