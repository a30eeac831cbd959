"""The contract language, version 2: what a contract file may say.

Contracts are data: no expressions, no code. Every model is strict (unknown keys, wrong types and non-finite
numbers are errors). References between parts of a contract (arms, workloads, claims) are checked by
`harness.contract.references.problems`, which names the path of the offending value so that the loader can point at it.
"""

# ruff: noqa: RUF012 - pydantic copies defaults, and ruff knows its models in the file of their base only

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.contract.base import Count, Name, Positive, Scalar, Strict, SystemName, Text
from harness.contract.claims import Claim

SCHEMA_VERSION = "contract/v2"


class Needs(Strict):
    """What a machine must have to run a workload; without it its units are NOT_RUN."""

    device: Literal["cpu", "cuda"] | None = None
    """The device it runs on; left out, any."""
    memory_gib: Positive | None = None
    """Free memory of that device, in GiB."""
    modules: list[str] = []
    """Python modules that must be installed."""


class Workload(Strict):
    """What both arms train on. `seq_len` as a list is a schedule of shapes, taken in turn step by step."""

    model: str
    """A model that the system names, or a directory with a checkpoint."""
    batch_size: Count
    """Sequences in a batch."""
    seq_len: Count | Annotated[list[Count], Field(min_length=2)]
    """Tokens in a sequence; a list is a schedule of shapes."""
    steps: Count
    """Training steps of each arm, counted from 0."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of weights and data; a batch is a function of seed and step."""
    needs: Needs = Needs()
    """What a machine must have."""
    options: dict[Name, Scalar] = {}
    """Settings for the system, checked against its `workload_options`."""


class Arm(BaseModel):
    """One way to train: settings handed to the system, which checks them against `describe().arm_options`."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)
    __pydantic_extra__: dict[str, Scalar] = Field(init=False)

    capture: Literal["none", "step", "backward"] = "none"
    """What is captured: nothing, the whole step, or backward pass, clip and optimizer."""
    system: SystemName | None = None
    """`module:attribute` of this arm's own system; left out, the contract's."""

    def settings(self) -> dict[str, Scalar]:
        """Everything but the harness's own keys `capture` and `system`."""
        return dict(self.__pydantic_extra__ or {})


class Unchecked(Strict):
    """A claim that no kind of the language can judge: listed, so that nobody takes it for held."""

    id: Text
    """What its source calls it."""
    title: Text
    """The claim in one sentence."""
    source: Text
    """Where it comes from."""
    why: Text
    """Why it has no executable check."""


class Contract(Strict):
    """One contract file."""

    schema_version: Literal["contract/v2"] = Field(alias="schema")
    """Version of the contract language."""
    id: Name
    """Name of the contract, unique among those checked together."""
    title: Text
    """What the contract is about, in one sentence."""
    tracks: list[Name] = []
    """Tickets it belongs to."""
    system: SystemName
    """`module:attribute` of the system under test."""
    workloads: Annotated[dict[Name, Workload], Field(min_length=1)]
    """Workloads by name."""
    arms: Annotated[dict[Name, Arm], Field(min_length=1)]
    """Arms by name."""
    claims: Annotated[list[Claim], Field(min_length=1)]
    """The claims."""
    unchecked: list[Unchecked] = []
    """Claims without an executable check: never judged, shown in every report."""

    def systems(self) -> list[str]:
        """The system under test, then those that arms name as their own; each once."""
        return list(dict.fromkeys([self.system, *(arm.system for arm in self.arms.values() if arm.system)]))
