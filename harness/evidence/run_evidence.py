"""Define the evidence of a run, as judges read it, and register the types of its records. Evidence contains no
decisions.

Each type of record is a class, and a field of `ArmEvidence` or `RunEvidence` holds the records of this class. The field
holds one record (`X | None`), several (`list[X]`), or one for each value of the last field in the record type's key
(`dict[str, X]`). Code that reads, renames or joins records uses these fields.

A folder `evidence/<run id>/` contains `run.json` (the Run), `records.jsonl` (a worker's records, each with its `record`
tag, ending with `complete`), and `<arm>.<replica>.csv` (the series). Judges read `RunEvidence`.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter

from harness.errors import KindError
from harness.evidence.arm_records import (
    ArmEnd,
    ArmStart,
    CaptureEvidence,
    ComparedStep,
    Evaluated,
    Gradients,
    HostSyncEvidence,
    Loaded,
    LongReplayEvidence,
    MemoryEvidence,
    MicroBatches,
    PeakMemoryEvidence,
    RankSteps,
    Saved,
)
from harness.evidence.base import ArmRecord, Cause, Obstacle, ProbeName, Record, RunRecord
from harness.evidence.files import require_keys_once
from harness.evidence.run_records import (
    ArmFailed,
    Complete,
    KernelMatchEvidence,
    KernelsEvidence,
    ObservedStep,
    PartFailed,
    Phase,
    PrewarmEvidence,
    Raised,
    StepErrors,
    Telemetry,
    TimingEvidence,
    Unavailable,
)
from harness.kinds.installed import offered, place

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OfPackage = TypeVar("OfPackage", bound=RunRecord)
# Types of the records that a worker writes about itself: its phases and its end.
JOURNAL = (Phase, Unavailable, Raised, Complete)


class Death(Record):
    """The end of a worker that did not complete its run, as recorded by the process that started the worker."""

    cause: Cause
    detail: str  # what ended the worker: a signal's name, an exit code, a limit, or type and message of an exception
    phase: str | None
    stack: str  # the last Python stack; may be empty


@dataclass(frozen=True)
class Series:
    """The results of one arm's steps. Each array has one entry per step."""

    loss: NDArray[np.float64]
    batch_digest: Sequence[str]
    # number of parameter groups whose gradient norm exceeded the clip's threshold, for each step; -1: not reported
    clip_active_groups: NDArray[np.int64]
    tokens: NDArray[np.int64]
    # Values that the system reports for each step in addition to its loss, by the metric's name. Empty if the evidence
    # is of an older version.
    metrics: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WithPackages:
    """Evidence that also has records whose types come from installed packages. `of_packages` has all these records."""

    of_packages: list[RunRecord] = field(default_factory=list)

    def records(self, kind: type[OfPackage]) -> list[OfPackage]:
        """Return the records of one type from an installed package, in the order in which they were written."""
        return [record for record in self.of_packages if isinstance(record, kind)]


@dataclass(frozen=True)
class ArmEvidence(WithPackages):
    """All evidence of one execution of an arm. A field is None or empty if its evidence was not recorded."""

    start: ArmStart
    end: ArmEnd | None
    series: Series
    gradients: list[Gradients] = field(default_factory=list)
    capture: CaptureEvidence | None = None
    syncs: HostSyncEvidence | None = None
    memory: list[MemoryEvidence] = field(default_factory=list)
    compared_steps: list[ComparedStep] = field(default_factory=list)
    micro_batches: list[MicroBatches] = field(default_factory=list)
    rank_steps: RankSteps | None = None
    peak_memory: PeakMemoryEvidence | None = None
    long_replay: LongReplayEvidence | None = None
    saved: Saved | None = None
    loaded: Loaded | None = None
    evaluations: list[Evaluated] = field(default_factory=list)
    # Detectors and recorders that ended with an error. The keys are the fields that they should have filled.
    failed_parts: Mapping[str, PartFailed] = field(default_factory=dict)


@dataclass(frozen=True)
class RunEvidence(WithPackages):
    """The evidence of one run, as judges read it. Judges never read the name of a planted fault."""

    run_id: str
    probe: ProbeName
    arms: dict[str, list[ArmEvidence]]  # name of an arm -> its evidence, one entry for each execution of the arm
    timing: TimingEvidence | None = None
    telemetry: Telemetry | None = None
    kernels: dict[str, KernelsEvidence] = field(default_factory=dict)
    prewarm: dict[str, PrewarmEvidence] = field(default_factory=dict)
    kernel_match: dict[str, KernelMatchEvidence] = field(default_factory=dict)
    step_errors: list[StepErrors] = field(default_factory=list)
    observed_steps: list[ObservedStep] = field(default_factory=list)
    # name of an arm -> the error that ended this arm; the other arms continued
    failed: dict[str, ArmFailed] = field(default_factory=dict)
    death: Death | None = None
    # The evidence of each rank after the first, in order. For an arm with fewer ranks, the first rank's executions take
    # the place of the missing ranks.
    ranks: tuple[RunEvidence, ...] = ()
    # The reason why this machine cannot execute the run, whose units are then NOT_RUN.
    obstacle: Obstacle | None = None

    def capture_failed(self, arm: str) -> bool:
        """Return True if an execution of the arm requested a capture but captured nothing. Its steps ran uncaptured."""
        seen = [one.capture for one in self.arms.get(arm, []) if one.capture is not None]
        return any(capture.requested and not capture.captured for capture in seen)


# The code below lists the record types, parses a line of records, and puts each record into its field of the evidence.
# The harness's own record types are the types of the fields of `ArmEvidence` and `RunEvidence`. A package adds a record
# type with an entry point in the group `contract_harness.records` (`module:attribute`). The entry point names a
# subclass of `ArmRecord` or `RunRecord`.

GROUP = "contract_harness.records"
# name and form of the field for records of packages, because their types have no fields of their own
_OTHER = ("of_packages", list)
_Row = tuple[str, object]  # the name of a field, and its form: a list, a mapping, or one record


def _rows(evidence: type) -> dict[type[RunRecord], _Row]:
    """Return each type of record for which a class of evidence has a field, with the field's name and form."""
    hints = get_type_hints(evidence).items()
    named = [(one, (field, get_origin(hint))) for field, hint in hints for one in (hint, *get_args(hint))]
    types = [(one, row) for one, row in named if isinstance(one, type) and issubclass(one, RunRecord)]
    return {one: row for one, row in types if one is not RunRecord}


_ROWS: dict[type, dict[type[RunRecord], _Row]] = {one: _rows(one) for one in (ArmEvidence, RunEvidence)}
_FIELDS = {field for field, _ in _ROWS[ArmEvidence].values()}
BUILT_IN: tuple[type[Record], ...] = (*JOURNAL, *_ROWS[ArmEvidence], *_ROWS[RunEvidence])


@cache
def _adapter(packages: tuple[type[RunRecord], ...]) -> TypeAdapter[Record]:
    types = reduce(operator.or_, (*BUILT_IN, *packages))
    return TypeAdapter(Annotated[types, Field(discriminator="record")])  # type: ignore[arg-type]


_adapter(())  # Build the models while this module is imported. When a thread built them first, Python 3.13.0 crashed.


def tag(kind: type[Record]) -> str:
    """Return the value of `record` in the lines of a record type, or "" if the class is not a record type."""
    field = kind.model_fields.get("record")
    return field.default if field is not None and get_args(field.annotation) == (field.default,) else ""


@cache
def of_packages() -> tuple[type[RunRecord], ...]:
    """Return the record types of installed packages. Raises KindError if a package names something that is not a valid
    record type, or a type whose `record` value is used already."""
    types: dict[str, type[RunRecord]] = {}
    taken = {*map(tag, BUILT_IN), *_FIELDS}
    what = "a subclass of `ArmRecord` or `RunRecord`, with one word as its `record` and some of its fields as its `key`"
    for entry, kind in offered(GROUP, what, _is_sound):
        if tag(kind) in taken | types.keys():
            record_must_be_unique = "the `record` of a package's record type must be unique"
            raise KindError(
                record_must_be_unique,
                where=place(entry),
                got=f"'{tag(kind)}' again",
                remedy="rename the record type, or remove one package",
            )
        types[tag(kind)] = kind
    return tuple(types.values())


def _is_sound(value: Any) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, RunRecord)
        and tag(value) != ""
        and set(value.key) <= set(value.model_fields)
        and (not issubclass(value, ArmRecord) or value.key[:2] == ArmRecord.key)
    )


def parsed(line: str | bytes) -> Record:
    """Return one line of `records.jsonl` as a record. Raise pydantic's errors if the line is not a record."""
    require_keys_once(line)
    return _adapter(of_packages()).validate_json(line, strict=True)


def parts() -> set[str]:
    """Return the valid values of `PartFailed.part`: names of the parts of an execution's evidence whose recording may
    fail while the execution continues."""
    return {*_FIELDS, *map(tag, of_packages())}


def recorded_in(execution: ArmEvidence) -> Iterator[RunRecord]:
    """Yield every record of an execution."""
    for each in dataclasses.fields(execution):
        value = getattr(execution, each.name)
        values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
        yield from (one for one in values if isinstance(one, RunRecord))


def execution_of(series: Series, records: Iterable[RunRecord]) -> ArmEvidence:
    """Return the evidence of an execution: its series, and its records, each in the field of its type."""
    return ArmEvidence(series=series, **{"end": None, **held(ArmEvidence, records)})


def held(evidence: type, records: Iterable[RunRecord]) -> dict[str, Any]:
    """Return the records as values for the fields of a class of evidence, by the field's name. A value is one record, a
    list of records, or a mapping by the last field of the records' key."""
    fields: dict[str, Any] = {}
    for record in records:
        field, shape = _ROWS[evidence].get(type(record), _OTHER)
        if shape is list:
            fields.setdefault(field, []).append(record)
        elif shape in (dict, Mapping):
            fields.setdefault(field, {})[getattr(record, record.key[-1])] = record
        else:
            fields[field] = record
    return fields
