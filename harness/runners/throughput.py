"""The throughput probe: one process of a timing comparison, both arms interleaved in it.

After a warm-up, rounds of four blocks in ABBA order; a block is `block_steps` steps between two device
synchronizations, by the host's clock. Both arms walk the same step indices, so their losses can be compared step
by step. Inside a block nothing is done but the steps and one small copy of each batch; losses and digests are
read when the clock stands still.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_records import Block, TimingEvidence
from harness.runners.capture import Watched, capture_evidence, capture_record, graph_launches
from harness.runners.opening import opened
from harness.runners.paired import arm_end, arm_start
from harness.runners.recorder import TIMED_PHASE, Recorder
from harness.runners.reductions import as_hex, combine_on_device
from harness.system.protocol import HasInputs, TrainingRun

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
    next_index: int = 0
    _losses: list[Tensor] = field(default_factory=list)
    _inputs: list[dict[str, Tensor]] = field(default_factory=list)

    def block(self, steps: int) -> tuple[float, float, float]:
        """Wall and processor seconds of `steps` steps, and when they began by the machine's monotonic clock.

        Losses and a copy of the batches stay on the device.
        """
        shows_inputs = self.training if isinstance(self.training, HasInputs) else None
        self._losses, self._inputs = [], []
        synchronize()
        began, worked = time.monotonic(), time.process_time()
        for index in range(self.next_index, self.next_index + steps):
            self._losses.append(self.training.step(index))
            if shows_inputs is not None:
                self._inputs.append({name: tensor.clone() for name, tensor in shows_inputs.inputs().items()})
        synchronize()
        seconds, processor_seconds = time.monotonic() - began, time.process_time() - worked
        self.next_index += steps
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
        watched = Watched(steps=WATCHED_STEPS)
        with ExitStack() as watch:
            if torch.cuda.is_available():
                watch.enter_context(graph_launches(watched))
            self.block(WATCHED_STEPS)
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
            recorder.write(arm_start(training, name, 0))
            arms[name] = TimedArm(name, run.arms[name], training, run, recorder)
        for arm in arms.values():
            recorder.phase(f"{arm.name}: warm-up")
            arm.block(WARMUP_STEPS)
            recorder.heartbeat()
        raise_clocks()
        recorder.phase(TIMED_PHASE)
        timed = _timed_rounds(arms[candidate], arms[baseline], rounds=blocks // 2, steps=block_steps)
        for arm in arms.values():
            recorder.write(arm_end(arm.training, arm.name, 0, arm.next_index))
        recorder.phase("watch launches")
        watched = {arm.name: _watch_and_record(arm) for arm in arms.values()}
        recorder.write(
            TimingEvidence(
                process=run.process,
                candidate=candidate,
                baseline=baseline,
                blocks=timed,
                observed_steps=WATCHED_STEPS,
                observed_graph_launches={name: seen.graph_launches or 0 for name, seen in watched.items()},
                observed_device_seconds={
                    name: seen.device_seconds / seen.steps
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
    until = time.monotonic() + RAISE_CLOCKS_S
    while time.monotonic() < until:
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


def synchronize() -> None:
    """Wait for the device, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
