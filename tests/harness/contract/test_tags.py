"""Tags and owners of claims: what is selected, what is recorded, who is named."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.api import session
from harness.api.drill import DrillOptions, drill
from harness.cli import application
from harness.cli.check import print_findings
from harness.cli.explain import explanation_of
from harness.contract.load import load_contract, load_contracts, selected
from harness.errors import UsageError
from harness.run_directory.bundle import read_bundle

SCRIPTED = Path(__file__).parents[2] / "support" / "scripted"
CLAIM = {
    "title": "The losses agree",
    "kind": "trajectory_match",
    "candidate": "fast",
    "baseline": "plain",
    "equality": "bitwise",
    "max_abs_difference": 0.1,
    "guards": {"steps": 5},
    "judged_on": ["tiny"],
    "why": "The script decides.",
    "if_fails": "The script says so.",
    "falsified_by": ["no_steps"],
}
CONTRACT = {
    "schema": "contract/v2",
    "id": "one-v1",
    "title": "A contract of two arms",
    "tags": ["nightly"],
    "owner": "the training team",
    "system": "scripted_system:ScriptedSystem",
    "workloads": {"tiny": {"model": "m", "batch_size": 2, "seq_len": 4, "steps": 5, "options": {"behaviour": "held"}}},
    "arms": {"fast": {"capture": "step"}, "plain": {"capture": "none"}},
    "claims": [
        CLAIM | {"id": "ONE-001"},
        CLAIM | {"id": "ONE-002", "tags": ["quick", "cpu"], "owner": "somebody"},
        CLAIM | {"id": "ONE-003", "tags": ["cpu"]},
    ],
}

Run = Callable[..., str]


@pytest.fixture
def contracts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(SCRIPTED))
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTED))
    path = Path("one.yaml")
    path.write_text(json.dumps(CONTRACT))
    return path


@pytest.mark.parametrize(
    ("tags", "claims", "found"),
    [
        ([], [], ()),
        ([], ["ONE-003"], ("ONE-003",)),
        (["cpu"], [], ("ONE-002", "ONE-003")),
        (["nightly"], [], ("ONE-001",)),
        (["nightly", "quick"], [], ("ONE-001", "ONE-002")),
        (["cpu"], ["ONE-003", "ONE-001"], ("ONE-003",)),
    ],
)
def test_a_tag_selects_claims_with_that_tag(
    contracts: Path, tags: list[str], claims: list[str], found: tuple[str]
) -> None:
    assert selected(load_contracts([contracts]), tags, claims) == found


@pytest.mark.parametrize(
    ("tags", "claims", "message"),
    [
        (["quik"], [], "no claim has this tag; found `quik`; did you mean 'quick'?"),
        (["zzz"], [], "no claim has this tag; found `zzz`; use one of: cpu, nightly, quick"),
        (
            ["quick"],
            ["ONE-003"],
            "no claim matches both options; found --tag quick and --claim ONE-003; leave out --tag or --claim",
        ),
    ],
)
def test_an_unmatched_tag_is_refused(contracts: Path, tags: list[str], claims: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        selected(load_contracts([contracts]), tags, claims)
    assert str(error.value) == message


def test_a_claim_is_explained_with_its_owner_and_tags(contracts: Path) -> None:
    contract = load_contract(contracts).contract
    assert [contract.owner_of(claim) for claim in contract.claims] == [
        "the training team",
        "somebody",
        "the training team",
    ]
    assert "  owner        somebody" in explanation_of("ONE-002", contracts)
    assert "  tags         quick, cpu" in explanation_of("ONE-002", contracts)


def test_check_with_tags_reports_only_the_tagged_claims(contracts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_findings([contracts], tags=["cpu"], as_json=False)
    seen = capsys.readouterr()
    assert seen.out.startswith("1 contract · 2 claims · ")
    assert "ONE-001" not in seen.err
    assert "ONE-003" in seen.err


def test_a_drill_selected_by_tags_covers_only_tagged_claims(contracts: Path) -> None:
    result = drill([contracts], DrillOptions(tags=("quick",), name="drilled"))
    assert {row.claim for row in result.record.rows} == {"ONE-002"}
    assert result.run_directory is not None


def test_a_run_selected_by_tags_covers_only_tagged_claims_and_records_the_selection(contracts: Path) -> None:
    judgement = session.verify([contracts], session.VerifyOptions(tags=("quick",), name="run"))
    assert [verdict.claim for verdict in judgement.verdicts] == ["ONE-002"]
    narrowed = judgement.view.header.narrowed
    assert (narrowed.tags, narrowed.claims) == (["quick"], ["ONE-002"])
    assert judgement.view.narrowed() == "tags: quick; claims: ONE-002"
    page = Path("harness-reports/run/report.html").read_text()
    assert "<strong>Owner:</strong> somebody" in page
    [again] = session.judge_bundles([read_bundle(Path("harness-reports/run"))], load_contracts([contracts])).verdicts
    assert again.claim == "ONE-002"


def test_check_verify_and_drill_refuse_an_unknown_tag(
    contracts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("check", "verify", "drill"):
        monkeypatch.setattr(sys, "argv", ["harness", command, str(contracts), "--tag", "quik"])
        with pytest.raises(SystemExit) as left:
            application.main()
        assert left.value.code == 2
        assert "no claim has this tag; found `quik`; did you mean 'quick'?" in capsys.readouterr().err
