"""Contracts, waivers and digests are taken before code of the project runs; what changes them later is an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from run_builders import stand_in_run
from strange_systems import SYSTEM

import harness
from harness.api import session
from harness.cli import application as cli
from harness.cli.check import findings_of
from harness.errors import EvidenceError, ExitCode
from harness.evidence import layout
from harness.evidence.read_run import read_run
from harness.execution.supervisor import execute
from harness.processes.child import VARIABLE, child_path, path_of_child
from harness.run_directory.bundle import read_bundle
from harness.system.described import describe

WAIVER = """\
schema: waivers/v1
waivers:
  - {contract: scripted-v1, claim: SCRIPT-001, workload: held, owner: me, reason: I say so, expires: 2099-01-01}
"""


def project(folder: Path, name: str, says: str) -> Path:
    """Write a contract and, next to it, the module of its system, which does `says` while it describes itself."""
    from scripted_system import contract_text

    (folder / f"{name}.py").write_text(SYSTEM.format(body=f"        {says}"))
    text = contract_text("held").replace("scripted_system:ScriptedSystem", f"{name}:System")
    contracts = folder / "contracts"
    contracts.mkdir()
    (contracts / "scripted-v1.yaml").write_text(text)
    return contracts


WRITES = {
    "adds_a_waiver": (
        "waivers.yaml",
        f"open('contracts/waivers.yaml', 'w').write({WAIVER!r})",
    ),
    "loosens_the_contract": (
        "scripted-v1.yaml",
        "p = 'contracts/scripted-v1.yaml'; t = open(p).read(); open(p, 'w').write(t.replace('0.1', '9.1'))",
    ),
    "removes_the_contract": ("scripted-v1.yaml", "import os; os.remove('contracts/scripted-v1.yaml')"),
}


@pytest.mark.parametrize("cheat", WRITES)
def test_a_system_that_changes_the_contract_is_an_error(
    scripted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheat: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file, says = WRITES[cheat]
    contracts = project(tmp_path, cheat, says)
    with pytest.raises(EvidenceError, match=file) as caught:
        findings_of([contracts])
    assert caught.value.exit_code is ExitCode.ERROR
    assert "while code of the project ran" in caught.value.got


def test_describing_a_system_may_write_other_files(
    scripted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    contracts = project(tmp_path, "writes_a_log", "open('log.yaml', 'w').write('here')")
    findings_of([contracts])
    assert (tmp_path / "log.yaml").exists()


@pytest.fixture
def contracts(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A contract whose run is played, so that what happens meanwhile is the test's to say."""
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.api.session.write_reports", lambda *_: None)
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "scripted-v1.yaml").write_text(contract_text("held", "violated"))
    return folder


def while_it_runs(monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], object]) -> None:
    """Do something after each run, as code of the project could: `act` gets the run's folder."""
    import scripted_system

    def played_run(run: object, directory: Path, *arguments: object, **more: object) -> object:
        death = scripted_system.play(run, directory, *arguments, **more)  # type: ignore[arg-type]
        act(directory)
        return death

    monkeypatch.setattr("harness.execution.supervisor.execute", played_run)


def test_a_contract_changed_in_a_run_stops_the_run(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = contracts / "scripted-v1.yaml"
    loosened = file.read_text().replace("0.1", "9.1")
    while_it_runs(monkeypatch, lambda _: file.write_text(loosened))
    with pytest.raises(EvidenceError, match=r"scripted-v1\.yaml") as caught:
        session.verify([contracts], session.VerifyOptions(name="run"))
    assert not read_bundle(Path("harness-reports/run")).complete
    assert "nothing is lost" in caught.value.remedy
    assert "--resume" in caught.value.remedy


def test_a_run_whose_contract_was_edited_can_be_completed_by_resuming_without_new_runs(
    contracts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = contracts / "scripted-v1.yaml"
    before = file.read_text()
    while_it_runs(monkeypatch, lambda _: file.write_text(before + "\n# an editor's"))
    with pytest.raises(EvidenceError):
        session.verify([contracts], session.VerifyOptions(name="run"))
    file.write_text(before)
    executed: list[Path] = []
    while_it_runs(monkeypatch, executed.append)
    outcome = session.verify([contracts], session.VerifyOptions(resume=Path("harness-reports/run")))
    assert [verdict.reason for verdict in outcome.verdicts] == ["held", "differs"]
    assert executed == []
    assert read_bundle(Path("harness-reports/run")).complete


def test_a_log_file_that_grows_during_the_run_changes_no_verdict(
    contracts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_it_runs(monkeypatch, lambda _: Path("log.txt").write_text("step"))
    outcome = session.verify([contracts], session.VerifyOptions(name="run", workloads=("held",)))
    assert outcome.exit_code is ExitCode.HELD


def test_evidence_edited_by_a_later_run_is_not_judged(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Path] = []

    def edit(directory: Path) -> None:
        for path in (path for earlier in ended for path in earlier.rglob("*.csv")):
            path.write_text(path.read_text().replace(",1.", ",2."))
        ended.append(directory)

    while_it_runs(monkeypatch, edit)
    monkeypatch.setattr("harness.execution.schedule._processors", lambda _machine: 1)  # one after the other
    outcome = session.verify([contracts], session.VerifyOptions(name="run"))
    assert [verdict.reason for verdict in outcome.verdicts] == ["worker_garbage", "differs"]
    assert "its evidence was changed since the run ended" in outcome.verdicts[0].message
    assert outcome.exit_code is ExitCode.ERROR


@pytest.mark.usefixtures("stand_in", "warm_commands")
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("plain.0.csv", "2.5", "1.5"),  # of the same length
        ("records.jsonl", "a0", "another"),
        ("records.jsonl", "one thing", "one thing"),  # the honest twin: written anew, and the same
    ],
)
def test_a_worker_that_edits_its_evidence_is_detected(tmp_path: Path, name: str, old: str, new: str) -> None:
    directory = tmp_path / "report" / "evidence" / "c+w+edits_its_records"
    death = execute(stand_in_run("edits_its_records", name=name, old=old, new=new), directory)
    if old == new:
        assert death is None
        return
    assert death is not None
    assert (death.cause, death.detail) == ("garbage", f"{name}: changed after it was written")


@pytest.mark.usefixtures("stand_in", "warm_commands")
def test_a_worker_that_rewrites_its_run_file_is_detected(tmp_path: Path) -> None:
    directory = tmp_path / "report" / "evidence" / "c+w+edits_its_records"
    run = stand_in_run("edits_its_records", name=layout.RUN, old='"seed": 0', new='"seed": 1')
    death = execute(run, directory)
    assert death is not None
    assert death.detail == "the directory of the run had another run.json when its worker ended"
    assert read_run(directory)[0] == run


SITE = "import pathlib; pathlib.Path(__file__).with_name('seen').write_text('here')"


def test_no_child_runs_the_projects_sitecustomize(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(SITE)
    (tmp_path / "found_later.py").write_text(SYSTEM.format(body=""))
    assert describe("found_later:System").name == "strange"  # the honest twin: the project is found all the same
    assert not (tmp_path / "seen").exists()


def test_a_child_process_gets_only_the_import_path_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "first"))
    monkeypatch.syspath_prepend(str(tmp_path))
    given = path_of_child(child_path())
    assert str(tmp_path) in given[VARIABLE].split(os.pathsep)
    assert str(tmp_path / "first") in given["PYTHONPATH"].split(os.pathsep)
    assert str(tmp_path) not in given["PYTHONPATH"].split(os.pathsep)


def test_a_backport_next_to_an_installed_harness_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env/bin/python"
    folder = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "env")}))
    shutil.copytree(Path(harness.__file__).parent, folder / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "dataclasses.py").write_text("raise ImportError('a backport for Python 3.6')")
    (folder / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    (tmp_path / "found_later.py").write_text(SYSTEM.format(body=""))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    says = "from harness.system.described import describe; import harness; "
    says += "print(harness.__file__, describe('found_later:System').name)"
    ended = subprocess.run([python, "-P", "-c", says], capture_output=True, text=True, check=False)
    assert ended.stdout == f"{folder / 'harness/__init__.py'} strange\n", ended.stderr


def begun(arguments: list[str], at: Path, path: str) -> subprocess.CompletedProcess[str]:
    """Call the command line in a folder, with this PYTHONPATH in addition to the test's own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, "-P", "-m", "harness", *arguments]
    return subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, check=False)


def test_no_command_starts_after_code_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    for path, code in ((str(tmp_path), ExitCode.ERROR), (".", ExitCode.ERROR), ("", 0)):
        ended = begun(["schema"], tmp_path, path)
        assert ended.returncode == code, ended.stderr
        assert ("no code of the project may run before contracts are read" in ended.stderr) == (code == ExitCode.ERROR)
        assert ("`.pth` file" in ended.stderr) == (code == ExitCode.ERROR)


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["verify", "--help"]])
def test_help_and_version_are_printed_even_after_code_of_the_project_ran(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    ended = begun(arguments, tmp_path, str(tmp_path))
    assert (ended.returncode, (tmp_path / "seen").exists()) == (0, True), ended.stderr


@pytest.mark.parametrize("of_python", [True, False])
def test_a_link_of_the_python_installation_into_the_working_directory_is_not_project_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_python: bool
) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/sitecustomize.py").write_text("")
    link = tmp_path / "usr/sitecustomize.py"
    link.symlink_to("../etc/sitecustomize.py")  # as Debian's, where the working directory is `/`
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "etc" if of_python else "usr")
    spec = spec_from_file_location("sitecustomize", link)
    assert spec is not None
    monkeypatch.setitem(sys.modules, "sitecustomize", module_from_spec(spec))
    monkeypatch.setattr(sys, "argv", ["harness", "schema"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == (0 if of_python else ExitCode.ERROR)


def test_a_child_process_has_no_command_or_token_of_ci() -> None:
    from harness.processes.child import without_ci

    theirs = (
        *("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_STATE", "GITHUB_TOKEN"),
        *("ACTIONS_RUNTIME_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL", "CI_JOB_TOKEN", "GH_TOKEN"),
        "BUILDKITE_AGENT_ACCESS_TOKEN",
    )
    kept = {"GITHUB_SHA": "1", "CI": "true", "HF_TOKEN": "2", "GITHUB_WORKSPACE": "3"}
    assert without_ci({**dict.fromkeys(theirs, "secret"), **kept}) == kept
