"""List the probes (ways to execute a run). Each row contains all that the harness needs to know about one probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.kinds.row import Name, Reference, Row

Trainings = Literal["none", "each"]


@dataclass(frozen=True, kw_only=True)
class Probe(Row):
    """All that the harness needs to know about one probe. If a field is missing or malformed, the row's creation raises
    `KindError`."""

    called: ClassVar = "probe"
    name: Name
    """The value of `probe` in `run.json`."""
    execute: Reference
    """`module:attribute` of the function that executes a run in a worker. Its arguments are the run and a recorder."""
    arm_by_arm: bool
    """True if the probe executes one arm after another, and the evidence of an arm does not depend on other arms. The
    evidence may depend only on arms that the run compares with this arm (`baseline_of`, `compared`). Such a probe has
    no settings, so all kinds can use the same run. Because its arms are independent, several runs can share the
    execution of an arm. The arms of a run can be divided among processes, and judged before the run ends. If an arm
    ended a worker, the run can be repeated without this arm. If the fault of a drill cannot change an arm, the drill
    can use the evidence of this arm from the run without the fault."""
    timed: bool
    """True if step times are the evidence. No other run then uses the machine, and a repetition gives new evidence."""
    of_ranks: bool
    """True if all ranks of an arm execute the probe in the same way."""
    apart: Reference | None
    """`module:attribute` of the function that executes the arms of two commits, with a process for each commit. None if
    the probe cannot compare commits, or if `arm_by_arm` is true, because each commit then has a process anyway."""
    steps: Reference | None
    """`module:attribute` of a function that takes the run and returns an arm's number of steps. None if the number of
    steps is limited only by time."""
    trainings: Trainings
    """The executions of an arm that make all steps of the workload. none: no execution, because the probe itself
    chooses the number of steps. each: every execution. A training that was interrupted by saves and loads counts as one
    execution."""
    every_step_recorded: bool
    """True if an arm's series contains every step that the arm made."""
    watches_steps: bool
    """True if a captured arm is watched: each step by torch's dispatch modes, and some steps by the profiler."""
    gpu_memory: Reference
    """`module:attribute` of a function that takes the run and returns how many GiB of GPU memory the run may use. The
    function returns None if no other run may use the GPU, and 0.0 if the run uses no GPU."""
    most_on_gpu: Annotated[int, Field(gt=0)] | None
    """The largest number of runs of this probe that may share a GPU. None if only the GPU's memory limits it."""
    grid: bool
    """True if the probe makes no steps, and tries every combination of its settings."""

    @property
    def across_commits(self) -> bool:
        """Return True if the arms of a run may come from two commits."""
        return self.arm_by_arm or self.apart is not None


_STEPS, _MEMORY, _BY = "harness.execution.opening:", "harness.planning.obstacles:", "harness.execution.probes."
# fmt: off
_ROWS = (
    # `most_on_gpu` is 6, because runs share the GPU's time. With 16 runs, eager steps took two to six times as long.
    Probe(name="paired", execute=_BY + "paired:execute", arm_by_arm=True, timed=False, of_ranks=True,
          apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=True, gpu_memory=_MEMORY + "declared", most_on_gpu=6, grid=False),
    Probe(name="throughput", execute=_BY + "throughput:execute", arm_by_arm=False, timed=True, of_ranks=True,
          apart=_BY + "timed_apart:execute", steps=_STEPS + "of_timing", trainings="none",
          every_step_recorded=False, watches_steps=False, gpu_memory=_MEMORY + "declared", most_on_gpu=None,
          grid=False),
    Probe(name="recapture", execute=_BY + "memory:execute_recapture", arm_by_arm=False, timed=False, of_ranks=False,
          apart=None, steps=_STEPS + "of_captures", trainings="none", every_step_recorded=True,
          watches_steps=True, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="kernels", execute=_BY + "kernels:execute", arm_by_arm=False, timed=False, of_ranks=False,
          apart=None, steps=_STEPS + "of_shapes", trainings="none", every_step_recorded=True,
          watches_steps=False, gpu_memory=_MEMORY + "none_for_a_target", most_on_gpu=None, grid=False),
    Probe(name="prewarm", execute=_BY + "prewarm:execute", arm_by_arm=False, timed=False, of_ranks=False,
          apart=None, steps=_STEPS + "of_shapes", trainings="none", every_step_recorded=True,
          watches_steps=False, gpu_memory=_MEMORY + "twice_if_filled", most_on_gpu=None, grid=False),
    Probe(name="kernel_match", execute=_BY + "kernels:execute_kernel_match", arm_by_arm=False, timed=False,
          of_ranks=False, apart=None, steps=_STEPS + "of_workload", trainings="none", every_step_recorded=True,
          watches_steps=False, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=True),
    Probe(name="step_match", execute=_BY + "single_steps:execute_step_match", arm_by_arm=False, timed=False,
          of_ranks=False, apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=True, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="step_accuracy", execute=_BY + "single_steps:execute_step_accuracy", arm_by_arm=False, timed=False,
          of_ranks=False, apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=False, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="seeds", execute=_BY + "seeds:execute", arm_by_arm=False, timed=False, of_ranks=False,
          apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=True, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="resumed_seeds", execute=_BY + "seeds:execute_resumed", arm_by_arm=False, timed=False,
          of_ranks=False, apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=True, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    # The driver counts the memory of all processes together, so no other run may use the GPU during such a run.
    Probe(name="peak_memory", execute=_BY + "memory:execute_peak_memory", arm_by_arm=False, timed=False,
          of_ranks=True, apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=False, gpu_memory=_MEMORY + "all_of_it", most_on_gpu=None, grid=False),
    Probe(name="long_replay", execute=_BY + "long_replay:execute", arm_by_arm=False, timed=True,
          of_ranks=False, apart=None, steps=_STEPS + "of_long_replay", trainings="each", every_step_recorded=False,
          watches_steps=False, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="steady", execute=_BY + "steady:execute", arm_by_arm=False, timed=False, of_ranks=False,
          apart=None, steps=None, trainings="none", every_step_recorded=True,
          watches_steps=False, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="resume", execute=_BY + "between_steps:execute_resume", arm_by_arm=False, timed=False, of_ranks=False,
          apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=True, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="evaluation", execute=_BY + "between_steps:execute_evaluation", arm_by_arm=False, timed=False,
          of_ranks=False, apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=True, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="where", execute=_BY + "where:execute", arm_by_arm=False, timed=False, of_ranks=False,
          apart=None, steps=_STEPS + "of_workload", trainings="none", every_step_recorded=False,
          watches_steps=False, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
)
# fmt: on
BUILT_IN = {row.name: row for row in _ROWS}
