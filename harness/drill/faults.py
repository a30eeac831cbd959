"""Plant faults in recorded evidence, and find the verdict that each planted fault must cause.

An evidence fault is a fault that no training system can cause, so it is planted in the evidence. For each kind of
claim, `harness.kinds` lists the evidence faults that the kind's judge must detect. `offered_faults` adds all other
faults. The import of this module needs neither torch nor a judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from harness.contract.base import Demand, marks
from harness.contract.schema import AnyClaim, AnyPart, CompositeClaim, Contract, part_names, parts_of
from harness.errors import KindError
from harness.evidence.descriptions import Expectation, FaultDescription, SystemDescription
from harness.judging.verdict import WORST_FIRST, Figure, Status, Verdict
from harness.kinds import kinds, resolve
from harness.system.wrappers import HARNESS_FAULTS

if TYPE_CHECKING:
    from harness.evidence.run_evidence import ArmEvidence, RunEvidence


@dataclass(frozen=True)
class EvidenceFault:
    """A fault that is planted in recorded evidence, and the verdict that it must cause for every kind of claim that
    lists it."""

    name: str
    summary: str
    change: Callable[[RunEvidence], RunEvidence] | None
    """A function that returns the changed evidence. None: the run is planned but not executed, so that its evidence is
    missing."""
    expected: Expectation


def without_steps(evidence: RunEvidence) -> RunEvidence:
    """Return the evidence as if every arm had been planned with zero steps."""
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
    "no arm is asked for a step, so a comparison covers zero steps",
    without_steps,
    Expectation("FAIL", "vacuous_steps", {"steps_run": 0}),
)
MISSING_RUN = EvidenceFault(
    "missing_run",
    "the run was planned but left no evidence, so a unit could be missing from the table",
    None,
    Expectation("ERROR", "worker_incomplete"),
)


@cache
def evidence_faults() -> dict[str, EvidenceFault]:
    """Return all evidence faults that the kinds of claims list, by name. Raises KindError if two faults have the same
    name, or if a reference to a fault is wrong."""
    found: dict[str, EvidenceFault] = {}
    for kind in kinds().values():
        for reference in kind.evidence_faults:
            fault = resolve(reference)
            if not isinstance(fault, EvidenceFault) or found.setdefault(fault.name, fault) is not fault:
                fault_must_be_unique = "an evidence fault must be an `EvidenceFault` with a unique name"
                raise KindError(
                    fault_must_be_unique,
                    where=f"claim kind '{kind.name}'",
                    got=reference,
                    remedy="correct the reference in the kind's `evidence_faults`",
                )
    return found


@cache
def descriptions() -> dict[str, FaultDescription]:
    """Return a description of each evidence fault: what the fault changes, and which verdict each kind of claim must
    then have."""
    breaks: dict[str, dict[str, Expectation]] = {name: {} for name in evidence_faults()}
    for kind in kinds().values():
        for reference in kind.evidence_faults:
            fault: EvidenceFault = resolve(reference)
            breaks[fault.name][kind.name] = fault.expected
    return {
        name: FaultDescription(name, fault.summary, "both", breaks[name]) for name, fault in evidence_faults().items()
    }


def offered_faults(systems: Iterable[SystemDescription]) -> dict[str, FaultDescription]:
    """Return all faults by name: evidence faults, faults in the harness's wrappers of systems, and faults of the
    systems.

    A system's fault replaces a fault of the harness with the same name. If two systems have faults with the same name,
    the fault of the first of them in `systems` is used.
    """
    offered = {**descriptions(), **HARNESS_FAULTS}
    for system in reversed(list(systems)):
        offered |= system.faults
    return offered


def offered_by(contract: Contract, describe: Callable[[str], SystemDescription]) -> dict[str, FaultDescription]:
    """Return the faults that a contract may name, by name. describe: returns the description of a system, or raises an
    error."""
    return offered_faults([describe(system) for system in contract.systems()])


Scalar = bool | int | float | str

# `_DIFFERENCES`: reason codes for arms that differ in bits, or by more than a bound. `_OF_BITS`: names of figures whose
# values noise changes from run to run.
_DIFFERENCES = frozenset({"differs", "end_differs", "ends_apart", "exceeds_tolerance"})
_OF_BITS = frozenset(
    {"first_differing_step", "steps_differing", "final_parameters_equal", "state_differing"}
    | {"first_exceeding_step", "exceeded_bound"}
)


def expectation_for(claim: AnyClaim, fault: FaultDescription) -> Expectation | None:
    """Return the verdict that `fault` declares for the claim's id, else the verdict that it declares for the claim's
    kind, else None.

    For a composite claim (a claim with several parts), return the worst of the verdicts that are declared for its
    parts. If several verdicts are equally bad, return the first, because the judge of composite claims selects the
    deciding part in the same way.
    """
    if claim.id in fault.breaks:
        return fault.breaks[claim.id]
    declared = [_by_equality(part, fault.breaks[part.kind]) for part in parts_of(claim) if part.kind in fault.breaks]
    if len(declared) < 2:
        return declared[0] if declared else None
    return min(declared, key=lambda expectation: WORST_FIRST.index(Status(expectation.status)))


def _by_equality(part: AnyPart, expected: Expectation) -> Expectation:
    """Return the expected verdict, changed to fit the part's `equality`. Under `equality: noise`, every difference has
    the reason code `beyond_noise`, and figures that vary with noise are left out."""
    if part.value_at("equality") != "noise":
        return expected
    reason = "beyond_noise" if expected.reason in _DIFFERENCES else expected.reason
    figures = {name: value for name, value in expected.figures.items() if name not in _OF_BITS}
    return replace(expected, reason=reason, figures=figures)


def seen_figures(verdict: Verdict, names: Mapping[str, object]) -> dict[str, Scalar | None]:
    """Return the verdict's values of the figures `names`. A value is None if the verdict does not have this figure.

    In a composite claim, the name of a figure begins with the name of its part. A name without a part belongs to the
    part that decided the verdict.
    """
    deciding = deciding_part(verdict)
    return {name: _value(verdict.figures, name, deciding) for name in names}


def deciding_part(verdict: Verdict) -> str | None:
    """Return the first part of a composite claim whose status is the claim's status. Return None for a simple claim."""
    for name, figure in verdict.figures.items():
        if name.endswith(".status") and figure.value == str(verdict.status):
            return name.removesuffix(".status")
    return None


def _value(figures: Mapping[str, Figure], name: str, part: str | None) -> Scalar | None:
    figure = figures.get(name) or figures.get(f"{part}.{name}")
    return figure.value if figure is not None else None


def is_killed(expected: Expectation, verdict: Verdict) -> bool:
    """Return True if status, reason code and figures of the verdict are the expected ones. With the expected status, a
    reason code in `or_reasons` is accepted, too; the figures are then not compared."""
    if verdict.status.value != expected.status:
        return False
    if verdict.reason != expected.reason:
        return verdict.reason in expected.or_reasons
    seen = seen_figures(verdict, expected.figures)
    return all(_equal(seen[name], value) for name, value in expected.figures.items())


def _equal(seen: Scalar | None, declared: Scalar) -> bool:
    # in Python True == 1, but here True must not be equal to 1
    return isinstance(seen, bool) == isinstance(declared, bool) and seen == declared


def upstream_alone_passes(claim: AnyClaim, verdict: Verdict) -> bool | None:
    """Return True if the upstream project's bound alone would not have detected the fault that led to this verdict.

    Return None if the claim has no such bound, or if the judge stopped before it checked the bound. A claim with
    `equality: bitwise` reports separately whether the upstream bound holds. A claim with `equality: within` is judged
    by this bound itself: the bound detects the fault if a step exceeds it.
    """
    prefixes = [""] if not isinstance(claim, CompositeClaim) else sorted(_prefixes(verdict))
    answers = [answer for prefix in prefixes if (answer := _within_bound(verdict.figures, prefix)) is not None]
    return all(answers) if answers else None


def _prefixes(verdict: Verdict) -> set[str]:
    return {f"{name.removesuffix('.status')}." for name in verdict.figures if name.endswith(".status")}


def _within_bound(figures: Mapping[str, Figure], prefix: str) -> bool | None:
    within = figures.get(f"{prefix}within_upstream_tolerance")
    if within is not None:
        return within.value is True
    exceeding = figures.get(f"{prefix}first_exceeding_step")
    return None if exceeding is None else exceeding.value is None


@dataclass(frozen=True)
class Unbroken:
    """A field of a claim that can turn PASS into FAIL, but that no planted fault of this claim tests."""

    part: int  # index of the part that has the field
    path: str
    value: object
    demand: Demand
    # faults that would test this field, but that the claim's list `falsified_by` does not contain
    offered: tuple[str, ...]

    def sentence(self, claim: str) -> str:
        """Return a warning about the field, with a remedy. claim: the id of the claim."""
        reasons = " or ".join(f"`{reason}`" for reason in self.demand.reasons)
        figures = "".join(f", {name} = {value}" for name, value in self.demand.figures.items())
        there = f"; offered: {', '.join(self.offered)}" if self.offered else ""
        return (
            f"no fault of '{claim}' breaks `{self.path}` ({self.value}), so the drill would pass with any other value: "
            f"add a fault to `falsified_by` that expects {reasons}{figures}{there}"
        )


def unbroken(claim: AnyClaim, faults: Mapping[str, FaultDescription]) -> Iterator[Unbroken]:
    """Yield each field that can turn PASS into FAIL, but that no fault in the claim's `falsified_by` tests. Fields come
    in the order of the parts."""
    planted = [expectation_for(claim, faults[name]) for name in claim.falsified_by if name in faults]
    for part, path, demand in demanded(claim):
        if any(breaks(claim, expected, part, demand) for expected in planted):
            continue
        offered = {name: expectation_for(claim, fault) for name, fault in faults.items()}
        fitting = tuple(sorted(name for name, expected in offered.items() if breaks(claim, expected, part, demand)))
        yield Unbroken(
            part,
            path,
            parts_of(claim)[part].bounds().get(path) or parts_of(claim)[part].value_at(path),
            demand,
            fitting,
        )


def demanded(claim: AnyClaim) -> Iterator[tuple[int, str, Demand]]:
    """Yield three facts about each field that can turn PASS into FAIL: the index of its part, its path, and its
    `Demand` mark."""
    for position, part in enumerate(parts_of(claim)):
        for path, demand in part.demanded().items():
            yield position, path, demand


def breaks(claim: AnyClaim, expected: Expectation | None, part: int, demand: Demand) -> bool:
    """Return True if a fault with this expected verdict makes the judge report that this demand is not met."""
    if expected is None or expected.reason not in demand.reasons or not _concerns(claim, expected, part):
        return False
    return all(
        any(seen == value for name, seen in expected.figures.items() if name.rpartition(".")[2] == figure)
        for figure, value in demand.figures.items()
    )


def _concerns(claim: AnyClaim, expected: Expectation, part: int) -> bool:
    """Return True if the expected figures are about part number `part` of the claim: a figure's name begins with this
    part's name, or no figure's name begins with any part's name. For a simple claim, always return True."""
    if not isinstance(claim, CompositeClaim):
        return True
    names = part_names(claim)
    named = {name for name in names for figure in expected.figures if figure.startswith(f"{name}.")}
    return not named or names[part] in named


def left_out_for(claim: AnyClaim, fault: FaultDescription) -> str:
    """Return the name of a field that the claim leaves out and that the fault would violate. Return "" if there is no
    such field, or if the fault violates a field that the claim has."""
    left_out, expected = "", expectation_for(claim, fault)
    for position, part in enumerate(parts_of(claim)):
        for path, demand in marks(type(part), Demand).items():
            if breaks(claim, expected, position, demand):
                if part.value_at(path) is not None:
                    return ""
                left_out = left_out or path
    return left_out
