"""A small training system whose arm dies as its setting `dies: <phase>:<cause>` says; without the setting it trains.

The ways to die are in this module, which does not import torch. `deadly_run.py` has the places where they happen.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.system.protocol import Arm, SystemDescription, TrainingRun, Workload

DIES = "dies"
HEADROOM = 512 * 2**20  # bytes of address space beside what a worker has when its memory is limited
NONSENSE = 0.5


def misbehave(cause: str) -> Any:
    """End or damage this process in one way. If the process stays alive, raise an error or return nonsense."""
    return CAUSES[cause]()


def _raise() -> None:
    raise ValueError("this arm is broken")


def _leave() -> None:
    raise SystemExit(0)


def _crash() -> None:
    ctypes.string_at(0)


def _print_for_ever() -> None:
    while True:
        sys.stdout.write("x" * 99_999 + "\n")


def _lose_output() -> None:
    os.close(1)
    os.close(2)
    os.write(1, b"nobody reads this")


def _lose_directory() -> None:
    """Remove the folder with this worker's records."""
    links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_link(name)]  # noqa: PTH115, PTH208
    shutil.rmtree(Path(next(link for link in links if link.endswith("records.jsonl"))).parent)


def _is_link(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def _fill_disk() -> None:
    """Act like a full disk: no file of this process can grow."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _leave_a_child() -> None:
    """Leave a grandchild in its own session that outlives this process, which exits without an error."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os._exit(0)


def _use_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM, used + HEADROOM))
    kept = []
    while True:
        kept.append(bytearray(64 * 2**20))


CAUSES: dict[str, Callable[[], Any]] = {
    "raise": _raise,
    "system_exit": _leave,
    "exit_0": lambda: os._exit(0),
    "exit_1": lambda: os._exit(1),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigsegv": _crash,
    "sigabrt": os.abort,
    "hang": lambda: time.sleep(600),  # past the heartbeat
    "overrun": lambda: time.sleep(600),  # past the wall limit, which is the lower one in its run
    "output": _print_for_ever,
    "closed_output": _lose_output,
    "no_directory": _lose_directory,
    "full_disk": _fill_disk,
    "orphan": _leave_a_child,
    "memory": _use_memory,
    "nonsense": lambda: NONSENSE,
}


class DeadlySystem:
    """Two layers that learn a linear map (`step_function_systems`) until they die."""

    def describe(self) -> SystemDescription:
        return SystemDescription(
            name="deadly",
            summary="dies where its arms say",
            models=(),
            arm_options={DIES: str, "learning_rate": float},
            workload_options={},
            capabilities=frozenset({"inputs", "parameters", "gradients", "capture", "state"}),
            captures=frozenset({"none", "step"}),
        )

    def open(self, workload: Workload, arm: Arm, **options: Any) -> TrainingRun:
        from deadly_run import opened

        settings = arm.settings()
        phase, _, cause = str(settings.pop(DIES, "")).partition(":")
        return opened(workload, Arm.model_validate({"capture": arm.capture, **settings}), phase, cause, options)
