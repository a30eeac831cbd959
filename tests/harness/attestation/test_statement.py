"""What is said of a run directory before it is signed: the result, the tests, what it is about."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from sealing import forge

from harness.api import session
from harness.cli.attest import attest, beside
from harness.errors import EvidenceError, UsageError
from harness.extras.attestation import statement_of, statement_text


def verified(*behaviours: str, **options: Any) -> Path:
    """A run directory of one unit for each behaviour."""
    from scripted_system import contract_text

    Path("scripted-v1.yaml").write_text(contract_text(*behaviours))
    session.verify([Path("scripted-v1.yaml")], session.VerifyOptions(name="run", **options))
    return Path("harness-reports/run")


def said(directory: Path) -> Any:
    return json.loads(statement_text(statement_of(directory)[0]))


@pytest.mark.parametrize(
    ("behaviours", "result", "passed", "failed"),
    [
        (("held",), "PASSED", ["held"], []),
        (("held", "also_held"), "PASSED", ["held", "also_held"], []),
        (("held", "violated"), "FAILED", ["held"], ["violated"]),
        (("held", "undecided"), "FAILED", ["held"], ["undecided"]),
        (("held", "not_run"), "FAILED", ["held"], ["not_run"]),
        (("held", "error"), "FAILED", ["held"], ["error"]),
        (("not_run",), "FAILED", [], ["not_run"]),
        (("undecided",), "FAILED", [], ["undecided"]),
    ],
)
def test_only_an_open_gate_is_attested_as_passed(
    folder: Path, behaviours: tuple[str, ...], result: str, passed: list[str], failed: list[str]
) -> None:
    predicate = said(verified(*behaviours))["predicate"]
    assert predicate["result"] == result
    assert predicate["passedTests"] == [f"scripted-v1/SCRIPT-001/{name}" for name in passed]
    assert predicate["failedTests"] == [f"scripted-v1/SCRIPT-001/{name}" for name in failed]
    assert predicate["warnedTests"] == []


def test_a_gate_that_a_waiver_keeps_open_is_attested_with_a_warning(folder: Path) -> None:
    Path("waivers.yaml").write_text(
        "schema: waivers/v1\nwaivers:\n  - {contract: scripted-v1, claim: SCRIPT-001, workload: violated, "
        "owner: ada, reason: known, expires: 2099-01-01}\n"
    )
    predicate = said(verified("held", "violated"))["predicate"]
    assert (predicate["result"], predicate["failedTests"]) == ("WARNED", [])
    assert predicate["warnedTests"] == ["scripted-v1/SCRIPT-001/violated"]
    assert [item["name"] for item in predicate["configuration"]] == [
        *("contracts/scripted-v1.yaml", "run.json", "waivers/1.yaml")
    ]


def test_a_statement_covers_the_manifest_and_the_trainers_sources(folder: Path) -> None:
    directory = verified("held")
    statement = said(directory)
    header = json.loads((directory / "run.json").read_text())
    manifest = hashlib.sha256((directory / "manifest.json").read_bytes()).hexdigest()
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert statement["subject"] == [
        {"name": "manifest.json", "digest": {"sha256": manifest}},
        *(
            {"name": f"sources of {name}", "digest": {"sha256": header["digests"]["packages"][name]}}
            for name in ("raises_on_import", "scripted_system")  # which the second imports
        ),
    ]
    [contract, described] = statement["predicate"]["configuration"]
    assert contract["digest"]["sha256"] == header["digests"]["contracts"]["scripted-v1"]
    assert (described["name"], "annotations" in described) == ("run.json", False)


def test_the_statement_of_a_narrowed_run_names_its_selection(folder: Path) -> None:
    [_, described] = said(verified("held", "violated", workloads=("held",)))["predicate"]["configuration"]
    assert described["annotations"] == {"narrowed": "workloads: held"}


def test_an_incomplete_or_changed_run_is_not_attested(folder: Path) -> None:
    directory = verified("held")
    (directory / "INCOMPLETE").touch()
    with pytest.raises(
        EvidenceError,
        match="only a complete and unchanged run can be attested; found the run did not finish",
    ):
        statement_of(directory)
    (directory / "INCOMPLETE").unlink()
    (directory / "verdicts.json").write_text("{}")
    with pytest.raises(EvidenceError, match=r"verdicts\.json: changed"):
        statement_of(directory)


def test_verdicts_that_do_not_follow_from_the_evidence_are_not_attested(folder: Path) -> None:
    directory = verified("undecided")
    forge(directory / "verdicts.json", lambda verdicts: verdicts["gate"].update(open=True))
    with pytest.raises(EvidenceError, match="the evidence gives other verdicts"):
        statement_of(directory)


def test_a_run_with_a_planted_fault_is_not_attested(folder: Path) -> None:
    with pytest.raises(EvidenceError, match="a shard of a gate must not plant a fault"):
        statement_of(verified("held", fault="nan_tail"))


def test_an_unsigned_statement_can_be_written_for_another_program_to_sign(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = verified("held")
    attest(directory, unsigned=True)
    place = Path("harness-reports/run.intoto.json")
    assert place.read_text() == statement_text(statement_of(directory)[0])
    assert capsys.readouterr().out == f"{place}: PASSED: 1 passed, 0 warned, 0 failed, signed by nobody\n"


@pytest.mark.parametrize(
    "given", [{}, {"verify": True}, {"key": Path("k"), "unsigned": True}, {"verify": True, "unsigned": True}]
)
def test_attest_without_usable_options_lists_the_options_to_give(folder: Path, given: dict[str, Any]) -> None:
    with pytest.raises(
        UsageError, match=r"attest needs --key \(to sign\), --verify and --key \(to verify\), or --unsigned"
    ):
        attest(Path("run"), **given)


def test_an_attestation_file_is_written_next_to_its_run_directory(folder: Path) -> None:
    assert beside(Path("a/run")) == Path("a/run.intoto.json")
    assert beside(Path()) == folder.with_name(f"{folder.name}.intoto.json")


def test_attest_without_its_library_prints_the_install_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = verified("held")
    monkeypatch.setattr("harness.extras.attestation.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"`pip install 'cryptography>=.*' 'securesystemslib>=.*'` installs"):
        attest(directory, key=Path("key.pem"))
