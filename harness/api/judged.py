"""Judge run directories, and judge single units early, as soon as their arms have ended. Nothing is executed here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from harness.api.first_difference import recorded
from harness.contract.load import LoadedContract
from harness.contract.schema import AnyClaim, Contract
from harness.errors import ExitCode
from harness.evidence.environment_records import GpuFacts
from harness.evidence.plan_records import Run, Unit
from harness.evidence.run_evidence import RunEvidence
from harness.judging.verdict import Counts, Verdict, count
from harness.kinds import probe_named
from harness.numbers import dump_json
from harness.planning.run_builder import arms_demanded, first_difference
from harness.report.together import JudgedUnit, together
from harness.report.view import ReportView, RunPart
from harness.run_directory.bundle import Bundle, altered
from harness.run_directory.costs import costs_of
from harness.run_directory.seal import UNFINISHED, UNSEALED
from harness.run_directory.shards import Attempt, attempts, name_of, part_names, speeds_apart
from harness.run_directory.verdict_file import verdict_file

if TYPE_CHECKING:
    from harness.report.headline import Headline


@dataclass(frozen=True)
class Judgement:
    """The result of judging a run directory, or the shards of a gate: verdicts in planned order, counts and exit code.

    A shard is the run directory of a part of the gate's units. manifest: the digest of the run directory's manifest, or
    None for shards and for a directory without a manifest.
    """

    view: ReportView
    run_directory: Path | None = None
    manifest: str | None = None

    @property
    def verdicts(self) -> Sequence[Verdict]:
        return self.view.verdicts

    @property
    def counts(self) -> Counts:
        return count(self.view.verdicts)

    @property
    def headline(self) -> Headline:
        from harness.report.headline import headline

        return headline(self.view)

    @property
    def exit_code(self) -> ExitCode:
        return self.headline.code


def judge_bundles(bundles: Sequence[Bundle], contracts: Sequence[LoadedContract], *, gate: bool = False) -> Judgement:
    """Judge one run directory, or the shards (parts) of one gate, by these contracts. Files are only read. Raises
    EvidenceError for shards that are not parts of the same gate."""
    models, places = [loaded.contract for loaded in contracts], _places(bundles, contracts)
    if len(bundles) > 1:
        return Judgement(replace(_view_of_shards(bundles, models), gate=gate, places=places))
    [bundle] = bundles
    view = _view_of_one(bundle, models, bundle.path.name)
    return Judgement(replace(view, gate=gate, places=places), bundle.path, bundle.seal.digest)


def _places(bundles: Sequence[Bundle], contracts: Sequence[LoadedContract]) -> dict[tuple[str, str], tuple[str, int]]:
    """Return, for each claim, its file and line in the original contract. The run's copy of the contract has the same
    lines."""
    files = {name: file for bundle in bundles for name, file in bundle.header.contract_files.items()}
    return {
        (loaded.contract.id, claim.id): (files[loaded.contract.id], loaded.position(("claims", at))[0])
        for loaded in contracts
        if loaded.contract.id in files
        for at, claim in enumerate(loaded.contract.claims)
    }


def run_part(bundle: Bundle, contracts: Sequence[Contract], name: str) -> RunPart:
    """Judge one run directory, and return the section of a page that shows it. name: the title of the section.
    contracts: those by which the run is judged; contracts that the run directory does not contain are ignored."""
    own = [contract for contract in contracts if contract.id in bundle.header.digests.contracts]
    return RunPart(name, _view_of_one(bundle, own, name))


def _view_of_one(bundle: Bundle, contracts: Sequence[Contract], name: str) -> ReportView:
    attempted = attempts([bundle], contracts)
    located = {name_of(one.unit): found for one in attempted if (found := recorded(bundle, one.unit)) is not None}
    return ReportView(
        header=bundle.header.model_copy(update={"units": [attempt.unit for attempt in attempted]}),
        contracts=contracts,
        verdicts=[judge_attempt(attempt, contracts) for attempt in attempted],
        evidence={item.run_id: item for attempt in attempted for item in attempt.evidence},
        altered=tuple(f"{name}: {line}" for line in altered(bundle)),
        incomplete=(name,) if bundle.seal.missing == UNFINISHED else (),
        unsealed=(name,) if bundle.seal.missing == UNSEALED else (),
        costs=costs_of(bundle, contracts),
        gpus={name_of(one.unit): bundle.header.environment.gpu for one in attempted if one.bundle is not None},
        located=located,
    )


def _view_of_shards(bundles: Sequence[Bundle], contracts: Sequence[Contract]) -> ReportView:
    """Return the content of one report about all shards (parts) of a gate, with every unit once. A unit that was run
    several times is judged by its first attempt."""
    attempted = attempts(bundles, contracts)
    for difference in speeds_apart(bundles, contracts):
        raise difference
    parts = {
        id(bundle): run_part(bundle, contracts, name) for bundle, name in zip(bundles, part_names(bundles), strict=True)
    }
    judged = {key: {name_of(verdict): verdict for verdict in part.view.verdicts} for key, part in parts.items()}
    units = [
        JudgedUnit(one.unit, judge_attempt(one, contracts), None)
        if one.bundle is None
        else JudgedUnit(one.unit, judged[id(one.bundle)][name_of(one.unit)], parts[id(one.bundle)])
        for one in attempted
    ]
    return together(list(parts.values()), units, contracts)


def judge_attempt(attempt: Attempt, contracts: Sequence[Contract]) -> Verdict:
    """Return the verdict of one unit, by these contracts, from the evidence of one attempt to decide the unit."""
    from harness.judging.registry import not_in_contract

    unit = attempt.unit
    contract = next((contract for contract in contracts if contract.id == unit.contract), None)
    claim = next((claim for claim in contract.claims if claim.id == unit.claim), None) if contract else None
    if contract is None or claim is None or unit.workload not in claim.judged_on:
        return not_in_contract(unit.contract, unit.claim, unit.workload)
    header = attempt.bundle.header if attempt.bundle is not None else None
    # None for the controls of a drill, because no fault is planted in them
    fault = header.fault if header is not None else None
    commits = header.commits if header is not None else None
    baseline = commits.baseline_of(unit.contract, unit.claim).commit if commits is not None else None
    gpu = header.environment.gpu if header is not None else GpuFacts()
    made, evidence = attempt.made(), attempt.evidence
    return judge_runs(contract, claim, unit, made, evidence, gpu=gpu, fault=fault, baseline=baseline)


def judge_runs(
    contract: Contract,
    claim: AnyClaim,
    unit: Unit,
    made: Sequence[Run | None],
    evidence: Sequence[RunEvidence],
    *,
    gpu: GpuFacts,
    fault: str | None = None,
    baseline: str | None = None,
) -> Verdict:
    """Judge a unit by the evidence of its runs. If the contract now requires different runs, the verdict is NOT_RUN.

    made: the executed runs; None stands for a run whose description cannot be read. gpu: the GPU of the machine. fault:
    the fault that was planted on purpose, if any. baseline: the commit whose code is executed in the arms that claims
    call `baseline`.
    """
    from harness.judging.registry import judge_unit, of_another_contract

    known = [run for run in made if run is not None]
    if unit.obstacle is None:
        unread = len(made) - len(known)
        difference = first_difference(
            contract, claim, unit.workload, known, unread=unread, fault=fault, baseline=baseline
        )
        if difference is not None:
            return of_another_contract(contract, claim, unit.workload, str(difference))
    return judge_unit(contract, claim, unit.workload, evidence, unit.obstacle, gpu)


def judgement_json(judgement: Judgement) -> str:
    """Return the output of `--json`: the content of `verdicts.json` with messages, and other facts such as costs."""
    from harness.report.headline import HELD

    directory = str(judgement.run_directory) if judgement.run_directory else None
    published = verdict_file(judgement.verdicts).model_dump(mode="json")
    published["claims"] = [verdict.model_dump(mode="json") for verdict in judgement.verdicts]
    # the gate is closed if evidence was changed or is incomplete; it is also closed for a drill, which is not a gate
    published["gate"]["open"] = judgement.headline.word == HELD and not judgement.view.is_drill
    waivers = [waiver for verdict in judgement.verdicts if (waiver := judgement.view.waiver(verdict)) is not None]
    waived = [waiver.model_dump(mode="json") for waiver in waivers]
    costs = judgement.view.costs.model_dump(mode="json")
    attempts = judgement.view.header.attempts.model_dump(mode="json")
    beside = {"costs": costs, "run_directory": directory, "manifest": judgement.manifest, "waived": waived}
    beside["attempts"] = attempts
    beside["resumed"] = [each.model_dump(mode="json") for each in judgement.view.header.resumed]
    commits = judgement.view.header.commits
    beside["commits"] = commits.model_dump(mode="json") if commits is not None else None
    located = [
        {"contract": contract, "claim": claim, "workload": workload, **found.model_dump(mode="json")}
        for (contract, claim, workload), found in judgement.view.located.items()
    ]
    beside_units = {"claims_without_fault": judgement.view.without_fault(), "first_differences": located}
    return dump_json({**published, **beside, **beside_units}, indent=2)


# The code below judges each unit early, when all its arms are complete, with the same judges as at the end.
#
# Early verdicts are only shown to people, and are never written to files. At the end all units are judged again, and
# only these verdicts count.

Part = tuple[str, str]  # the name of a run, and one of its arms
# an entry of the list `waiting`: the runs or arms that must be complete, and the function that is called then
Waiting = tuple[Collection[str | Part], Callable[[], None]]
Judged = Callable[[Verdict, ReportView], None]
# a function: name of a run -> names of those of its arms that are complete
Ended = Callable[[str], Collection[str]]


class AsTheyEnd:
    """Calls each function of `waiting` once, as soon as the runs and arms that the function waits for have ended.

    While timings are measured, no function is called, because the call would disturb the measurement. Several threads
    may use one object.
    """

    def __init__(
        self, waiting: Sequence[Waiting], runs: Sequence[Run], arms: Mapping[str, Ended] = MappingProxyType({})
    ) -> None:
        self._waiting, self._arms = list(waiting), arms
        self._timed = {run.id for run in runs if probe_named(run.probe).timed}
        self._ended: set[str | Part] = set()
        # name of a run -> the arm and the number of the execution that runs now, such as `plain.1`: the phase's name up
        # to its colon
        self._execution: dict[str, str] = {}
        self._lock = threading.Lock()

    def look(self, ended: Collection[str]) -> None:
        """Call the functions whose runs and arms have now ended. ended: the names of all runs that ended so far."""
        with self._lock:
            self._ended |= set(ended)
            self._tell()

    def moves(self, runs: Iterable[str], phase: str) -> None:
        """Record that the runs of one process enter a phase, and call the functions that no longer wait for anything.
        The new phase may mean that an arm has ended."""
        with self._lock:
            execution = phase.partition(": ")[0]
            for name in runs:
                if name in self._arms and self._execution.get(name) != execution:
                    self._execution[name] = execution
                    with suppress(Exception):  # if evidence cannot be read now, it is read again at the end
                        self._ended |= {(name, arm) for arm in self._arms[name](name)}
            self._tell()

    def _tell(self) -> None:
        if self._timed & self._ended and self._timed - self._ended:
            return
        ready = [each for each in self._waiting if all(map(self._has_ended, each[0]))]
        self._waiting = [each for each in self._waiting if each not in ready]
        for _, tell in ready:
            with suppress(Exception):  # the unit is judged again at the end, where the same error is reported
                tell()

    def _has_ended(self, part: str | Part) -> bool:
        return part in self._ended or (isinstance(part, tuple) and part[0] in self._ended)


def units_as_they_end(
    bundle: Bundle, contracts: Sequence[LoadedContract], runs: Sequence[Run], tell: Judged
) -> AsTheyEnd:
    """Return an object that judges each unit when its runs or arms have ended, and then calls `tell`.

    `tell` receives the unit's verdict and a view, from which a report about the unit can be rendered. bundle: the run
    directory that is being written.
    """
    models = [loaded.contract for loaded in contracts]
    # In most runs an arm can be judged as soon as it is complete. In a run with several commits or ranks, no arm is
    # judged early, because the evidence of one arm is in several folders.
    apart = {run.id: run for run in runs if probe_named(run.probe).arm_by_arm and run.ranks == 1}
    if bundle.header.commits:
        apart = {}

    def judged(unit: Unit) -> None:
        made = bundle.so_far()
        evidence = [made.evidence(name) for name in unit.runs]
        verdict = judge_attempt(Attempt(unit, evidence, made), models)
        tell(verdict, ReportView(made.header, models, [verdict], {each.run_id: each for each in evidence}))

    def parts(unit: Unit) -> list[str | Part]:
        [contract] = [each for each in models if each.id == unit.contract]
        [claim] = [each for each in contract.claims if each.id == unit.claim]
        arms = arms_demanded(contract, claim, unit.workload)
        return [
            part
            for name in unit.runs
            for part in ([(name, arm) for arm in apart[name].arms if arm in arms] if name in apart else [name])
        ]

    def ended(name: str) -> list[str]:
        seen = bundle.so_far().evidence(name)
        planned = apart[name].arms
        return [arm for arm in planned if arm in seen.failed or len(seen.arms.get(arm, [])) == planned[arm].replicas]

    waiting = [(parts(unit), partial(judged, unit)) for unit in bundle.header.units if unit.runs]
    return AsTheyEnd(waiting, runs, dict.fromkeys(apart, ended))
