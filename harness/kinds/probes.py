"""List the probes, the ways to execute a run. Each row holds all that the harness needs to know about one probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.kinds.row import Name, Reference, Row

Trainings = Literal["none", "each"]


@dataclass(frozen=True, kw_only=True)
class Probe(Row):
    """All that the harness needs to know about one probe. A missing field raises `KindError`."""

    called: ClassVar = "probe"
    name: Name
    """The value of `probe` in `run.json`."""
    execute: Reference
    """`module:attribute` of the function that executes a run in a worker, given the run and the recorder."""
    arm_by_arm: bool
    """True if the probe executes one arm after another, and an arm's evidence does not depend on other arms, except
    those that the run names together (`baseline_of`, `compared`). Such a probe has no settings, because one run of it
    is planned for all kinds. Its arms can be shared by runs, divided among processes, left out after they ended a
    worker, taken over by a drill from the run without a fault, and judged one by one."""
    timed: bool
    """True if the time of steps is the evidence. The run then has the machine to itself, and each repeat counts."""
    of_ranks: bool
    """True if all ranks of an arm execute the probe in the same way."""
    apart: Reference | None
    """`module:attribute` of the function that executes the arms of two commits, with a process for each commit. None if
    the probe cannot compare commits. None also if it is `arm_by_arm`, because then each commit has its own process
    anyway."""
    steps: Reference | None
    """`module:attribute` of a function of the run that returns an arm's number of steps. None if time limits them."""
    trainings: Trainings
    """Which executions of an arm have all steps of the workload. none: no execution, because the probe chooses its
    steps. each: every execution, after joining it with the executions that continued it from a load."""
    every_step_recorded: bool
    """True if an arm's series holds every step that the arm was asked for."""
    watches_steps: bool
    """True if a captured arm is watched: each step by torch's dispatch modes, and some steps by the profiler."""
    gpu_memory: Reference
    """`module:attribute` of a function of the run that returns how many GiB of GPU memory the run may take: None if it
    needs the GPU to itself, and 0.0 if it uses no GPU."""
    most_on_gpu: Annotated[int, Field(gt=0)] | None
    """The most runs of this probe that may share a GPU. None if only memory limits them."""
    grid: bool
    """True if the probe takes no steps, and tries every combination of its settings."""

    @property
    def across_commits(self) -> bool:
        """Return True if the arms of a run may come from two commits."""
        return self.arm_by_arm or self.apart is not None


_STEPS, _MEMORY, _BY = "harness.execution.opening:", "harness.planning.obstacles:", "harness.execution.probes."
# fmt: off
_ROWS = (
    # With 16 such runs on one GPU, eager steps took two to six times as long, because the runs share the GPU's time. So
    # `most_on_gpu` is 6.
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
    # The driver counts the memory of all processes together, so such a run needs the GPU for itself.
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
