"""Run directories judged: a verdict for each unit, and what `--json` prints of them. Nothing is executed here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.contract.claims import AnyClaim
from harness.contract.load import LoadedContract
from harness.contract.schema import Contract
from harness.costs.of_directories import costs_of
from harness.errors import ExitCode
from harness.evidence.environment_records import GpuFacts
from harness.evidence.plan_records import Run, Unit
from harness.evidence.run_evidence import RunEvidence
from harness.judge.verdict import Counts, Verdict, count
from harness.numbers import dump_json
from harness.report.view import ReportView
from harness.run_directory.attempts import joined_attempts
from harness.run_directory.bundle import Bundle, Header, Narrowed, altered
from harness.run_directory.seal import UNFINISHED, UNSEALED
from harness.run_directory.shards import Attempt
from harness.run_directory.verdict_file import verdict_file
from harness.runners.demanded import first_difference

if TYPE_CHECKING:
    from harness.report.headline import Headline


@dataclass(frozen=True)
class Judgement:
    """A run directory, or the shards of a gate, judged: verdicts in the plan's order, their count, the exit code.

    `manifest`: the digest of the directory's; None of shards, and where there is none.
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
    """Judge one run directory, or the shards of one gate, under these contracts. Pure but for reading evidence."""
    from harness.run_directory.shards import attempts

    models = [loaded.contract for loaded in contracts]
    attempted = attempts(bundles, models)
    verdicts = [judge_attempt(attempt, models) for attempt in attempted]
    evidence: dict[str, RunEvidence] = {}
    units = []
    for attempt in attempted:
        prefix = f"{attempt.bundle.path.name}/" if attempt.bundle is not None and len(bundles) > 1 else ""
        evidence |= {prefix + item.run_id: item for item in attempt.evidence}
        units.append(attempt.unit.model_copy(update={"runs": [prefix + name for name in attempt.unit.runs]}))
    view = ReportView(
        header=_joined_header(bundles, units),
        contracts=models,
        verdicts=verdicts,
        evidence=evidence,
        altered=tuple(f"{bundle.path.name}: {line}" for bundle in bundles for line in altered(bundle)),
        incomplete=tuple(bundle.path.name for bundle in bundles if bundle.seal.missing == UNFINISHED),
        unsealed=tuple(bundle.path.name for bundle in bundles if bundle.seal.missing == UNSEALED),
        gate=gate,
        costs=costs_of(bundles, models),
        gpus={
            (attempt.unit.contract, attempt.unit.claim, attempt.unit.workload): attempt.bundle.header.environment.gpu
            for attempt in attempted
            if attempt.bundle is not None
        },
    )
    if len(bundles) > 1:
        return Judgement(view)
    return Judgement(view, bundles[0].path, bundles[0].seal.digest)


def _joined_header(bundles: Sequence[Bundle], units: Sequence[Unit]) -> Header:
    """The first header, with the units that were judged, and the waivers and attempts of all."""
    headers = [bundle.header for bundle in bundles]
    changes: dict[str, object] = {
        "units": list(units),
        "waivers": [waiver for header in headers for waiver in header.waivers],
    }
    if len(headers) > 1:  # shards together are the whole: what no shard planned has a verdict of its own
        changes["narrowed"] = Narrowed()
        changes["resumed"] = [resumption for header in headers for resumption in header.resumed]
        drilled = {(one.contract, one.claim): one for header in headers for one in header.drilled}
        changes["drilled"] = list(drilled.values())
        changes["attempts"] = joined_attempts({bundle.path.name: bundle.header for bundle in bundles})
    return headers[0].model_copy(update=changes)


def judge_attempt(attempt: Attempt, contracts: Sequence[Contract]) -> Verdict:
    """The verdict of one unit, by these contracts."""
    from harness.judge.registry import not_in_contract

    unit = attempt.unit
    contract = next((contract for contract in contracts if contract.id == unit.contract), None)
    claim = next((claim for claim in contract.claims if claim.id == unit.claim), None) if contract else None
    if contract is None or claim is None or unit.workload not in claim.judged_on:
        return not_in_contract(unit.contract, unit.claim, unit.workload)
    header = attempt.bundle.header if attempt.bundle is not None else None
    fault = header.fault if header is not None else None  # none in a drill's controls
    baseline = header.commits.baseline.commit if header is not None and header.commits is not None else None
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
    """The verdict of a unit by the evidence of its runs, if those are the runs that the contract demands.

    `made`: what was executed, None where nothing says it; `gpu`: that of the machine; `fault`: the one that was planted
    on purpose; `baseline`: the commit of arms that claims name so.
    """
    from harness.judge.registry import judge_unit, of_another_contract

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
    """What `--json` prints: the content of `verdicts.json`, with costs, run directory and the waivers that apply."""
    from harness.report.headline import HELD

    directory = str(judgement.run_directory) if judgement.run_directory else None
    published = verdict_file(judgement.verdicts).model_dump(mode="json")
    published["gate"]["open"] = judgement.headline.word == HELD  # altered or unfinished evidence opens nothing
    waivers = [waiver for verdict in judgement.verdicts if (waiver := judgement.view.waiver(verdict)) is not None]
    waived = [waiver.model_dump(mode="json") for waiver in waivers]
    costs = judgement.view.costs.model_dump(mode="json")
    attempts = judgement.view.header.attempts.model_dump(mode="json")
    beside = {"costs": costs, "run_directory": directory, "manifest": judgement.manifest, "waived": waived}
    beside["attempts"] = attempts
    beside["resumed"] = [each.model_dump(mode="json") for each in judgement.view.header.resumed]
    commits = judgement.view.header.commits
    beside["commits"] = commits.model_dump(mode="json") if commits is not None else None
    return dump_json({**published, **beside}, indent=2)
