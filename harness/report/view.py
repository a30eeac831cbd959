"""Contain the input of a report (contracts, evidence and verdicts of a run directory), with methods that renderers use
to find data.

A report depends on nothing except this view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from harness.contract.schema import AnyClaim, AnyPart, Contract, Workload, parts_of
from harness.evidence.environment_records import CHANGES, AcceptedRecord, GpuFacts
from harness.evidence.run_evidence import RunEvidence
from harness.judging.context import situation_of
from harness.judging.end_state import EXCUSED_ENDS, IDLE_EXCUSES
from harness.judging.first_difference import FirstDifference
from harness.judging.verdict import Status, Verdict, count_line
from harness.kinds import kind_of, probe_named
from harness.numbers import counted
from harness.report.text import line
from harness.run_directory.bundle import Header, WaiverRecord
from harness.run_directory.costs import Costs
from harness.run_directory.verdict_file import DrillRecord

WORDS = {
    Status.PASS: "held",
    Status.FAIL: "violated",
    Status.INCONCLUSIVE: "undecided",
    Status.NOT_RUN: "not run",
    Status.ERROR: "error",
}

REPLAYED = {
    "cuda_graph": "CUDA graph",
    "traced": "recorded operators, which the harness replayed itself (no CUDA graph)",
}  # descriptions of the capture mechanisms that the evidence names


@dataclass(frozen=True)
class RunPart:
    """One of several run directories that share a page. view: the view of only this directory.

    name: the name of the folder, with parent folders if two folders have the same name. page: the relative path from
    the shared page to the directory's own page.
    """

    name: str
    view: ReportView
    page: str | None = None


@dataclass(frozen=True)
class ReportView:
    """The input of a report: one run directory, or several (the shards of a gate, or runs that form no gate).

    header: its units name runs. These names are the keys of `evidence`. A run without evidence has no key.
    altered: a line for each difference from the manifest, and for each statement in a header (`run.json`) that other
    files of its directory contradict. incomplete: names of directories that did not finish. unsealed: names of old
    directories without a manifest. gate: True if every planned unit must be decided and hold.
    gpus: for each unit (contract, claim, workload), the GPU facts of the machine that ran it.
    parts: several run directories in the order of their start. The names of runs then begin with the name of the part.
    origins: for each unit, the name of the part that decides it.
    places: file and line of each (contract, claim), relative to the folder in which the run was started.
    apart: the reasons why the parts are not one gate. Each part is then judged separately, and there is no joint
    verdict.
    """

    header: Header
    contracts: Sequence[Contract]
    verdicts: Sequence[Verdict]
    evidence: Mapping[str, RunEvidence]
    drill: DrillRecord | None = None
    drill_named: bool = False  # True: the user asked for one page of runs and their drill
    altered: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    unsealed: tuple[str, ...] = ()
    gate: bool = False
    costs: Costs = field(default_factory=Costs)
    gpus: Mapping[tuple[str, str, str], GpuFacts] = field(default_factory=dict)
    parts: tuple[RunPart, ...] = ()
    origins: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    apart: tuple[str, ...] = ()
    places: Mapping[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    located: Mapping[tuple[str, str, str], FirstDifference] = field(default_factory=dict)  # by unit, if known

    @property
    def is_drill(self) -> bool:
        """Return True if faults were planted on purpose: a single fault, or the faults of a whole fire drill."""
        return self.header.purpose != "verify"

    @property
    def of_controls(self) -> bool:
        """Return True for a fire drill, which plants all faults of a contract.

        The units of such a view are the controls without a fault. The results of the faults are in `drill`.
        """
        return self.header.purpose == "drill"

    def narrowed(self, most: int | None = None) -> str:
        """Return which part of the contracts was selected (tags, claims, workloads, faults), as text. Return "" if
        everything was selected.

        most: the largest number of names of each kind.
        """
        if self.apart:
            of_parts = [(part.name, part.view.narrowed(most)) for part in self.parts]
            return "; ".join(f"in {line(name, 200)} {asked}" for name, asked in of_parts if asked)
        narrowed = self.header.narrowed
        asked = (("tags", narrowed.tags), ("claims", narrowed.claims), ("workloads", narrowed.workloads))
        parts = [f"{kind}: {line(_listed(names, most), 1000)}" for kind, names in asked if names]
        planned, named = self._faults_planned()
        return "; ".join([*parts, *([f"faults: {planned} of {named}"] if planned < named else [])])

    def left_out(self, most: int) -> str:
        """Return how many units of the contracts were not planned, and names of at most `most` of their claims. A claim
        is also named if only some of its units were not planned. Return "" if every unit was planned.

        A drill runs each claim on one workload. For a drill, return the claims that name a fault and were not drilled.
        """
        if self.apart:
            of_parts = [(part.name, part.view.left_out(most)) for part in self.parts if part.view.narrowed()]
            return "; ".join(f"in {line(name, 200)} {left}" for name, left in of_parts if left)
        if self.of_controls:
            rows, not_run = (self.drill.rows, self.drill.not_run) if self.drill is not None else ([], [])
            drilled = {(one.contract, one.claim) for one in rows} | {(one.contract, one.claim) for one in not_run}
            able = [(one.id, claim.id) for one in self.contracts for claim in one.claims if claim.falsified_by]
            names = [claim for contract, claim in able if (contract, claim) not in drilled]
            return f"{counted(len(names), 'claim')}: {line(_listed(names, most), 1000)}" if names else ""
        planned = {(one.contract, one.claim, one.workload) for one in self.verdicts}
        names, units = [], 0
        for contract, claim in [(one.id, claim) for one in self.contracts for claim in one.claims]:
            others = [name for name in claim.judged_on if (contract, claim.id, name) not in planned]
            units += len(others)
            if others:
                names.append(claim.id + (f" ({', '.join(others)})" if others != claim.judged_on else ""))
        return f"{counted(units, 'unit')}: {line(_listed(names, most), 1000)}" if names else ""

    def _drilled(self) -> tuple[int, int, int]:
        """Return how many faults a drill of all faults planted, how many of the planted faults survived, and how many
        faults were not run."""
        if self.drill is None or not self.of_controls:
            return 0, 0, 0
        return len(self.drill.rows), len(self.drill.survivors), len(self.drill.not_run)

    def _faults_planned(self) -> tuple[int, int]:
        """Return how many faults a drill of all faults planned, and how many faults its claims name."""
        planted, _, not_run = self._drilled()
        wanted = self.header.narrowed.claims
        claims = [one for contract in self.contracts for one in contract.claims if not wanted or one.id in wanted]
        return planted + not_run, sum(len(claim.falsified_by) for claim in claims) if self.of_controls else 0

    def without_fault(self) -> list[str]:
        """Return the ids of the judged claims that name no fault. No drill can show that the check of such a claim can
        fail."""
        judged = dict.fromkeys((verdict.contract, verdict.claim) for verdict in self.verdicts)
        found = [self.claim(*names) for names in judged]
        return [claim.id for claim in found if claim is not None and not claim.falsified_by]

    def drill_sentence(self) -> str:
        """Return text about the faults that were planted on purpose, and about what the verdicts therefore show."""
        if self.of_controls:
            planted, survived, not_run = self._drilled()
            left = f", {not_run} not run" if not_run else ""
            faults = f"{counted(planted, 'fault')} planted on purpose, {survived} survived{left}"
            return f"{faults}; the units are the controls, run without a fault."
        on_purpose = f"The fault {line(self.header.fault or '')} was planted in this run on purpose: its verdicts say"
        return f"{on_purpose} whether the checks catch it, and nothing about the system as it is."

    def notices(self) -> list[tuple[str, str]]:
        """Return titles and texts of the notices at the top of a page: warnings, and planted faults."""
        found = [("Warning", text) for text in self.warnings()]
        return found + ([("Fire drill", self.drill_sentence())] if self.is_drill else [])

    def changed_sentence(self) -> str:
        """Return a sentence on uncommitted changes in the sources of trainer or harness, or "" without changes."""
        changed = " and ".join(f"this {who}" for who in self.changed())
        return f"No commit has {changed}." if changed else ""

    def changed(self) -> dict[str, None]:
        """Return a dictionary with the key `trainer` if a trainer's sources differed from their commit in any part, and
        with the key `harness` if the harness's sources did."""
        headers = [part.view.header for part in self.parts] or [self.header]
        named = [("trainer", facts.commit) for each in headers for facts in each.environment.trainers.values()]
        named += [("trainer", CHANGES) for each in headers if each.commits and each.commits.candidate.changes]
        named += [("harness", each.environment.git.commit) for each in headers]
        return dict.fromkeys(who for who, commit in named if commit and commit.endswith(CHANGES))

    def replayed(self) -> str:
        """Return a text with the mechanisms by which captured steps were replayed, or "" if no step was captured."""
        captures = [one.capture for run in self.evidence.values() for arm in run.arms.values() for one in arm]
        ways = dict.fromkeys(seen.mechanism for seen in captures if seen is not None and seen.captured)
        return "; in other claims ".join(REPLAYED.get(way, line(way, 60)) for way in ways if way)

    def gpus_used(self) -> str:
        """Return the GPUs of the run with the most ranks, such as `2 × NVIDIA H200`. Return "" without a GPU.

        Older evidence has only the name of the first GPU.
        """
        facts = self.header.environment.gpu
        most = max((1 + len(run.ranks) for run in self.evidence.values()), default=1)
        names = facts.names[:most] or ((facts.name,) * min(most, facts.count or 1) if facts.name else ())
        return " and ".join(f"{number} × {name}" if number > 1 else name for name, number in Counter(names).items())

    def contract(self, name: str) -> Contract | None:
        return next((contract for contract in self.contracts if contract.id == name), None)

    def claim(self, contract: str, name: str) -> AnyClaim | None:
        known = self.contract(contract)
        return next((claim for claim in known.claims if claim.id == name), None) if known else None

    def workload(self, contract: str, name: str) -> Workload | None:
        known = self.contract(contract)
        return known.workloads.get(name) if known else None

    def runs_of(self, contract: str, claim: str, workload: str) -> list[RunEvidence]:
        """Return the evidence by which a unit was judged, in the order of the plan."""
        names = self._runs_by_unit.get((contract, claim, workload), [])
        return [self.evidence[name] for name in names if name in self.evidence]

    @cached_property
    def _runs_by_unit(self) -> dict[tuple[str, str, str], list[str]]:
        """Return the names of the runs of each unit. If the header contains a unit twice, the first entry counts."""
        return {(unit.contract, unit.claim, unit.workload): unit.runs for unit in reversed(self.header.units)}

    def states(self, contract: str, workload: str, fact: str) -> bool:
        """Return True if an arm of a run on this workload states that `fact` is true."""
        units = [unit for unit in self.header.units if (unit.contract, unit.workload) == (contract, workload)]
        runs = [self.evidence[name] for unit in units for name in unit.runs if name in self.evidence]
        arms = [item for run in runs for executions in run.arms.values() for item in executions]
        return any(item.start.facts.get(fact) is True for item in arms)

    def failed_captures(self, runs: Sequence[str]) -> list[str]:
        """Return a sentence for each arm of these runs whose capture failed. Readers must know that the steps of such
        an arm are not captured."""
        seen = [self.evidence[name] for name in runs if name in self.evidence]
        failed = [arm for run in seen for arm in run.arms if run.capture_failed(arm)]
        return [
            f"The capture of arm {line(arm, 80)} failed: its steps ran uncaptured." for arm in dict.fromkeys(failed)
        ]

    def title_of(self, run_id: str) -> str:
        """Return `contract · workload` of a run as a heading. If no unit uses the run, return the id of the run.

        If several parts have units of the contract, the name of the run's part is added.
        """
        unit = next((unit for unit in self.header.units if run_id in unit.runs), None)
        if unit is None:
            return run_id
        sharing = [part.name for part in self.parts if any(one.contract == unit.contract for one in part.view.verdicts)]
        own = [name for name in sharing if run_id.rpartition("/")[0] == name] if len(sharing) > 1 else []
        return " · ".join([unit.contract, unit.workload, *own])

    def again(self, verdict: Verdict) -> list[tuple[str, Verdict]]:
        """Return the verdicts of other parts of the gate on the same unit, each with the name of its part.

        These verdicts do not count for the gate. Verdicts with NOT_RUN are left out.
        """
        unit = (verdict.contract, verdict.claim, verdict.workload)
        others = [part for part in self.parts if part.name != self.origins.get(unit)]
        made = [(part.name, one) for part in others for one in part.view.verdicts if one.status is not Status.NOT_RUN]
        return [(name, one) for name, one in made if (one.contract, one.claim, one.workload) == unit]

    def contradictory(self) -> list[Verdict]:
        """Return the verdicts whose status differs from another part's verdict on the same unit."""
        return [unit for unit in self.verdicts if any(one.status is not unit.status for _, one in self.again(unit))]

    def waiver(self, verdict: Verdict) -> WaiverRecord | None:
        """Return the valid waiver of a unit, or None if there is none or if the unit cannot be waived."""
        return next((waiver for waiver in self._waivers_of(verdict) if not waiver.expired), None)

    def expired_waiver(self, verdict: Verdict) -> WaiverRecord | None:
        """Return the expired waiver of a unit, or None if there is none or if another waiver is valid."""
        return None if self.waiver(verdict) else next(iter(self._waivers_of(verdict)), None)

    def _waivers_of(self, verdict: Verdict) -> list[WaiverRecord]:
        if not verdict.can_be_waived:
            return []
        unit = (verdict.contract, verdict.claim, verdict.workload)
        return [waiver for waiver in self.header.waivers if (waiver.contract, waiver.claim, waiver.workload) == unit]

    def accepted(self, verdict: Verdict) -> AcceptedRecord | None:
        """Return the accepted baseline of a unit's claim, even if the baseline has no effect. Return None if no
        baseline was accepted."""
        accepted = self.header.commits.accepted if self.header.commits is not None else []
        return next((one for one in accepted if (one.contract, one.claim) == (verdict.contract, verdict.claim)), None)

    def tried(self, verdict: Verdict) -> str | None:
        """Return a text about other directories in which a unit was timed or judged, and interruptions of its timing.

        Return None if the unit was timed and judged only once.
        """
        unit = (verdict.contract, verdict.claim, verdict.workload)
        others = self.header.attempts.directories(unit)
        timed = {run.run_id for run in self.runs_of(*unit) if probe_named(run.probe).timed}
        cut_off = sum(bool(timed & set(each.cut_off)) for each in self.header.resumed)
        told = (
            [f"{counted(len(others) + 1, 'attempt')}: also timed in {line(', '.join(others), 300)}"] if others else []
        )
        told += (
            [f"cut off while it was timed, and timed again, in {counted(cut_off, 'interruption')}"] if cut_off else []
        )
        told += [
            f"judged in {line(name, 90)}, too, where it does not count: {WORDS[again.status]}, {line(again.reason, 80)}"
            for name, again in self.again(verdict)
        ]
        return "; ".join(told) or None

    def repeated_job(self) -> str:
        """Return a sentence with the attempt number of the CI job, or "" for a first or unknown attempt."""
        attempt = self.header.attempts.ci
        return f"Attempt {attempt} of its CI job." if attempt is not None and attempt > 1 else ""

    def resumed_sentence(self) -> str:
        """Return a sentence that says how often the session was resumed, when it was last resumed, how many runs were
        left at that time, and how many runs were interrupted and therefore begun again.

        Return "" if the session was never resumed.
        """
        resumed = self.header.resumed
        if not resumed:
            return ""
        often = "once" if len(resumed) == 1 else counted(len(resumed), "time")
        last = f"last at {line(resumed[-1].at, 30)} with {counted(len(resumed[-1].executed), 'run')} left"
        cut_off = sum(len(each.cut_off) for each in resumed)
        return f"Resumed {often}, {last}; cut off and begun again: {counted(cut_off, 'run')}."

    def commit_lines(self) -> dict[str, str]:
        """Return a line for the candidate's commit and a line for the baseline's commit, by name. Return {} if the run
        does not compare two commits."""
        commits = self.header.commits
        return {} if commits is None else {name: line(text, 300) for name, text in commits.lines().items()}

    def doubts(self) -> list[str]:
        """Return why the verdicts prove nothing: the run directory is unfinished, unsealed or altered. If there is such
        a reason, commands exit with code 12."""
        warnings = []
        if self.incomplete:
            names = ", ".join(self.incomplete)
            lost = "did not finish, or its manifest was removed"
            warnings.append(f"Incomplete: {names} {lost}. What is missing from the evidence is an error.")
        if self.unsealed:
            names = ", ".join(self.unsealed)
            remedy = "`harness judge --write` seals a run that was recorded before manifests existed"
            warnings.append(f"Unsealed: {names} has no manifest; {remedy}.")
        if self.altered:
            files = "; ".join(self.altered[:5]) + (" and more" if len(self.altered) > 5 else "")
            warnings.append(
                f"Altered: {counted(len(self.altered), 'file')} {'differs' if len(self.altered) == 1 else 'differ'} "
                f"from the digests recorded with the run, so its verdicts prove nothing: {files}."
            )
        return warnings

    def warnings(self) -> list[str]:
        """Return the warnings of a page: `doubts`, and a warning about unneeded entries under `may_end_apart`."""
        return self.doubts() + [
            f"No end state needed `{line(str(figure.value), 200)}` under `may_end_apart` of "
            f"{line(verdict.claim, 80)} on {line(verdict.workload, 60)}; remove this entry."
            for verdict in self.verdicts
            for name, figure in verdict.figures.items()
            if name.rpartition(".")[2] == IDLE_EXCUSES
        ]

    def excused_sentence(self) -> str:
        """Return a sentence with two numbers: how many counts (such as step numbers) may differ at the end because of
        entries under `may_end_apart`, and how many units needed an entry. Return "" if there are no entries."""
        excuses = sum(len(claim.may_end_apart) for contract in self.contracts for claim in contract.claims)
        if not excuses:
            return ""
        figures = [{name.rpartition(".")[2] for name in verdict.figures} for verdict in self.verdicts]
        needed = sum(EXCUSED_ENDS in names for names in figures)
        allowed = f"`may_end_apart` allows different final values of {counted(excuses, 'count')}"
        return f"{allowed}; {counted(needed, 'unit')} needed this."

    def recorded_sentence(self) -> str:
        """Return a sentence about the process that recorded the evidence and the mechanism that captured steps."""
        captured = f" Captured: {self.replayed()}." if self.replayed() else ""
        return f"The trainer ran in the process that recorded it.{captured}" if self.evidence else ""

    def unchecked_sentence(self) -> str:
        """Return a sentence with the number of listed claims without an executable check, or "" if there are none."""
        number = sum(len(contract.unchecked) for contract in self.contracts)
        listed = f"{counted(number, 'listed claim')} {'has' if number == 1 else 'have'}"
        return f"{listed} no executable check." if number else ""

    def judged(self) -> Sequence[tuple[Verdict, list[AnyPart], list[RunEvidence]]]:
        """Return each verdict with the parts of its claim and with the evidence by which it was judged. In these parts,
        a bound that depends on workload or machine is replaced by the number that applied to this verdict."""
        return self._judged

    @cached_property
    def _judged(self) -> Sequence[tuple[Verdict, list[AnyPart], list[RunEvidence]]]:
        """Return the result of `judged`. This result is cached, because each section of the report reads it for each
        run of the section."""
        rows = []
        for verdict in self.verdicts:
            claim = self.claim(verdict.contract, verdict.claim)
            runs = self.runs_of(verdict.contract, verdict.claim, verdict.workload)
            gpu = self.gpus.get((verdict.contract, verdict.claim, verdict.workload), GpuFacts())
            situated = [
                (part, situation_of(part, verdict.workload, gpu, runs)) for part in (parts_of(claim) if claim else [])
            ]
            rows.append((verdict, [part.resolved(situation) for part, situation in situated], runs))
        return rows

    def units_judged_by(self, run_id: str, section: str, candidate: str = "") -> frozenset[tuple[str, str, str]]:
        """Return the units (contract, claim, workload) that were judged by a run and whose cards link to this section.

        candidate: if given, only claims whose candidate is this arm count.
        """
        return frozenset(
            (verdict.contract, verdict.claim, verdict.workload)
            for verdict, parts, runs in self.judged()
            for part in parts
            if section in kind_of(part.kind).card and any(run.run_id == run_id for run in runs)
            if candidate in ("", part.arms().get("candidate"))
        )

    def count_line(self) -> str:
        """Return the count line of the units. See `harness.judging.verdict.count_line`."""
        words = Counter(self.word(verdict) for verdict in self.verdicts)
        numbers = {word: words[word] for word in (*WORDS.values(), "waived") if word != "error"}
        return count_line({**numbers, "errors": words["error"]})

    def word(self, verdict: Verdict) -> str:
        """Return the word that the count line uses for a verdict, such as `held` or `waived`."""
        return "waived" if self.waiver(verdict) else WORDS[verdict.status]


def _listed(names: Sequence[str], most: int | None) -> str:
    """Return the names joined by commas.

    If there are more than `most` names, return the first ones and the number of further names.
    """
    left = 0 if most is None else len(names) - most
    return f"{', '.join(names[:most])} and {left} more" if left > 0 else ", ".join(names)
