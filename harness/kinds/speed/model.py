"""Define the claim about speed, and the limits of disturbances above which the claim is undecided."""

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
# the smallest number of processes that can reach the lowest confidence, 0.95, which needs all processes to agree
FEWEST_PROCESSES = 5
MOST_PROCESSES = 64


class Limits(Strict):
    """Limits of disturbances. If one is exceeded, a timing is INCONCLUSIVE, because the arms may not be the cause."""

    foreign_gpu_processes: Natural = 0
    """Largest number of other processes on the GPU."""
    throttled_share: Annotated[Share, Nothing(1.0)] = 0.0
    """Largest share of telemetry samples with a throttle reason other than the power cap, 0 to 1."""
    sm_clock_spread: Share = SM_CLOCK_SPREAD
    """Largest difference of highest and lowest SM clock in a process, relative to its median, 0 to 1. It bounds the
    effect of a power cap. A value above 0.05 requires `clock_advantage`."""
    clock_advantage: Annotated[float, Field(ge=0, le=0.05)] | None = None
    """Largest share by which the mean SM clock of the faster arm may exceed the other arm's, 0 to 0.05. It is checked
    only if the measured spread of the clock is larger than this share."""
    host_load_per_core: Positive = 1.0
    """Largest load average of the host per core."""
    baseline_idle_share: Annotated[Share, Nothing(1.0)] = 0.1
    """Largest share of the baseline's time in which neither host nor device worked, 0 to 1."""

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
    """Judges how much faster the candidate is, over several processes."""
    candidate: ArmName
    """The optimized arm."""
    baseline: ArmName
    """The plain arm."""
    at_least: Annotated[Positive, Demand("too_slow")]
    """The demanded ratio of steps per second."""
    measure: Annotated[Literal["step", "enqueue"], NoDemand("chooses which times are compared")] = "step"
    """What is timed. `step`: whole steps. `enqueue`: the host's time to enqueue the first step of each block. The
    device is idle before it, so that no full queue makes the host wait."""
    processes: Annotated[int, Field(ge=FEWEST_PROCESSES, le=MOST_PROCESSES), MEASURED] = 12
    """Processes of a measurement, each of which yields one ratio. At a confidence of 0.99, all of eight processes must
    reach the demanded ratio; one of twelve need not."""
    measurements: Annotated[
        int, Field(ge=1, le=4), NoDemand("states how many measurements are made; fewer are an ERROR")
    ] = 1
    """Number of measurements, one after the other. Each must prove the ratio by itself. Use 2 if noise that all
    processes of a measurement share may be larger than 1 %."""
    blocks: Annotated[int, Field(ge=4, multiple_of=2), MEASURED] = 8
    """Timed blocks of each arm in a process."""
    block_steps: Annotated[Count, MEASURED] = 20
    """Steps in a block."""
    confidence: Annotated[float, Field(ge=0.95, lt=1), CONFIDENCE] = 0.99
    """One-sided confidence of the bound on the trimmed mean of the log ratios."""
    trajectory: Annotated[Name, Demand("differs", "exceeds_tolerance", "beyond_noise")]
    """The trajectory_match claim of this contract that the timed losses must satisfy."""
    limits: Annotated[
        Limits, NoDemand("beyond a limit nothing is decided: the verdict is INCONCLUSIVE, never FAIL")
    ] = Limits()
    """Limits of disturbances beyond which the verdict is INCONCLUSIVE."""

    # only the first rank is timed, because the other ranks wait for it in their collectives
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
        # So n must be large enough.
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
        yield Problem(("trajectory",), rule, f"'{named}'", nearest(named, valid) or "add one")
    for one in claims.get(named, ()):
        if isinstance(one, TrajectoryMatch) and one.parameter_dtypes is not None:
            rule = "timed arms must start from parameters that are equal in bits"
            remedy = "name a claim without `parameter_dtypes`"
            yield Problem(("trajectory",), rule, f"'{named}', which compares rounded parameters", remedy)


def compares_timed_steps(part: Judged) -> bool:
    """Return True if this part of a claim can show that both arms trained alike in the measured steps."""
    return isinstance(part, TrajectoryMatch) and part.compare != "first" and part.metric == "loss"
