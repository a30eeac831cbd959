"""The table of deaths on a GPU: device assert, illegal address, endless kernel, out of memory and a killed worker, at
build, warm-up, capture, replay and write.

    python scripts/gpu_deaths.py

Prints a line for each combination, then a summary. The exit code is 1 where one is not as it must be, as in
`deaths.py`, and where the GPU's used memory (NVML) is not again what it was before.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from death_table import Combination, Group, print_outcomes, verified

from harness.devices import environment

PHASES = ("build", "warm_up", "capture", "replay", "write")
# the first text is the cause's own; a driver may put another one in its place
NAMED: dict[str, tuple[str, ...]] = {
    "device_assert": ("device-side assert",),
    "illegal_address": ("illegal memory access", "misaligned address", "unspecified launch failure"),
    "endless_kernel": ("still running after",),
    "out_of_memory": ("out of memory",),
    "sigkill": ("SIGKILL",),
}
SPINNING = "endless_kernel"
DEADLY = ("device_assert", "illegal_address", "sigkill")  # of each run: each costs another worker
ENDLESS_S = 30.0  # a worker has its context, and has executed the plain arms, long before
WALL_LIMIT_S, HEARTBEAT_S, DESCRIBE_S = 120.0, 100.0, 30.0
STEPS = 8  # the last three replays are executed alone on the device; an arm that dies does not come to them
NEEDS = {"device": "cuda", "memory_gib": 2}
SLACK_BYTES = 64 * 2**20  # of other processes' use of the GPU
BACK_S = 10.0  # for the driver to take back what killed processes held


def groups() -> list[Group]:
    """A run for each endless kernel, which lasts until its limit; one for all that no process dies of."""
    alive = tuple(Combination(phase, "out_of_memory", NAMED["out_of_memory"]) for phase in PHASES)
    found = [Group("memory", alive, WALL_LIMIT_S, HEARTBEAT_S)]
    for phase in PHASES:
        deadly = tuple(Combination(phase, cause, NAMED[cause]) for cause in DEADLY)
        found.append(Group(f"dead-{phase}".replace("_", "-"), deadly, WALL_LIMIT_S, HEARTBEAT_S))
    for phase in PHASES:
        endless = Combination(phase, SPINNING, NAMED[SPINNING])
        found.append(Group(f"endless-{phase}".replace("_", "-"), (endless,), ENDLESS_S, HEARTBEAT_S))
    return found


def used_bytes(uuid: str) -> int:
    """Bytes of the GPU's memory that are used, by whomever."""
    import pynvml

    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).used)
    finally:
        pynvml.nvmlShutdown()


def memory_problems(before: int, used: Callable[[], int], wait_s: float = BACK_S) -> list[str]:
    """What is wrong with the memory that is used now; it may take the driver a while to take it back."""
    until = time.monotonic() + wait_s
    while (now := used()) > before + SLACK_BYTES and time.monotonic() < until:
        time.sleep(0.2)
    print(f"memory of the GPU in use: {before / 2**20:.0f} MiB before, {now / 2**20:.0f} MiB after")
    grown = now - before
    return [f"{grown / 2**20:.0f} MiB of the GPU's memory are not back"] if grown > SLACK_BYTES else []


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    machine = environment.machine()
    if not machine.gpus:
        print(f"needs a GPU: {machine.cuda_message}", file=sys.stderr)
        return 2
    began, uuid = time.monotonic(), machine.gpus[0].uuid
    before = used_bytes(uuid)
    outcomes = verified(groups(), NEEDS, steps=STEPS, describe_s=DESCRIBE_S)
    return print_outcomes(outcomes, memory_problems(before, lambda: used_bytes(uuid)), began)


if __name__ == "__main__":
    sys.exit(main())
