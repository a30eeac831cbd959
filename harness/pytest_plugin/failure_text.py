"""Write a failed unit for a test's report: what was seen, both values, the tolerance, what helps with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.contract.load import LoadedContract
from harness.contract.schema import AnyClaim, parts_of
from harness.evidence.run_evidence import RunEvidence
from harness.judging.verdict import Verdict
from harness.kinds.trajectory.model import TrajectoryMatch
from harness.report.advice import advice_of
from harness.report.text import figure, line, words

# Figures that name the step at which two series part, the most telling first.
_STEPS = ("first_differing_step", "first_exceeding_step", "first_non_finite_step", "max_abs_difference_step")
STATUS = "contract.status"  # the property that every test has which a verdict was made in


def properties(verdict: Verdict) -> list[tuple[str, object]]:
    """Return what JUnit carries of a verdict: status, reason, figures, denominators."""
    facts: list[tuple[str, object]] = [(STATUS, verdict.status.value), ("contract.reason", verdict.reason)]
    facts += [(f"figure.{name}", figure(value)) for name, value in verdict.figures.items()]
    facts += [(f"denominator.{name}", number) for name, number in verdict.denominators.items()]
    return facts


def failure_text(loaded: LoadedContract, claim: AnyClaim, verdict: Verdict, evidence: Sequence[RunEvidence]) -> str:
    """Return a unit that did not hold as lines of text."""
    lines = [f"{verdict.status.value} {verdict.reason}: {line(verdict.message, 600)}", ""]
    lines += [f"    {text}" for text in _both_values(claim, verdict, evidence)]
    lines += [f"    {words(name)}: {figure(value)}" for name, value in verdict.figures.items()]
    lines += [f"    {words(name)} (denominator): {number}" for name, number in verdict.denominators.items()]
    asked = ("harness", "verify", str(loaded.path))
    told = advice_of(verdict, claim, evidence, asked, loaded.contract.systems())
    return "\n".join([*lines, "", *(f"{each.label}: {each.text}" for each in told)])


def _both_values(claim: AnyClaim, verdict: Verdict, evidence: Sequence[RunEvidence]) -> Iterator[str]:
    """Yield the losses of both arms, in all their digits, at the step that a figure of the verdict names."""
    step = next((_step(verdict, name) for name in _STEPS if _step(verdict, name) is not None), None)
    for part in parts_of(claim):
        if step is None or not isinstance(part, TrajectoryMatch):
            continue
        for arm in (part.candidate, part.baseline):
            for run in evidence:
                if arm in run.arms and step < len(run.arms[arm][0].series.loss):
                    yield f"step {step}, loss of {arm}: {float(run.arms[arm][0].series.loss[step])!r}"


def _step(verdict: Verdict, name: str) -> int | None:
    """Return the step in the figure of that name, also if a composite claim put its part's name before it."""
    for key, value in verdict.figures.items():
        if key.rpartition(".")[2] == name and isinstance(value.value, int):
            return value.value
    return None
