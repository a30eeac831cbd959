"""Kinds of judgement about training: series, gradients, repeated runs, and what guards them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness.contract.base import (
    Count,
    Demand,
    Equality,
    EqualityOrNoise,
    GradientDemand,
    Judged,
    Metric,
    Name,
    NonNegative,
    Positive,
    Problem,
    Strict,
    refuse,
)
from harness.contract.kinds.ends import Ends

RUNS = 5  # of each arm under `noise`: fewer have too few divisions for a false-alarm rate of 1 %
NOISE_STEPS = (0, 1, 2, -1)  # whose gradients are compared under `noise`


class TrainingEffect(Strict):
    """The candidate's mean loss over the last steps lies below the untrained control's by at least this."""

    control: Name
    """The arm that trains nothing (learning rate 0) on the same batches."""
    last: Count
    """How many last steps are averaged."""
    at_least: Positive
    """Smallest difference of the mean losses that counts as training."""


class Floor(Strict):
    """Training did something: parameters moved, or the loss fell below that of an untrained control. One of both is
    enough: a loss may be 0 by construction, and a parameter may be large.
    """

    control: Name
    """The arm that trains nothing on the same batches."""
    moved: Positive
    """How far the median trainable tensor moves at least, over its norm at the start (L2). Zeros have no size."""
    standard_errors: Positive
    """Or by more than how many of its standard errors the mean loss of the last half lies below the control's."""


class Guards(Strict):
    """What must be true before PASS may be said; unmet, the verdict is FAIL with a `vacuous_…` code."""

    steps: Count
    """Steps that must have been compared."""
    distinct_batches: Count | None = None
    """Distinct batches, by digest, that must have been seen."""
    clip_active_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps in which the clip must have scaled at least one group."""
    training_effect: TrainingEffect | None = None
    """How much the training must have lowered the loss."""
    floor: Floor | None = None
    """The least that counts as training; unmet, the claim is undecided (`trained_too_little`)."""

    def controls(self) -> dict[str, str]:
        """Return the untrained arm of each guard that names one."""
        named = {"training_effect": self.training_effect, "floor": self.floor}
        return {guard: each.control for guard, each in named.items() if each is not None}


class Guarding(Judged):
    """What follows from the guards of a judgement that has them."""

    broken_by: ClassVar = {
        "guards.steps": Demand(("vacuous_steps",)),
        "guards.distinct_batches": Demand(("vacuous_batches_repeat",)),
        "guards.clip_active_steps": Demand(("vacuous_clip_inactive",)),
        "guards.training_effect.at_least": Demand(("vacuous_training_effect",)),
    }
    asks_nothing: ClassVar = {"guards.distinct_batches": 1, "guards.clip_active_steps": 0}
    no_demand: ClassVar = {
        "candidate": "names an arm",
        "guards.training_effect.control": "names an arm",
        "guards.floor.control": "names an arm",
        "guards.floor.moved": "less leaves the claim undecided",
        "guards.floor.standard_errors": "less leaves the claim undecided",
        "guards.training_effect.last": "how many steps the effect is the mean of; never more than were run",
    }

    if TYPE_CHECKING:  # each kind declares them, after its own fields
        guards: Guards

    def arms(self) -> dict[str, str]:
        return super().arms() | {f"guards.{guard}.control": arm for guard, arm in self.guards.controls().items()}

    def step_counts(self) -> dict[str, int | None]:
        effect = self.guards.training_effect
        return {
            "guards.steps": self.guards.steps,
            "guards.distinct_batches": self.guards.distinct_batches,
            "guards.clip_active_steps": self.guards.clip_active_steps,
            "guards.training_effect.last": None if effect is None else effect.last,
        }

    def candidate_capabilities(self) -> frozenset[str]:
        return frozenset({"gradient_norms"} if self.guards.clip_active_steps else ())

    def baseline_capabilities(self) -> frozenset[str]:
        return self.candidate_capabilities()


class Guarded(Guarding):
    """What follows from `equality` with its bound, too."""

    broken_by: ClassVar = {
        "equality": Demand(("differs",)),
        "max_abs_difference": Demand(("exceeds_tolerance",)),
        **Guarding.broken_by,
    }

    if TYPE_CHECKING:
        equality: EqualityOrNoise
        max_abs_difference: Positive | None

    def can_bite(self, path: str) -> bool:
        return bites_by_equality(path, self.equality) and super().can_bite(path)


class Bounded(Guarded):
    """With a bound relative to the baseline's value, in place of the absolute one or beside it."""

    broken_by: ClassVar = {
        **Guarded.broken_by,
        "max_relative_difference": Demand(("exceeds_tolerance",), {"exceeded_bound": "max_relative_difference"}),
    }

    if TYPE_CHECKING:
        max_relative_difference: Positive | None

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.equality != "noise" and self.max_abs_difference is None and self.max_relative_difference is None:
            refuse("say `max_abs_difference`, `max_relative_difference` or both", "equality")
        return self

    def demanded(self) -> dict[str, Demand]:
        """Of two bounds a fault breaks the one that it names."""
        found = super().demanded()
        if self.max_relative_difference is not None and "max_abs_difference" in found:
            found["max_abs_difference"] = Demand(("exceeds_tolerance",), {"exceeded_bound": "max_abs_difference"})
        return found


def bites_by_equality(path: str, equality: EqualityOrNoise | None) -> bool:
    """Bits, or noise, decide alone, and bounds decide alone: of both, the other one is shown and decides nothing."""
    if path == "equality":
        return equality in ("bitwise", "noise")
    return equality == "within" or path not in {"max_abs_difference", "max_relative_difference"}


class Precisions(Strict):
    """The data types that two arms compute in, as their systems state them (`dtype` among a run's facts)."""

    candidate: Name
    """That of the optimized arm, such as `bfloat16`."""
    baseline: Name
    """That of the plain arm, another one."""


ParameterDtype = Literal["float64", "float32", "bfloat16", "float16"]
# How fine each is; of two that are equally fine, neither holds the other's values.
_FINENESS = {"float64": 2, "float32": 1, "bfloat16": 0, "float16": 0}


class ParameterDtypes(Strict):
    """The data types of two arms' trainable parameters, of which one holds all values of the other."""

    candidate: ParameterDtype
    """That of every trainable tensor of the optimized arm."""
    baseline: ParameterDtype
    """That of every one of the plain arm, another one."""

    def coarser(self) -> str:
        """The one with fewer values."""
        return min(self.candidate, self.baseline, key=_FINENESS.__getitem__)


class TrajectoryMatch(Bounded):
    """Two series agree at every step (or at the final one), in bits, within a bound, or as far as the baseline agrees
    with itself.
    """

    kind: Literal["trajectory_match"]
    """Judges one series of two arms against each other."""
    candidate: Name
    """The optimized arm."""
    baseline: Name
    """The plain arm."""
    metric: Metric = "loss"
    """The series compared: the loss, or a metric that the systems of both arms report."""
    equality: EqualityOrNoise
    """`bitwise`: every bit decides; `within`: the bounds alone do; `noise`: several runs of each arm do, whose losses,
    gradients and ends must lie no further apart than the baseline's runs from each other. It has no bound."""
    runs: Annotated[int, Field(ge=RUNS, le=8)] | None = None
    """Under `noise`: how often each arm runs; left out, 5 times. With 5 an equal arm fails at most once in 126."""
    max_abs_difference: Positive | None = None
    """Largest absolute difference allowed; shown beside the bits under `bitwise`."""
    max_relative_difference: Positive | None = None
    """Largest difference allowed relative to the baseline's absolute value at that step: where that is 0, none is.
    Beside `max_abs_difference` both bounds hold."""
    compare: Literal["every", "final", "first"] = "every"
    """At every step, or at the last one only; or at the first alone, before any update, where the ends may differ."""
    precisions: Precisions | None = None
    """What the arms must compute in, where that is what they differ in. Their frozen tensors then have other formats,
    and are not compared; each must still end as it began."""
    parameter_dtypes: ParameterDtypes | None = None
    """The data types of the arms' trainable parameters, where they differ. Starts are then equal where they hold the
    same values once rounded to the coarser type; frozen tensors are not compared, and each must end as it began."""
    ends: Ends | None = None
    """Within a bound: how far apart the arms may end. In bits they end equal anyway."""
    switched_on: bool = False
    """If the candidate must be another step than the baseline: by its operators, by types, shapes or strides of what
    they read, or by any bit. A switch that does nothing leaves the claim undecided (`optimization_off`)."""
    guards: Guards
    """What must be true before PASS may be said."""

    broken_by: ClassVar = {
        **Bounded.broken_by,
        "equality": Demand(("differs", "beyond_noise")),
        "precisions.candidate": Demand(("vacuous_precision",)),
        "precisions.baseline": Demand(("vacuous_precision",)),
        "parameter_dtypes.candidate": Demand(("vacuous_parameter_dtype",)),
        "parameter_dtypes.baseline": Demand(("vacuous_parameter_dtype",)),
        "ends.at_most": Demand(("ends_apart",)),
    }
    no_demand: ClassVar = {
        **Bounded.no_demand,
        "baseline": "names an arm",
        "metric": "names a series",
        "runs": "how much is measured: fewer are an ERROR",
        "compare": "chooses the steps that are compared",
        "ends.control": "names an arm",
        "switched_on": "unmet leaves the claim undecided",
    }

    def arms(self) -> dict[str, str]:
        return super().arms() | ({} if self.ends is None else {"ends.control": self.ends.control})

    def candidate_capabilities(self) -> frozenset[str]:
        return super().candidate_capabilities() | frozenset({"metrics"} if self.metric != "loss" else ())

    def demanded(self) -> dict[str, Demand]:
        """Return the demands, with the one reason that this equality gives for unequal arms."""
        found = super().demanded()
        if "equality" in found:
            found["equality"] = Demand(("beyond_noise" if self.equality == "noise" else "differs",))
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
        """Under `noise` both arms do the same arithmetic, and their runs are all that decides."""
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
        """Whether the arms store tensors in other formats, so that frozen ones are not compared."""
        return self.precisions is not None or self.parameter_dtypes is not None

    def replicas(self) -> dict[str, int]:
        if self.equality == "noise":
            return dict.fromkeys((self.candidate, self.baseline), self.runs or RUNS)
        return {self.baseline: 2}  # two runs of the baseline show the noise floor

    def compared(self) -> list[list[str]]:
        # How far the parameters end apart, which a claim in bits tells only where the process has both: digests decide
        # it. Of the baseline's repetition and the control series and digests are read.
        if self.equality == "bitwise":
            return []
        if self.equality == "noise":  # what a process chooses once, such as an algorithm, is then the same for both
            return [[self.candidate, self.baseline], [self.candidate], [self.baseline]]
        control = [] if self.ends is None else [[self.ends.control, self.baseline]]
        return [[self.candidate, self.baseline], *control]


class ClippedNorm(Strict):
    """After clipping, every group's norm is at most `at_most` x (1 + relative_rounding)."""

    at_most: Positive
    """The clip's threshold."""
    relative_rounding: NonNegative
    """Allowance for rounding, relative to the threshold."""


class GradientMatch(Judged):
    """Gradients of every trainable tensor agree at the chosen steps, and clipped norms keep the threshold. One that no
    gradient reached in either arm's step, and that trains in others, has none to compare there.
    """

    kind: Literal["gradient_match"]
    """Judges gradients against a baseline, clipped norms against a threshold, or both."""
    candidate: Name
    """The optimized arm."""
    baseline: Name | None = None
    """The plain arm; left out, only the clipped norms are judged."""
    steps: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    """Steps, counted from 0, at which gradients are reduced and compared."""
    equality: Equality | None = None
    """`bitwise`: digests decide; `within`: the bounds do."""
    max_abs_difference: Positive | None = None
    """Largest absolute difference of any element."""
    max_relative_difference: Positive | None = None
    """Largest difference relative to the baseline tensor's largest element. What is below 1e-6 of the step's largest
    gradient is rounding, and exceeds none."""
    control: Name | None = None
    """Under `within`: an arm with the baseline's settings, as `ends` of a `trajectory_match` has. The harness starts it
    a rounding away from the baseline. What lies within ten times its own distance to the baseline is rounding."""
    clipped_norm: ClippedNorm | None = None
    """The threshold that every group's norm keeps after clipping."""
    clip_active_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps in which the clip must have scaled at least one group."""

    broken_by: ClassVar = {
        "equality": Demand(("differs",)),
        "max_abs_difference": Demand(("exceeds_tolerance",)),
        "max_relative_difference": Demand(("exceeds_tolerance",)),
        "clipped_norm.at_most": Demand(("clipped_norm_exceeded",)),
        "clipped_norm.relative_rounding": Demand(("clipped_norm_exceeded",)),
        "clip_active_steps": Demand(("vacuous_clip_inactive",)),
    }
    asks_nothing: ClassVar = {"clip_active_steps": 0}
    no_demand: ClassVar = {
        "candidate": "names an arm",
        "baseline": "names an arm",
        "steps": "chooses the steps that are compared; one without gradients is an ERROR",
        "control": "names an arm",
    }

    def can_bite(self, path: str) -> bool:
        return bites_by_equality(path, self.equality) and super().can_bite(path)

    def arms(self) -> dict[str, str]:
        return super().arms() | ({} if self.control is None else {"control": self.control})

    def recorded_of(self) -> dict[str, dict[str, int | str]]:
        return {} if self.control is None else {self.control: {"nudged": True}}

    @model_validator(mode="after")
    def _demands_something(self) -> GradientMatch:
        if self.baseline is None and self.clipped_norm is None:
            refuse("gradient_match demands `baseline`, `clipped_norm` or both", "kind")
        if self.baseline is not None:
            bounds = (self.max_abs_difference, self.max_relative_difference)
            if self.equality is None or (self.equality == "within" and bounds == (None, None)):
                refuse("with a baseline, say `equality` and, for `within`, a bound", "baseline")
        return self

    def contradictions(self) -> Iterator[Problem]:
        if len(set(self.steps)) < len(self.steps):
            yield Problem(("steps",), "`steps` are distinct", str(self.steps), "remove the repeated one")
        for field in ("equality", "max_abs_difference", "max_relative_difference"):
            if self.baseline is None and getattr(self, field) is not None:
                remedy = f"name one, or leave `{field}` out"
                yield Problem((field,), f"`{field}` compares with a `baseline`", "none", remedy)
        if self.control is not None and self.equality != "within":
            rule = "`control` is for arms that are compared within a bound"
            yield Problem(("control",), rule, f"`{self.equality}`", "leave `control` out, or say `equality: within`")

    def replicas(self) -> dict[str, int]:
        # a baseline that does not repeat its own bits leaves a claim in bits undecided
        return {self.baseline: 2} if self.baseline is not None and self.equality == "bitwise" else {}

    def compared(self) -> list[list[str]]:
        return [sorted(set(self.arms().values()))]  # of the baseline's repetition series and digests are read

    def step_counts(self) -> dict[str, int | None]:
        return {"clip_active_steps": self.clip_active_steps}

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from super().beyond(steps)
        for position, step in enumerate(self.steps):
            if step >= steps:
                yield ("steps", position), f"step {step} is one of the workload's steps, counted from 0"

    def candidate_capabilities(self) -> frozenset[str]:
        reads_norms = self.clipped_norm is not None or self.clip_active_steps is not None
        return frozenset({"gradient_norms"} if reads_norms else ())

    def baseline_capabilities(self) -> frozenset[str]:
        return frozenset({"gradient_norms"} if self.clip_active_steps else ())

    def gradients(self) -> GradientDemand:
        return GradientDemand(self.candidate, self.baseline, self.steps, control=self.control)


class Repeatability(Bounded):
    """N runs of one arm with one seed agree, in bits or within a bound. In bits all runs but the first share another
    process, which begins later, with another hash seed. Within a bound, and with ranks, all runs share processes.
    """

    kind: Literal["repeatability"]
    """Judges runs of one arm with one seed against each other."""
    candidate: Name
    """The arm that is run again."""
    runs: Annotated[int, Field(ge=2, le=32)] = 2
    """How many runs."""
    equality: Equality
    """`bitwise`: every bit decides; `within`: the bounds alone do."""
    max_abs_difference: Positive | None = None
    """Largest absolute difference allowed; shown beside the bits under `bitwise`."""
    max_relative_difference: Positive | None = None
    """Largest difference allowed relative to the first run's absolute value at that step: where that is 0, none is.
    Beside `max_abs_difference` both bounds hold."""
    guards: Guards
    """What must be true before PASS may be said."""

    no_demand: ClassVar = {**Bounded.no_demand, "runs": "how much is measured: fewer are an ERROR"}

    def replicas(self) -> dict[str, int]:
        return {self.candidate: self.runs}

    def compared(self) -> list[list[str]]:
        # digests decide bits; within a bound, how far the parameters of every run end from those of the first
        return [] if self.equality == "bitwise" else [[self.candidate]]
