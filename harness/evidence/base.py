"""Define the base types of plans, records and evidence."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict

from harness.bounded_model import BoundedModel
from harness.kinds.installed import probes
from harness.numbers import Count, Real

Scalar = bool | int | Real | str


def _known(name: str) -> str:
    if name not in probes():
        raise ValueError(f"no probe has this name; use one of {', '.join(probes())}")
    return name


ProbeName = Annotated[str, AfterValidator(_known)]

# The reason why a worker, or one arm in a worker, ended before its evidence was complete.
Cause = Literal["signal", "exit_code", "wall_limit", "heartbeat", "incomplete", "garbage", "output_limit", "exception"]


class Record(BoundedModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunRecord(Record):
    """One line of `records.jsonl`, in which a worker recorded something about its run. Each type of record is a
    subclass with a different value of the field `record`.

    key: the fields that identify a record among the run's records of its type. If two records have equal values in
    these fields, the evidence counts as damaged.
    """

    key: ClassVar[tuple[str, ...]] = ()
    record: str


class ArmRecord(RunRecord):
    """A record of one execution of one arm."""

    key: ClassVar[tuple[str, ...]] = ("arm", "replica")
    arm: str
    replica: Count


class Obstacle(Record):
    """The reason why a unit is not run: a reason code, and a sentence about what is missing or broken."""

    reason: str
    message: str
