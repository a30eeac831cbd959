"""The throughput probe: one process of a timing comparison, both arms interleaved in it.

After a warm-up, rounds of four blocks in ABBA order; a block is `block_steps` steps between two device
synchronizations, by the host's clock. Both arms walk the same step indices, so their losses can be compared step
by step. Inside a block nothing is done but the steps and one small copy of each batch; losses and digests are
read when the clock stands still.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

# bound here, before a system is imported: it could replace them in their modules
from time import monotonic, process_time
from typing import Any

import torch
from torch import Tensor

from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_records import Block, TimingEvidence
from harness.runners.capture import capture_evidence, capture_record
from harness.runners.opening import opened
from harness.runners.paired import arm_end, arm_start
from harness.runners.profiling import Watched, graph_launches, in_step
from harness.runners.recorder import TIMED_PHASE, Recorder
from harness.runners.reductions import as_hex, combine_on_device
from harness.runners.state_watch import Ends, StateWatch
from harness.system.protocol import HasInputs, TrainingRun
from harness.system.replay import generators

WARMUP_STEPS = 10
WATCHED_STEPS = 5
RAISE_CLOCKS_S = 0.3


@dataclass
class TimedArm:
    """One arm's trainer and the index of its next step."""

    name: str
    planned: PlannedArm
    training: TrainingRun
    run: Run
    recorder: Recorder
    watch: StateWatch
    next_index: int = 0
    _generators: dict[str, Any] = field(default_factory=lambda: generators.states(generators.global_generators()))
    _losses: list[Tensor] = field(default_factory=list)
    _inputs: list[dict[str, Tensor]] = field(default_factory=list)

    @contextmanager
    def own_generators(self) -> Iterator[None]:
        """The process's generators as this arm left them: both arms draw what they would draw alone."""
        known = generators.global_generators()
        generators.restore(known, self._generators)
        yield
        self._generators = generators.states(known)

    def block(self, steps: int, *, profiled: bool = False) -> tuple[float, float, float]:
        """Wall and processor seconds of `steps` steps, and when they began by the machine's monotonic clock.

        Losses and a copy of the batches stay on the device.
        """
        self._losses, self._inputs = [], []
        with self.own_generators():
            timed = self._timed_steps(steps, profiled=profiled)
        self.next_index += steps
        return timed

    def _timed_steps(self, steps: int, *, profiled: bool) -> tuple[float, float, float]:
        shows_inputs = self.training if isinstance(self.training, HasInputs) else None
        synchronize()
        began, worked = monotonic(), process_time()
        for index in range(self.next_index, self.next_index + steps):
            with in_step(profiled):
                self._losses.append(self.training.step(index))
            if shows_inputs is not None:
                self._inputs.append({name: tensor.clone() for name, tensor in shows_inputs.inputs().items()})
        synchronize()
        seconds, processor_seconds = monotonic() - began, process_time() - worked
        return seconds, processor_seconds, began

    def write_block(self) -> None:
        """Write the last block's losses and digests; its steps are over."""
        first = self.next_index - len(self._losses)
        losses = torch.stack([loss.detach().double().reshape(()) for loss in self._losses]).tolist()
        digests = [""] * len(losses)
        if self._inputs:
            values = torch.stack([combine_on_device(inputs) for inputs in self._inputs]).tolist()
            digests = [as_hex(value) for value in values]
        tokens = [self._tokens(first + offset, offset) for offset in range(len(losses))]
        steps = list(range(first, self.next_index))
        self.recorder.series(self.name, 0).rows(steps, losses, digests, [-1] * len(steps), tokens)
        self._losses, self._inputs = [], []

    def watch_launches(self) -> Watched:
        """Graph launches of an untimed block; None launches where there is no CUDA."""
        watched = Watched()
        with ExitStack() as watch:
            if torch.cuda.is_available():
                watch.enter_context(graph_launches(watched, WATCHED_STEPS, replays=True))
            self.block(WATCHED_STEPS, profiled=True)
        return watched

    def _tokens(self, index: int, offset: int) -> int:
        if self._inputs and "tokens" in self._inputs[offset]:
            return self._inputs[offset]["tokens"].numel()
        lengths = self.run.workload.seq_len
        length = lengths[index % len(lengths)] if isinstance(lengths, list) else lengths
        return self.run.workload.batch_size * length


def execute(run: Run, recorder: Recorder) -> None:
    """Build both arms, warm up, time, then watch the launches of one untimed block."""
    candidate, baseline = str(run.settings["candidate"]), str(run.settings["baseline"])
    block_steps, blocks = count_setting(run, "block_steps"), count_setting(run, "blocks")
    with ExitStack() as stack:
        arms: dict[str, TimedArm] = {}
        for name in (baseline, candidate):
            recorder.phase(f"{name}: open")
            training = stack.enter_context(opened(run, name))
            watch = StateWatch(training)
            recorder.write(arm_start(training, name, 0, watch))
            arms[name] = TimedArm(name, run.arms[name], training, run, recorder, watch)
        for arm in arms.values():
            recorder.phase(f"{arm.name}: warm-up")
            arm.block(1)
            arm.watch.after_first_step()
            arm.block(WARMUP_STEPS - 1)
            recorder.heartbeat()
        raise_clocks()
        recorder.phase(TIMED_PHASE)
        timed = _timed_rounds(arms[candidate], arms[baseline], rounds=blocks // 2, steps=block_steps)
        ends = Ends()
        for arm in arms.values():
            with arm.own_generators():
                recorder.write(arm_end(arm.training, arm.name, 0, arm.next_index, arm.watch, ends))
        recorder.phase("watch launches")
        watched = {arm.name: _watch_and_record(arm) for arm in arms.values()}
        recorder.write(
            TimingEvidence(
                process=run.process,
                candidate=candidate,
                baseline=baseline,
                blocks=timed,
                observed_steps=WATCHED_STEPS,
                processors=os.cpu_count(),
                observed_graph_launches={name: seen.graph_launches or 0 for name, seen in watched.items()},
                observed_device_seconds={
                    name: seen.device_seconds / WATCHED_STEPS
                    for name, seen in watched.items()
                    if seen.device_seconds is not None
                },
            )
        )


def raise_clocks() -> None:
    """Keep the GPU busy for a moment: a warm-up of short steps leaves it at the clocks of an idle one (345 MHz)."""
    if not torch.cuda.is_available():
        return
    values = torch.zeros(2**24, device="cuda")
    until = monotonic() + RAISE_CLOCKS_S
    while monotonic() < until:
        for _ in range(20):
            values.cos_()
        torch.cuda.synchronize()


def _timed_rounds(candidate: TimedArm, baseline: TimedArm, *, rounds: int, steps: int) -> list[Block]:
    timed = []
    for number in range(rounds):
        for position, arm in enumerate((candidate, baseline, baseline, candidate)):
            first = arm.next_index
            seconds, processor_seconds, began = arm.block(steps)
            arm.write_block()
            timed.append(
                Block(
                    arm=arm.name,
                    round=number,
                    position=position,
                    steps=steps,
                    seconds=seconds,
                    first_step=first,
                    processor_seconds=processor_seconds,
                    began=began,
                )
            )
    return timed


def _watch_and_record(arm: TimedArm) -> Watched:
    record = capture_record(arm.training, arm.planned)
    watched = arm.watch_launches()
    if arm.planned.arm.capture != "none":
        arm.recorder.write(capture_evidence(arm.training, arm.name, 0, record, watched))
    return watched


def count_setting(run: Run, name: str) -> int:
    """A whole number among the run's settings. Raises TypeError for anything else."""
    value = run.settings[name]
    if not isinstance(value, int):
        raise TypeError(f"the setting {name!r} of a throughput run is a number, not {value!r}")
    return value


_on_cuda, _wait_for_device = torch.cuda.is_available(), torch.cuda.synchronize


def synchronize() -> None:
    """Wait for the device, where there is one."""
    if _on_cuda:
        _wait_for_device()
