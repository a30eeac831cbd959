"""Contracts, commit and time that the gate knows by itself are compared with a directory that its author has sealed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from one_day import TODAY
from sealing import forge, seal

from harness.cli import application as cli
from harness.evidence.environment_records import GitFacts

Call = Callable[..., tuple[int, str]]
RUN = "harness-reports/run"


@pytest.fixture
def harness(
    played: None, noon: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Call the command line in a folder with a contract of two units: one holds, one is violated."""
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    Path("contracts").mkdir()
    Path("contracts/scripted-v1.yaml").write_text(contract_text("held", "violated"))

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["harness", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, said.out + said.err

    return call


def waiver(days: int) -> None:
    Path("contracts/waivers.yaml").write_text(
        "schema: waivers/v1\nwaivers:\n"
        "  - {contract: scripted-v1, claim: SCRIPT-001, workload: violated, owner: ada, reason: known, "
        f"expires: {TODAY + timedelta(days=days)}}}\n"
    )


def day(days: int) -> str:
    return f"{TODAY + timedelta(days=days)}T00:00:00+00:00"


def test_a_waiver_only_in_the_run_directory_opens_no_gate(harness: Call) -> None:
    waiver(days=1)
    assert harness("verify", "contracts", "--gate", "--name", "run")[0] == 0
    assert harness("judge", "--gate", "--contracts", "contracts", RUN)[0] == 0  # the honest twin
    Path("contracts/waivers.yaml").unlink()
    assert harness("judge", "--gate", RUN)[0] == 0
    assert harness("judge", "--gate", "--contracts", "contracts", RUN)[0] == 1


def test_a_backdated_run_header_does_not_revive_an_expired_waiver(harness: Call) -> None:
    waiver(days=-1)
    assert harness("verify", "contracts", "--gate", "--name", "run")[0] == 1

    def dated_back(header: dict[str, object]) -> None:
        header["started_at"] = day(-2)
        header["waivers"][0]["expired"] = False  # type: ignore[index]

    forge(Path(RUN, "run.json"), dated_back)
    assert harness("judge", "--gate", RUN)[0] == 0
    code, said = harness("judge", "--gate", "--contracts", "contracts", "--not-before", str(TODAY), RUN)
    assert code == 12
    assert "the run must have started at" in said


def test_a_contract_loosened_in_a_run_is_not_used(harness: Call) -> None:
    assert harness("verify", "contracts", "--gate", "--name", "run")[0] == 1
    copy = Path(RUN, "contracts/scripted-v1.yaml")
    copy.write_text(
        copy.read_text().replace("equality: bitwise\n    max_abs_difference: 0.1", "max_abs_difference: 9.1")
    )
    seal(Path(RUN))
    assert harness("judge", "--gate", "--contracts", "contracts", RUN)[0] != 0


ONE, OTHER = "a1" * 20, "b2" * 20


@pytest.fixture
def verified_at(harness: Call, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str | None]], None]:
    """Verify with systems of these commits, by what is in their names."""

    def verify(commits: dict[str, str | None]) -> None:
        facts = {name: GitFacts(commit=commit) for name, commit in commits.items()}
        monkeypatch.setattr("harness.api.session.trainers", lambda _systems: facts)
        harness("verify", "contracts", "--gate", "--name", "run")

    return verify


@pytest.mark.parametrize(("asked", "code"), [(ONE, 1), (ONE.upper(), 1), (OTHER, 12)])
def test_a_run_of_a_different_commit_is_refused(
    harness: Call, verified_at: Callable[[dict[str, str | None]], None], asked: str, code: int
) -> None:
    verified_at({"train:Step": ONE})
    ended, said = harness("judge", "--gate", "--commit", asked, RUN)
    assert ended == code
    assert ("the run must be of the requested commit" in said) == (code == 12)


@pytest.mark.parametrize(("commit", "code"), [(ONE, 1), (OTHER, 12), (f"{ONE}+changes", 12), (None, 12)], ids=str)
def test_an_installed_system_has_no_commit_and_only_the_other_system_is_compared(
    harness: Call, verified_at: Callable[[dict[str, str | None]], None], commit: str | None, code: int
) -> None:
    verified_at({"library:Plain": None, "train:Step": commit})
    ended, said = harness("judge", "--gate", "--commit", ONE, RUN)
    assert ended == code
    assert ("an installed package" in said and "pip install -e" in said) == (commit is None)


@pytest.mark.parametrize("asked", ["HEAD", ONE[:12], "main", ONE + "1", ""])
def test_an_incomplete_commit_id_is_a_usage_error(harness: Call, asked: str) -> None:
    code, said = harness("judge", "--gate", "--commit", asked, RUN)
    assert code == 2
    assert "git rev-parse HEAD" in said


@pytest.mark.parametrize(("days", "code"), [(-1, 1), (1, 12)])
def test_a_run_older_than_the_not_before_date_is_refused(harness: Call, days: int, code: int) -> None:
    harness("verify", "contracts", "--gate", "--name", "run")
    assert harness("judge", "--gate", "--not-before", day(days), RUN)[0] == code


@pytest.mark.parametrize("known", [("--commit", "1" * 40), ("--workload", "held")])
def test_gate_options_are_refused_when_no_verdicts_are_printed(harness: Call, known: tuple[str, str]) -> None:
    harness("verify", "contracts", "--name", "run")
    assert harness("judge", "--check", *known, RUN)[0] == 2


def test_a_narrowing_forged_in_a_header_drops_no_unit(harness: Call) -> None:
    """The forger also removes the runs and the evidence.

    The gate's own contracts still list the units, so they count as not run.
    """
    assert harness("verify", "contracts", "--gate", "--name", "run")[0] == 1

    def narrowed(header: dict[str, Any]) -> None:
        header["units"] = [unit for unit in header["units"] if unit["workload"] == "held"]
        read = {run for unit in header["units"] for run in unit["runs"]}
        header["runs"] = {run: probe for run, probe in header["runs"].items() if run in read}
        header["narrowed"]["workloads"] = ["held"]
        for folder in Path(RUN, "evidence").iterdir():
            if folder.name not in header["runs"]:
                shutil.rmtree(folder)

    forge(Path(RUN, "run.json"), narrowed)
    assert harness("judge", "--gate", RUN)[0] == 0
    assert harness("judge", "--gate", "--contracts", "contracts", RUN)[0] == 10
    asked = ("--workload", "held")  # the honest twin: the gate itself asks for a part
    assert harness("judge", "--gate", "--contracts", "contracts", *asked, RUN)[0] == 0
    assert harness("judge", "--gate", *asked, RUN)[0] == 2


@pytest.mark.parametrize(
    "asked", [("--workload", "hold"), ("--claim", "SCRIPT-01"), ("--claim", "OTHER-001", "--workload", "held")]
)
def test_selecting_a_claim_or_workload_of_no_contract_is_a_usage_error(harness: Call, asked: tuple[str, ...]) -> None:
    """A mistyped name would request no unit, and the selection recorded in the run would open the gate."""
    from scripted_system import contract_text

    other = contract_text("violated", identity="other-v1", claim="OTHER-001")
    Path("contracts/other-v1.yaml").write_text(other)
    assert harness("verify", "contracts", "--gate", "--name", "run", "--workload", "held")[0] == 0
    code, said = harness("judge", "--gate", "--contracts", "contracts", *asked, RUN)
    assert (code, f"`{asked[-1]}`" in said) == (2, True)
