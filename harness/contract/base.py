"""Define the field types and base models from which the models of the contract language are built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr
from pydantic_core import PydanticCustomError

from harness.bounded_model import LateModel
from harness.contract.conditions import Bound, Situation

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
Metric = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}$")]
HostName = Annotated[str, Field(min_length=1, max_length=300)]
SystemName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$")]


def says_something(text: str) -> bool:
    """Return True if a text contains a letter or a digit. A text that has only blanks or dashes contains neither."""
    return any(sign.isalnum() for sign in text)


def _not_blank(text: str) -> str:
    if not says_something(text):
        raise PydanticCustomError("blank_text", "Input should have a letter or a digit")
    return text


def _in_words(text: str) -> str:
    if not says_something(text):
        raise PydanticCustomError("no_reason", "Input should be a reason in your own words")
    return text


Reason = Annotated[str, Field(max_length=4000), AfterValidator(_in_words)]
Text = Annotated[str, Field(min_length=1, max_length=4000), AfterValidator(_not_blank)]
UNREAD = "unread"  # a mark for fields that are read neither to execute a run nor to judge it
Words = Annotated[Text, UNREAD]
Capability = Annotated[str, Field(pattern=r"^[1-9][0-9]?\.[0-9]$")]  # a GPU's compute capability, such as "9.0"
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Scalar = bool | int | float | str
Mechanism = Literal["cuda_graph", "traced"]
Equality = Literal["bitwise", "within"]
EqualityOrNoise = Literal["bitwise", "within", "noise"]


class Strict(LateModel):
    """Base of strict models: unknown keys, wrong types, NaN and infinity are errors. Instances cannot be changed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Problem:
    """A broken rule of the contract language. path: the keys that lead to the wrong value. They start at the top of the
    contract or, if a judgement (a claim or a part of a claim) reports the problem, at this judgement."""

    path: tuple[str | int, ...]
    rule: str
    got: str = ""
    remedy: str = ""


# Paths of the fields that name a "nudged" control. This arm has the settings of the baseline, but the harness slightly
# changes its initial parameters.
NUDGED_CONTROLS = ("ends.control", "control")


class GradientDemand(NamedTuple):
    """The gradients that the judge of a claim needs. For each arm named here, a run that compares arms records digests
    and figures (such as the largest element) of these gradients.

    steps: the steps whose gradients are needed, counted from 0, or from the end if negative. Steps that the workload
    does not have are left out.
    also: further arms whose gradients are needed.
    control: an arm whose gradients are compared with the baseline's gradients, in the same way as the candidate's.
    """

    candidate: str
    baseline: str | None
    steps: Sequence[int]
    also: tuple[str, ...] = ()
    control: str | None = None

    def compared(self) -> list[str]:
        """Return the arms whose gradients are compared with the gradients of the baseline."""
        return [arm for arm in (self.candidate, self.control) if arm is not None and self.baseline is not None]


@dataclass(frozen=True, init=False)
class Demand:
    """Mark of a field whose value can turn PASS into FAIL. Such a FAIL has one of `reasons` as its reason code, and its
    verdict contains all of `figures`."""

    reasons: tuple[str, ...]
    figures: Mapping[str, Scalar]

    def __init__(self, *reasons: str, **figures: Scalar) -> None:
        object.__setattr__(self, "reasons", reasons)
        object.__setattr__(self, "figures", figures)


@dataclass(frozen=True)
class NoDemand:
    """Mark of a field that cannot turn PASS into FAIL. `why` gives the reason. The mark also applies to all fields
    nested in this field."""

    why: str


@dataclass(frozen=True)
class Nothing:
    """Mark of a field that has a `value` with which it requires nothing, because every run meets the requirement."""

    value: float


@dataclass(frozen=True)
class NamesArm:
    """Mark of a field whose value is the name of an arm."""


@dataclass(frozen=True)
class CountsSteps:
    """Mark of a field with a number of steps, or with a list of step numbers. The workload must have that many steps,
    or steps with these numbers."""


ArmName = Annotated[Name, NamesArm(), NoDemand("names an arm")]
OptionalArm = Annotated[Name | None, NamesArm(), NoDemand("names an arm")]
StepsCompared = Annotated[Count, Demand("vacuous_steps"), CountsSteps()]
MEASURED = NoDemand("states how much is measured; fewer measurements are an ERROR")
CONFIDENCE = NoDemand("states how sure a PASS and a FAIL are; results in between are INCONCLUSIVE")
ComparedSteps = Annotated[
    list[Natural],
    Field(min_length=1),
    NoDemand("chooses the steps that are compared; a step without gradients is an ERROR"),
    CountsSteps(),
]
_Mark = TypeVar("_Mark")


def marks(model: type[BaseModel], kind: type[_Mark]) -> Mapping[str, _Mark]:
    """Return the marks of type `kind` on a model's fields, and on the fields of nested models. The keys are paths of
    fields, such as `guards.steps`."""
    found: Mapping[str, _Mark] = _marks_of(model, cast("Any", kind))
    return found


@cache
def _marks_of(model: type[BaseModel], kind: Any) -> Any:
    return {path: mark for path, mark in _marks(model) if isinstance(mark, kind)}


@cache
def _marks(model: type[BaseModel]) -> Sequence[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name, field in model.model_fields.items():
        found += [(name, mark) for mark in field.metadata]
        below = _model_in(cast("Any", field.annotation))
        found += [(f"{name}.{path}", mark) for path, mark in _marks(below)] if below is not None else []
    return found


def model_within(model: type[BaseModel], field: str) -> type[BaseModel] | None:
    """Return the model of a field's value, or None if the value is not a model."""
    return _model_in(cast("Any", model.model_fields[field].annotation))


@cache
def _model_in(annotation: Any) -> type[BaseModel] | None:
    return next((one for one in flat(annotation) if isinstance(one, type) and issubclass(one, BaseModel)), None)


def flat(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation: for a union, the type of each member. A list or mapping type is yielded as a
    whole."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from flat(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for one in get_args(annotation):
            yield from flat(one)
    else:
        yield annotation


class Judged(Strict):
    """One judgement: a whole claim, or one part of a claim. The model of every kind of claim is a subclass. The methods
    answer questions about the judgement from its fields. A kind of claim overrides a method if the answer for this kind
    differs from the default."""

    mechanism: Mechanism | None = None
    """The kind of replay that must have produced the evidence. By default, evidence from any kind of replay is
    accepted, and also evidence without a replay."""

    # This declaration is only for type checkers. Each subclass declares `kind` itself, because pydantic keeps the order
    # of the declarations.
    if TYPE_CHECKING:
        kind: str

    candidate_path: ClassVar[str] = "candidate"
    """The field that names the arm under test."""
    baseline_path: ClassVar[str] = "baseline"
    """The field that names the arm used as the baseline, for example when a fault is planted in the baseline."""
    plain_path: ClassVar[str | None] = None
    """The field that names an arm without capture, or None. This arm reveals errors that all captured arms share."""
    judged_at: ClassVar[Literal["each rank", "first rank", "all ranks"]] = "each rank"
    """The ranks whose evidence is judged if an arm has several ranks: each rank separately, the first rank only, or all
    ranks together."""
    must_train_alike: ClassVar[bool] = False
    """True if the claim requires that two executions train alike. If the executions differ, the harness can then locate
    their first difference."""

    def arms(self) -> dict[str, str]:
        """Return the names of the judgement's arms. The keys are the paths of the fields that contain these names."""
        named = {path: self.value_at(path) for path in marks(type(self), NamesArm)}
        return {path: arm for path, arm in named.items() if isinstance(arm, str)}

    def between_steps(self) -> dict[str, object]:
        """Return settings for the run that locates a first difference. The settings describe work that only the
        candidate does between two of its steps, such as an evaluation."""
        return {}

    def uncaptured_may_begin(self) -> int:
        """Return how many captures may begin in an arm that must not be captured. For most claims the number is 0."""
        return 0

    # --- bounds that depend on where the claim is judged ------------------------------------------------------

    _conditional: Conditional | None = PrivateAttr(default=None)

    def depend(self, bounds: Mapping[str, Bound], variants: Sequence[Judged]) -> None:
        """Store the bounds that have cases (different numbers for different situations), by the paths of their fields.
        The fields themselves keep the `otherwise` values.

        The loader of contracts calls this method. variants: a validated copy of this judgement for each set of numbers
        that its bounds can have.
        """
        self._conditional = Conditional(bounds, variants)

    def bounds(self) -> Mapping[str, Bound]:
        """Return the bounds that depend on the situation (workload, GPU, data type). The keys are the paths of their
        fields."""
        return {} if self._conditional is None else self._conditional.bounds

    def variants(self) -> Sequence[Judged]:
        """Return one copy of the judgement for each set of numbers that its bounds can have."""
        return [self] if self._conditional is None else self._conditional.variants

    def resolved(self, situation: Situation) -> Judged:
        """Return a copy of the judgement in which every bound that has cases is replaced by the number that applies in
        this situation."""
        resolved = self
        for path, bound in self.bounds().items():
            resolved = _with_value(resolved, path.split("."), bound.decided(situation)[0])
            resolved._conditional = None
        return resolved

    # --- what a contract may require --------------------------------------------------------------------------

    def contradictions(self) -> Iterator[Problem]:
        """Yield a problem for each group of fields that contradict each other.

        The paths are relative to this judgement.
        """
        yield from ()

    def demanded(self) -> dict[str, Demand]:
        """Return the fields whose values can turn PASS into FAIL, with their `Demand` marks. The keys are the paths of
        the fields."""
        variants = self.variants()
        return {
            path: demand
            for path, demand in marks(type(self), Demand).items()
            if any(one.can_bite(path) for one in variants)
        }

    def can_bite(self, path: str) -> bool:
        """Return True if the value of the `Demand` field at `path` can cause a FAIL. Return False if the value is
        missing or requires nothing."""
        value = self.value_at(path)
        if value is None or value is False or value in ([], {}):
            return False
        return value != getattr(marks(type(self), Nothing).get(path), "value", None)

    def idle(self) -> list[str]:
        """Return the paths of the fields whose values require nothing in any situation (workload, GPU, data type)."""
        return [
            path
            for path, nothing in marks(type(self), Nothing).items()
            if all(one.value_at(path) == nothing.value for one in self.variants())
        ]

    def value_at(self, path: str) -> object:
        """Return the value at a path such as `guards.steps`, or None if a field on the path is not set."""
        name, _, below = path.partition(".")
        value: object = getattr(self, name, None)
        for each in below.split(".") if below else ():
            value = getattr(value, each, None)
        return value

    def dangling_names(
        self,
        on: Sequence[str],  # noqa: ARG002
        claims: Mapping[str, Sequence[Judged]],  # noqa: ARG002
    ) -> Iterator[Problem]:
        """Yield a problem for each unknown name of a workload or claim. The paths of the problems are relative to this
        judgement.

        on: the workloads of the claim that contains this judgement. claims: for each claim of the contract, its
        judgements.
        """
        yield from ()

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield the path of every value that does not fit in a workload of `steps` steps, and the rule that this value
        breaks."""
        for field in marks(type(self), CountsSteps):
            path, value = tuple(field.split(".")), self.value_at(field)
            for position, step in enumerate(value if isinstance(value, list) else ()):
                if step >= steps:
                    yield (*path, position), f"step {step} must be one of the workload's steps, counted from 0"
            if isinstance(value, int) and value > steps:
                yield path, f"`{field}` ({value}) must not exceed the workload's steps"

    def undecidable(self) -> Iterator[Problem]:
        """Yield a problem for each requirement that no evidence could ever decide. The paths are relative to this
        judgement."""
        yield from ()

    def captures_candidate(self) -> bool:
        """Return True if the candidate of the judgement must be an arm that captures its step."""
        return self.mechanism is not None

    # --- what must be executed for the judgement --------------------------------------------------------------

    def asks_the_device(self) -> bool:
        """Return True if the judgement is about the CUDA device itself, so that a run on a CPU cannot decide it."""
        return False

    def asks_the_device_of_replays(self) -> bool:
        """Return True if a candidate with a capture can only be judged on a CUDA device. On a CPU the step is replayed
        without a CUDA graph, and such replays would prove nothing about the claim."""
        return False

    def candidate_capabilities(self) -> frozenset[str]:
        """Return capabilities that the candidate's system must have in addition to those that all claims of this kind
        need."""
        return frozenset()

    def baseline_capabilities(self) -> frozenset[str]:
        """Return capabilities that the baseline's system must have in addition to those that all claims of this kind
        need."""
        return frozenset()

    def chosen_probe(self) -> str | None:
        """Return the name of the probe (the way to execute a run and record evidence) for this judgement. Return None
        if this kind of claim has only one probe."""
        return None

    def replicas(self) -> dict[str, int]:
        """Return the arms that a run that compares arms must execute more than once, each with its number of
        executions."""
        return {}

    def compared(self) -> list[list[str]]:
        """Return groups of arms; each group must be executed in one process. For a group of several arms, this means
        one execution of each arm. For a group of one arm, it means all executions of this arm.

        Arms that share no group may run in separate processes, because only their losses, figures and digests are
        compared.
        """
        arms = sorted(set(self.arms().values()))
        return [arms, *([arm] for arm in sorted(self.replicas()))]

    def sync_arms(self) -> set[str]:
        """Return the arms whose host syncs a run that compares arms must observe."""
        return set()

    def gradients(self) -> GradientDemand | None:
        """Return the gradients whose digests and figures a run that compares arms must record, or None if the judgement
        needs no gradients."""
        return None

    def recorded_of(self) -> dict[str, dict[str, int | str]]:
        """Return, for arms about which a run must record more than usual, the settings that request this: fields of the
        planned arm (`PlannedArm`) by name. The keys are arms."""
        return {}

    def process_count(self) -> int | None:
        """Return in how many processes the measurement is made, each of them a separate run. Return None for a single
        run, which several claims may share."""
        return None

    def arms_of(self, process: int) -> list[str]:  # noqa: ARG002 - all arms, unless a kind gives each arm its own process
        """Return the arms that process number `process` executes, the baseline first."""
        return list(dict.fromkeys(reversed(self.arms().values())))

    def measurement_of(self, process: int) -> int:  # noqa: ARG002
        """Return the number of the measurement to which process number `process` belongs. A measurement consists of
        consecutive processes."""
        return 0


@dataclass(frozen=True)
class Conditional:
    """The bounds with cases of one judgement. A case is a number that applies only under conditions, such as a certain
    GPU. bounds: the bounds, by the paths of their fields. variants: a copy of the judgement for each set of numbers
    that its bounds can have."""

    bounds: Mapping[str, Bound]
    variants: Sequence[Judged]


_Model = TypeVar("_Model", bound=BaseModel)


def _with_value(model: _Model, path: Sequence[str], value: object) -> _Model:
    """Return a copy of the model with `value` at a field path. The value must be valid: it is not checked again."""
    name, *rest = path
    return model.model_copy(update={name: _with_value(getattr(model, name), rest, value) if rest else value})


def refuse(message: str, *path: str | int) -> None:
    """Raise a validation error with this message. path: where the wrong value is, within the model."""
    raise PydanticCustomError("contract_rule", "{message}", {"message": message, "path": list(path)})
