"""A shard that begins anew on another machine: what had ended stays decided by the first one, and the rest begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.api import session
from harness.api.rejudge import judged, rejudged
from harness.errors import EvidenceError, UsageError
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import Death
from harness.extras.fleet.job import run_directories, set_aside, settled_claims
from harness.judging.verdict import Status
from harness.run_directory.bundle import read_bundle
from harness.run_directory.interrupted_run import alone_in, is_made_elsewhere, left_unfinished

FINAL = Path("r/shard")
CLAIMS = {"FIRST": ["held"], "SECOND": ["violated", "undecided"], "THIRD": ["not_run"]}
OPTIONS = session.VerifyOptions(claims=tuple(CLAIMS), reports=Path("r"), name="shard")


def contract() -> str:
    """Three claims: of one workload, of two, and of one that this machine cannot run."""
    from scripted_system import contract_text

    text = contract_text("held", "violated", "undecided", "not_run")
    head, _, claim = text.partition("  - id: SCRIPT-001\n")
    every = "on: [held, violated, undecided, not_run]"
    return head + "".join(
        f"  - id: {name}\n{claim.replace(every, 'on: [' + ', '.join(workloads) + ']')}"
        for name, workloads in CLAIMS.items()
    )


@pytest.fixture
def left(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shard's directory as a node left it in its third run: of SECOND one unit had ended, of FIRST all."""
    import scripted_system

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.api.session.write_reports", lambda *_: None)
    monkeypatch.setattr("harness.execution.schedule._processors", lambda _machine: 1)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    Path("contract.yaml").write_text(contract())
    executed = []

    def execute(run: Run, directory: Path, *_: object, **__: object) -> Death | None:
        executed.append(run.id)
        if len(executed) == 3:
            raise SystemExit(143)
        return scripted_system.play(run, directory)

    with monkeypatch.context() as patch:
        patch.setattr("harness.execution.supervisor.execute", execute)
        with pytest.raises(SystemExit):
            session.verify([Path("contract.yaml")], OPTIONS)
    found = left_unfinished(FINAL)
    assert found is not None
    return found


def test_a_directory_begun_on_another_slurm_node_is_recognized(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = is_made_elsewhere(left)
    monkeypatch.setenv("SLURMD_NODENAME", "node2")
    assert (here, is_made_elsewhere(left)) == (False, True)


def test_resuming_a_directory_on_a_different_slurm_node_is_refused(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "node2")
    with pytest.raises(EvidenceError, match=r"another node: .*node2.*, but the run was started on .*node1"):
        session.verify([Path("contract.yaml")], replace(OPTIONS, name=None, resume=left))


def test_completed_claims_of_an_interrupted_shard_are_kept_and_the_rest_is_moved_aside(left: Path) -> None:
    set_aside(left, FINAL, settled=True)
    assert (settled_claims(FINAL), left.exists(), left_unfinished(FINAL)) == ({"FIRST"}, False, None)
    assert sorted(path.name for path in Path("r").iterdir()) == ["shard.ended-1", "shard.left-1"]
    settled = rejudged(Path("r/shard.ended-1"))
    assert settled.problems == []
    assert [(verdict.claim, verdict.status) for verdict in settled.judgement.verdicts] == [("FIRST", Status.PASS)]
    assert len(list(Path("r/shard.left-1/evidence").iterdir())) >= 2


def test_shards_of_two_machines_give_the_verdicts_of_one_machine(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_aside(left, FINAL, settled=True)
    monkeypatch.setenv("SLURMD_NODENAME", "node2")
    session.verify([Path("contract.yaml")], replace(OPTIONS, claims=("SECOND", "THIRD")))
    _, together = judged(run_directories(FINAL), gate=True)
    whole = session.verify([Path("contract.yaml")], replace(OPTIONS, name="whole"))
    assert together.verdicts == whole.verdicts
    nodes = {part.name: part.view.header.environment.job.node for part in together.view.parts}
    assert nodes == {"shard.ended-1": "node1", "shard": "node2"}


def test_a_shard_without_a_finished_run_counts_no_claim_as_completed(left: Path) -> None:
    """A drill, of which no part is kept, is treated in the same way."""
    set_aside(left, FINAL, settled=False)
    assert (settled_claims(FINAL), [path.name for path in Path("r").iterdir()]) == (set(), ["shard.left-1"])


def test_a_run_directory_in_use_is_not_set_aside(left: Path) -> None:
    with alone_in(left), pytest.raises(UsageError, match="another process that is writing it"):
        set_aside(left, FINAL, settled=True)
    assert read_bundle(left).path == left


def test_a_shard_with_changed_evidence_counts_no_claim_as_completed(left: Path) -> None:
    next(left.glob("evidence/*held*/records.jsonl")).write_text("")
    with pytest.raises(EvidenceError, match=r"only if its files are unchanged; found evidence/.*held.*: changed"):
        set_aside(left, FINAL, settled=True)
    assert settled_claims(FINAL) == set()
