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
    """All that the harness has to know of one kind of claim. A missing or malformed field is a `KindError`."""

    called: ClassVar = "claim kind"
    name: Name
    """What a contract writes as `kind`."""
    model: Reference
    """`module:attribute` of the model, a subclass of `harness.contract.base.Judged`."""
    judge: Reference
    """`module:attribute` of the judge: a function of the part, the context and the sheet."""
    probes: Annotated[Mapping[Name, tuple[Name, ...]], Field(min_length=1)]
    """The probes it is judged from (`harness.kinds.probes`), each with the model's fields that it is given.
    Where there are several the model's `chosen_probe` picks one."""
    capabilities: frozenset[Name]
    """Capabilities that the systems of all its arms must have; may be empty."""
    judges_unreadable_device: bool = False
    """Whether a device that is there and cannot be read is evidence for it, and no obstacle."""
    compares: Reference | None = None
    """`module:attribute` of a function of the part and a run: the series that the judge compares, which charts draw
    (`harness.judging.series`). None: it compares none."""
    card: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Anchors of the report's sections that show what it is judged from."""
    evidence_faults: Annotated[tuple[Reference, ...], Field(min_length=1)]
    """`module:attribute` of each `harness.drill.faults.EvidenceFault` that it must notice."""
    leaves_out: Mapping[Annotated[str, AfterValidator(left_out)], Sentence]
    """Shared checks (`harness.kinds.checks`) that it does not ask, with the reason; may be empty."""
    reasons: Mapping[Name, tuple[Literal["FAIL", "INCONCLUSIVE", "NOT_RUN", "ERROR"], Sentence]] = field(
        default_factory=dict
    )
    """Reason codes besides those of `harness.judging.reasons`: code to status and sentence. A PASS is not for a kind to
    word."""
