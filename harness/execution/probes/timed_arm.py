"""Time blocks of steps of one arm, each block between two device synchronizations, and combine blocks into rounds.

A round has four blocks: candidate, baseline, baseline, candidate. It does not matter whether both arms are in one
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field

# Import these functions before any user code is imported, because user code could replace the functions in their
# module.
from time import monotonic, process_time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.devices.device import has_cuda, synchronize
from harness.devices.profiler import Watched, graph_launches, in_step
from harness.devices.torch_settings import restore_torch_settings, torch_settings
from harness.evidence.plan_records import Run
from harness.evidence.run_records import Block, TimingEvidence
from harness.execution import rank_seat
from harness.execution.arm import ArmLife
from harness.execution.opening import MOST_ROUNDS, TIMED_WATCHED_STEPS, count_setting
from harness.execution.rank_seat import agreed
from harness.execution.recorder import Recorder, StepRows
from harness.execution.series_block import Shapes, batch_digests, shapes_of_inputs, tokens_of
from harness.execution.watchers.capture_attempts import CaptureAttempts
from harness.execution.watchers.reductions import made_of, stacked
from harness.system.adapter_checks import require_loss
from harness.system.protocol import HasInputs, TrainingRun
from harness.system.replay import generators

PROFILED_PROCESS = 0  # number of a claim's only process in which steps are profiled

TimedBlock = Callable[[str, int, int, int], Block]
"""Times a block. Arguments: name of the arm, number of the round, position of the block in the round, number of
steps."""


def timed_rounds(run: Run, timed_block: TimedBlock, disturbed: Callable[[Block], bool]) -> list[Block]:
    """Time the rounds that the run requires, and return their blocks. For each disturbed round, time one more round.
    The number of these additional rounds is at most the number of required rounds.

    timed_block: times one block. disturbed: returns True if other work disturbed the block.
    """
    candidate, baseline = arms_of(run)
    rounds, steps = count_setting(run, "blocks") // 2, count_setting(run, "block_steps")
    timed: list[Block] = []
    undisturbed_rounds, number = 0, 0
    while number < rounds or (undisturbed_rounds < rounds and number < MOST_ROUNDS * rounds):
        order = enumerate((candidate, baseline, baseline, candidate))
        blocks = [timed_block(arm, number, position, steps) for position, arm in order]
        undisturbed_rounds += not agreed(any(disturbed(block) for block in blocks))
        timed += blocks
        number += 1
    return timed


def arms_of(run: Run) -> tuple[str, str]:
    """Return the names of the candidate arm and the baseline arm."""
    return str(run.settings["candidate"]), str(run.settings["baseline"])


def joined_timing(run: Run, blocks: list[Block], seen: list[TimingEvidence]) -> TimingEvidence:
    """Join the evidence of the two processes of a timing of two commits. Each process plants an event to test its
    detector. In the joined evidence, the planted event counts as seen only if each process saw its own event."""
    planted = [each.profiler_sees_planted for each in seen if each.profiler_sees_planted is not None]
    counted = [each.counter_sees_planted for each in seen if each.counter_sees_planted is not None]
    candidate, baseline = arms_of(run)
    return TimingEvidence(
        process=run.process,
        candidate=candidate,
        baseline=baseline,
        blocks=blocks,
        observed_steps=min(each.observed_steps for each in seen),
        processors=seen[0].processors,
        observed_graph_launches={arm: n for each in seen for arm, n in each.observed_graph_launches.items()},
        observed_device_seconds={arm: s for each in seen for arm, s in each.observed_device_seconds.items()},
        profiler_sees_planted=all(planted) if planted else None,
        counter_sees_planted=all(counted) if counted else None,
        counter_failure=next((each.counter_failure for each in seen if each.counter_failure is not None), None),
        own_processes=True,
    )


RAISE_CLOCKS_S = 0.15


class BlockTimes(NamedTuple):
    """The seconds that one block took: on the host's clock (wall), and in this process's processor time (processor)."""

    wall: float
    processor: float
    began: float  # start of the block, in seconds on the machine's monotonic clock
    # Seconds until the call of the first step returned. At the start of a block the device is idle, so the host did not
    # have to wait for earlier work of the device.
    enqueue: float


@dataclass
class TimedArm:
    """An open arm whose steps are made in blocks."""

    life: ArmLife
    attempts: CaptureAttempts = field(default_factory=CaptureAttempts)
    _generators: dict[str, Any] = field(default_factory=lambda: generators.states(generators.global_generators()))
    _settings: dict[str, Any] = field(default_factory=torch_settings)
    _losses: list[Tensor] = field(default_factory=list)
    _inputs: list[dict[str, Tensor]] = field(default_factory=list)
    _shapes: set[Shapes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.training: TrainingRun = self.life.training

    @contextmanager
    def own_globals(self) -> Iterator[None]:
        """Set the random generators and torch's settings, for the `with` block, to the state that this arm left at the
        end of its last block.

        Each arm therefore draws the same random numbers as if no other arm were open, and keeps the settings that it
        has made. Captures within the `with` block count as this arm's captures.
        """
        known = generators.global_generators()
        generators.restore(known, self._generators)
        restore_torch_settings(self._settings)
        with self.attempts.working():
            yield
        self._generators, self._settings = generators.states(known), torch_settings()

    def block(self, steps: int, *, profiled: bool = False, drawing: bool = False) -> BlockTimes:
        """Make `steps` steps and return their times. Losses and copies of the batches stay on the device. drawing: True
        to record the operators that draw random numbers. Recording makes the block slower."""
        self._losses, self._inputs = [], []
        draws = self.life.watch_of_draws(self.life.steps_called) if drawing else None
        with self.own_globals(), draws or nullcontext(), draws.watch if draws else nullcontext():
            timed = self._timed_steps(steps, profiled=profiled)
        self.life.steps_called += steps
        return timed

    def _timed_steps(self, steps: int, *, profiled: bool) -> BlockTimes:
        shows_inputs = self.training if isinstance(self.training, HasInputs) else None
        first = self.life.steps_called
        synchronize()
        began, worked = monotonic(), process_time()
        enqueued = began
        for index in range(first, first + steps):
            with in_step(profiled):
                self._losses.append(self.training.step(index))
            if index == first:
                enqueued = monotonic()
            if shows_inputs is not None:
                self._inputs.append({name: tensor.clone() for name, tensor in shows_inputs.inputs().items()})
        synchronize()
        seconds, processor_seconds = monotonic() - began, process_time() - worked
        return BlockTimes(seconds, processor_seconds, began, enqueued - began)

    def note_inputs(self) -> None:
        """Store two facts about the inputs for the record of the arm's end: their names in the block that just ended,
        and the number of their different shapes so far."""
        if self._inputs:
            self._shapes |= {shapes_of_inputs(made_of(inputs)) for inputs in self._inputs}
            self.life.input_names, self.life.input_shapes = sorted(self._inputs[-1]), len(self._shapes)

    def write_block(self) -> None:
        """Write the last block's losses and digests. Call this after the block."""
        self.note_inputs()
        first = self.life.steps_called - len(self._losses)
        one_number = [require_loss(loss, self.training.step, "step(index)") for loss in self._losses]
        losses = stacked([loss.detach().double().reshape(()) for loss in one_number]).tolist()
        digests = batch_digests(self._inputs) if self._inputs else [""] * len(losses)
        steps = list(range(first, self.life.steps_called))
        inputs = self._inputs or [{}] * len(steps)
        tokens = [tokens_of(self.life.run, index, read) for index, read in zip(steps, inputs, strict=True)]
        series = self.life.recorder.series(self.life.arm, self.life.replica)
        series.rows(StepRows(steps, losses, digests, [-1] * len(steps), tokens))
        self._losses, self._inputs = [], []

    def watch_launches(self) -> Watched:
        """Make an untimed block while no other run uses the machine. Return what was observed in the block. Without
        CUDA, the number of graph launches is None."""
        watched = Watched()
        with ExitStack() as watch, ExitStack() as solitude:
            if has_cuda():
                solitude.enter_context(undisturbed(self.life.recorder))
                steps, ranks = TIMED_WATCHED_STEPS, rank_seat.ranks()
                watch.enter_context(graph_launches(watched, steps, ranks=ranks, replays=True, over=solitude.close))
            self.block(TIMED_WATCHED_STEPS, profiled=True)
        return watched


@contextmanager
def undisturbed(recorder: Recorder) -> Iterator[None]:
    """Stop all other runs for the duration of the `with` block. Before the block, keep the GPU busy for a moment, so
    that the block begins with a high GPU clock."""
    with recorder.alone():
        raise_clocks()
        yield


def raise_clocks() -> None:
    """Keep the GPU busy for a moment, so that its clock rises. After a warm-up that has only short steps, the GPU would
    still run at its idle clock (345 MHz)."""
    if not has_cuda():
        return
    values = torch.zeros(2**24, device="cuda")
    until = monotonic() + RAISE_CLOCKS_S
    while monotonic() < until:
        for _ in range(20):
            values.cos_()
        synchronize()
