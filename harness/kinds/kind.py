"""Define a row of the table of claim kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from harness.kinds.checks import left_out
from harness.kinds.row import Name, Reference, Row, Sentence


@dataclass(frozen=True, kw_only=True)
class Kind(Row):
    """All that the harness needs to know about one kind of claim. If a field is missing or malformed, the row's
    creation raises `KindError`."""

    called: ClassVar = "claim kind"
    name: Name
    """The value of `kind` in a contract."""
    model: Reference
    """`module:attribute` of the model, a subclass of `harness.contract.base.Judged`."""
    judge: Reference
    """`module:attribute` of the judge, a function with three arguments: the part of a claim, the context (contract and
    runs), and the sheet, which collects the figures of the verdict."""
    probes: Annotated[Mapping[Name, tuple[Name, ...]], Field(min_length=1)]
    """The probes (`harness.kinds.probes`) whose evidence decides claims of this kind. For each probe, the value lists
    the model's fields that the probe gets as settings. With several probes, the model's `chosen_probe` names one."""
    capabilities: frozenset[Name]
    """Capabilities that the systems of all arms of a claim must have; may be empty."""
    judges_unreadable_device: bool = False
    """True if the judge decides about a device that exists but cannot be read. False if such a device is an obstacle,
    and the claim is not run."""
    compares: Reference | None = None
    """`module:attribute` of a function with two arguments: the part of a claim and a run. The function returns the
    series that the judge compares, for charts (`harness.judging.series`). None if the judge compares no series."""
    card: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Anchors of the report's sections that show the evidence of this kind."""
    evidence_faults: Annotated[tuple[Reference, ...], Field(min_length=1)]
    """`module:attribute` of each `harness.drill.faults.EvidenceFault` that the judge must notice."""
    leaves_out: Mapping[Annotated[str, AfterValidator(left_out)], Sentence]
    """Shared checks (`harness.kinds.checks`) that the judge does not make, each with the reason; may be empty."""
    reasons: Mapping[Name, tuple[Literal["FAIL", "INCONCLUSIVE", "NOT_RUN", "ERROR"], Sentence]] = field(
        default_factory=dict
    )
    """Reason codes that only this kind gives and that `harness.judging.reasons` does not contain. Each has a status and
    a sentence that explains it. A kind must not add a code for PASS."""
