"""The headline of a report, with the exit code that it stands for; and what would decide the undecided units."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import ExitCode
from harness.judge.verdict import Status, Verdict
from harness.report.view import ReportView

_SENTENCES = {
    ExitCode.ERROR: "The harness, a worker, the system or the machine broke: no gate may trust this run.",
    ExitCode.VIOLATED: "A claim is violated.",
    ExitCode.UNDECIDED: "Nothing at all was decided.",
    ExitCode.HELD: "Every decided claim held.",
}
# What would decide a unit that this machine or this run could not, by the reason code.
_REMEDIES = {
    "needs_cuda": "run it on a machine with a CUDA device",
    "needs_memory": "run it on a device with more free memory",
    "not_available": "provide what the system says is missing",
    "not_in_contract": "judge it by the contract that it was run under",
    "not_planned": "plan the unit without narrowing, or run its shard",
    "limits_exceeded": "repeat it on an otherwise idle machine whose GPU holds its clock",
    "launches_unobserved": "repeat it where the profiler sees graph launches",
    "capability_missing": "give the system's adapter the capability that is named",
    "module_missing": "install the module that is named",
    "mechanism_missing": "run it where the claim's mechanism exists",
    "judge_missing": "wait for a judge of this claim kind",
    "candidate_not_captured": "mend the capture first; its own claim says why it failed",
}


@dataclass(frozen=True)
class Headline:
    """Exit code by the table of the documentation, with the sentence that people read."""

    code: ExitCode
    sentence: str

    @property
    def word(self) -> str:
        """One word for the top of a report."""
        words = {ExitCode.ERROR: "ERROR", ExitCode.VIOLATED: "VIOLATED", ExitCode.UNDECIDED: "NOT DECIDED"}
        return words.get(self.code, "HELD")


def headline(view: ReportView) -> Headline:
    """The first row of the exit-code table that applies to the verdicts; a live waiver takes a violation away."""
    statuses = [verdict.status for verdict in view.verdicts if view.waiver(verdict) is None]
    undecided = [status for status in statuses if status in {Status.INCONCLUSIVE, Status.NOT_RUN}]
    altered = view.gate and bool(view.altered)
    if Status.ERROR in statuses or altered:
        broken = "The gate is closed: evidence differs from the digests recorded with it."
        return Headline(ExitCode.ERROR, broken if altered else _SENTENCES[ExitCode.ERROR])
    planted, survived = view.drilled()
    if survived or Status.FAIL in statuses:
        lived = f"{survived} of {planted} planted faults survived: those claims prove nothing."
        return Headline(ExitCode.VIOLATED, lived if survived else _SENTENCES[ExitCode.VIOLATED])
    if Status.PASS not in statuses:
        waived_only = bool(view.verdicts) and not statuses
        sentence = "Nothing but waived claims was decided." if waived_only else _SENTENCES[ExitCode.UNDECIDED]
        return Headline(ExitCode.UNDECIDED, sentence)
    if view.gate:
        return _gate(len(undecided), waived=len(view.verdicts) - len(statuses), part=view.narrowed())
    sentence = f"All {planted} planted faults were killed." if planted else _SENTENCES[ExitCode.HELD]
    return Headline(ExitCode.HELD, sentence + (f" {len(undecided)} not decided." if undecided else ""))


def _gate(undecided: int, *, waived: int, part: str) -> Headline:
    """What the gate says of a run without errors and violations in which something held."""
    if undecided:
        units = "1 planned unit was" if undecided == 1 else f"{undecided} planned units were"
        return Headline(ExitCode.UNDECIDED, f"The gate is closed: {units} not decided.")
    signed = f", or is waived ({waived})" if waived else ""
    only = f" Only a part of the contracts was planned: {part}." if part else ""
    return Headline(ExitCode.HELD, f"The gate is open: every planned unit was decided and held{signed}.{only}")


@dataclass(frozen=True)
class Undecided:
    """Units that share one reason and one message."""

    units: list[Verdict]
    message: str
    remedy: str | None

    @property
    def claims(self) -> list[str]:
        """Each once, in the order of the units."""
        return list(dict.fromkeys(unit.claim for unit in self.units))


def undecided(verdicts: list[Verdict]) -> list[Undecided]:
    """Units that are neither held, violated nor broken, grouped by why, in the order they were planned."""
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.status in {Status.INCONCLUSIVE, Status.NOT_RUN}:
            groups.setdefault((verdict.reason, verdict.message), []).append(verdict)
    return [Undecided(units, message, _remedy(units[0])) for (_, message), units in groups.items()]


def _remedy(verdict: Verdict) -> str | None:
    """What would decide a unit: the judge's own estimate of processes, or what its reason code asks for."""
    for name, figure in verdict.figures.items():
        if name.endswith("processes_to_decide") and isinstance(figure.value, int | float):
            return f"about {figure.value:g} processes would probably decide it"
    return remedy_for(verdict.reason)


def remedy_for(reason: str) -> str | None:
    """What the reason code of an undecided unit asks for, if anything does."""
    return _REMEDIES.get(reason)
