"""Time the captured and the uncaptured step of this project, and the steps of common libraries, on one machine.

    python -m benchmarks.peers --out reports/<date>-<gpu>-peers
    python -m benchmarks.peers --out /tmp/rehearsal --tiny      # tiny shapes, to rehearse the run without a GPU

Every arm at every shape has its own process. As many arms as fit in the GPU's memory are started together. Such a group
is called a sitting, and slow arms are started first. When all arms of a sitting are ready, they are timed in turns, one
at a time. The captured step and its floors are timed before all sittings. All arms read the same weights and the same
batches, and the loss of each arm at step 0 is compared with an fp32 reference. The script writes peers.json,
details.json and peers.md after every sitting, and peers.svg at the end.

If the folder contains a run with the same machine, packages and sources, the run is resumed. Its figures are kept, and
only missing figures are measured. So a long run can be made by several calls:

    python -m benchmarks.peers --out DIR --seq-lens 128 512
    python -m benchmarks.peers --out DIR --seq-lens 2048 --shapes 1x8192

Exit code 0: the run is complete, and the losses of all arms agree with the reference. 1: an arm was not measured or
failed, or its loss differs from the reference; the arm is named. 2: the folder contains a run that cannot be resumed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch

from benchmarks.arms.job import Job
from benchmarks.peer_plan import COSTS, FLOORS, Place, Shape, sittings
from benchmarks.peer_run import (
    NOT_ASKED_FOR,
    OUT_OF_TIME,
    Measured,
    OtherRunError,
    PeerRun,
    check_joinable,
    joined,
    ordered,
    place_name,
    places_of,
    read_run,
)
from benchmarks.peers_report import plot, summary
from benchmarks.worker_process import WorkerFailedError, WorkerProcess

ROUNDS = 5
PREPARE_LIMIT_S = 240.0
OPEN_LIMIT_S = 300.0  # on the machine for published runs, compiling one shape took 62 s without other processes
MEASURE_LIMIT_S = 60.0
# Largest number of arms that are open at the same time. Each arm needs a processor core while it compiles, and the
# machine for published runs has 16 cores.
MOST_AT_ONCE = 16
# Matches out-of-memory errors of torch and of CUDA, and the error of cuBLAS if it cannot allocate its workspace.
OUT_OF_MEMORY = re.compile("OutOfMemoryError|out of memory|CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)")


@dataclass
class Running:
    """One arm at one shape, with its process and its measurements so far."""

    job: Job
    worker: WorkerProcess
    sitting: str = ""
    ready: dict[str, Any] = field(default_factory=dict)
    milliseconds: list[float] = field(default_factory=list)
    block_ms: list[float] = field(default_factory=list)
    block_steps: int = 0
    finish: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None

    @property
    def name(self) -> str:
        return place_name(self.job.arm, Shape(self.job.batch_size, self.job.seq_len))

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send a request and return the worker's answer. Return {} if the arm fails now or has failed before.

        A failure is stored, and printed once.
        """
        if self.failure is not None:
            return {}
        try:
            return self.worker.ask(request, limit_s)
        except WorkerFailedError as error:
            self.failure = str(error)
            print(f"{self.name}: {error}\n{self.worker.last_output()}", file=sys.stderr, flush=True)
            self.worker.close()
            return {}

    def open(self) -> None:
        self.ready = self.ask({"do": "open", "job": self.job.as_dict()}, OPEN_LIMIT_S)
        state = f"ready after {self.ready['startup_s']:.0f} s" if self.ready else f"FAILED: {self.failure}"
        print(f"{self.name}: {state}", file=sys.stderr, flush=True)

    def measure(self) -> None:
        if answer := self.ask({"do": "measure"}, MEASURE_LIMIT_S):
            self.milliseconds += answer["milliseconds"]
            self.block_ms.append(answer["block_ms"])
            self.block_steps = answer["block_steps"]

    def measured(self) -> Measured:
        return Measured(
            arm=self.job.arm,
            batch_size=self.job.batch_size,
            seq_len=self.job.seq_len,
            milliseconds=tuple(self.milliseconds),
            block_ms=tuple(self.block_ms),
            block_steps=self.block_steps,
            sitting=self.sitting,
            loss_step_0=self.ready["loss_step_0"],
            batch_digest=self.ready["batch_digest"],
            startup_s=self.ready["startup_s"],
            peak_gib=self.finish["peak_gib"],
            peak_reserved_gib=self.finish["peak_reserved_gib"],
            facts=self.ready["facts"],
        )


class Sitting:
    """Arms that are open at the same time, each in its own process. They are opened in parallel, then timed in turns.

    A sitting is a context manager. The end of the `with` ends the processes.
    """

    def __init__(self, base: Job, places: list[Place], folder: Path, name: str) -> None:
        folder.mkdir()
        with ExitStack() as stack:
            self.arms = [
                Running(
                    replace(base, arm=arm, batch_size=shape.batch_size, seq_len=shape.seq_len),
                    stack.enter_context(WorkerProcess(arm, folder / f"{arm}-{shape}")),
                    name,
                )
                for arm, shape in places
            ]
            self._stack = stack.pop_all()

    def measure(self, following: Sitting | None = None) -> list[Running]:
        """Open the arms, time them and return them.

        following: the next sitting. Its processes import torch while the arms of this sitting are opened. While one arm
        is timed, all other processes are paused, including those of ``following``.
        """
        with ThreadPoolExecutor(len(self.arms)) as pool:
            list(pool.map(Running.open, self.arms))
        everyone = [arm.worker for arm in (*self.arms, *(following.arms if following else ()))]
        for _ in range(ROUNDS):
            for arm in self.arms:
                with arm.worker.alone(everyone):
                    arm.measure()
        for arm in self.arms:
            arm.finish = arm.ask({"do": "finish"}, MEASURE_LIMIT_S)
        return self.arms

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def run_sittings(base: Job, plan: list[list[Place]], folder: Path, call: int) -> Iterator[list[Running]]:
    """Yield the arms of each sitting after they were timed. An arm that ran out of memory is opened again in its own
    sitting."""
    with ExitStack() as stack:

        def start(number: int) -> Sitting:
            return stack.enter_context(Sitting(base, plan[number], folder / f"sitting-{number}", f"{call}.{number}"))

        sitting = start(0)
        for number, places in enumerate(plan):
            following = start(number + 1) if number + 1 < len(plan) else None
            with sitting:
                done = sitting.measure(following)
            crowded = [arm for arm in done if len(places) > 1 and OUT_OF_MEMORY.search(arm.failure or "")]
            yield [arm for arm in done if arm not in crowded]
            for arm in crowded:
                place = (arm.job.arm, Shape(arm.job.batch_size, arm.job.seq_len))
                name = f"{number}-{place[0]}-{place[1]}"
                with Sitting(base, [place], folder / f"alone-{name}", f"{call}.{name}") as alone:
                    yield alone.measure(following)
            if following is not None:
                sitting = following


@dataclass(frozen=True)
class Asked:
    """The options of the command line."""

    model: str
    batch_size: int
    shapes: list[Shape]
    arms: frozenset[str]
    limit_s: float


@dataclass
class Call:
    """One call of the benchmark: the requested figures, the figures of earlier calls, and those measured so far."""

    base: Job
    places: list[Place]  # the arms and shapes that were requested, for all shapes together
    asked: frozenset[str]  # names of requested arms, and `FLOORS` if requested
    before: PeerRun | None
    environment: dict[str, Any]
    began: float  # start time from `time.monotonic`
    reference: dict[str, Any] = field(default_factory=dict)
    arms: list[Running] = field(default_factory=list)
    floors: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed_floors: dict[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def wanted(self) -> list[Place]:
        """Return the requested figures that no earlier call measured."""
        before = self.before
        return [place for place in self.places if place[0] in self.asked and (before is None or before.lacks(place))]

    def run(self) -> PeerRun:
        """Return the run so far, joined with the measurements of earlier calls."""
        measured = tuple(arm.measured() for arm in self.arms if arm.failure is None)
        there = {place_name(arm.arm, arm.shape) for arm in measured} | {f"{FLOORS} at {name}" for name in self.floors}
        absent = {place_name(*place): OUT_OF_TIME if place[0] in self.asked else NOT_ASKED_FOR for place in self.places}
        absent |= {arm.name: arm.failure for arm in self.arms if arm.failure is not None} | self.failed_floors
        now = PeerRun(
            model=self.base.model,
            batch_size=self.base.batch_size,
            measured=ordered(measured),
            absent={name: why for name, why in absent.items() if name not in there},
            reference=self.reference,
            environment=self.environment,
            call_seconds=(self.seconds,),
            floors=self.floors,
        )
        return joined(self.before, now)

    def measure_floors(self, shape: Shape, folder: Path) -> None:
        """Measure the step and its floors at a shape in a separate process, and store the figures or the failure."""
        job = replace(self.base, arm="graphed", batch_size=shape.batch_size, seq_len=shape.seq_len)
        with WorkerProcess(FLOORS, folder / f"floors-{shape}") as worker:
            try:
                self.floors[str(shape)] = worker.ask({"do": "floors", "job": job.as_dict()}, OPEN_LIMIT_S)
            except WorkerFailedError as error:
                self.failed_floors[f"{FLOORS} at {shape}"] = str(error)
                print(f"{FLOORS} at {shape}: {error}\n{worker.last_output()}", file=sys.stderr, flush=True)
        self.say(f"{FLOORS} at {shape}")

    def say(self, what: str) -> None:
        print(f"{what} after {self.seconds:.0f} s", file=sys.stderr, flush=True)


def prepared(asked: Asked, before: PeerRun | None, folder: Path, began: float) -> Call:
    """Return the call. A separate process first writes the checkpoint and computes the reference losses.

    Raises OtherRunError before this, if the run in the folder cannot be resumed.
    """
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    directory = folder / "checkpoint"
    base = Job("", asked.model, asked.batch_size, 0, device, str(directory), "")
    places = places_of(asked.shapes, asked.batch_size)
    with WorkerProcess("prepare", folder / "prepare") as worker:
        try:
            environment = worker.ask({"do": "environment"}, PREPARE_LIMIT_S)["environment"]
            if before is not None:
                check_joinable(before, asked.model, asked.batch_size, environment)
            call = Call(base, places, asked.arms, before, environment, began)
            if not call.wanted:
                return call
            written = worker.ask(
                {"do": "checkpoint", "model": asked.model, "directory": str(directory), "device": device},
                PREPARE_LIMIT_S,
            )
            call.base = replace(base, tokenized=written["tokenized"])
            known = before.reference if before else {}
            shapes = [shape for shape in asked.shapes if str(shape) not in known]
            jobs = [replace(call.base, batch_size=shape.batch_size, seq_len=shape.seq_len) for shape in shapes]
            request = {"do": "reference", "jobs": [job.as_dict() for job in jobs]}
            losses = worker.ask(request, PREPARE_LIMIT_S)["losses"] if jobs else []
            call.reference = {str(shape): found for shape, found in zip(shapes, losses, strict=True)}
        except WorkerFailedError:
            print(worker.last_output(), file=sys.stderr)
            raise
    call.say("checkpoint and reference")
    return call


def measure_all(asked: Asked, folder: Path, out: Path) -> PeerRun:
    """Measure the requested figures that the run in ``out`` does not have yet, and return the run.

    Writes the run after every sitting. Raises OtherRunError if the run in ``out`` cannot be resumed.
    """
    call = prepared(asked, read_run(out), folder, time.monotonic())
    for name, shape in call.wanted:
        if name == FLOORS and call.seconds < asked.limit_s:
            call.measure_floors(shape, folder)
            write(call.run(), out)
    arms = [place for place in call.wanted if place[0] != FLOORS]
    plan = sittings(arms, call.environment["device_memory_gib"], MOST_AT_ONCE)
    number = len(call.before.call_seconds) + 1 if call.before else 1
    if plan and call.seconds < asked.limit_s:
        for done in run_sittings(call.base, plan, folder, number):
            call.arms += done
            call.say(f"measured: {', '.join(arm.name for arm in done)}")
            write(call.run(), out)
            if call.seconds >= asked.limit_s:
                break
    return call.run()


def write(run: PeerRun, out: Path) -> None:
    """Write all files of a run except the plot. If the process is killed, each file has either its old or its new
    content."""
    out.mkdir(parents=True, exist_ok=True)
    texts = {
        "peers.json": json.dumps(run.rows(), indent=2) + "\n",
        "details.json": json.dumps(run.details(), indent=2) + "\n",
        "peers.md": summary(run),
    }
    for name, text in texts.items():
        written = out / f"{name}.part"
        written.write_text(text)
        written.replace(out / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results, or of a run to continue")
    parser.add_argument(
        "--tiny", action="store_true", help="use tiny shapes, to rehearse the run; the figures are useless"
    )
    parser.add_argument("--seq-lens", type=int, nargs="*", help="default: 128 512 2048 4096; the batch is 4")
    parser.add_argument(
        "--shapes", type=Shape.parse, nargs="+", default=[], metavar="BxS", help="further shapes, only for our own arms"
    )
    choices = [*COSTS, FLOORS]
    parser.add_argument("--arms", nargs="+", choices=choices, default=choices, metavar="ARM", help=", ".join(choices))
    parser.add_argument("--limit-s", type=float, default=520.0, help="start no sitting after this number of seconds")
    arguments = parser.parse_args()
    model, batch_size, usual = ("tiny", 2, [16, 32]) if arguments.tiny else ("qwen2-1.5b", 4, [128, 512, 2048, 4096])
    seq_lens = usual if arguments.seq_lens is None else arguments.seq_lens
    shapes = {*(Shape(batch_size, seq_len) for seq_len in seq_lens), *arguments.shapes}
    if not shapes:
        parser.error("no shape is requested; give at least one")
    asked = Asked(model, batch_size, sorted(shapes), frozenset(arguments.arms), arguments.limit_s)
    folder = Path(tempfile.mkdtemp(prefix="peers-"))
    try:
        run = measure_all(asked, folder, arguments.out)
    except OtherRunError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    write(run, arguments.out)
    plot(run, arguments.out / "peers.svg")
    print(summary(run))
    return 0 if run.complete and run.same_mathematics else 1


if __name__ == "__main__":
    sys.exit(main())
