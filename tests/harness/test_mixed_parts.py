"""What does not belong together makes no gate: parts of two trainers, a waiver of another part, a lost contract."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from budget import slow_but
from sealing import forge

from harness.cli import application

Call = Callable[..., tuple[int, str]]
PARTS = Path("harness-reports/one"), Path("harness-reports/two")
ADAPTER = """\
from scripted_system import ScriptedSystem


class System(ScriptedSystem):
    def build(self):
        from our_train import make_step

        return make_step()
"""


@pytest.fixture
def harness(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Call the command line in a folder with an adapter, which imports the trainer beside it, and a contract."""
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("harness.report.html.render", lambda _view: "")  # drawing pages takes as long as all the rest
    Path("contracts").mkdir()
    text = contract_text("held", "violated").replace("scripted_system:ScriptedSystem", "our_adapter:System")
    Path("contracts/scripted-v1.yaml").write_text(text)
    Path("our_adapter.py").write_text(ADAPTER)
    Path("our_train.py").write_text("rate = 1\n")

    def call(*arguments: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["harness", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            application.main()
        said = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, said.out + said.err

    return call


def run_part(harness: Call, directory: Path, *workloads: str) -> None:
    narrowed = [word for name in workloads for word in ("--workload", name)]
    harness("verify", "contracts", "--no-redact", "--no-where", *narrowed, "--name", directory.name)


def commit(message: str) -> None:
    identity = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    for words in (["init", "--quiet"], ["add", "*.py"], ["commit", "--quiet", "--allow-empty", "-m", message]):
        subprocess.run(["git", *identity, *words], check=True)


def test_a_folder_that_contains_its_own_runs_can_be_verified_again(harness: Call) -> None:
    """The run directories in the folder contain copies of the folder's contracts, with the same ids."""
    for name in ("one", "two"):
        assert harness("verify", ".", "--workload", "held", "--name", name)[0] == 0
    code, said = harness("check", ".")
    assert (code, "run directories, which were not searched: harness-reports/one, harness-reports/two" in said) == (
        0,
        True,
    )


def test_parts_of_two_versions_of_a_module_that_the_adapter_imports_are_refused(harness: Call) -> None:
    run_part(harness, PARTS[0], "held")
    Path("our_train.py").write_text("rate = 2\n")
    run_part(harness, PARTS[1], "violated")
    code, said = harness("judge", "--gate", *PARTS)
    assert code == 12
    assert "shards must come from the same sources; found sources of our_train with digest" in said


def test_parts_are_refused_as_a_gate_when_one_part_lacks_a_source_module(harness: Call) -> None:
    run_part(harness, PARTS[0], "held")
    Path("our_train.py").unlink()
    run_part(harness, PARTS[1], "violated")
    for order in (PARTS, PARTS[::-1]):
        code, said = harness("judge", "--gate", *order)
        assert (code, "found sources of our_train with digest" in said) == (12, True)


def test_parts_of_two_known_trainer_commits_are_refused_as_a_gate(harness: Call) -> None:
    """The listed source files are equal, but the trainer may read other files of its repository."""
    commit("One")
    run_part(harness, PARTS[0], "held")
    commit("Two")
    run_part(harness, PARTS[1], "violated")
    code, said = harness("judge", "--gate", *PARTS)
    assert code == 12
    assert "shards must come from the same commit of a trainer; found our_adapter:System at " in said
    forge(PARTS[1] / "run.json", lambda header: header["environment"]["trainers"].clear())
    assert harness("judge", "--gate", *PARTS)[0] == 1  # as is one of before commits of trainers were recorded


def test_parts_with_different_systems_form_one_gate_when_common_sources_are_equal(harness: Call) -> None:
    """The second part has one more contract, with an arm whose system imports a further module."""
    run_part(harness, PARTS[0], "held")
    text = Path("contracts/scripted-v1.yaml").read_text().replace("scripted-v1", "other-v1")
    text = text.replace("plain: {capture: none}", "plain: {capture: none, system: 'our_baseline:System'}")
    Path("contracts/other-v1.yaml").write_text(text.replace("SCRIPT-001", "OTHER-001"))
    Path("our_baseline.py").write_text(ADAPTER.replace("our_train", "our_old_train"))
    Path("our_old_train.py").write_text("")
    run_part(harness, PARTS[1], "violated")
    packages = json.loads((PARTS[1] / "run.json").read_text())["digests"]["packages"]
    assert {"our_adapter", "our_train", "our_baseline", "our_old_train"} < {*packages}
    code, said = harness("judge", "--gate", *PARTS)
    assert (code, "VIOLATED" in said) == (1, True)
    Path("our_old_train.py").write_text("changed")
    run_part(harness, Path("harness-reports/three"), "held")
    assert harness("judge", "--gate", PARTS[0], "harness-reports/three")[0] != 12
    assert harness("judge", "--gate", PARTS[1], "harness-reports/three")[0] == 12


def waive(workload: str | None, days: int = 1) -> None:
    """Write the waivers that stand beside the contracts; None: none."""
    path = Path("contracts/waivers.yaml")
    path.unlink(missing_ok=True)
    if workload is not None:
        expires = datetime.now(tz=UTC).date() + timedelta(days=days)
        unit = f"contract: scripted-v1, claim: SCRIPT-001, workload: {workload}"
        entry = f"{{{unit}, owner: ada, reason: known, expires: {expires}}}"
        path.write_text(f"schema: waivers/v1\nwaivers:\n  - {entry}\n")


@pytest.mark.parametrize(
    ("deciding", "days", "other", "code"),
    [
        (None, 1, "violated", 1),
        ("violated", -1, "violated", 1),
        ("violated", 1, None, 0),
        ("violated", 1, "violated", 0),
    ],
)
def test_a_waiver_applies_only_to_units_that_are_decided_by_the_part_with_this_waiver(
    harness: Call, deciding: str | None, days: int, other: str | None, code: int
) -> None:
    waive(deciding, days)
    run_part(harness, PARTS[0], "violated")
    waive(other)
    run_part(harness, PARTS[1], "held")
    for order in (PARTS, PARTS[::-1]):
        ended, said = harness("judge", "--gate", *order)
        assert (ended, " · 1 waived" in said) == (code, code == 0)
        assert harness("report", *order, "--out", "page")[0] == 0
        assert (" · 1 waived" in Path("page/summary.md").read_text()) == (code == 0)
        shutil.rmtree("page")


def test_a_waiver_in_a_later_attempt_does_not_apply_to_the_first_attempt(harness: Call) -> None:
    run_part(harness, PARTS[0])
    waive("violated")
    run_part(harness, PARTS[1])
    forge(PARTS[0] / "run.json", lambda header: header.update(started_at="2026-01-01T00:00:00+00:00"))
    code, said = harness("judge", "--gate", *PARTS)
    assert (code, " · 1 waived" in said) == (1, False)


@pytest.mark.parametrize("readable", [True, False])
def test_a_header_is_checked_against_its_directory_even_with_given_contracts(harness: Call, readable: bool) -> None:
    """Regression: with `--contracts`, a header could contradict the files of its run, about a waiver's last day or
    about the selected part.
    """
    waive("violated", -3)
    run_part(harness, PARTS[0])
    by_others = ("judge", "--gate", "--contracts", "contracts", PARTS[0])
    assert harness(*by_others)[0] == 1
    forge(PARTS[0] / "run.json", lambda header: header["waivers"][0].update(expired=False))
    if not readable:
        copy = PARTS[0] / "contracts/scripted-v1.yaml"
        copy.write_text(copy.read_text().replace("kind: trajectory_match", "kind: one_that_went_away"))
        digest = hashlib.sha256(copy.read_bytes()).hexdigest()
        forge(PARTS[0] / "run.json", lambda header: header["digests"]["contracts"].update({"scripted-v1": digest}))
    code, said = harness(*by_others)
    assert (code, "the recorded waiver of SCRIPT-001 on violated is in no file of waivers/" in said) == (12, True)


COMMANDS: list[tuple[str | Path, ...]] = [
    ("judge", PARTS[0]),
    ("judge", "--gate", *PARTS),
    ("judge", "--check", PARTS[0]),
    ("judge", "--write", PARTS[0]),
    ("report", PARTS[0]),
    ("report", *PARTS, "--out", "page"),
    ("pack", PARTS[0]),
    ("compare", PARTS[0], PARTS[1]),
    ("attest", PARTS[0], "--unsigned"),
]


@pytest.mark.parametrize(
    "command",
    slow_but(COMMANDS[:2], COMMANDS),
    ids=lambda command: " ".join(map(str, command)),
)
def test_a_lost_copy_of_a_contract_is_altered_evidence(harness: Call, command: tuple[str | Path, ...]) -> None:
    run_part(harness, PARTS[0], "held")
    run_part(harness, PARTS[1], "violated")
    (PARTS[0] / "contracts/scripted-v1.yaml").unlink()
    code, said = harness(*command)
    assert code == 12
    assert "contracts/scripted-v1.yaml: missing" in said
