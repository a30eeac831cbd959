"""Accepted baselines: what a file may say, and the claims that it may name. Waivers have the same reader."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path

import pytest

from harness.cli import application as cli
from harness.contract.accepted_baselines import AcceptedBaseline, find_accepted
from harness.contract.load import load_contract
from harness.contract.signed_entries import unmatched
from harness.errors import ContractErrors

COMMIT = "c0ffee" * 6 + "beef"
ENTRY = {
    "contract": "as-main",
    "claim": "SAME",
    "commit": COMMIT,
    "reviewer": "ada",
    "reason": "Attention accumulates in fp32",
    "expires": "2026-12-31",
}
HEAD = "schema: accepted-baselines/v1\naccepted:\n"
CONTRACT = """\
schema: contract/v2
id: as-main
title: Trains as main does
system: trainer:Trainer
workloads: {small: {model: any, batch_size: 1, seq_len: 4, steps: 100, needs: {device: cpu}}}
arms: {here: {}, main: {}}
claims:
  - {id: SAME, title: Trains as main, kind: trajectory_match, candidate: here, baseline: main, equality: bitwise,
     max_abs_difference: 0.1, guards: {steps: 100}, judged_on: [small], why: a refactoring, if_fails: see}
  - {id: SPEED, title: As fast, kind: throughput_ratio, candidate: here, baseline: main, at_least: 0.95,
     trajectory: SAME, judged_on: [small], why: noise, if_fails: see}
  - {id: AGAIN, title: Repeats, kind: repeatability, candidate: here, equality: within, max_abs_difference: 0.1,
     guards: {steps: 100}, judged_on: [small], why: seeds, if_fails: see}
"""


def entry(**changes: str | None) -> str:
    values = {**ENTRY, **changes}
    return "  - {" + ", ".join(f"{key}: {value}" for key, value in values.items() if value is not None) + "}\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "as-main.yaml"
    path.write_text(CONTRACT)
    (folder / "accepted-baselines.yaml").write_text(text)
    return path


def test_an_accepted_baseline_is_found_next_to_the_contract_with_its_position(tmp_path: Path) -> None:
    [accepted] = find_accepted([write(tmp_path, HEAD + entry())])
    assert (accepted.contract, accepted.claim, accepted.commit) == ("as-main", "SAME", COMMIT)
    assert (accepted.reviewer, accepted.expires) == ("ada", date(2026, 12, 31))
    assert accepted.where == f"{tmp_path}/accepted-baselines.yaml:3:5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accepted: []\n", "1:1: an accepted baseline file must begin with `schema: accepted-baselines/v1`; add it"),
        (HEAD + entry(commit="main"), "'commit' must be a whole commit, 40 or 64 digits, as `git rev-parse` prints it"),
        (HEAD + entry(reviewer=None), "3:5: an accepted baseline must have the key 'reviewer'; found none; add it"),
        (HEAD + entry(workload="small"), "unknown key; found 'workload'"),
        (
            HEAD + entry() + entry(commit="beef" * 10),
            "4:5: a claim must have only one accepted baseline; found a second;",
        ),
    ],
    ids=["schema", "a branch", "no reviewer", "a workload", "a second"],
)
def test_an_invalid_file_is_refused_at_its_position(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ContractErrors) as found:
        find_accepted([write(tmp_path, text)])
    assert message in str(found.value)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"claim": "SAEM"}, "claim 'SAEM'; did you mean 'SAME'?; or remove the accepted baseline"),
        ({"contract": "as-mian"}, "contract 'as-mian'; did you mean 'as-main'?; or remove the accepted baseline"),
        ({"claim": "SPEED"}, "claim 'SPEED', which judges time; a waiver can accept such a claim until a date; or"),
        ({"claim": "AGAIN"}, "claim 'AGAIN', which names no `baseline`; a waiver can accept such a claim until"),
    ],
    ids=["claim", "contract", "time", "no baseline"],
)
def test_an_accepted_baseline_for_a_missing_or_unsuitable_claim_is_reported(
    tmp_path: Path, changes: dict[str, str], found: str
) -> None:
    path = write(tmp_path, HEAD + entry(**changes))
    [error] = unmatched(find_accepted([path]), [load_contract(path)], all_known=True)
    assert f"an accepted baseline must name a claim that compares numbers with a baseline; found {found}" in str(error)


def test_check_warns_of_an_expired_accepted_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, HEAD + entry(expires="2020-01-31"))
    monkeypatch.setattr(sys, "argv", ["harness", "check", str(path)])
    with pytest.raises(SystemExit):
        cli.main()
    said = " ".join(capsys.readouterr().err.split())
    assert "warning: the accepted baseline of SAME was valid until 2020-01-31: renew or remove it" in said


def test_a_waiver_file_with_another_name_is_not_read_as_accepted_baselines(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + entry())
    (tmp_path / "waivers.yaml").write_text("schema: waivers/v1\nwaivers: []\n")
    assert [type(each) for each in find_accepted([tmp_path, path])] == [AcceptedBaseline]
