"""One execution of an arm over some of its workload's steps, with its records: for probes that interrupt a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from harness.evidence.arm_records import State
from harness.evidence.plan_records import Run
from harness.runners.capture import capture_evidence, capture_record
from harness.runners.paired import arm_end, arm_start
from harness.runners.profiling import Watched
from harness.runners.recorder import Recorder
from harness.runners.series_block import SeriesBlock
from harness.runners.state_watch import Ends, StateWatch
from harness.system.protocol import Scalar, TrainingRun


class Stretch:
    """Begins with the record of its start; `steps` and `end` write the others."""

    def __init__(
        self,
        run: Run,
        arm: str,
        replica: int,
        training: TrainingRun,
        recorder: Recorder,
        facts: Mapping[str, Scalar] = MappingProxyType({}),
    ) -> None:
        """`facts` stand beside those of the system."""
        self._run, self._arm, self._replica = run, arm, replica
        self._training, self._recorder = training, recorder
        self._watch = StateWatch(training)
        self._steps = 0
        self._phase("start")
        start = arm_start(training, arm, replica, self._watch)
        recorder.write(start.model_copy(update={"facts": {**start.facts, **facts}}))
        self._input_names: list[str] | None = None

    def steps(self, indices: range, after: Callable[[int], None] = lambda _steps: None) -> None:
        """Train on the batches `indices`; after each step `after` is told how many steps the training has made."""
        self._phase("steps")
        series = self._recorder.series(self._arm, self._replica)
        block = SeriesBlock(self._run, self._recorder, series, self._training)
        for index in indices:
            block.add(index, self._training.step(index))
            self._steps += 1
            if index == indices.start and len(indices) > 1:
                self._watch.after_first_step()
            after(index + 1)
        block.write()
        self._input_names = block.input_names

    def state(self) -> State:
        """The state as it would be recorded if it ended now."""
        return self._watch.at_end()

    def end(self, ends: Ends) -> None:
        """The record of the end, and of the capture of an arm that asks for one."""
        self._phase("end")
        end = arm_end(self._training, self._arm, self._replica, self._steps, self._watch, ends)
        self._recorder.write(end.model_copy(update={"input_names": self._input_names}))
        planned = self._run.arms[self._arm]
        if planned.arm.capture != "none":
            record = capture_record(self._training, planned)
            self._recorder.write(capture_evidence(self._training, self._arm, self._replica, record, Watched()))

    def _phase(self, name: str) -> None:
        self._recorder.phase(f"{self._arm}.{self._replica}: {name}")
