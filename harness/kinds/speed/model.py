"""Define the claim about speed (`throughput_ratio`), and the limits of disturbances above which it is undecided."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from harness.contract.base import (
    CONFIDENCE,
    MEASURED,
    ArmName,
    Count,
    Demand,
    Judged,
    Name,
    Natural,
    NoDemand,
    Nothing,
    Positive,
    Problem,
    Share,
    Strict,
    refuse,
)
from harness.contract.strict_yaml import nearest
from harness.kinds.trajectory.model import TrajectoryMatch

SM_CLOCK_SPREAD = 0.05
# With fewer processes, even the lowest allowed confidence of 0.95 cannot be reached. With 5 processes, all of them must
# reach the ratio.
FEWEST_PROCESSES = 5
MOST_PROCESSES = 64


class Limits(Strict):
    """Limits of disturbances during a timing. If a limit is exceeded, the verdict is INCONCLUSIVE, because the
    disturbance may have caused the measured ratio."""

    foreign_gpu_processes: Natural = 0
    """Largest allowed number of other processes on the GPU."""
    throttled_share: Annotated[Share, Nothing(1.0)] = 0.0
    """Largest share of telemetry samples in which the driver may slow the GPU, except because of its power limit."""
    sm_clock_spread: Share = SM_CLOCK_SPREAD
    """Largest allowed difference between the highest and the lowest SM clock in a process, relative to the median of
    the clock, 0 to 1. This limits the effect of a power cap. A value above 0.05 requires `clock_advantage`."""
    clock_advantage: Annotated[float, Field(ge=0, le=0.05)] | None = None
    """Largest allowed share, 0 to 0.05, by which the mean SM clock of the faster arm is higher than that of the other
    arm. It is checked only if the measured spread of the clock is larger than this share."""
    host_load_per_core: Positive = 1.0
    """Largest allowed load average of the host, divided by the number of cores."""
    baseline_idle_share: Annotated[Share, Nothing(1.0)] = 0.1
    """Largest allowed share, 0 to 1, of the baseline's time in which neither host nor device worked."""

    @model_validator(mode="after")
    def _a_moving_clock_favours_nobody(self) -> Limits:
        if self.sm_clock_spread > SM_CLOCK_SPREAD and self.clock_advantage is None:
            refuse(
                f"a spread above {SM_CLOCK_SPREAD} needs `clock_advantage`, the largest share by which the clock may "
                "favour the winner",
                "sm_clock_spread",
            )
        return self


class ThroughputRatio(Judged):
    """The candidate's steps per second are at least `at_least` times the baseline's."""

    kind: Literal["throughput_ratio"]
    """Judges how much faster the candidate is. Several processes each time both arms."""
    candidate: ArmName
    """The optimized arm."""
    baseline: ArmName
    """The plain arm."""
    at_least: Annotated[Positive, Demand("too_slow")]
    """The smallest ratio of steps per second (candidate / baseline) with which the claim holds."""
    measure: Annotated[Literal["step", "enqueue"], NoDemand("chooses which times are compared")] = "step"
    """The work that is timed. `step`: whole steps. `enqueue`: the host's work to enqueue the first step of each block.
    The device is idle before this step, so the host does not wait for a full queue."""
    processes: Annotated[int, Field(ge=FEWEST_PROCESSES, le=MOST_PROCESSES), MEASURED] = 12
    """Number of processes of a measurement. Each process gives one ratio. At a confidence of 0.99, eight processes must
    all reach the demanded ratio. Of twelve processes, one may fail to reach it."""
    measurements: Annotated[
        int, Field(ge=1, le=4), NoDemand("states how many measurements are made; fewer are an ERROR")
    ] = 1
    """Number of measurements, which are made one after the other. Each measurement must prove the ratio by itself. Use
    2 if noise that is common to all processes of a measurement may be larger than 1 %."""
    blocks: Annotated[int, Field(ge=4, multiple_of=2), MEASURED] = 8
    """Number of timed blocks of each arm in a process."""
    block_steps: Annotated[Count, MEASURED] = 20
    """Number of steps in a block."""
    confidence: Annotated[float, Field(ge=0.95, lt=1), CONFIDENCE] = 0.99
    """One-sided confidence of the bound on the trimmed mean of the log ratios."""
    trajectory: Annotated[Name, Demand("differs", "exceeds_tolerance", "beyond_noise")]
    """The trajectory_match claim of this contract that the timed losses must satisfy."""
    limits: Annotated[
        Limits, NoDemand("beyond a limit nothing is decided: the verdict is INCONCLUSIVE, never FAIL")
    ] = Limits()
    """Limits of disturbances beyond which the verdict is INCONCLUSIVE."""

    # In a claim about several ranks, only the first rank is timed. The other ranks take equally long, because the ranks
    # wait for one another in their collectives.
    judged_at: ClassVar = "first rank"

    def asks_the_device_of_replays(self) -> bool:
        return True

    def dangling_names(
        self,
        on: Sequence[str],  # noqa: ARG002
        claims: Mapping[str, Sequence[Judged]],
    ) -> Iterator[Problem]:
        yield from trajectory_problems(self.trajectory, claims, several_runs=True)

    def undecidable(self) -> Iterator[Problem]:
        # If the true ratio is exactly the required ratio, all n processes agree by chance with a probability of 2^-n.
        # This probability must not be larger than 1 - confidence.
        needed = math.ceil(-math.log2(1 - self.confidence) - 1e-9)
        if self.processes < needed:
            rule = (
                f"{self.processes} processes cannot reach a verdict: even if all {self.processes} processes agree, "
                f"chance explains it with a probability of {2.0**-self.processes:.3g}, above 1 - confidence = "
                f"{1 - self.confidence:.3g}; use at least {needed}"
            )
            yield Problem(("processes",), rule)
        if self.process_count() > MOST_PROCESSES:
            rule = (
                f"{self.measurements} measurements with {self.processes} processes each are {self.process_count()} "
                f"processes; use at most {MOST_PROCESSES}"
            )
            yield Problem(("measurements",), rule)

    def process_count(self) -> int:
        return self.processes * self.measurements

    def measurement_of(self, process: int) -> int:
        return process // self.processes


def trajectory_problems(
    named: str, claims: Mapping[str, Sequence[Judged]], *, several_runs: bool = False
) -> Iterator[Problem]:
    """Yield a problem unless `named`, the value of the field `trajectory`, is a claim that compares the losses of all
    measured steps.

    several_runs: True if several processes measure each arm, so that the arm's own noise is known.
    """
    valid = [
        name
        for name, parts in claims.items()
        if any(compares_timed_steps(one) and (several_runs or one.value_at("equality") != "noise") for one in parts)
    ]
    if named not in valid:
        how = "" if several_runs else ", in bits or within a bound"
        claims_here = (
            f"a trajectory_match claim of this contract that compares losses{how}, and not only in the first step"
        )
        rule = f"`trajectory` must name {claims_here}"
        yield Problem(("trajectory",), rule, f"'{named}'", nearest(named, valid) or "add such a claim")
    for one in claims.get(named, ()):
        if isinstance(one, TrajectoryMatch) and one.parameter_dtypes is not None:
            rule = "timed arms must start from parameters that are equal in bits"
            remedy = "name a claim without `parameter_dtypes`"
            yield Problem(("trajectory",), rule, f"'{named}', which compares rounded parameters", remedy)


def compares_timed_steps(part: Judged) -> bool:
    """Return True if this part of a claim can show that both arms trained in the same way in the measured steps."""
    return isinstance(part, TrajectoryMatch) and part.compare != "first" and part.metric == "loss"
