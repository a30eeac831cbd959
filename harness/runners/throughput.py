"""The throughput probe: one process of a timing comparison, both arms interleaved in it.

After a warm-up, rounds of four blocks in ABBA order; a block is `block_steps` steps between two device
synchronizations, by the host's clock. Both arms walk the same step indices, so their losses can be compared step
by step. Inside a block nothing is done but the steps and one small copy of each batch; losses and digests are
read when the clock stands still, and the processor's pace is measured before and after.

On CUDA one process of a claim is profiled, in untimed blocks afterwards: what the device did there holds for the claim.
The others count graph launches in the timed blocks themselves. Counting and profiling exclude each other
(`launch_counter`). Only what is timed or profiled waits for its turn alone on the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field

# bound here, before a system is imported: it could replace them in their modules
from time import monotonic, process_time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_records import Block, TimingEvidence
from harness.runners.capture import capture_evidence, capture_record
from harness.runners.launch_counter import counter_of_this_process
from harness.runners.opening import opened
from harness.runners.pace import Paces, slower
from harness.runners.paired import arm_end, arm_start
from harness.runners.profiling import Watched, graph_launches, in_step, prime_profiler
from harness.runners.recorder import TIMED_PHASE, Recorder
from harness.runners.series_block import batch_digests
from harness.runners.state_watch import Ends, StateWatch
from harness.system.adapter_checks import require_loss
from harness.system.protocol import HasInputs, TrainingRun
from harness.system.replay import generators

WARMUP_STEPS = 10
WATCHED_STEPS = 5
PROFILED_PROCESS = 0  # of a claim's processes
RAISE_CLOCKS_S = 0.15
MOST_ROUNDS = 2  # times as many as are demanded: where something else works on the processor, for what that spoils


class BlockTimes(NamedTuple):
    """Seconds of one block."""

    wall: float
    processor: float
    began: float  # by the machine's monotonic clock
    enqueue: float  # until its first step returned: nothing was on the device that the host could have waited for


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

    def block(self, steps: int, *, profiled: bool = False) -> BlockTimes:
        """The times of `steps` steps. Losses and a copy of the batches stay on the device."""
        self._losses, self._inputs = [], []
        with self.own_generators():
            timed = self._timed_steps(steps, profiled=profiled)
        self.next_index += steps
        return timed

    def _timed_steps(self, steps: int, *, profiled: bool) -> BlockTimes:
        shows_inputs = self.training if isinstance(self.training, HasInputs) else None
        synchronize()
        began, worked = monotonic(), process_time()
        enqueued = began
        for index in range(self.next_index, self.next_index + steps):
            with in_step(profiled):
                self._losses.append(self.training.step(index))
            if index == self.next_index:
                enqueued = monotonic()
            if shows_inputs is not None:
                self._inputs.append({name: tensor.clone() for name, tensor in shows_inputs.inputs().items()})
        synchronize()
        seconds, processor_seconds = monotonic() - began, process_time() - worked
        return BlockTimes(seconds, processor_seconds, began, enqueued - began)

    def write_block(self) -> None:
        """Write the last block's losses and digests; its steps are over."""
        first = self.next_index - len(self._losses)
        one_number = [require_loss(loss, self.training.step, "step(index)") for loss in self._losses]
        losses = torch.stack([loss.detach().double().reshape(()) for loss in one_number]).tolist()
        digests = batch_digests(self._inputs) if self._inputs else [""] * len(losses)
        tokens = [self._tokens(first + offset, offset) for offset in range(len(losses))]
        steps = list(range(first, self.next_index))
        self.recorder.series(self.name, 0).rows(steps, losses, digests, [-1] * len(steps), tokens)
        self._losses, self._inputs = [], []

    def watch_launches(self) -> Watched:
        """Graph launches of an untimed block, alone on the machine; None launches where there is no CUDA."""
        watched = Watched()
        with ExitStack() as watch, ExitStack() as solitude:
            if _on_cuda:
                solitude.enter_context(undisturbed(self.recorder))
                watch.enter_context(graph_launches(watched, WATCHED_STEPS, replays=True, over=solitude.close))
            self.block(WATCHED_STEPS, profiled=True)
        return watched

    def _tokens(self, index: int, offset: int) -> int:
        if self._inputs and "tokens" in self._inputs[offset]:
            return self._inputs[offset]["tokens"].numel()
        lengths = self.run.workload.seq_len
        length = lengths[index % len(lengths)] if isinstance(lengths, list) else lengths
        return self.run.workload.batch_size * length


def execute(run: Run, recorder: Recorder) -> None:
    """Build both arms, warm up, time; then watch one untimed block an arm where the process is to be profiled."""
    candidate, baseline = str(run.settings["candidate"]), str(run.settings["baseline"])
    block_steps, blocks = count_setting(run, "block_steps"), count_setting(run, "blocks")
    counter = counter_of_this_process() if _on_cuda and run.process != PROFILED_PROCESS else None
    with ExitStack() as stack:
        arms: dict[str, TimedArm] = {}
        paces = Paces()
        for name in (baseline, candidate):
            paces.look()
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
            paces.look()
            recorder.heartbeat()
        with counter or nullcontext(), undisturbed(recorder):
            recorder.phase(TIMED_PHASE)
            count = counter.count if counter is not None else _uncounted
            timed = _timed_rounds(arms[candidate], arms[baseline], count, paces, rounds=blocks // 2, steps=block_steps)
            recorder.phase("end")  # telemetry of the timed phase ends before others go on
        ends = Ends()
        for arm in arms.values():
            with arm.own_generators():
                recorder.write(arm_end(arm.training, arm.name, 0, arm.next_index, arm.watch, ends))
        if counter is None and _on_cuda:
            # Not before the timed blocks, which a session may disturb: where there was one on an H200, that process's
            # captured tiny step took 0.43 ms, most others' 0.36. Beside the other runs: the first takes seconds.
            recorder.phase("set up the profiler")
            prime_profiler()
        if counter is None:
            recorder.phase("watch launches")
        else:
            recorder.phase("census")
        watched = {arm.name: _watch_and_record(arm, watch=counter is None) for arm in arms.values()}
        observed = [seen.sees_planted for seen in watched.values() if seen.sees_planted is not None]
        recorder.write(
            TimingEvidence(
                process=run.process,
                candidate=candidate,
                baseline=baseline,
                blocks=timed,
                observed_steps=WATCHED_STEPS if counter is None else 0,
                processors=os.cpu_count(),
                observed_graph_launches={
                    name: seen.graph_launches or 0 for name, seen in watched.items() if counter is None
                },
                observed_device_seconds={
                    name: seen.device_seconds / WATCHED_STEPS
                    for name, seen in watched.items()
                    if seen.device_seconds is not None
                },
                profiler_sees_planted=all(observed) if observed else None,
                counter_sees_planted=counter.sees_planted if counter is not None else None,
                counter_failure=counter.failure if counter is not None else None,
            )
        )


def _uncounted() -> None:
    """What a process without a counter counts."""


@contextmanager
def undisturbed(recorder: Recorder) -> Iterator[None]:
    """Within the block this process is alone on the machine, its GPU at the clocks of a busy one."""
    with recorder.alone():
        raise_clocks()
        yield


def raise_clocks() -> None:
    """Keep the GPU busy for a moment: a warm-up of short steps leaves it at the clocks of an idle one (345 MHz)."""
    if not _on_cuda:
        return
    values = torch.zeros(2**24, device="cuda")
    until = monotonic() + RAISE_CLOCKS_S
    while monotonic() < until:
        for _ in range(20):
            values.cos_()
        torch.cuda.synchronize()


def _timed_rounds(
    candidate: TimedArm,
    baseline: TimedArm,
    count: Callable[[], int | None],
    paces: Paces,
    *,
    rounds: int,
    steps: int,
) -> list[Block]:
    """So many rounds, and up to as many again in place of those that were disturbed.

    `count`: the process's graph launches so far, None where they are not counted.
    """
    timed: list[Block] = []
    undisturbed_rounds, number = 0, 0
    while number < rounds or (undisturbed_rounds < rounds and number < MOST_ROUNDS * rounds):
        blocks = [
            _timed_block(arm, count, paces, number, position, steps)
            for position, arm in enumerate((candidate, baseline, baseline, candidate))
        ]
        undisturbed_rounds += not any(paces.disturbed(block) for block in blocks)
        timed += blocks
        number += 1
    return timed


def _timed_block(
    arm: TimedArm, count: Callable[[], int | None], paces: Paces, number: int, position: int, steps: int
) -> Block:
    first, before, pace_before = arm.next_index, count(), paces.measure()
    times = arm.block(steps)
    pace, after = slower(pace_before, paces.measure()), count()
    arm.write_block()
    return Block(
        arm=arm.name,
        round=number,
        position=position,
        steps=steps,
        seconds=times.wall,
        first_step=first,
        processor_seconds=times.processor,
        began=times.began,
        enqueue_seconds=times.enqueue,
        graph_launches=after - before if after is not None and before is not None else None,
        pace=pace,
    )


def _watch_and_record(arm: TimedArm, *, watch: bool) -> Watched:
    record = capture_record(arm.training, arm.planned)
    watched = arm.watch_launches() if watch else Watched()
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
