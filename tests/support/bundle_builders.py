"""Run directories of one run, written by the real writer."""

from __future__ import annotations

import hashlib
from pathlib import Path

from run_builders import make_contract, stand_in_run

from harness.contract.load import LoadedContract
from harness.contract.schema import Contract
from harness.contract.shared import SharedFile
from harness.evidence.base import Obstacle
from harness.evidence.environment_records import CpuFacts, Environment
from harness.evidence.plan_records import Unit
from harness.evidence.run_records import Complete, Unavailable
from harness.execution.recorder import Recorder
from harness.numbers import dump_json
from harness.run_directory.bundle import Bundle, Digests, Header, contract_digests, read_bundle
from harness.run_directory.writer import BundleWriter

CAPTURE = {"id": "C", "kind": "capture", "candidate": "graphed"}
OTHER = {"id": "D", "kind": "capture", "candidate": "plain"}
RUN_ID = "c+w+one_arm"


class Loaded(LoadedContract):
    def __init__(self, contract: Contract, text: str = "id: c  # é\n", shared: tuple[SharedFile, ...] = ()) -> None:
        digest = hashlib.sha256(text.encode()).hexdigest()
        super().__init__(contract, Path("c.yaml"), text, digest, {}, lambda _path: (1, 1), shared=shared)


LOADED = Loaded(make_contract(CAPTURE, OTHER))


def unit(claim: str = "C", obstacle: Obstacle | None = None) -> Unit:
    runs = [] if obstacle else [RUN_ID]
    return Unit(contract="c", claim=claim, workload="w", runs=runs, obstacle=obstacle)


def header(
    *units: Unit,
    started_at: str = "2026-11-20T12:00:00Z",
    fault: str | None = None,
    source: str = "s",
    loaded: Loaded = LOADED,
) -> Header:
    return Header(
        purpose="verify" if fault is None else "fault",
        started_at=started_at,
        command=["harness", "verify"],
        fault=fault,
        environment=Environment(cpu=CpuFacts(cores=2)),
        units=list(units) or [unit()],
        runs={RUN_ID: "paired"},
        digests=Digests(contracts=contract_digests([loaded]), source=source),
    )


def write_evidence(writer: BundleWriter, *, obstacle: Obstacle | None = None) -> None:
    directory = writer.evidence_directory(RUN_ID)
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(dump_json(stand_in_run("one_arm").model_dump()))
    with Recorder(directory) as recorder:
        if obstacle is not None:
            recorder.write(Unavailable(obstacle=obstacle))
        recorder.write(Complete(seconds=1.0))


def finished(path: Path, described: Header, *, obstacle: Obstacle | None = None, loaded: Loaded = LOADED) -> Bundle:
    writer = BundleWriter(path, described, [loaded])
    write_evidence(writer, obstacle=obstacle)
    return read_bundle(writer.finish())
