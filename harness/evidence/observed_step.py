"""Define the record of one observed step: what it started from, its operators in order, and what it left."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness.evidence.base import Record, RunRecord
from harness.numbers import Amount, Count

GRADIENT = "gradient"  # begins the name of a gradient, as a category begins that of state

UNOBSERVED, OBSERVED = 0, 1  # executions of an arm


class ReadTensor(Record):
    """A tensor that an operator reads. Digests are of bits; None where they could not be read, or were never written.

    source: the operator of this step that wrote its memory last. name: of the state or input that it is, if it has one.
    """

    digest: str | None
    form: str  # data type and shape
    source: Count | None = None
    name: str | None = None
    number: str | None = None  # its value, if the host holds it as one number


class ObservedOperator(Record):
    """One operator. `line` and `module` are empty where nothing of the user's called it."""

    name: str
    phase: Literal["between", "forward", "backward"]
    module: str
    line: str
    code: str
    arguments: list[str]  # with a point for each tensor
    reads: list[ReadTensor]
    makes: list[str | None]  # digests of what it returns
    leaves: list[str | None]  # digests of what it was given and changed; None for the rest
    writes: list[str] = Field(default_factory=list)  # names of the state that it changes
    replayed: bool = False
    captured_as: Count | None = None  # its number among the operators of its graph
    values: list[list[float]] | None = None  # of what it makes, where that was asked for


class ObservedStep(RunRecord):
    """One step of one execution of an arm: digests by what they are of, and the operators if they were observed.

    unseen: kernels in replayed graphs that belong to no operator, and graphs without one. seconds: from the opening of
    the arm to the end of the step. bytes: of the digests that observing it kept.
    """

    record: Literal["observed_step"] = "observed_step"
    key: ClassVar = ("arm", "replica", "step")
    arm: str
    replica: Count
    step: Count
    before: dict[str, str]  # state, by `category name`
    batch: dict[str, str]
    loss: str
    gradients: dict[str, str]
    after: dict[str, str]
    operators: list[ObservedOperator] | None = None
    unseen: Count = 0
    seconds: Amount | None = None
    bytes: Count | None = None

    @model_validator(mode="after")
    def _made_before(self) -> Self:
        """Refuse a tensor that is read before the operator that made it: following sources then comes to an end."""
        for number, operator in enumerate(self.operators or []):
            if any(read.source is not None and read.source >= number for read in operator.reads):
                raise ValueError(f"operator {number} reads what a later one made")
        return self
