"""Define judgements about series: of two arms, of repeated runs, and of arms that must differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.contract.base import (
    MEASURED,
    ArmName,
    Demand,
    Equality,
    EqualityOrNoise,
    GradientDemand,
    Judged,
    Metric,
    Name,
    NoDemand,
    Positive,
    Problem,
    StepsCompared,
    Strict,
)
from harness.contract.guards import Bounded, Ends, Guards

RelativeBound = Annotated[Positive | None, Demand("exceeds_tolerance", exceeded_bound="max_relative_difference")]
RUNS = 5  # of each arm under `noise`: fewer have too few divisions for a false-alarm rate of 1 %
NOISE_STEPS = (0, 1, 2, -1)  # whose gradients are compared under `noise`


class Precisions(Strict):
    """The data types that two arms compute in, as their systems state them (`dtype` among a run's facts)."""

    candidate: Annotated[Name, Demand("vacuous_precision")]
    """That of the optimized arm, such as `bfloat16`."""
    baseline: Annotated[Name, Demand("vacuous_precision")]
    """That of the plain arm, another one."""


ParameterDtype = Literal["float64", "float32", "bfloat16", "float16"]
# How fine each is; of two that are equally fine, neither holds the other's values.
_FINENESS = {"float64": 2, "float32": 1, "bfloat16": 0, "float16": 0}


class ParameterDtypes(Strict):
    """The data types of two arms' trainable parameters, of which one holds all values of the other."""

    candidate: Annotated[ParameterDtype, Demand("vacuous_parameter_dtype")]
    """That of every trainable tensor of the optimized arm."""
    baseline: Annotated[ParameterDtype, Demand("vacuous_parameter_dtype")]
    """That of every one of the plain arm, another one."""

    def coarser(self) -> str:
        """Return the data type with fewer values."""
        return min(self.candidate, self.baseline, key=_FINENESS.__getitem__)


class TrajectoryMatch(Bounded):
    """Two series agree at every step (or at the final one), in bits, within a bound, or as far as the baseline agrees
    with itself.
    """

    kind: Literal["trajectory_match"]
    """Judges one series of two arms against each other."""
    candidate: ArmName
    """The optimized arm."""
    baseline: ArmName
    """The plain arm."""
    metric: Annotated[Metric, NoDemand("names a series")] = "loss"
    """The series compared: the loss, or a metric that the systems of both arms report."""
    equality: Annotated[EqualityOrNoise, Demand("differs", "beyond_noise")]
    """`bitwise`: every bit decides; `within`: the bounds alone do; `noise`: several runs of each arm do, whose losses,
    gradients and ends must lie no further apart than the baseline's runs from each other. It has no bound."""
    runs: Annotated[Annotated[int, Field(ge=RUNS, le=8)] | None, MEASURED] = None
    """Under `noise`: how often each arm runs; left out, 5 times. With 5 an equal arm fails at most once in 126."""
    max_abs_difference: Annotated[Positive | None, Demand("exceeds_tolerance")] = None
    """Largest absolute difference allowed; shown next to the bits under `bitwise`."""
    max_relative_difference: RelativeBound = None
    """Largest difference allowed relative to the baseline's absolute value at that step: where that is 0, none is.
    With `max_abs_difference` both bounds hold."""
    compare: Annotated[Literal["every", "final", "first"], NoDemand("chooses the steps that are compared")] = "every"
    """At every step, or at the last one only; or at the first alone, before any update, where the ends may differ."""
    precisions: Precisions | None = None
    """What the arms must compute in, where that is what they differ in. Their frozen tensors then have other formats,
    and are not compared; each must still end as it began."""
    parameter_dtypes: ParameterDtypes | None = None
    """The data types of the arms' trainable parameters, where they differ. Starts are then equal where they hold the
    same values once rounded to the coarser type; frozen tensors are not compared, and each must end as it began."""
    switched_on: Annotated[bool, NoDemand("unmet leaves the claim undecided")] = False
    """If the candidate must be another step than the baseline: by its operators, by types, shapes or strides of what
    they read, or by any bit. A switch that does nothing leaves the claim undecided (`optimization_off`)."""
    guards: Guards
    """What must be true before PASS may be said."""
    ends: Ends | None = None
    """Within a bound: how far apart the arms may end. In bits they end equal anyway."""

    must_train_alike: ClassVar[bool] = True

    def candidate_capabilities(self) -> frozenset[str]:
        return super().candidate_capabilities() | frozenset({"metrics"} if self.metric != "loss" else ())

    def demanded(self) -> dict[str, Demand]:
        """Return the demands, with the single reason that this equality gives for unequal arms."""
        found = super().demanded()
        if "equality" in found:
            found["equality"] = Demand("beyond_noise" if self.equality == "noise" else "differs")
        return found

    def contradictions(self) -> Iterator[Problem]:
        yield from self._noise_contradictions()
        if self.equality == "bitwise" and (self.precisions or self.parameter_dtypes):
            rule = "arms of two precisions are compared within a bound"
            yield Problem(("equality",), rule, "`bitwise`", "say `within`")
        if (
            self.ends is not None
            and self.equality != "noise"
            and (self.equality == "bitwise" or self.compare == "first")
        ):
            rule = "`ends` is for arms that train on within a bound"
            got = (
                "`bitwise`, which compares every bit of the ends" if self.equality == "bitwise" else "`compare: first`"
            )
            yield Problem(("ends",), rule, got, "leave `ends` out")
        if self.precisions is not None and self.precisions.candidate == self.precisions.baseline:
            rule = "`precisions` are two different ones"
            yield Problem(("precisions",), rule, f"`{self.precisions.candidate}` for both")
        types = self.parameter_dtypes
        if types is not None and _FINENESS[types.candidate] == _FINENESS[types.baseline]:
            rule = "of `parameter_dtypes` one holds all values of the other"
            found = f"`{types.candidate}` and `{types.baseline}`"
            yield Problem(("parameter_dtypes",), rule, found, "name float32 or float64 as one of them")

    def _noise_contradictions(self) -> Iterator[Problem]:
        """Yield settings that contradict `noise`, where both arms do the same arithmetic and only their runs decide."""
        if self.equality != "noise":
            if self.runs is not None:
                yield Problem(("runs",), "`runs` is for `equality: noise`", str(self.runs), "leave `runs` out")
            return
        bounding = ("max_abs_difference", "max_relative_difference", "ends", "precisions", "parameter_dtypes")
        for name in bounding:
            if getattr(self, name) is not None:
                rule = f"`{name}` is for arms that are compared within a bound"
                yield Problem((name,), rule, "`noise`", f"leave `{name}` out, or say `equality: within`")
        if self.compare != "every":
            rule = "under `noise` every step, the gradients and the ends are compared"
            yield Problem(("compare",), rule, f"`{self.compare}`", "leave `compare` out")

    def gradients(self) -> GradientDemand | None:
        if self.equality != "noise":
            return None
        return GradientDemand(self.candidate, None, NOISE_STEPS, also=(self.baseline,))

    def recorded_of(self) -> dict[str, dict[str, int | str]]:
        if self.equality == "noise":
            return {arm: {"sketches": True} for arm in (self.candidate, self.baseline)}
        found: dict[str, dict[str, int | str]] = {}
        if self.parameter_dtypes is not None:
            rounding = {"rounded_to": self.parameter_dtypes.coarser()}
            found = {self.candidate: {**rounding}, self.baseline: {**rounding}}
        if self.ends is not None:
            for arm, fields in self.ends.recorded_of(self.candidate, self.baseline).items():
                found[arm] = found.get(arm, {}) | fields
        return found

    def formats_differ(self) -> bool:
        """Return True if the arms store tensors in different formats, so that frozen ones are not compared."""
        return self.precisions is not None or self.parameter_dtypes is not None

    def replicas(self) -> dict[str, int]:
        if self.equality == "noise":
            return dict.fromkeys((self.candidate, self.baseline), self.runs or RUNS)
        return {self.baseline: 2}  # two runs of the baseline show the noise floor

    def compared(self) -> list[list[str]]:
        # How far the parameters end apart, which a claim in bits has only where the process has both: digests decide
        # it. Of the baseline's repetition and the control series and digests are read.
        if self.equality == "bitwise":
            return []
        if self.equality == "noise":  # what a process chooses once, such as an algorithm, is then the same for both
            return [[self.candidate, self.baseline], [self.candidate], [self.baseline]]
        control = [] if self.ends is None else [[self.ends.control, self.baseline]]
        return [[self.candidate, self.baseline], *control]


class Repeatability(Bounded):
    """N runs of one arm with one seed agree, in bits or within a bound. In bits all runs but the first share another
    process, which begins later, with another hash seed. Within a bound, and with ranks, all runs share processes.
    """

    kind: Literal["repeatability"]
    """Judges runs of one arm with one seed against each other."""
    candidate: ArmName
    """The arm that is run again."""
    runs: Annotated[int, Field(ge=2, le=32), MEASURED] = 2
    """How many runs."""
    equality: Annotated[Equality, Demand("differs")]
    """`bitwise`: every bit decides; `within`: the bounds alone do."""
    max_abs_difference: Annotated[Positive | None, Demand("exceeds_tolerance")] = None
    """Largest absolute difference allowed; shown next to the bits under `bitwise`."""
    max_relative_difference: RelativeBound = None
    """Largest difference allowed relative to the first run's absolute value at that step: where that is 0, none is.
    With `max_abs_difference` both bounds hold."""
    guards: Guards
    """What must be true before PASS may be said."""

    def replicas(self) -> dict[str, int]:
        return {self.candidate: self.runs}

    def compared(self) -> list[list[str]]:
        # digests decide bits; within a bound, how far the parameters of every run end from those of the first
        return [] if self.equality == "bitwise" else [[self.candidate]]


class RunsDiffer(Judged):
    """Two arms that differ in a setting differ in their losses, and in what else it must reach."""

    kind: Literal["runs_differ"]
    """Judges that a setting, such as the seed, reaches what it is there for."""
    candidate: ArmName
    """The arm with the other setting."""
    baseline: ArmName
    """The arm that differs from it in that setting alone."""
    steps: StepsCompared
    """Steps that must have been compared."""
    losses_from: Annotated[int, Field(ge=0), Demand("losses_equal")]
    """The first step, counted from 0, from which on the losses differ in bits at every step."""
    batches: Annotated[bool, Demand("batches_equal")] = False
    """Whether the arms read another batch at every step."""
    start: Annotated[bool, Demand("start_equal")] = False
    """Whether the arms start from other trainable parameters."""

    def compared(self) -> list[list[str]]:
        return []  # by series and digests alone

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from super().beyond(steps)
        if self.losses_from >= steps:
            yield ("losses_from",), f"`losses_from` ({self.losses_from}) is one of the workload's steps, from 0"
