"""Define the claims about series of losses and metrics: `trajectory_match` (two arms agree), `repeatability` (repeated
runs agree) and `runs_differ` (two arms differ)."""

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
# Smallest number of runs of each arm with `equality: noise`, and the default. With fewer runs, there are too few ways
# to divide all runs into two groups, and equal arms would fail in more than 1 % of the cases.
RUNS = 5
NOISE_STEPS = (0, 1, 2, -1)  # indices of the steps at which gradients are compared with `equality: noise`


class Precisions(Strict):
    """The data types in which two arms compute. A system reports its data type as `dtype` in a run's facts."""

    candidate: Annotated[Name, Demand("vacuous_precision")]
    """The data type of the optimized arm, such as `bfloat16`."""
    baseline: Annotated[Name, Demand("vacuous_precision")]
    """The data type of the plain arm. It must be different from that of the optimized arm."""


ParameterDtype = Literal["float64", "float32", "bfloat16", "float16"]
# A data type can represent all values of each type with a lower number in this table. If two types have the same
# number, neither type can represent all values of the other type.
_FINENESS = {"float64": 2, "float32": 1, "bfloat16": 0, "float16": 0}


class ParameterDtypes(Strict):
    """The data types of two arms' trainable parameters. One type must represent all values of the other."""

    candidate: Annotated[ParameterDtype, Demand("vacuous_parameter_dtype")]
    """The data type of every trainable tensor of the optimized arm."""
    baseline: Annotated[ParameterDtype, Demand("vacuous_parameter_dtype")]
    """The data type of every trainable tensor of the plain arm. It must be different from that of the optimized arm."""

    def coarser(self) -> str:
        """Return the data type that represents fewer values."""
        return min(self.candidate, self.baseline, key=_FINENESS.__getitem__)


class TrajectoryMatch(Bounded):
    """The series of two arms agree at every step, or at one step. They agree in bits, within a bound, or within the
    noise of the baseline's runs."""

    kind: Literal["trajectory_match"]
    """Compares the series of one metric, such as the loss, between two arms."""
    candidate: ArmName
    """The optimized arm."""
    baseline: ArmName
    """The plain arm."""
    metric: Annotated[Metric, NoDemand("names a series")] = "loss"
    """The compared series: the loss, or a metric that the systems of both arms report."""
    equality: Annotated[EqualityOrNoise, Demand("differs", "beyond_noise")]
    """`bitwise`: every bit must be equal. `within`: only the bounds decide. `noise`: each arm runs several times, and
    losses, gradients and end states must not differ more than those of the baseline's runs. `noise` allows no bound."""
    runs: Annotated[Annotated[int, Field(ge=RUNS, le=8)] | None, MEASURED] = None
    """Only with `equality: noise`: runs per arm, default 5. With 5, an equal arm fails at most in 1 of 126 verdicts."""
    max_abs_difference: Annotated[Positive | None, Demand("exceeds_tolerance")] = None
    """Largest allowed absolute difference. With `equality: bitwise` the bound is only reported."""
    max_relative_difference: RelativeBound = None
    """Largest allowed difference, relative to the baseline's absolute value at the same step. If `max_abs_difference`
    is also given, both bounds must hold."""
    compare: Annotated[Literal["every", "final", "first"], NoDemand("chooses the steps that are compared")] = "every"
    """The compared steps: every step, only the last step, or only the first step, which comes before any update."""
    precisions: Precisions | None = None
    """The precisions in which the two arms must compute, if the arms differ in precision. The frozen tensors of the
    arms then have different formats. They are not compared, but they must not change during training."""
    parameter_dtypes: ParameterDtypes | None = None
    """The data types of the arms' trainable parameters, if they differ. The arms' starts then count as equal if they
    are equal after rounding to the less precise type. Frozen tensors are not compared, but must not change."""
    switched_on: Annotated[bool, NoDemand("if it is not met, the claim stays undecided")] = False
    """True if the candidate's step must be different from the baseline's step. The steps are different if they differ
    in their operators, in the types, shapes or strides of the operators' inputs, or in any bit. If they do not differ,
    the claim is undecided (`optimization_off`)."""
    guards: Guards
    """Conditions that must hold before the claim can pass."""
    ends: Ends | None = None
    """Only with `equality: within`: bounds on the difference of the end states. `bitwise` demands equal end states."""

    must_train_alike: ClassVar[bool] = True

    def candidate_capabilities(self) -> frozenset[str]:
        return super().candidate_capabilities() | frozenset({"metrics"} if self.metric != "loss" else ())

    def demanded(self) -> dict[str, Demand]:
        """Return the demand of each field, by the field's name. That of `equality` has only the reason code that this
        claim can give."""
        found = super().demanded()
        if "equality" in found:
            found["equality"] = Demand("beyond_noise" if self.equality == "noise" else "differs")
        return found

    def contradictions(self) -> Iterator[Problem]:
        yield from self._noise_contradictions()
        if self.equality == "bitwise" and (self.precisions or self.parameter_dtypes):
            rule = "arms of two precisions can be compared only within a bound"
            yield Problem(("equality",), rule, "`bitwise`", "write `equality: within`")
        if (
            self.ends is not None
            and self.equality != "noise"
            and (self.equality == "bitwise" or self.compare == "first")
        ):
            rule = "`ends` is only for arms that are compared within a bound, and not only in the first step"
            got = (
                "`bitwise`, which compares every bit of the ends" if self.equality == "bitwise" else "`compare: first`"
            )
            yield Problem(("ends",), rule, got, "leave `ends` out")
        if self.precisions is not None and self.precisions.candidate == self.precisions.baseline:
            rule = "`precisions` must be two different precisions"
            yield Problem(("precisions",), rule, f"`{self.precisions.candidate}` for both")
        types = self.parameter_dtypes
        if types is not None and _FINENESS[types.candidate] == _FINENESS[types.baseline]:
            rule = "one of the two `parameter_dtypes` must represent all values of the other"
            found = f"`{types.candidate}` and `{types.baseline}`"
            yield Problem(("parameter_dtypes",), rule, found, "name float32 or float64 as one of them")

    def _noise_contradictions(self) -> Iterator[Problem]:
        """Yield a problem for each field that contradicts `equality: noise`. With `noise`, only repeated runs decide,
        so bounds must not be set."""
        if self.equality != "noise":
            if self.runs is not None:
                yield Problem(("runs",), "`runs` is only for `equality: noise`", str(self.runs), "leave `runs` out")
            return
        bounding = ("max_abs_difference", "max_relative_difference", "ends", "precisions", "parameter_dtypes")
        for name in bounding:
            if getattr(self, name) is not None:
                rule = f"`{name}` is only for arms that are compared within a bound"
                yield Problem((name,), rule, "`noise`", f"leave `{name}` out, or write `equality: within`")
        if self.compare != "every":
            rule = "under `noise`, every step, the gradients and the ends must be compared"
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
        """Return True if the arms store tensors in different formats, so that frozen tensors are not compared."""
        return self.precisions is not None or self.parameter_dtypes is not None

    def replicas(self) -> dict[str, int]:
        if self.equality == "noise":
            return dict.fromkeys((self.candidate, self.baseline), self.runs or RUNS)
        return {self.baseline: 2}  # the noise floor is the difference between two executions of the baseline

    def compared(self) -> list[list[str]]:
        # Arms of one list are executed in one process, which records by how much their parameters differ at the end. A
        # claim of equal bits needs only digests. Repetitions and controls of guards need only series and digests.
        if self.equality == "bitwise":
            return []
        # Execute candidate and baseline in one process, where libraries choose, for example, the same algorithms for
        # both.
        if self.equality == "noise":
            return [[self.candidate, self.baseline], [self.candidate], [self.baseline]]
        control = [] if self.ends is None else [[self.ends.control, self.baseline]]
        return [[self.candidate, self.baseline], *control]


class Repeatability(Bounded):
    """Several runs of one arm with the same seed agree, in bits or within a bound. With `equality: bitwise`, all runs
    after the first run share a second process, in which Python has another hash seed. With `equality: within`, or with
    several ranks, all runs are in the same processes."""

    kind: Literal["repeatability"]
    """Compares several runs of one arm with the same seed."""
    candidate: ArmName
    """The arm that is run several times."""
    runs: Annotated[int, Field(ge=2, le=32), MEASURED] = 2
    """Number of runs."""
    equality: Annotated[Equality, Demand("differs")]
    """`bitwise`: every bit must be equal. `within`: only the bounds decide."""
    max_abs_difference: Annotated[Positive | None, Demand("exceeds_tolerance")] = None
    """Largest allowed absolute difference. With `equality: bitwise` the bound is only reported."""
    max_relative_difference: RelativeBound = None
    """Largest allowed difference, relative to the first run's absolute value at the same step. If `max_abs_difference`
    is also given, both bounds must hold."""
    guards: Guards
    """Conditions that must hold before the claim can pass."""

    def replicas(self) -> dict[str, int]:
        return {self.candidate: self.runs}

    def compared(self) -> list[list[str]]:
        # A claim of equal bits needs only digests. If there is a bound, the parameters of each execution are compared
        # with those of the first execution, so all executions must be in one process.
        return [] if self.equality == "bitwise" else [[self.candidate]]


class RunsDiffer(Judged):
    """Two arms that differ in one setting have different losses. If required, their batches and starts differ too."""

    kind: Literal["runs_differ"]
    """Shows that a setting, such as the seed, has an effect."""
    candidate: ArmName
    """The arm with the changed setting."""
    baseline: ArmName
    """The arm that differs from the candidate only in this setting."""
    steps: StepsCompared
    """Number of steps that must have been compared."""
    losses_from: Annotated[int, Field(ge=0), Demand("losses_equal")]
    """The losses must differ in bits at this step, counted from 0, and at every later step."""
    batches: Annotated[bool, Demand("batches_equal")] = False
    """True if the arms must read different batches at every step."""
    start: Annotated[bool, Demand("start_equal")] = False
    """True if the arms must start from different trainable parameters."""

    def compared(self) -> list[list[str]]:
        return []  # the judge compares no end states, only series and digests

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from super().beyond(steps)
        if self.losses_from >= steps:
            yield (
                ("losses_from",),
                f"`losses_from` ({self.losses_from}) must be one of the workload's steps, counted from 0",
            )
