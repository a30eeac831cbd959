"""Run directories: writing, interruption, tampering, shards, verdict files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from run_builders import make_contract, stand_in_run

from harness.contract.schema import Contract
from harness.errors import EvidenceError, UsageError
from harness.evidence.bundle import (
    Bundle,
    BundleWriter,
    Digests,
    Header,
    altered,
    contract_digests,
    read_bundle,
)
from harness.evidence.model import Complete, Obstacle, Unavailable, Unit
from harness.evidence.numbers import dump_json
from harness.evidence.shards import attempts
from harness.evidence.verdict_file import read_verdicts, verdict_text, write_verdicts
from harness.judge.verdict import Figure, Status, Verdict
from harness.runners.recorder import Recorder

CAPTURE = {"id": "C", "kind": "capture", "candidate": "graphed"}
OTHER = {"id": "D", "kind": "capture", "candidate": "plain"}
RUN_ID = "c+w+one_arm"


@dataclass(frozen=True)
class Loaded:
    contract: Contract
    text: str = "id: c  # é\n"

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


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
        started_at=started_at,
        command=["harness", "verify"],
        fault=fault,
        environment={"cpu": {"cores": 2}},
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
    writer.seal()
    return read_bundle(writer.finish())


def test_a_finished_directory_holds_contracts_evidence_and_digests(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "out" / "run", header(), [LOADED])
    assert writer.path.parent == tmp_path / "out"
    assert writer.path.name.startswith("run.incomplete-")
    assert (writer.path / "INCOMPLETE").exists()
    write_evidence(writer)
    writer.seal()
    assert writer.finish() == tmp_path / "out" / "run"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run"]
    bundle = read_bundle(tmp_path / "out" / "run")
    assert bundle.complete
    assert sorted(path.name for path in bundle.path.iterdir()) == ["contracts", "evidence", "run.json"]
    assert [path.read_text() for path in bundle.contract_paths()] == [LOADED.text]
    assert set(bundle.header.digests.evidence) == {
        f"evidence/{RUN_ID}/{name}" for name in ("heartbeat", "records.jsonl", "run.json")
    }
    assert bundle.evidence(RUN_ID).death is None
    assert altered(bundle) == []


def test_an_abandoned_directory_says_so_and_what_is_missing_is_a_death(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "run", header(), [LOADED])
    assert writer.abandon() == tmp_path / "run"
    bundle = read_bundle(tmp_path / "run")
    assert not bundle.complete
    [attempt] = attempts([bundle], [])
    [evidence] = attempt.evidence
    assert (evidence.run_id, evidence.probe) == (RUN_ID, "paired")
    assert evidence.death is not None
    assert (evidence.death.cause, evidence.death.detail) == ("incomplete", "the run left no evidence")
    assert altered(bundle) == []


def test_a_killed_writer_leaves_the_marker_under_the_temporary_name(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "run", header(), [LOADED])
    write_evidence(writer)
    assert not (tmp_path / "run").exists()
    assert not read_bundle(writer.path).complete


def test_a_directory_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(UsageError, match="written once"):
        BundleWriter(tmp_path / "run", header(), [LOADED])


def test_a_name_taken_meanwhile_loses_nothing(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "run", header(), [LOADED])
    write_evidence(writer)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "someone_elses").touch()
    with pytest.raises(EvidenceError, match="written once"):
        writer.finish()
    assert read_bundle(writer.path).evidence(RUN_ID).death is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: (root / "evidence" / RUN_ID / "records.jsonl").write_text(""), "records.jsonl: changed"),
        (lambda root: (root / "evidence" / RUN_ID / "records.jsonl").unlink(), "records.jsonl: missing"),
        (lambda root: (root / "evidence" / RUN_ID / "death.json").write_text("{}"), "death.json: not recorded"),
        (lambda root: (root / "contracts" / "c.yaml").write_text("id: d"), "contracts/c.yaml: changed"),
        (lambda root: (root / "contracts" / "c.yaml").unlink(), "contracts/c.yaml: missing"),
    ],
)
def test_tampering_is_told(tmp_path: Path, change: object, said: str) -> None:
    bundle = finished(tmp_path / "run", header())
    assert callable(change)
    change(bundle.path)
    [line] = altered(bundle)
    assert said in line


def test_clearing_the_digests_hides_nothing(tmp_path: Path) -> None:
    bundle = finished(tmp_path / "run", header())
    document = json.loads((bundle.path / "run.json").read_text())
    document["digests"]["evidence"] = {}
    (bundle.path / "run.json").write_text(json.dumps(document))
    assert len(altered(read_bundle(bundle.path))) == 3


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", "[" * 100_000, '{"units": NaN}'])
def test_a_damaged_header_is_an_evidence_error(tmp_path: Path, text: str) -> None:
    bundle = finished(tmp_path / "run", header())
    (bundle.path / "run.json").write_text(text)
    with pytest.raises(EvidenceError, match="holds a readable run"):
        read_bundle(bundle.path)


def test_what_is_no_directory_is_an_evidence_error(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no directory"):
        read_bundle(tmp_path / "nowhere")


def test_a_run_id_cannot_lead_out_of_the_directory(tmp_path: Path) -> None:
    bundle = finished(tmp_path / "run", header())
    for name in ("../../elsewhere", "..", "/etc"):
        with pytest.raises(EvidenceError, match="names a directory"):
            bundle.evidence(name)


def test_evidence_under_another_runs_name_is_garbage(tmp_path: Path) -> None:
    bundle = finished(tmp_path / "run", header())
    (bundle.path / "evidence" / RUN_ID).rename(bundle.path / "evidence" / "c+w+paired")
    death = bundle.evidence("c+w+paired").death
    assert death is not None
    assert (death.cause, death.detail) == ("garbage", f"this is the evidence of run {RUN_ID!r}")


def test_one_runs_damage_is_a_death_of_that_run_alone(tmp_path: Path) -> None:
    bundle = finished(tmp_path / "run", header())
    (bundle.path / "evidence" / RUN_ID / "run.json").write_text("[" * 100_000)
    evidence = bundle.evidence(RUN_ID)
    assert (evidence.run_id, evidence.probe, evidence.arms) == (RUN_ID, "paired", {})
    assert evidence.death is not None
    assert evidence.death.cause == "garbage"


# --- shards ----------------------------------------------------------------------------------------------

EARLY, LATE = "2026-11-20T10:00:00Z", "2026-11-20T11:00:00Z"


def test_a_merged_gate_plans_every_unit_of_the_contracts(tmp_path: Path) -> None:
    shards = [finished(tmp_path / str(n), header(started_at=at)) for n, at in enumerate((LATE, EARLY))]
    first, second = attempts(shards, [LOADED.contract])
    assert first.unit == unit("C")
    assert first.bundle == shards[1]  # the earliest attempt, whatever the order on the command line
    assert second.unit.claim == "D"
    assert second.unit.obstacle is not None
    assert second.unit.obstacle.reason == "not_planned"
    assert (second.evidence, second.bundle) == ([], None)


@pytest.mark.parametrize("planned", [True, False])
def test_a_machine_that_could_not_run_it_made_no_attempt(tmp_path: Path, *, planned: bool) -> None:
    obstacle = Obstacle(reason="needs_cuda", message="needs CUDA")
    early = header(unit(obstacle=obstacle) if planned else unit(), started_at=EARLY)
    without = finished(tmp_path / "cpu", early, obstacle=None if planned else obstacle)
    with_gpu = finished(tmp_path / "gpu", header(started_at=LATE))
    assert attempts([without, with_gpu], [LOADED.contract])[0].bundle == with_gpu


def test_a_dead_first_attempt_is_not_replaced_by_a_repeat(tmp_path: Path) -> None:
    died = finished(tmp_path / "died", header(started_at=EARLY))
    (died.path / "evidence" / RUN_ID / "records.jsonl").unlink()
    repeat = finished(tmp_path / "repeat", header(started_at=LATE))
    attempt = attempts([repeat, died], [LOADED.contract])[0]
    assert attempt.bundle == died
    assert attempt.evidence[0].death is not None


@pytest.mark.parametrize(
    ("second", "loaded", "rule"),
    [
        (header(source="t"), LOADED, "shards come from the same sources"),
        (header(fault="stale"), LOADED, "a shard of a gate plants no fault"),
        (
            header(loaded=Loaded(LOADED.contract, "id: c\n")),
            Loaded(LOADED.contract, "id: c\n"),
            "shards judge the same contracts",
        ),
    ],
)
def test_shards_that_do_not_belong_together(tmp_path: Path, second: Header, loaded: Loaded, rule: str) -> None:
    shards = [finished(tmp_path / "one", header()), finished(tmp_path / "two", second, loaded=loaded)]
    with pytest.raises(EvidenceError, match=rule):
        attempts(shards, [LOADED.contract])


def test_a_drill_alone_can_be_judged_again(tmp_path: Path) -> None:
    bundle = finished(tmp_path / "drill", header(fault="stale"))
    assert len(attempts([bundle], [LOADED.contract])) == 1


# --- verdicts --------------------------------------------------------------------------------------------


def verdict(status: Status = Status.PASS) -> Verdict:
    figures = {"difference": Figure(value=float("inf"), unit="nats"), "bound": Figure(value=0.1)}
    return Verdict(status=status, reason="r", message="m é", contract="c", claim="C", workload="w", figures=figures)


def test_verdicts_read_back_as_written_and_byte_for_byte(tmp_path: Path) -> None:
    verdicts = [verdict(), verdict(Status.NOT_RUN)]
    write_verdicts(tmp_path, verdicts)
    read = read_verdicts(tmp_path)
    assert read.claims == verdicts
    assert (read.counts.planned, read.counts.held, read.counts.not_run) == (2, 1, 1)
    assert verdict_text(read.claims).encode() == (tmp_path / "verdicts.json").read_bytes()
    assert '"value": "Infinity"' in (tmp_path / "verdicts.json").read_text()


@pytest.mark.parametrize(
    ("statuses", "gate"),
    [
        ([Status.PASS], True),
        ([Status.PASS, Status.NOT_RUN], False),
        ([Status.INCONCLUSIVE], False),
        ([], False),
    ],
)
def test_a_gate_opens_when_every_unit_holds(tmp_path: Path, statuses: list[Status], *, gate: bool) -> None:
    write_verdicts(tmp_path, [verdict(status) for status in statuses])
    assert read_verdicts(tmp_path).gate.open is gate


@pytest.mark.parametrize("text", ["", "{}", '{"format_version": 2}', "[" * 50_000])
def test_damaged_verdicts_are_an_evidence_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "verdicts.json").write_text(text)
    with pytest.raises(EvidenceError, match="holds its verdicts"):
        read_verdicts(tmp_path)
