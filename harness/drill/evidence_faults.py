"""Plant faults of the harness's own bookkeeping in recorded evidence, because no system can cause them.

Each kind of claim lists, in its row of `harness.kinds`, the faults that it must notice. `offered_faults` adds the other
faults that a contract may name. Importing this needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from harness.contract.schema import Contract
from harness.errors import KindError
from harness.evidence.descriptions import Expectation, FaultDescription, SystemDescription
from harness.kinds import kinds, resolve
from harness.system.wrappers import HARNESS_FAULTS

if TYPE_CHECKING:
    from harness.evidence.run_evidence import ArmEvidence, RunEvidence


@dataclass(frozen=True)
class EvidenceFault:
    """A fault that is planted in what was recorded, and what every kind that lists it must say then."""

    name: str
    summary: str
    change: Callable[[RunEvidence], RunEvidence] | None
    """None: the run is planned and never executed, so that its directory is not there when the evidence is read."""
    expected: Expectation


def without_steps(evidence: RunEvidence) -> RunEvidence:
    """Return the run's evidence as if no arm had been asked for a step."""
    arms = {arm: [_emptied(each) for each in executions] for arm, executions in evidence.arms.items()}
    return replace(evidence, arms=arms, ranks=tuple(map(without_steps, evidence.ranks)))


def _emptied(execution: ArmEvidence) -> ArmEvidence:
    import numpy as np

    from harness.evidence.run_evidence import Series

    series = Series(np.empty(0), [], np.empty(0, np.int64), np.empty(0, np.int64))
    end = None if execution.end is None else execution.end.model_copy(update={"steps_called": 0})
    noted = execution.rank_steps
    if noted is not None:
        noted = noted.model_copy(update={"parameters": noted.parameters[:1], "rows": [], "collectives": []})
    return replace(execution, series=series, end=end, compared_steps=[], rank_steps=noted)


NO_STEPS = EvidenceFault(
    "no_steps",
    "no arm is asked for a step: a comparison over zero steps",
    without_steps,
    Expectation("FAIL", "vacuous_steps", {"steps_run": 0}),
)
MISSING_RUN = EvidenceFault(
    "missing_run",
    "the run was planned and left nothing: a unit that would disappear from the table",
    None,
    Expectation("ERROR", "worker_incomplete"),
)


@cache
def evidence_faults() -> dict[str, EvidenceFault]:
    """Return the faults that some kind lists, by name. Raises KindError for what is not a fault or shares a name."""
    found: dict[str, EvidenceFault] = {}
    for kind in kinds().values():
        for reference in kind.evidence_faults:
            fault = resolve(reference)
            if not isinstance(fault, EvidenceFault) or found.setdefault(fault.name, fault) is not fault:
                rule = "an evidence fault is an `EvidenceFault` with a name of its own"
                raise KindError(rule, where=f"claim kind '{kind.name}'", got=reference, remedy="correct the reference")
    return found


@cache
def descriptions() -> dict[str, FaultDescription]:
    """Describe each fault of the evidence: what it plants, and what the kinds that list it must say."""
    breaks: dict[str, dict[str, Expectation]] = {name: {} for name in evidence_faults()}
    for kind in kinds().values():
        for reference in kind.evidence_faults:
            fault: EvidenceFault = resolve(reference)
            breaks[fault.name][kind.name] = fault.expected
    return {
        name: FaultDescription(name, fault.summary, "both", breaks[name]) for name, fault in evidence_faults().items()
    }


def offered_faults(systems: Iterable[SystemDescription]) -> dict[str, FaultDescription]:
    """Return faults by name: of the harness's evidence, of its wrappers, of the systems.

    Of faults with one name a system's hides the harness's, and the first system's hides those of the others.
    """
    offered = {**descriptions(), **HARNESS_FAULTS}
    for system in reversed(list(systems)):
        offered |= system.faults
    return offered


def offered_by(contract: Contract, describe: Callable[[str], SystemDescription]) -> dict[str, FaultDescription]:
    """Return the faults that a contract may name, of its system and its arms' own. Raises what `describe` raises."""
    return offered_faults([describe(system) for system in contract.systems()])
