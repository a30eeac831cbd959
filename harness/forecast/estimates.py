"""Seconds of a run to come, from runs that were executed on a machine of the same kind; never a guess.

An equal run is the best source. Where only the number of steps or the company of an arm is another, each arm takes for
a step what it took before, and the rest (imports, start, end) what it took there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.evidence.environment import Machine, cpu_model, usable_cores
from harness.evidence.environment_records import Environment
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.serving import IGNORED, SAME, SHARED, serves, trained_on
from harness.forecast.recorded import RecordedDirectory, RecordedRun, recorded
from harness.forecast.records import Estimate
from harness.kinds import probe_named
from harness.runners.gpu_needs import needs_gpu

AS_LONG = {  # a step of an arm
    **dict.fromkeys(SHARED, IGNORED),
    **{name: SHARED[name] for name in ("probe", "arms", "arm", "system", "commit", "nudged")},
    "workload": replace(SHARED["workload"], seen=lambda workload: {**trained_on(workload), "steps": None}),
    "observe_syncs": SAME["observe_syncs"],
}


@dataclass
class Estimates:
    """Of the runs that are planned, from the run directories in `folder`, of which as few are read as are needed."""

    machine: Machine
    folder: Path
    _seen: list[RecordedDirectory] = field(default_factory=list)

    def of(self, runs: Sequence[Run]) -> tuple[dict[str, Estimate], Estimate | None]:
        """By the runs' ids; and of all of them together, where the directory that has them all has no others."""
        equal: dict[str, Estimate] = {}
        together = None
        for directory in recorded(self.folder):
            self._seen.append(directory)
            here = {run.id: found for run in runs if (found := self._equal(run, directory)) is not None}
            for name, found in here.items():
                equal.setdefault(name, Estimate(seconds=_rounded(found.seconds), source=f"run {_place(found)}"))
            if len(here) == len(runs) and directory.wall_seconds is not None:
                if len(directory.runs) == len(runs):
                    together = Estimate(seconds=_rounded(directory.wall_seconds), source=directory.name)
                break
        others = {run.id: self._by_arms(run) for run in runs if run.id not in equal}
        return equal | {name: found for name, found in others.items() if found is not None}, together

    def _equal(self, run: Run, directory: RecordedDirectory) -> RecordedRun | None:
        same = (one for one in directory.runs if serves(one.run, run, SAME))
        return next((one for one in same if self._on_such_a_machine(one.environment, run)), None)

    def _by_arms(self, run: Run) -> Estimate | None:
        """From the newest runs that had the arms, each for as many steps as are planned; where arms go one by one."""
        if not probe_named(run.probe).arm_by_arm:
            return None
        sources: list[RecordedRun] = []
        seconds = 0.0
        for arm, planned in run.arms.items():
            found = next(self._with_the_arm(run, arm), None)
            if found is None:
                return None
            there, name = found
            sources.append(there)
            per_step = there.by_arm[name] / _steps(there.run, there.run.arms[name])
            seconds += per_step * _steps(run, planned)
        seconds += max(source.by_arm[None] for source in sources)
        places = ", ".join(dict.fromkeys(_place(source) for source in sources))
        return Estimate(seconds=_rounded(seconds), source=f"steps of the same arms in {places}")

    def _with_the_arm(self, run: Run, arm: str) -> Iterator[tuple[RecordedRun, str]]:
        for directory in self._seen:
            for one in directory.runs:
                if not self._on_such_a_machine(one.environment, run):
                    continue
                for name in one.run.arms:
                    if one.by_arm[name] and serves(one.run, run, AS_LONG, {arm: name}):
                        yield one, name

    def _on_such_a_machine(self, there: Environment, run: Run) -> bool:
        if self.machine.gpus and needs_gpu(run):
            return there.gpu.name == self.machine.gpus[0].name
        return (there.cpu.model, there.cpu.usable_cores) == (cpu_model(), usable_cores())


def _steps(run: Run, arm: PlannedArm) -> int:
    return run.workload.steps * arm.replicas


def _place(found: RecordedRun) -> str:
    return f"{found.run.id} of {found.directory}"


def _rounded(seconds: float) -> float:
    """To a tenth: the next time it takes another time anyway."""
    return round(seconds, 1)
