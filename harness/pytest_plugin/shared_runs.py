"""Execute each run only once, even if several processes of pytest-xdist need it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.api import session
from harness.contract.accepted_baselines import find_signed
from harness.contract.load import LoadedContract, load_contract
from harness.contract.schema import AnyClaim
from harness.contract.signed_entries import Signed
from harness.contract.waivers import Waiver
from harness.devices import environment
from harness.evidence.plan_records import Run, Unit
from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import RunEvidence
from harness.execution import supervisor
from harness.judging.verdict import Verdict
from harness.planning.plan import Plan
from harness.run_directory.writer import BundleWriter, require_place


@dataclass(frozen=True)
class PlannedContract:
    """One contract file with its plan on this machine."""

    loaded: LoadedContract
    plan: Plan
    signed: tuple[Signed, ...] = ()

    def claim(self, name: str) -> AnyClaim:
        return next(claim for claim in self.loaded.contract.claims if claim.id == name)


def plan_file(path: Path, options: session.VerifyOptions, named: Sequence[Path] = ()) -> PlannedContract:
    """Read and plan one contract file, with its waivers and accepted baselines (signed entries).

    named: further paths. The folders among them are searched for signed entries. The commands of the harness find the
    same entries. Raises ContractError with every error in the files.
    """
    loaded = load_contract(path)
    folders = [folder for folder in named if folder.is_dir()]
    signed = tuple(entry for entry in find_signed([*folders, path]) if entry.contract == loaded.contract.id)
    return PlannedContract(loaded, session.plan_contracts([loaded], options), signed)


class SharedRuns:
    """Executes each run once. The first process that needs a run executes it, and the other processes wait for its
    evidence.

    root: the folder of the evidence, which all processes share.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        begun = root / "begun"  # the first process of the session creates this file
        if not begun.exists():
            begun.touch()
        self._started = datetime.fromtimestamp(begun.stat().st_mtime, UTC)

    def evidence(self, run: Run) -> tuple[Run, RunEvidence]:
        """Execute the run if no process has executed it yet. Return the run as it is recorded in its directory, and its
        evidence."""
        from filelock import FileLock  # installed by the extra `run`

        directory = self.root / "evidence" / run.id
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.root / f"{run.id}.lock"):
            done = self.root / f"{run.id}.done"
            if not done.exists():
                # remove the files of a process that was killed during the run
                shutil.rmtree(directory, ignore_errors=True)
                gpus = environment.machine().gpus
                uuids = [gpu.uuid for gpu in gpus[: run.ranks]]
                supervisor.execute(run, directory, gpu_uuid=uuids[0] if uuids else None, rank_gpus=uuids[1:])
                done.touch()
        return read_run(directory)

    def judged(self, planned: PlannedContract, unit: Unit) -> tuple[Verdict, list[RunEvidence]]:
        """Execute the runs of the unit and judge it. Return the verdict and the evidence that decides it."""
        runs = {run.id: run for run in planned.plan.runs}
        read = [self.evidence(runs[name]) for name in unit.runs]
        made, evidence = [run for run, _ in read], [seen for _, seen in read]
        claim = planned.claim(unit.claim)
        gpu = environment.gpu_facts()
        return session.judge_runs(planned.loaded.contract, claim, unit, made, evidence, gpu=gpu), evidence

    def waiver(self, planned: PlannedContract, unit: Unit) -> Waiver | None:
        """Return the unit's waiver if it is valid on the day on which this session started, otherwise None."""
        name = (unit.claim, unit.workload)
        waivers = (each for each in planned.signed if isinstance(each, Waiver))
        found = (waiver for waiver in waivers if (waiver.claim, waiver.workload) == name)
        return next((waiver for waiver in found if not waiver.expired(self._started.date())), None)

    def write_directory(
        self,
        planned: Sequence[PlannedContract],
        asked: Sequence[Unit],
        judged: Sequence[Unit],
        options: session.VerifyOptions,
        *,
        finished: bool,
    ) -> session.Judgement:
        """Write the run directory of the judged units, from the evidence below `root`.

        asked: all selected units, also those that were not judged, such as skipped units. The gate counts all of them.
        finished: False if the session left out units. Then the directory stays INCOMPLETE.
        """
        contracts = [item.loaded for item in planned]
        names = {name for unit in judged for name in unit.runs}
        runs = [run for item in planned for run in item.plan.runs if run.id in names]
        signed = [entry for item in planned for entry in item.signed]
        narrowed = _narrowed(planned, asked, options)
        described = session.header_of(contracts, Plan(list(judged), runs), narrowed, self._started, signed)
        final = options.reports / session.directory_name(self._started, options)
        require_place(final)
        header = session.with_earlier_runs(described, contracts, options.reports)
        writer = BundleWriter(final, header, contracts, session.signed_texts(signed), named=False)
        redacted = session.redaction_of(contracts, options.redact)
        for run in runs:
            shutil.copytree(self.root / "evidence" / run.id, writer.evidence_directory(run.id), symlinks=True)
            if redacted is not None:
                redacted.directory(writer.evidence_directory(run.id))
        writer.settle()
        judgement = session.judge_bundles([writer.bundle()], contracts, gate=options.gate)
        if finished:
            session.write_judgement(writer.path, judgement)
            return session.Judgement(judgement.view, writer.finish(), writer.digest)
        unfinished = session.Judgement(replace(judgement.view, incomplete=(final.name,)), writer.abandon())
        session.write_judgement(writer.path, unfinished)
        return unfinished


def _narrowed(
    planned: Sequence[PlannedContract], asked: Sequence[Unit], options: session.VerifyOptions
) -> session.VerifyOptions:
    """Return the options, limited to the claims and the workloads of the requested units. If these are all claims, or
    all workloads, the options have no such limit."""
    everything = [claim for item in planned for claim in item.loaded.contract.claims]
    claims, workloads = {unit.claim for unit in asked}, {unit.workload for unit in asked}
    return replace(
        options,
        claims=tuple(sorted(claims)) if claims != {claim.id for claim in everything} else (),
        workloads=tuple(sorted(workloads))
        if workloads != {name for claim in everything for name in claim.judged_on}
        else (),
    )
