"""A gate counts the units of the contracts: one that is missing from a run directory is not run, and shuts it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sealing import forge

from harness.api import session
from harness.api.rejudge import Known, judged
from harness.errors import EvidenceError, ExitCode

RUN = Path("harness-reports/run")


@pytest.fixture
def folder(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.api.session.write_reports", lambda *_: None)
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "one.yaml").write_text(contract_text("held", "also_held"))
    (folder / "two.yml").write_text(contract_text("held", identity="two-v1", claim="TWO-001"))
    return folder


@pytest.fixture
def run(folder: Path) -> Path:
    """A run directory whose gate is open."""
    outcome = session.verify([folder], session.VerifyOptions(name="run", gate=True))
    assert (outcome.counts.planned, outcome.exit_code) == (3, ExitCode.HELD)
    return RUN


def edit(change: Callable[[Any], None]) -> None:
    """Change the header of a run directory, which is sealed anew: its manifest tells nothing."""
    forge(RUN / "run.json", change)


def reasons(outcome: session.Judgement) -> dict[tuple[str, str], str]:
    return {(verdict.claim, verdict.workload): verdict.reason for verdict in outcome.verdicts}


def keep_units(header: Any, kept: Callable[[Any], bool]) -> None:
    """Take the other units out of a header, with their runs and the evidence of these: nothing points to them."""
    header["units"] = [unit for unit in header["units"] if kept(unit)]
    read = {run for unit in header["units"] for run in unit["runs"]}
    for run in set(header["runs"]) - read:
        del header["runs"][run]
        shutil.rmtree(RUN / "evidence" / run)


def drop_unit(header: Any) -> None:
    keep_units(header, lambda unit: unit["workload"] != "also_held")


def drop_contract(header: Any) -> None:
    keep_units(header, lambda unit: unit["contract"] != "two-v1")
    del header["digests"]["contracts"]["two-v1"]


def test_a_unit_deleted_from_a_header_is_not_planned(run: Path) -> None:
    edit(drop_unit)
    _, outcome = judged([run], gate=True)
    assert reasons(outcome)["SCRIPT-001", "also_held"] == "not_planned"
    assert outcome.exit_code is ExitCode.UNDECIDED


def test_a_header_without_units_keeps_the_gate_closed(run: Path) -> None:
    edit(lambda header: keep_units(header, lambda _unit: False))
    _, outcome = judged([run], gate=True)
    assert set(reasons(outcome).values()) == {"not_planned"}
    assert (len(outcome.verdicts), outcome.exit_code) == (3, ExitCode.UNDECIDED)


def test_a_contract_removed_from_the_header_is_found_by_its_copy(run: Path) -> None:
    edit(drop_contract)
    _, outcome = judged([run], gate=True)
    assert reasons(outcome)["TWO-001", "held"] == "not_planned"
    assert outcome.view.altered == ("run: contracts/two-v1.yaml: not recorded with the run",)
    assert outcome.exit_code is ExitCode.ERROR


def test_units_of_a_contract_without_copy_are_not_run(run: Path) -> None:
    (run / "contracts" / "two-v1.yaml").unlink()
    edit(lambda header: header["digests"]["contracts"].pop("two-v1"))
    _, outcome = judged([run], gate=True)
    assert reasons(outcome)["TWO-001", "held"] == "not_in_contract"
    assert outcome.exit_code is ExitCode.UNDECIDED


def test_a_claim_removed_from_the_contract_copy_counts_as_not_run(run: Path, folder: Path) -> None:
    copy = run / "contracts" / "two-v1.yaml"
    copy.write_text(copy.read_text().replace("TWO-001", "TWO-002"))
    _, outcome = judged([run], gate=True)
    assert reasons(outcome)["TWO-001", "held"] == "not_in_contract"
    assert reasons(outcome)["TWO-002", "held"] == "not_planned"


def test_shards_keep_units_that_no_given_contract_has(run: Path, folder: Path) -> None:
    session.verify([folder], session.VerifyOptions(name="again"))
    _, outcome = judged([run, Path("harness-reports/again")], Known([folder / "one.yaml"]), gate=True)
    assert reasons(outcome)["TWO-001", "held"] == "not_in_contract"
    assert outcome.exit_code is ExitCode.UNDECIDED


def test_a_unit_listed_twice_in_a_header_is_refused(run: Path) -> None:
    edit(lambda header: header["units"].append(header["units"][0]))
    with pytest.raises(EvidenceError, match=r"unit scripted-v1 / SCRIPT-001 / held is listed 2 times"):
        judged([run], gate=True)


def test_a_narrowed_run_is_judged_only_on_its_selection(folder: Path) -> None:
    session.verify([folder], session.VerifyOptions(name="run", workloads=("held",)))
    _, outcome = judged([RUN], gate=True)
    assert sorted(reasons(outcome)) == [("SCRIPT-001", "held"), ("TWO-001", "held")]
    assert outcome.exit_code is ExitCode.HELD
    assert outcome.view.narrowed() == "workloads: held"


def test_a_part_that_lacks_one_of_its_units_keeps_the_gate_closed(folder: Path) -> None:
    session.verify([folder], session.VerifyOptions(name="run", workloads=("held",)))
    edit(drop_contract)
    _, outcome = judged([RUN], gate=True)
    assert reasons(outcome)["TWO-001", "held"] == "not_planned"


def test_a_header_that_contradicts_its_narrowing_is_refused(run: Path) -> None:
    edit(lambda header: header.update(narrowed={"claims": ["TWO-001"], "workloads": []}))
    with pytest.raises(
        EvidenceError, match="a run may plan only units that its command line selected; found SCRIPT-001 on"
    ):
        judged([run], gate=True)


def test_a_run_with_a_planted_fault_is_judged_on_the_units_that_it_planned(folder: Path) -> None:
    session.verify([folder], session.VerifyOptions(name="run", fault="nan_tail"))
    edit(drop_unit)
    _, outcome = judged([RUN])
    assert len(outcome.verdicts) == 2
