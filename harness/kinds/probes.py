"""List the probes: the ways to execute a run. What the harness needs to know of a probe is a field of its row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.kinds.row import Name, Reference, Row

Trainings = Literal["none", "each"]


@dataclass(frozen=True, kw_only=True)
class Probe(Row):
    """All that the harness has to know of one probe; no field may be left out (`KindError`)."""

    called: ClassVar = "probe"
    name: Name
    """What `run.json` writes as `probe`."""
    execute: Reference
    """`module:attribute` of a function of the run and the recorder, which executes the run in a worker."""
    arm_by_arm: bool
    """True if it executes one arm after another, and the evidence of an arm depends on no arm but those that the run
    names together (`baseline_of`, `compared`). Then the run is planned for all kinds together, so the probe has no
    settings; arms are shared by runs, go to several processes, are left out where one ended its worker, are taken
    from the control run of a drill, and are judged as each ends."""
    timed: bool
    """True if the time of its steps is the evidence: it has the machine to itself, and repeats of it count."""
    of_ranks: bool
    """True if every rank of an arm goes through it alike."""
    apart: Reference | None
    """`module:attribute` of what executes arms of two commits, each in a process. None: no such runs, unless the
    probe is `arm_by_arm`, whose arms go to a process for each commit anyway."""
    steps: Reference | None
    """`module:attribute` of a function of the run: how many steps an opened arm is asked for. None: time ends it."""
    trainings: Trainings
    """Which executions of an arm have all steps of the workload. none: the probe chooses its steps. each: every
    execution, together with those after it that began with a load."""
    every_step_recorded: bool
    """True if the series of an arm has each step for which it was called."""
    watches_steps: bool
    """True if the life of a captured arm is watched: each step under torch's dispatch modes, some by the profiler."""
    gpu_memory: Reference
    """`module:attribute` of a function of the run: GiB of the GPU that it may take. The function returns None where
    the run needs the GPU to itself, and 0.0 where it uses none."""
    most_on_gpu: Annotated[int, Field(gt=0)] | None
    """How many of its runs share a GPU; None: as many as its memory allows."""
    grid: bool
    """True if it takes no steps, and tries every combination of its settings."""

    @property
    def across_commits(self) -> bool:
        """Return True if the arms of a run may come from two commits."""
        return self.arm_by_arm or self.apart is not None


_STEPS, _MEMORY, _BY = "harness.execution.opening:", "harness.planning.gpu_needs:", "harness.execution.probes."
# fmt: off
_ROWS = (
    # with 16 of them on one GPU, time slices made eager steps two to six times as long
    Probe(name="paired", execute=_BY + "paired:execute", arm_by_arm=True, timed=False, of_ranks=True,
          apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=True, gpu_memory=_MEMORY + "declared", most_on_gpu=6, grid=False),
    Probe(name="throughput", execute=_BY + "throughput:execute", arm_by_arm=False, timed=True, of_ranks=True,
          apart=_BY + "timed_apart:execute", steps=_STEPS + "of_timing", trainings="none",
          every_step_recorded=False, watches_steps=False, gpu_memory=_MEMORY + "declared", most_on_gpu=None,
          grid=False),
    Probe(name="recapture", execute=_BY + "recapture:execute", arm_by_arm=False, timed=False, of_ranks=False,
          apart=None, steps=_STEPS + "of_captures", trainings="none", every_step_recorded=True,
          watches_steps=True, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="kernels", execute=_BY + "kernels:execute", arm_by_arm=False, timed=False, of_ranks=False,
          apart=None, steps=_STEPS + "of_shapes", trainings="none", every_step_recorded=True,
          watches_steps=False, gpu_memory=_MEMORY + "none_for_a_target", most_on_gpu=None, grid=False),
    Probe(name="prewarm", execute=_BY + "prewarm:execute", arm_by_arm=False, timed=False, of_ranks=False,
          apart=None, steps=_STEPS + "of_shapes", trainings="none", every_step_recorded=True,
          watches_steps=False, gpu_memory=_MEMORY + "twice_if_filled", most_on_gpu=None, grid=False),
    Probe(name="kernel_match", execute=_BY + "kernel_match:execute", arm_by_arm=False, timed=False,
          of_ranks=False, apart=None, steps=_STEPS + "of_workload", trainings="none", every_step_recorded=True,
          watches_steps=False, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=True),
    Probe(name="step_match", execute=_BY + "step_match:execute", arm_by_arm=False, timed=False,
          of_ranks=False, apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=True, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="step_accuracy", execute=_BY + "step_accuracy:execute", arm_by_arm=False, timed=False,
          of_ranks=False, apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=False, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="seeds", execute=_BY + "seeds:execute", arm_by_arm=False, timed=False, of_ranks=False,
          apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=True, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="resumed_seeds", execute=_BY + "seeds:execute_resumed", arm_by_arm=False, timed=False,
          of_ranks=False, apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=True, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    # the driver counts the memory of all processes together
    Probe(name="peak_memory", execute=_BY + "peak_memory:execute", arm_by_arm=False, timed=False,
          of_ranks=True, apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=False, gpu_memory=_MEMORY + "all_of_it", most_on_gpu=None, grid=False),
    Probe(name="long_replay", execute=_BY + "long_replay:execute", arm_by_arm=False, timed=True,
          of_ranks=False, apart=None, steps=_STEPS + "of_long_replay", trainings="each", every_step_recorded=False,
          watches_steps=False, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="steady", execute=_BY + "steady:execute", arm_by_arm=False, timed=False, of_ranks=False,
          apart=None, steps=None, trainings="none", every_step_recorded=True,
          watches_steps=False, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="resume", execute=_BY + "resume:execute", arm_by_arm=False, timed=False, of_ranks=False,
          apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=True, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="evaluation", execute=_BY + "evaluation:execute", arm_by_arm=False, timed=False,
          of_ranks=False, apart=None, steps=_STEPS + "of_workload", trainings="each", every_step_recorded=True,
          watches_steps=True, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
    Probe(name="where", execute=_BY + "where:execute", arm_by_arm=False, timed=False, of_ranks=False,
          apart=None, steps=_STEPS + "of_workload", trainings="none", every_step_recorded=False,
          watches_steps=False, gpu_memory=_MEMORY + "declared", most_on_gpu=None, grid=False),
)
# fmt: on
BUILT_IN = {row.name: row for row in _ROWS}
