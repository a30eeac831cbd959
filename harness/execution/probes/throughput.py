"""Execute one process of a timing, in which both arms take turns (probe `throughput`).

After a warm-up, rounds of four blocks are timed in ABBA order (A is the candidate, B the baseline). A block is
`block_steps` steps between two device synchronizations, timed by the host's clock. Both arms make steps with the same
indices, so that their losses can be compared step by step. A block contains only the steps and one small copy of each
batch. Losses and digests are read outside of the blocks. The processor's speed is measured before and after each block.

On CUDA, one of a claim's processes makes untimed blocks at its end, in which the GPU's work is profiled. The other
processes count graph launches in the timed blocks. One process cannot both profile and count (see `launch_counter`).
Before timed and profiled blocks, the process waits until it is alone on the machine. If the arms are of two commits,
each arm has a separate process (see `timed_apart`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress

# Import these functions here before user code is imported, because user code could replace them in their modules.
from os import getpid, listdir
from threading import _DummyThread, main_thread
from threading import enumerate as python_threads
from time import clock_gettime

from harness.devices.device import has_cuda
from harness.devices.launch_counter import counter_of_this_process
from harness.devices.profiler import Watched, prime_profiler
from harness.devices.telemetry import Paces, slower
from harness.evidence.plan_records import Run
from harness.evidence.run_records import TIMED_PHASE, Block, TimingEvidence
from harness.execution.arm import ArmLife
from harness.execution.opening import TIMED_WATCHED_STEPS, WARMUP_STEPS
from harness.execution.probes.timed_arm import PROFILED_PROCESS, TimedArm, arms_of, timed_rounds, undisturbed
from harness.execution.recorder import Recorder
from harness.execution.watchers.capture_attempts import attempts_of
from harness.execution.watchers.state_watch import Ends
from harness.system.adapter_checks import AdapterError, names
from harness.system.protocol import CaptureRecord, HasParameters, NotAvailable, TrainingRun
from harness.system.replay.found_state import same

# `Helpers` measures how long an arm's helpers (threads and child processes) work outside of the arm's timed blocks. A
# Python thread or a child process belongs to the arm that was being opened, or was making a step, when the helper
# appeared. A child of a child process belongs to the arm of its parent. Native threads (of OpenMP or autograd) belong
# to no arm, because they work for all arms of the process. Only Linux has a clock for each thread and process.

# clock types of the Linux kernel: CPUCLOCK_SCHED, without and with CPUCLOCK_PERTHREAD_MASK
_OF_A_PROCESS, _OF_A_THREAD = 2, 6


class Helpers:
    """Measures the processor time of each arm's helpers: the Python threads and child processes that the arm started.
    Helpers that existed before the first arm belong to no arm."""

    def __init__(self) -> None:
        self._arms: dict[int, str | None] = dict.fromkeys(clock for clock, _ in _clocks())
        self._before: dict[str, dict[int, float]] = {}

    def note(self, arm: str) -> None:
        """Record that the helpers (threads and child processes) that started since the last call belong to `arm`.
        Forget helpers that have ended."""
        known, self._arms = self._arms, {}
        for clock, parent in _clocks():
            self._arms[clock] = known[clock] if clock in known else self._arms.get(parent, arm)

    def begin(self, arm: str) -> float | None:
        """Return the processor seconds that the arm's helpers (threads, child processes) used since the arm's last
        block; 0 before its first block.

        Return None if the machine has no clocks for helpers. Call this right before a block of `arm` begins, and call
        `end` right after the block.
        """
        if sys.platform != "linux":
            return None
        before, now = self._before.get(arm), self._seconds(arm)
        if before is None:
            return 0.0
        return sum(max(0.0, worked - before.get(clock, 0.0)) for clock, worked in now.items())

    def end(self, arm: str) -> None:
        """Record the processor time that the arm's helpers (threads, child processes) have used so far. Call this right
        after a block: helpers that started in the block are counted too."""
        self.note(arm)
        self._before[arm] = self._seconds(arm)

    def _seconds(self, arm: str) -> dict[int, float]:
        worked = {}
        for clock, owner in self._arms.items():
            if owner == arm:
                with suppress(OSError):  # a helper that has ended has no clock
                    worked[clock] = clock_gettime(clock)
        return worked


def _clocks() -> Iterator[tuple[int, int]]:
    """Yield two clock ids for each Python thread and each descendant process: the id of its own clock, and the id of
    its parent's clock (0 if the parent is this process)."""
    if sys.platform != "linux":
        return
    for thread in python_threads():
        # Leave out native threads that have called Python code. `threading` lists them as dummy threads.
        if thread.native_id is not None and thread is not main_thread() and not isinstance(thread, _DummyThread):
            yield _clock(thread.native_id, _OF_A_THREAD), 0
    yield from _below(getpid(), 0)


def _below(process: int, clock: int) -> Iterator[tuple[int, int]]:
    for task in _entries(f"/proc/{process}/task"):
        for child in _text(f"/proc/{process}/task/{task}/children").split():
            of_child = _clock(int(child), _OF_A_PROCESS)
            yield of_child, clock
            yield from _below(int(child), of_child)


def _clock(number: int, which: int) -> int:
    """Return the id of the Linux clock that counts the processor time of a thread or process. number: id of the thread
    or process. which: the clock type, `_OF_A_PROCESS` or `_OF_A_THREAD`."""
    return (~number << 3) | which


def _entries(folder: str) -> list[str]:
    try:
        return listdir(folder)  # noqa: PTH208
    except OSError:  # the process has ended, so its folder is gone
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123 - once for each of many threads
            return file.read()
    except OSError:
        return ""


def execute(run: Run, recorder: Recorder) -> None:
    """Open both arms, warm them up and time them. If this process is profiled, observe an untimed block of each arm at
    the end."""
    candidate, baseline = arms_of(run)
    with ExitStack() as stack:
        process = TimedProcess(run, recorder, stack)
        for name in (baseline, candidate):
            process.open(name)
        for name in (baseline, candidate):
            process.warm_up(name)
        with process.counting(), undisturbed(recorder):
            recorder.phase(TIMED_PHASE)
            blocks = timed_rounds(run, process.timed_block, process.paces.disturbed)
            # this ends the timed phase, before the observed blocks, which telemetry must not include
            recorder.phase("end")
        process.end()
        recorder.write(process.watch().model_copy(update={"blocks": blocks}))


class TimedProcess:
    """One process of a timing. Its methods are the stages of the timing. stack: closes the opened arms at its end."""

    def __init__(self, run: Run, recorder: Recorder, stack: ExitStack) -> None:
        self.run, self.recorder, self._stack = run, recorder, stack
        self._counter = counter_of_this_process() if has_cuda() and run.process != PROFILED_PROCESS else None
        self.arms: dict[str, TimedArm] = {}
        self.paces = Paces()
        self._helpers = Helpers()
        self._ends = Ends()

    def open(self, name: str) -> None:
        """Open an arm, and record its start state."""
        self.paces.look()
        life = self._stack.enter_context(ArmLife(self.run, name, self.recorder, ends=self._ends))
        life.start()
        self._require_apart(life)
        self.arms[name] = TimedArm(life, attempts_of(life.training))
        self._helpers.note(name)

    def _require_apart(self, opened: ArmLife) -> None:
        """Raise `NotAvailable` if `opened`, the newest arm, trains parameters of an arm that was opened before, or has
        replaced parameters of such an arm."""
        for name, arm in self.arms.items():
            if shared := shared_parameters(arm.training, opened.training):
                raise NotAvailable(
                    f"a timing opens both arms in one process, but arm {opened.arm} took over parameters of arm {name} "
                    f"({shared}): make_step must create new parameters in each call and keep them in its model, not in "
                    "a global variable"
                )

    def warm_up(self, name: str) -> None:
        """Make the first steps of an arm. The arm makes its capture and its compilations in these steps."""
        arm = self.arms[name]
        arm.life.phase("warm-up")
        arm.block(1)
        arm.note_inputs()
        arm.life.state.after_first_step()
        arm.block(1, drawing=True)
        arm.note_inputs()
        arm.block(WARMUP_STEPS - 2)
        arm.note_inputs()
        self._helpers.note(name)
        self.paces.look()
        self.recorder.heartbeat()

    def counting(self) -> AbstractContextManager[object]:
        """Return a context manager that counts graph launches in its `with` block. It does nothing if this process
        counts no launches."""
        return self._counter or nullcontext()

    def timed_block(self, name: str, number: int, position: int, steps: int) -> Block:
        """Time a block of an arm, and return its times. Write the block's losses and digests after the timed part.

        number, position: number of the round, and the block's position in the round.
        """
        arm = self.arms[name]
        first, before, pace_before = arm.life.steps_called, self._launches(), self.paces.measure()
        untimed = self._helpers.begin(name)
        times = arm.block(steps)
        self._helpers.end(name)
        pace, after = slower(pace_before, self.paces.measure()), self._launches()
        arm.write_block()
        return Block(
            arm=name,
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
            untimed_helper_seconds=untimed,
        )

    def _launches(self) -> int | None:
        return None if self._counter is None else self._counter.count()

    def end(self) -> None:
        """Record the end state of each arm."""
        for arm in self.arms.values():
            with arm.own_globals():
                arm.life.end()

    def watch(self) -> TimingEvidence:
        """Return all evidence of the timing except the timed blocks. If launches were not counted in the timed blocks,
        make and observe an untimed block of each arm."""
        counter, watch = self._counter, self._counter is None
        if watch and has_cuda():
            # Set up the profiler only after the timed blocks, because it may slow them. On an H200 a tiny captured step
            # took 0.43 ms with an open profiler, and 0.36 ms without one. The setup takes seconds, so make it before
            # this process stops the other runs.
            self.recorder.phase("set up the profiler")
            prime_profiler()
        if watch:
            self.recorder.phase("watch launches")
        else:
            self.recorder.phase("census")
        records = {name: arm.life.capture() for name, arm in self.arms.items()}
        watched = {name: arm.watch_launches() if watch else Watched() for name, arm in self.arms.items()}
        for name, arm in self.arms.items():  # `census` begins another phase, so call it after all blocks were observed
            _census(arm, records[name], watched[name])
        observed = [seen.sees_planted for seen in watched.values() if seen.sees_planted is not None]
        candidate, baseline = arms_of(self.run)
        return TimingEvidence(
            process=self.run.process,
            candidate=candidate,
            baseline=baseline,
            blocks=[],
            observed_steps=TIMED_WATCHED_STEPS if watch else 0,
            processors=os.cpu_count(),
            observed_graph_launches={name: seen.graph_launches or 0 for name, seen in watched.items() if watch},
            observed_device_seconds={
                name: seen.device_seconds / TIMED_WATCHED_STEPS
                for name, seen in watched.items()
                if seen.device_seconds is not None
            },
            profiler_sees_planted=all(observed) if observed else None,
            counter_sees_planted=counter.sees_planted if counter is not None else None,
            counter_failure=counter.failure if counter is not None else None,
        )


def shared_parameters(first: TrainingRun, second: TrainingRun) -> str:
    """Return the names of parameters that both arms train, as one text; "" if there are none. If `second` has replaced
    a parameter of `first`, return the error that shows this."""
    if not (isinstance(first, HasParameters) and isinstance(second, HasParameters)):
        return ""
    try:
        tensors = first.parameters()
    except AdapterError as error:
        return error.got
    taken = {same(tensor) for tensor in second.parameters().values()}
    return names(kept) if (kept := [name for name, tensor in tensors.items() if same(tensor) in taken]) else ""


def _census(arm: TimedArm, record: CaptureRecord, watched: Watched) -> None:
    arm.life.census(lambda _record: (watched, None), record)
