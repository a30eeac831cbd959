"""Evidence decides a unit only where it is of what the contract says: what was not run is not held."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.api import session
from harness.contract.load import load_contracts
from harness.errors import ExitCode
from harness.judging.verdict import Verdict
from harness.run_directory.bundle import read_bundle

RUN = Path("harness-reports/run")
PAIRED = RUN / "evidence" / "scripted-v1+held+paired" / "run.json"
SECOND_CLAIM = """\
  - id: SCRIPT-002
    title: The losses agree once more
    kind: trajectory_match
    candidate: fast
    baseline: plain
    equality: bitwise
    max_abs_difference: 0.1
    guards: {steps: 5}
    on: [held]
    why: The script decides.
    if_fails: The script says so.
"""
REPEATED = """\
  - id: SCRIPT-001
    title: Runs of one seed agree
    kind: repeatability
    candidate: fast
    runs: 3
    equality: bitwise
    max_abs_difference: 0.1
    guards: {steps: 5}
    on: [held]
    why: The script decides.
    if_fails: The script says so.
"""


@pytest.fixture
def text(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The text of a contract of which every unit held, in the run directory `RUN`."""
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.api.session.write_reports", lambda *_: None)
    text = contract_text("held")
    Path("ours.yaml").write_text(text)
    assert session.verify([Path("ours.yaml")], session.VerifyOptions(name="run")).exit_code is ExitCode.HELD
    return text


def judged(text: str) -> session.Judgement:
    """The outcome of the run directory as a gate, judged by the contract of this text."""
    Path("theirs.yaml").write_text(text)
    return session.judge_bundles([read_bundle(RUN)], load_contracts([Path("theirs.yaml")]), gate=True)


def refused(outcome: session.Judgement) -> str:
    """What the one unit's verdict says of evidence that is not the contract's."""
    [verdict] = outcome.verdicts
    assert (str(verdict.status), verdict.reason) == ("NOT_RUN", "evidence_of_another_contract")
    assert outcome.exit_code is ExitCode.UNDECIDED
    return verdict.message


DIFFERING = {
    "model": ("model: m,", "model: n,", "workload.model: 'n' in the contract, 'm' in the evidence"),
    "batch": ("batch_size: 2", "batch_size: 64", "workload.batch_size: 64 in the contract, 2 in the evidence"),
    "length": ("seq_len: 4", "seq_len: 4096", "workload.seq_len: 4096 in the contract, 4 in the evidence"),
    "schedule": ("seq_len: 4", "seq_len: [4, 8]", "workload.seq_len: [4, 8] in the contract, 4 in the evidence"),
    "steps": ("steps: 5,", "steps: 6,", "workload.steps: 6 in the contract, 5 in the evidence"),
    "seed": ("steps: 5,", "steps: 5, seed: 1,", "workload.seed: 1 in the contract, 0 in the evidence"),
    "device": ("needs: {}", "needs: {device: cpu}", "workload.needs.device: 'cpu' in the contract, none in the"),
    "option": ("behaviour: held}", "behaviour: other}", "workload.options.behaviour: 'other' in the contract, 'held'"),
    "another option": ("behaviour: held}", "behaviour: held, x: 1}", "workload.options.x: 1 in the contract, none in"),
    "setting": ("plain: {capture: none", "plain: {lr: 1, capture: none", "arms.plain.lr: 1 in the contract, none in"),
    "capture": ("capture: step", "capture: backward", "arms.fast.capture: 'backward' in the contract, 'step' in the"),
    "system": ("scripted_system:S", "scripted_system:O", "arms.plain.system: 'scripted_system:OcriptedSystem' in the"),
    "own system": (
        "fast: {capture: step",
        "fast: {capture: step, system: 'a.b:C'",
        "arms.fast.system: 'a.b:C' in the contract, 'scripted_system:ScriptedSystem' in the evidence",
    ),
}


@pytest.mark.parametrize("name", DIFFERING)
def test_evidence_is_refused_for_a_contract_that_differs_from_the_executed_one(text: str, name: str) -> None:
    old, new, said = DIFFERING[name]
    assert old in text
    assert said in refused(judged(text.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("title: The losses agree in bits", "title: In other words"),
        ("why: The script decides.", "why: Because."),
        ("    falsified_by: [nan_tail]\n", ""),
        ("needs: {}", "needs: {memory_gib: 0.001}"),
        ("max_abs_difference: 0.1", "max_abs_difference: 0.2"),
        ("guards: {steps: 5}", "guards: {steps: 4}"),
    ],
    ids=["title", "why", "falsified_by", "memory", "bound", "guard"],
)
def test_evidence_is_judged_by_texts_bounds_and_guards_of_the_current_contract(text: str, old: str, new: str) -> None:
    assert old in text
    assert judged(text.replace(old, new)).exit_code is ExitCode.HELD


def test_a_guard_changed_after_the_run_decides_the_verdict(text: str) -> None:
    [verdict] = judged(text.replace("guards: {steps: 5}", "guards: {steps: 5, clip_active_steps: 5}")).verdicts
    assert verdict.reason == "capability_missing"


def test_a_claim_that_demands_more_executions_was_not_run(text: str) -> None:
    said = refused(judged(text[: text.index("  - id")] + REPEATED))
    assert "arms.fast.replicas: 3 in the contract, 1 in the evidence" in said


def test_a_claim_added_after_the_run_counts_as_not_run(text: str) -> None:
    outcome = judged(text + SECOND_CLAIM)
    assert [(verdict.claim, verdict.reason) for verdict in outcome.verdicts] == [
        ("SCRIPT-001", "held"),
        ("SCRIPT-002", "not_planned"),
    ]
    assert outcome.exit_code is ExitCode.UNDECIDED


def test_a_workload_added_after_the_run_counts_as_not_run(text: str) -> None:
    other = "  other: {model: m, batch_size: 2, seq_len: 4, steps: 5, options: {behaviour: held}}\narms:"
    outcome = judged(text.replace("arms:", other).replace("on: [held]", "on: [other, held]"))
    assert sorted((verdict.workload, verdict.reason) for verdict in outcome.verdicts) == [
        ("held", "held"),
        ("other", "not_planned"),
    ]


# --- the directory itself: its copy of the contract and its evidence were made to disagree ---------------------


def edit(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def own_verdicts() -> list[Verdict]:
    """The verdicts of the run directory by its own copy of the contract."""
    bundle = read_bundle(RUN)
    return list(session.judge_bundles([bundle], load_contracts(bundle.contract_paths())).verdicts)


EDITS: dict[str, tuple[Callable[[Any], None], str]] = {
    "workload": (lambda run: run["workload"].update(steps=4), "workload.steps: 5 in the contract, 4 in the evidence"),
    "another workload's": (lambda run: run.update(workload_name="x"), "workload: 'held' in the contract, 'x' in the"),
    "another contract's": (lambda run: run.update(contract="x"), "contract: 'scripted-v1' in the contract, 'x' in"),
    "fault": (
        lambda run: run.update(fault="nan_tail", fault_arms=["plain"]),
        "fault: none in the contract, 'nan_tail' in the evidence",
    ),
    "arm": (lambda run: run["arms"].pop("plain"), "arms.plain: an arm in the contract, none in the evidence"),
    "replicas": (lambda run: run["arms"]["plain"].update(replicas=1), "arms.plain.replicas: 2 in the contract, 1 in"),
    "probe": (lambda run: run.update(probe="recapture"), "a paired run: one in the contract, none in the evidence"),
}


@pytest.mark.parametrize("name", EDITS)
def test_evidence_that_contradicts_the_contract_of_its_run_is_an_evidence_error(text: str, name: str) -> None:
    change, said = EDITS[name]
    edit(PAIRED, change)
    [verdict] = own_verdicts()
    assert verdict.reason == "evidence_of_another_contract"
    assert said in verdict.message


def test_a_run_with_a_planted_fault_is_judged_with_its_fault(text: str) -> None:
    session.verify([Path("ours.yaml")], session.VerifyOptions(name="faulted", fault="nan_tail"))
    bundle = read_bundle(Path("harness-reports/faulted"))
    [verdict] = session.judge_bundles([bundle], load_contracts(bundle.contract_paths())).verdicts
    assert verdict.reason == "held"  # the script plays the fault as it plays anything
    edit(bundle.path / "run.json", lambda header: header.update(fault=None, purpose="verify"))
    bundle = read_bundle(bundle.path)
    [verdict] = session.judge_bundles([bundle], load_contracts(bundle.contract_paths())).verdicts
    assert verdict.reason == "evidence_of_another_contract"


def test_a_run_that_no_part_of_a_composite_claim_reads_is_refused_as_evidence_of_the_claim(text: str) -> None:
    def add(header: Any) -> None:
        header["units"][0]["runs"].insert(0, "stray")
        header["runs"]["stray"] = "paired"

    edit(RUN / "run.json", add)
    stray = PAIRED.parent.with_name("stray")
    stray.mkdir()
    for file in PAIRED.parent.iterdir():
        (stray / file.name).write_bytes(file.read_bytes())
    edit(stray / "run.json", lambda run: run.update(id="stray", workload_name="x"))
    [verdict] = own_verdicts()
    assert verdict.reason == "evidence_of_another_contract"


def test_missing_evidence_is_an_error_and_not_evidence_of_another_contract(text: str) -> None:
    PAIRED.unlink()
    [verdict] = own_verdicts()
    assert (str(verdict.status), verdict.reason) == ("ERROR", "worker_garbage")


def test_shards_are_compared_like_one_directory(text: str) -> None:
    session.verify([Path("ours.yaml")], session.VerifyOptions(name="again"))
    bundles = [read_bundle(RUN), read_bundle(Path("harness-reports/again"))]
    Path("theirs.yaml").write_text(text.replace("batch_size: 2", "batch_size: 64"))
    said = refused(session.judge_bundles(bundles, load_contracts([Path("theirs.yaml")]), gate=True))
    assert "workload.batch_size" in said
