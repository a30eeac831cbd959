"""Define the contract language, version 2: the content of a contract file.

Contracts are data, without expressions and code. The models are strict: unknown keys, wrong types, NaN and infinity are
errors. A claim consists of texts for people and of one judgement. A composite claim has several judgements, its parts.

`harness.contract.load.problems` checks references between parts of a contract (arms, workloads, claims). Each problem
has the path of the wrong value. The loader computes line and column from this path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import new_class
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, SchemaValidator, core_schema

from harness.bounded_model import LateModel
from harness.contract.base import (
    UNREAD,
    Capability,
    Count,
    Demand,
    HostName,
    Judged,
    Name,
    NoDemand,
    Positive,
    Reason,
    Scalar,
    Strict,
    SystemName,
    Text,
    Words,
    marks,
    refuse,
)
from harness.contract.guards import EndName
from harness.errors import KindError
from harness.kinds import kinds, resolve

AnyPart = Judged


class ClaimText(Strict):
    """The fields that every claim has in addition to the fields of its kind."""

    id: Name
    """Name of the claim, unique in its contract."""
    title: Words
    """The claim in one sentence."""
    judged_on: Annotated[list[Name], Field(min_length=1)]
    """Workloads on which the claim is judged. The claim gets one verdict for each workload."""
    why: Words
    """Where each number in the claim comes from."""
    if_fails: Words
    """The usual causes if the claim fails."""
    falsified_by: list[Name] = []
    """Names of faults that a drill plants. With each of these faults, the claim must not hold."""
    upstream: Annotated[Text | None, UNREAD] = None
    """The claim of another project from which this claim was taken."""
    tags: Annotated[list[Name], UNREAD] = []
    """Tags by which `--tag` selects the claim; default: the contract's tags."""
    owner: Annotated[Text | None, UNREAD] = None
    """The person or team responsible for the claim; default: the contract's owner."""
    may_end_apart: dict[EndName, Reason] = {}
    """Counts whose values at the end may differ between the arms, although equal bits are required. The keys are their
    names in a verdict (such as `optimizer group0.step`), the values the reasons. Each count must be a whole number at
    the end."""


class AnyClaim(Judged, ClaimText):
    """A claim of any kind."""


class _OneOf:
    """A pydantic type that accepts one of several models, selected by the key `kind`. Only the models of kinds in use
    are built.

    The type accepts the same values, with the same errors, as a pydantic union of all kinds. To build that union took
    as long as to read all contracts of this repository.
    """

    def __init__(self, kind_names: Callable[[], Sequence[str]], model_of: Callable[[str], type[Judged]]) -> None:
        self._names, self._model_of = kind_names, model_of
        self._unions: dict[str, SchemaValidator] = {}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validated)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(_union({name: self._model_of(name) for name in self._names()}))

    def _validated(self, value: Any) -> Any:
        names = self._names()
        kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
        named = isinstance(value, dict) and "kind" in value
        if kind not in names if isinstance(kind, str) else named:
            expected = ", ".join(map(repr, names))
            raise PydanticKnownError(
                "union_tag_invalid", {"discriminator": "'kind'", "tag": str(kind), "expected_tags": expected}
            )
        # A value without a kind is an error. All models report this error alike, so the first model can report it.
        chosen = kind if isinstance(kind, str) else names[0]
        if chosen not in self._unions:
            self._unions[chosen] = SchemaValidator(_union({chosen: self._model_of(chosen)}))
        return self._unions[chosen].validate_python(value)


def _union(models: Mapping[str, type[Judged]]) -> CoreSchema:
    for model in models.values():
        model.model_rebuild()  # otherwise pydantic would build this model's schema only when the model is first used
    choices = {kind: model.__pydantic_core_schema__ for kind, model in models.items()}
    return core_schema.tagged_union_schema(choices, discriminator="kind")


def part_kinds() -> list[str]:
    """Return the kinds of claims that can be a part of a composite claim."""
    return list(kinds())


def claim_kinds() -> list[str]:
    """Return all kinds that a claim may have, including `composite`."""
    return [*kinds(), "composite"]


@cache
def part_model(kind: str) -> type[Judged]:
    """Return the model of a claim's part for this kind.

    Raises KindError if the model cannot be imported, or if a field has neither the mark `Demand` nor `NoDemand`.
    Without a mark, it would not be noticed that no planted fault tests the field.
    """
    model: type[Judged] = resolve(kinds()[kind].model)
    marked = {path.partition(".")[0] for path in (*marks(model, Demand), *marks(model, NoDemand))}
    unmarked_fields = [name for name in model.model_fields if name not in {"kind", *Judged.model_fields, *marked}]
    if unmarked_fields:
        fields_must_be_annotated = (
            "each field of a claim kind's model must have the type `ArmName`, or be annotated with `Demand` or "
            "`NoDemand`"
        )
        raise KindError(
            fields_must_be_annotated,
            where=f"claim kind '{kind}'",
            got=", ".join(unmarked_fields),
            remedy="annotate the field with `Demand` or `NoDemand`",
        )
    return model


@cache
def claim_model(kind: str) -> type[AnyClaim]:
    """Return the model of whole claims of this kind. The model has the fields of the part's model and the text fields
    of a claim. For example, the model `MemorySteady` of a part becomes the model `MemorySteadyClaim`."""
    if kind == "composite":
        return CompositeClaim
    model = part_model(kind)
    claim: type[AnyClaim] = new_class(
        f"{model.__name__}Claim", (model, AnyClaim), exec_body=lambda body: body.update(__module__=model.__module__)
    )
    return claim


class CompositeClaim(AnyClaim):
    """A claim of several parts, each a judgement of one kind. The worst verdict of the parts is the claim's verdict."""

    kind: Literal["composite"]
    """A claim that joins several judgements."""
    parts: Annotated[list[Annotated[AnyPart, _OneOf(part_kinds, part_model)]], Field(min_length=2)]
    """The judgements. Their worst verdict is the claim's verdict."""


Claim = Annotated[AnyClaim, _OneOf(claim_kinds, claim_model)]


def parts_of(claim: AnyClaim) -> list[AnyPart]:
    """Return the judgements that a claim consists of: its parts, or the claim itself if it is not composite."""
    return list(claim.parts) if isinstance(claim, CompositeClaim) else [claim]


def part_names(claim: CompositeClaim) -> list[str]:
    """Return one name for each part of the claim: the part's kind. If several parts have the same kind, add a number
    (`kind.1`)."""
    total, seen, names = Counter(part.kind for part in claim.parts), Counter[str](), []
    for part in claim.parts:
        seen[part.kind] += 1
        names.append(part.kind if total[part.kind] == 1 else f"{part.kind}.{seen[part.kind]}")
    return names


# ruff: noqa: RUF012 - pydantic copies mutable defaults; ruff recognizes a model only in the file of its base class


SCHEMA_VERSION = "contract/v2"
RulesVersion = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]
# The harness plants faults from step 5 on (`FAULTY_STEP`, counted from 0). A replay must execute step 5, so the capture
# must come earlier.
MOST_WARM_STEPS = 4


class Needs(Strict):
    """Requirements on the machine that runs a workload. On a machine that does not meet them, the verdict for this
    workload is NOT_RUN."""

    device: Literal["cpu", "cuda"] | None = None
    """The device on which the workload runs; default: a GPU, or the CPU of a machine without a GPU."""
    memory_gib: Positive | None = None
    """Free memory that the device must have, in GiB."""
    gpus: Count | None = None
    """Number of GPUs, at least one for each rank; default: one if the workload runs on a GPU."""
    gpu: Text | Annotated[list[Text], Field(min_length=1)] | None = None
    """A word of the GPU's name, such as `H100`, in upper or lower case. With a list of words, the name must contain one
    of them."""
    capability_at_least: Capability | None = None
    """The lowest compute capability that the GPU may have, such as `"9.0"`."""
    modules: list[str] = []
    """Python modules that must be installed."""

    @model_validator(mode="after")
    def _of_a_gpu(self) -> Needs:
        if self.device == "cpu" and self.asks_for_gpu:
            refuse("a workload that needs a GPU must not need device cpu", "device")
        return self

    @property
    def asks_for_gpu(self) -> bool:
        """Return True if the workload needs a certain GPU, compute capability or number of GPUs."""
        return self.gpu is not None or self.capability_at_least is not None or self.gpus is not None

    def gpu_names(self) -> list[str]:
        """Return words, one of which the GPU's name must contain. If the list is empty, every GPU is accepted."""
        return [self.gpu] if isinstance(self.gpu, str) else self.gpu or []


class Workload(Strict):
    """The model, data and steps of a training. If `seq_len` is a list, each step uses the next entry in turn."""

    model: str
    """A model name that the system knows, or a directory with a checkpoint."""
    batch_size: Count = 1
    """Sequences in a batch. Leave it out if the system chooses it."""
    seq_len: Count | Annotated[list[Count], Field(min_length=2)] = 1
    """Tokens in a sequence. With a list, the steps use its entries in turn. Leave it out if batches have no tokens."""
    steps: Count
    """Training steps of each arm, counted from 0."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the weights and the data. The batch of a step depends only on the seed and on the number of the step."""
    needs: Needs = Needs()
    """Requirements on the machine."""
    options: dict[Name, Scalar] = {}
    """Settings for the system, checked against its `workload_options`."""

    def size(self) -> str:
        """Return the size of a batch in words, or "" if the contract does not state the size."""
        if self.seq_len == 1:
            return f"batches of {self.batch_size}" if self.batch_size > 1 else ""
        lengths = self.seq_len if isinstance(self.seq_len, list) else [self.seq_len]
        return f"{self.batch_size} × {'/'.join(map(str, lengths[:4]))}{'/…' if len(lengths) > 4 else ''} tokens"


class Arm(LateModel):
    """One way of running the training. All settings except the fields declared here belong to the system. The harness
    checks them with the system's `arm_options` and passes them to the system."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, Scalar] = Field(init=False)

    capture: Literal["none", "step", "backward"] = "none"
    """The part of the step that is captured: nothing (`none`), the whole step (`step`), or backward pass, clip and
    optimizer (`backward`)."""
    system: SystemName | None = None
    """`module:attribute` of this arm's own system; default: the contract's system."""
    ranks: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of processes that train one model together, as `torchrun` starts them. Each process takes an equal share
    of every batch."""
    model_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of neighboring ranks that share a model and read the same part of a batch, as with tensor parallelism."""
    deterministic: bool = False
    """Use the deterministic algorithms of torch, cuBLAS and cuDNN. They are slower, but repeat every bit."""
    warm_steps: Annotated[int, Field(ge=0, le=MOST_WARM_STEPS)] = 0
    """Number of plain steps before the capture. Some optimizers create their state in the first step."""

    @model_validator(mode="after")
    def _warms_a_capture(self) -> Arm:
        if self.warm_steps and self.capture == "none":
            refuse(
                "an arm that is not captured must not have `warm_steps`, because all its steps are plain", "warm_steps"
            )
        return self

    @model_validator(mode="after")
    def _has_whole_models(self) -> Arm:
        if self.ranks % self.model_parallel:
            refuse(
                f"`ranks` ({self.ranks}) must be a multiple of `model_parallel` ({self.model_parallel})",
                "model_parallel",
            )
        return self

    @property
    def shares(self) -> int:
        """Return the number of equal shares into which the ranks split every batch."""
        return self.ranks // self.model_parallel

    def settings(self) -> dict[str, Scalar]:
        """Return the arm's settings that are passed to the system. The fields that this class declares are not among
        them, because the harness itself uses these fields."""
        return dict(self.__pydantic_extra__ or {})


class Unchecked(Strict):
    """A claim that the language cannot express. Reports list it, so that no reader assumes that it was judged."""

    id: Text
    """The claim's name in the text from which it was taken."""
    title: Text
    """The claim in one sentence."""
    source: Text
    """Where the claim comes from."""
    why: Text
    """Why the claim has no executable check."""


class Contract(Strict):
    """The content of one contract file."""

    schema_version: Literal["contract/v2"] = Field(alias="schema")
    """Version of the contract language."""
    rules: Annotated[RulesVersion, UNREAD] = "0.1.0"
    """Version of the harness whose rules of judging the author knows. `harness check` lists newer rules for the
    contract."""
    id: Name
    """Name of the contract, unique among the contracts that are checked together."""
    title: Words
    """What the contract is about, in one sentence."""
    uses: Annotated[list[Text], UNREAD] = []
    """Paths of files with shared workloads and arms, relative to the contract's folder. The files must be in this
    folder or in its parent."""
    tracks: Annotated[list[Name], UNREAD] = []
    """Tickets to which the contract belongs."""
    tags: Annotated[list[Name], UNREAD] = []
    """Tags of all claims that have no tags themselves. `--tag` selects claims by tag."""
    owner: Annotated[Text | None, UNREAD] = None
    """The person or team responsible for all claims without an `owner`."""
    system: SystemName
    """`module:attribute` of the system under test."""
    workloads: Annotated[dict[Name, Workload], Field(min_length=1)]
    """Workloads by name."""
    arms: Annotated[dict[Name, Arm], Field(min_length=1)]
    """Arms by name."""
    host_values: dict[HostName, Reason] = {}
    """Python numbers that a captured step reads although no replay changes them. The keys are their names in a verdict,
    and the values are the reasons why this is correct."""
    claims: Annotated[list[Claim], Field(min_length=1)]
    """The claims."""
    unchecked: Annotated[list[Unchecked], UNREAD] = []
    """Claims without an executable check. They are never judged, and every report lists them."""

    def tags_of(self, claim: AnyClaim) -> list[str]:
        """Return the tags of the claim, or the tags of the contract if the claim has none."""
        return claim.tags or self.tags

    def owner_of(self, claim: AnyClaim) -> str | None:
        """Return the owner of the claim, or the owner of the contract if the claim has none."""
        return claim.owner or self.owner

    def same_settings(self, first: str, second: str) -> bool:
        """Return True if two arms have the same settings. An arm without `system` uses the contract's system, and so
        equals an arm that names this system."""
        one, other = self.arms[first], self.arms[second]
        return one == other.model_copy(update={"system": one.system}) and (one.system or self.system) == (
            other.system or self.system
        )

    def systems(self) -> list[str]:
        """Return the contract's system, and then the systems that arms name, each once."""
        return list(dict.fromkeys([self.system, *(arm.system for arm in self.arms.values() if arm.system)]))
