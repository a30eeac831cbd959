"""Train one arm in many blocks of steps (probe `long_replay`), and record digests, memory and time of each block.

A block's time begins and ends when the device is synchronized. The time includes copies that the harness makes in each
step, so it can only be compared with the times of other blocks. Only the candidate's time is judged, and only the
candidate is alone on the machine.

If the trainer raises an error after the first block, the training ends, and the steps before the error are evidence.

After the candidate's last step, a second copy of its arm is opened and captured. The old arm and this fresh arm take
turns, so that a slow period of the machine affects both arms.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

# Import this function before any user code is imported, because user code could replace the function in its module.
from time import monotonic

import torch

from harness.devices.device import has_cuda, synchronize
from harness.devices.device_memory import memory_sample
from harness.evidence.arm_records import LongReplayEvidence, ReplayBlock, ReplayRound
from harness.evidence.plan_records import Run
from harness.execution.arm import ArmLife
from harness.execution.opening import REPLAY_ROUNDS, WARMUP_STEPS, release_memory, replay_block_steps
from harness.execution.probes.timed_arm import TimedArm
from harness.execution.recorder import Recorder, SeriesWriter, StepRows
from harness.execution.watchers.capture_attempts import attempts_of
from harness.numbers import counted
from harness.system.users_code import message_of

FEWEST_ROUNDS = 8  # the smallest number of rounds for which the median has a 99 % confidence interval
# share of the wall limit after which no round begins; the time for opening the fresh arm counts, too
TURNS_UNTIL = 0.8
# number of elements of `Yardstick`'s tensor on a GPU; a kernel takes a few microseconds, about as long as its launch
YARDSTICK_ELEMENTS = 2**20
YARDSTICK_LAUNCHES = 200
YARDSTICK_PASSES = 20_000  # passes of `Yardstick`'s loop without a GPU; they take about a millisecond


def execute(run: Run, recorder: Recorder) -> None:
    """Train the run's arm for all steps of its workload, and record each block. Only if the arm is the candidate,
    train it alone on the machine, and after the training time it and a fresh copy of it in turns."""
    (arm,) = run.arms
    until = monotonic() + TURNS_UNTIL * run.wall_limit_s
    is_timed = arm == run.settings["candidate"]
    with ArmLife(run, arm, recorder, follows=not is_timed) as life:
        life.start()
        life.phase("steps")
        with recorder.alone() if is_timed else nullcontext():
            evidence = _blocks(life)
        life.end()
        life.census()
        recorder.write(evidence.model_copy(update=_next_to_a_fresh_run(life, until)) if is_timed else evidence)


def _next_to_a_fresh_run(old: ArmLife, until: float) -> dict[str, object]:
    """Time the old arm and a fresh copy of it in turns. Return fields of a record: the rounds, or the reason why there
    are none.

    until: time, on the monotonic clock, at which the last round must have ended. A worker that reaches its wall limit
    is killed, and the evidence of its run is incomplete.
    """
    arms = [TimedArm(old, attempts_of(old.training))]
    try:
        with ArmLife(old.run, old.arm, old.recorder) as life:
            fresh = TimedArm(life, attempts_of(life.training))
            fresh.block(WARMUP_STEPS)
            old.phase("turns with a fresh run")
            arms += [fresh, fresh, *arms]
            with old.recorder.alone():
                rounds: list[list[float]] = []
                now, took = monotonic(), 0.0
                while len(rounds) < REPLAY_ROUNDS and now + took < until:
                    rounds.append([_seconds_a_step(arm) for arm in arms])
                    now, took = monotonic(), monotonic() - now
    except Exception as error:
        # For example, the memory may be too small for two open arms. The run does not fail, because all its other
        # evidence exists.
        return {"no_rounds": f"{type(error).__name__}: {error}"}
    if len(rounds) < FEWEST_ROUNDS:
        return {"no_rounds": f"{counted(len(rounds), 'round')} within the run's time limit; {FEWEST_ROUNDS} are needed"}
    return {"rounds": [ReplayRound(old=(a, d), fresh=(b, c)) for a, b, c, d in rounds]}


def _seconds_a_step(arm: TimedArm) -> float:
    steps = replay_block_steps(arm.life.run)
    seconds = arm.block(steps).wall
    arm.life.recorder.heartbeat()
    return seconds / steps


def _blocks(life: ArmLife) -> LongReplayEvidence:
    every, steps = life.run.settings["every"], life.run.workload.steps
    if not isinstance(every, int):
        raise TypeError(f"the setting 'every' of a long replay must be a whole number, not {every!r}")
    seen = SeenSteps(life.recorder.series(life.arm, life.replica))
    kept = life.begin(steps, seen)
    yardstick = Yardstick()
    blocks: list[ReplayBlock] = []
    ended = None
    for first in range(0, steps, every):
        indices = range(first, min(first + every, steps))
        synchronize()
        began = monotonic()
        for index in indices:
            try:
                life.step(index)
            except Exception as error:
                if not blocks:
                    raise
                # A CUDA error persists in the process: if the error was a CUDA error, the call below raises it again,
                # and the arm fails. After any other error only the training ends.
                release_memory()
                ended = message_of(error)
                break
        kept.write()
        synchronize()
        seconds = monotonic() - began
        if life.steps_called > first:
            blocks.append(seen.block(seconds, yardstick.seconds()))
        if ended is not None:
            break
    return LongReplayEvidence(
        arm=life.arm,
        replica=life.replica,
        every=every,
        distinct_batches=seen.distinct_batches,
        blocks=blocks,
        ended=ended,
    )


class SeenSteps:
    """Receives the rows of all steps instead of the series file. Writes only each block's last row to this file."""

    def __init__(self, series: SeriesWriter) -> None:
        self._series = series
        self._batches: set[str] = set()
        self._clear()

    def _clear(self) -> None:
        self._steps: list[int] = []
        self._losses = hashlib.sha256()
        self._digests = hashlib.sha256()
        self._first_non_finite: int | None = None
        self._last: tuple[int, float, str, int, int] | None = None
        self._metrics: Mapping[str, Sequence[float]] = {}

    @property
    def distinct_batches(self) -> int:
        return len(self._batches)

    def rows(self, block: StepRows) -> None:
        """Receive the rows of some steps. Keep only digests of all rows, and the last row."""
        for row in zip(*block[:5], strict=True):
            step, loss, digest, *_ = row
            if self._first_non_finite is None and not math.isfinite(loss):
                self._first_non_finite = step
            self._losses.update(struct.pack("<d", loss))
            self._digests.update(digest.encode() + b"\n")
            self._batches.add(digest)
            self._steps.append(step)
            self._last = row
        self._metrics = {name: values[-1:] for name, values in block.metrics.items()}

    def block(self, seconds: float, yardstick_seconds: float) -> ReplayBlock:
        """Write the last row to the series. Return a summary of the rows since the last call, with the memory in use.

        seconds: the time of the block. yardstick_seconds: the time that a fixed amount of work took after the block,
        which shows how fast the machine was.
        """
        if self._last is None:
            raise RuntimeError("a block needs at least one step; this is a defect of the harness, please report it")
        step, loss, digest, clipped, tokens = self._last
        self._series.rows(StepRows([step], [loss], [digest], [clipped], [tokens], self._metrics))
        memory = memory_sample(self._steps[-1])
        block = ReplayBlock(
            first_step=self._steps[0],
            steps=len(self._steps),
            losses=self._losses.hexdigest()[:32],
            batches=self._digests.hexdigest()[:32],
            first_non_finite=self._first_non_finite,
            seconds=seconds,
            yardstick_seconds=yardstick_seconds,
            allocated_bytes=None if memory is None else memory.allocated_bytes,
            reserved_bytes=None if memory is None else memory.reserved_bytes,
        )
        self._clear()
        return block


class Yardstick:
    """A fixed amount of work, on the GPU if there is one. Its duration shows the machine's current speed."""

    def __init__(self) -> None:
        self._values = torch.zeros(YARDSTICK_ELEMENTS if has_cuda() else 1, device="cuda" if has_cuda() else "cpu")
        self.seconds()  # the first call loads the kernel, which would make the first measurement too long

    def seconds(self) -> float:
        """Do the work, and return how many seconds this took."""
        synchronize()
        began = monotonic()
        if has_cuda():
            for _ in range(YARDSTICK_LAUNCHES):
                self._values.cos_()
        else:
            value = 0
            for number in range(YARDSTICK_PASSES):
                value += number * number
        synchronize()
        return monotonic() - began
