"""Find the GPUs of this machine that keep their clock under the load of a timing. Do this before a claim about
throughput is run."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from harness.api import session
from harness.contract.load import LoadedContract
from harness.devices.cuda_driver import devices
from harness.errors import HarnessError, UsageError
from harness.evidence import layout
from harness.evidence.files import read_model
from harness.evidence.plan_records import Run
from harness.evidence.run_records import Telemetry
from harness.kinds import probe_named
from harness.kinds.speed.disturbances import clock_spread

STEPS = 10**6  # number of steps that stands for no limit, because no run has so many


@dataclass(frozen=True)
class Steadiness:
    """Clock and power of one GPU. spread: (highest SM clock - lowest SM clock) / median SM clock. Claims about speed
    limit the spread."""

    uuid: str
    spread: float
    lowest_mhz: float
    highest_mhz: float
    power_w: float


def look(contracts: Sequence[LoadedContract], seconds: int) -> list[Steadiness]:
    """Run the work of a throughput claim on all GPUs at once. Return the GPUs' clocks, with the steadiest GPU first.

    The work is that of the first claim in `contracts` that this machine can time. Raises UsageError if there is no GPU
    or no such claim. Raises HarnessError if a worker dies.
    """
    gpus = [gpu.uuid for gpu in devices().gpus]
    if not gpus:
        raise UsageError(
            "`harness doctor --steady` measures the clocks of GPUs, so it needs a CUDA device", got=devices().problem
        )
    run = _run(contracts, seconds)
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(gpus)) as pool:
        try:
            futures = [pool.submit(_watch, run, Path(folder) / str(place), gpu, stop) for place, gpu in enumerate(gpus)]
            found = [future.result() for future in futures]
        except BaseException:
            stop.set()
            raise
    return sorted(found, key=lambda gpu: gpu.spread)


def _run(contracts: Sequence[LoadedContract], seconds: int) -> Run:
    planned = session.plan_contracts(contracts, session.VerifyOptions()).runs
    timing = next((run for run in planned if probe_named(run.probe).timed), None)
    if timing is None:
        raise UsageError(
            "`harness doctor --steady` needs a claim about speed, whose steps keep the GPUs busy",
            got="no such claim that can run on this machine",
        )
    return timing.model_copy(
        update={
            "probe": "steady",
            "workload": timing.workload.model_copy(update={"steps": STEPS}),
            "settings": {**timing.settings, "seconds": seconds},
            "wall_limit_s": timing.wall_limit_s + seconds,
        }
    )


def _watch(run: Run, directory: Path, gpu: str, stop: threading.Event) -> Steadiness:
    """Keep one GPU busy until `stop` is set, with a worker process that sees no other GPU. Return the clock and power
    of this GPU."""
    from harness.execution import supervisor

    death = supervisor.execute(run, directory, gpu_uuid=gpu, stop=stop, variables={"CUDA_VISIBLE_DEVICES": gpu})
    if death is not None:
        raise HarnessError(
            "the worker process that keeps a GPU busy must run until the GPU is measured",
            where=gpu,
            got=f"{death.cause}: {death.detail}",
        )
    samples = read_model(directory / layout.TELEMETRY, Telemetry).samples
    clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz]
    power = [sample.power_w for sample in samples if sample.power_w]
    return Steadiness(
        uuid=gpu,
        spread=clock_spread(samples),
        lowest_mhz=min(clocks, default=0.0),
        highest_mhz=max(clocks, default=0.0),
        power_w=fmean(power) if power else 0.0,
    )
