"""Our captured and uncaptured step against what people use today, on one machine, in one run.

    python -m benchmarks.peers --out reports/<date>-<gpu>-peers
    python -m benchmarks.peers --out /tmp/rehearsal --tiny      # tiny shapes, to rehearse the run without a GPU

Every arm at every shape has a process of its own. Length by length, as many arms as the GPU's memory has room for are
started together (a sitting), and only then timed, in turn, round by round, one at a time; last comes the captured step
between its floors. All read the same weights and the same batches, and the loss of each at step 0 is compared with an
fp32 reference. Writes peers.json, details.json and peers.md after every sitting, and peers.svg at the end.

Exit code 0: the run is complete and all arms train the same mathematics, whatever the ratios say. 1: an arm is absent
or failed (it is named), or its loss is not the reference's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.arms.job import ARMS, Job
from benchmarks.peers_report import Measured, PeerRun, plot, summary
from benchmarks.worker_process import WorkerFailedError, WorkerProcess

ROUNDS = 5
STEPS_A_ROUND = 10
PREPARE_LIMIT_S = 240.0
OPEN_LIMIT_S = 300.0  # compiling one shape took 62 s on the reference machine, alone
MEASURE_LIMIT_S = 60.0
# Arms that an H200's memory held side by side at 4 x 2048 tokens: peaks of 12 to 33 GiB; half as many at 4096.
ARMS_AT_2048 = 5
COMPILED = ("hf_reduce_overhead", "hf_liger_compiled", "axolotl_compiled", "torchtune_compiled")
OUT_OF_MEMORY = "OutOfMemoryError"


@dataclass
class Running:
    """One arm at one shape while the run lasts."""

    job: Job
    worker: WorkerProcess
    ready: dict[str, Any] = field(default_factory=dict)
    milliseconds: list[float] = field(default_factory=list)
    block_ms: list[float] = field(default_factory=list)
    finish: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None

    @property
    def name(self) -> str:
        return f"{self.job.arm} at seq {self.job.seq_len}"

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer; empty once the arm has failed, which is remembered and reported."""
        if self.failure is not None:
            return {}
        try:
            return self.worker.ask(request, limit_s)
        except WorkerFailedError as error:
            self.failure = str(error)
            print(f"{self.name}: {error}\n{self.worker.last_output()}", file=sys.stderr, flush=True)
            self.worker.close()
            return {}

    def measure(self) -> None:
        answer = self.ask({"do": "measure", "steps": STEPS_A_ROUND}, MEASURE_LIMIT_S)
        if answer:
            self.milliseconds += answer["milliseconds"]
            self.block_ms.append(answer["block_ms"])


def prepare(model: str, batch_size: int, seq_lens: list[int], folder: Path) -> tuple[Job, dict[str, Any]]:
    """Write the checkpoint and compute the reference losses, in a process that is gone before anything is timed."""
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    directory = folder / "checkpoint"
    with WorkerProcess("prepare", folder / "prepare") as worker:
        try:
            written = worker.ask(
                {"do": "checkpoint", "model": model, "directory": str(directory), "device": device}, PREPARE_LIMIT_S
            )
            job = Job("", model, batch_size, 0, device, str(directory), written["tokenized"])
            shaped = [replace(job, seq_len=seq_len).as_dict() for seq_len in seq_lens]
            losses = worker.ask({"do": "reference", "jobs": shaped}, PREPARE_LIMIT_S)["losses"]
        except WorkerFailedError:
            print(worker.last_output(), file=sys.stderr)
            raise
    return job, {"losses": dict(zip(seq_lens, losses, strict=True)), "environment": written["environment"]}


def sittings(seq_len: int) -> list[tuple[str, ...]]:
    """The arms of one length in groups that are open at one time; those that compile wait for each other alone."""
    at_once = max(2, min(len(ARMS), ARMS_AT_2048 * 2048 // seq_len))
    compiled = tuple(arm for arm in ARMS if arm in COMPILED)
    others = tuple(arm for arm in ARMS if arm not in COMPILED)
    if at_once >= len(ARMS):
        return [ARMS]
    return [kind[first : first + at_once] for kind in (others, compiled) for first in range(0, len(kind), at_once)]


def run_sitting(jobs: list[Job], folder: Path) -> list[Running]:
    """Open arms side by side, then time them in interleaved rounds."""
    folder.mkdir()
    with ExitStack() as stack:
        arms = [
            Running(job, stack.enter_context(WorkerProcess(job.arm, folder / f"{job.arm}-{job.seq_len}")))
            for job in jobs
        ]
        _in_parallel(arms)
        for _ in range(ROUNDS):
            for arm in arms:
                with arm.worker.alone(other.worker for other in arms):
                    arm.measure()
        print(f"measured: {', '.join(arm.name for arm in arms)}", file=sys.stderr, flush=True)
        for arm in arms:
            arm.finish = arm.ask({"do": "finish"}, MEASURE_LIMIT_S)
    return arms


def run_length(base: Job, seq_len: int, folder: Path) -> Iterator[list[Running]]:
    """The arms of one length, sitting by sitting. One that had no memory beside others is opened again alone."""
    for number, arms in enumerate(sittings(seq_len)):
        jobs = [replace(base, arm=arm, seq_len=seq_len) for arm in arms]
        done = run_sitting(jobs, folder / f"{seq_len}-{number}")
        crowded = [arm for arm in done if len(jobs) > 1 and OUT_OF_MEMORY in (arm.failure or "")]
        yield [arm for arm in done if arm not in crowded]
        for arm in crowded:
            yield run_sitting([arm.job], folder / f"{seq_len}-{number}-{arm.job.arm}-alone")


def measure_floors(base: Job, seq_len: int, folder: Path) -> dict[str, Any]:
    """`benchmarks.floor.StepAndFloors.described` of this shape, from a process of its own."""
    with WorkerProcess("floors", folder / f"floors-{seq_len}") as worker:
        job = replace(base, arm="graphed", seq_len=seq_len)
        return worker.ask({"do": "floors", "job": job.as_dict()}, OPEN_LIMIT_S)


def _in_parallel(arms: list[Running]) -> None:
    def open_one(arm: Running) -> None:
        arm.ready = arm.ask({"do": "open", "job": arm.job.as_dict()}, OPEN_LIMIT_S)
        state = f"ready after {arm.ready['startup_s']:.0f} s" if arm.ready else f"FAILED: {arm.failure}"
        print(f"{arm.name}: {state}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(len(arms)) as pool:
        list(pool.map(open_one, arms))


def collect(
    arms: Iterable[Running],
    prepared: dict[str, Any],
    base: Job,
    seconds: float,
    floors: dict[int, dict[str, Any]],
    late: Iterable[str],
) -> PeerRun:
    """What was measured, and which arms are absent and why; ``late`` are those that time did not suffice for."""
    measured = []
    absent = dict.fromkeys(late, "not started: out of time")
    for arm in arms:
        if arm.failure is not None:
            absent[arm.name] = arm.failure
            continue
        measured.append(
            Measured(
                arm=arm.job.arm,
                seq_len=arm.job.seq_len,
                milliseconds=tuple(arm.milliseconds),
                block_ms=tuple(arm.block_ms),
                loss_step_0=arm.ready["loss_step_0"],
                batch_digest=arm.ready["batch_digest"],
                startup_s=arm.ready["startup_s"],
                peak_gib=arm.finish["peak_gib"],
                peak_reserved_gib=arm.finish["peak_reserved_gib"],
                facts=arm.ready["facts"],
            )
        )
    return PeerRun(
        model=base.model,
        batch_size=base.batch_size,
        measured=tuple(measured),
        absent=absent,
        reference=prepared["losses"],
        environment=prepared["environment"],
        seconds=seconds,
        floors=floors,
    )


def write(run: PeerRun, out: Path) -> None:
    """The files of a run but the plot."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "peers.json").write_text(json.dumps(run.rows(), indent=2) + "\n")
    (out / "details.json").write_text(json.dumps(run.details(), indent=2) + "\n")
    (out / "peers.md").write_text(summary(run))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: rehearses the run, measures nothing of use")
    parser.add_argument("--seq-lens", type=int, nargs="+", help="default: 128 512 2048 4096")
    parser.add_argument("--limit-s", type=float, default=520.0, help="start no sitting after so many seconds")
    arguments = parser.parse_args()
    tiny = arguments.tiny
    model, batch_size, usual = ("tiny", 2, [16, 32]) if tiny else ("qwen2-1.5b", 4, [128, 512, 2048, 4096])
    seq_lens = arguments.seq_lens or usual
    folder = Path(tempfile.mkdtemp(prefix="peers-"))
    try:
        run = measure_all(model, batch_size, seq_lens, folder, arguments.out, arguments.limit_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    plot(run, arguments.out / "peers.svg")
    print(summary(run))
    return 0 if run.complete and run.same_mathematics else 1


def measure_all(model: str, batch_size: int, seq_lens: list[int], folder: Path, out: Path, limit_s: float) -> PeerRun:
    """All arms at all lengths, the shortest first, written into ``out`` after every sitting."""
    began = time.monotonic()
    base, prepared = prepare(model, batch_size, seq_lens, folder)
    print(f"checkpoint and reference after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    arms: list[Running] = []
    floors: dict[int, dict[str, Any]] = {}
    waiting = [f"{arm} at seq {seq_len}" for seq_len in sorted(seq_lens) for arm in ARMS]

    def so_far() -> PeerRun:
        names = {arm.name for arm in arms}
        late = [name for name in waiting if name not in names]
        return collect(arms, prepared, base, time.monotonic() - began, floors, late)

    for seq_len in sorted(seq_lens):
        for done in run_length(base, seq_len, folder):
            arms += done
            write(so_far(), out)
            if time.monotonic() - began > limit_s:
                return so_far()
        try:
            floors[seq_len] = measure_floors(base, seq_len, folder)
        except WorkerFailedError as error:
            print(f"floors at seq {seq_len}: {error}", file=sys.stderr, flush=True)
        write(so_far(), out)
    return so_far()


if __name__ == "__main__":
    sys.exit(main())
