"""A gate that was interrupted goes on where it stopped, as what it was begun as, and never tries again what ended."""

from __future__ import annotations

import html
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from budget import slow_but
from waiting import LIMIT_S, eventually

from harness.api import session
from harness.api.drill import DrillOptions, drill
from harness.api.rejudge import rejudged
from harness.cli import application
from harness.devices import environment
from harness.errors import EvidenceError, HarnessError, UsageError
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import Death
from harness.report.html import render
from harness.report.markdown import escape, render_markdown
from harness.report.terminal import print_results
from harness.run_directory.bundle import read_bundle
from harness.run_directory.interrupted_run import alone_in
from harness.run_directory.verdict_file import verdict_text

pytestmark = pytest.mark.usefixtures("warm_commands")
ROOT = Path(__file__).parents[2]
HARNESS = [sys.executable, "-m", "harness"]
CONTRACTS = [Path("contracts")]
DIRECTORY = Path("harness-reports/run")


@pytest.fixture
def folder(scripted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    (tmp_path / "contracts").mkdir()
    return tmp_path


@pytest.fixture
def quick(folder: Path, played: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs are played here one after the other, and no pages drawn."""
    monkeypatch.setattr("harness.api.session.write_reports", lambda *_: None)
    monkeypatch.setattr("harness.execution.schedule._processors", lambda _machine: 1)
    return folder


def write_contract(*behaviours: str) -> None:
    from scripted_system import contract_text

    Path("contracts/scripted-v1.yaml").write_text(contract_text(*behaviours))


class Player:
    """Plays runs and notes which; the `stop`-th one is cut off by an interruption."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import scripted_system

        self.executed: list[str] = []
        self.play: Callable[..., Death | None] = scripted_system.play
        self.stop: int | None = None
        monkeypatch.setattr("harness.execution.supervisor.execute", self._execute)

    def _execute(self, run: Run, directory: Path, *_: object, **__: object) -> Death | None:
        self.executed.append(run.id)
        if len(self.executed) == self.stop:
            directory.mkdir(parents=True)
            (directory / "run.json").write_text("{}")
            (directory / "records.jsonl").write_text('{"record":"phase"')
            raise SystemExit(143)
        return self.play(run, directory)


@pytest.fixture
def player(quick: Path, monkeypatch: pytest.MonkeyPatch) -> Player:
    return Player(monkeypatch)


def interrupted(player: Player, *behaviours: str, at: int, **options: object) -> None:
    """A gate of which the `at`-th run is cut off; its directory lies in `DIRECTORY`."""
    write_contract(*behaviours)
    player.stop = at
    with pytest.raises(SystemExit):
        session.verify(CONTRACTS, replace(session.VerifyOptions(name="run"), **options))  # type: ignore[arg-type]
    player.stop = None
    player.executed.clear()


def resumed(**options: object) -> session.Judgement:
    asked = session.VerifyOptions(resume=DIRECTORY)
    return session.verify(CONTRACTS, replace(asked, **options))  # type: ignore[arg-type]


NAMES = {name: f"scripted-v1+{name}+paired" for name in ("held", "violated", "error", "undecided")}


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_resuming_a_gate_keeps_ended_runs_and_executes_each_other_run_once(player: Player, at: int) -> None:
    behaviours = ("held", "violated", "error", "undecided")
    interrupted(player, *behaviours, at=at)
    judgement = resumed()
    assert player.executed == [NAMES[name] for name in behaviours[at - 1 :]]
    assert judgement.run_directory == DIRECTORY
    assert rejudged(DIRECTORY).problems == []
    whole = session.verify(CONTRACTS, session.VerifyOptions(name="whole"))
    assert verdict_text(judgement.verdicts) == verdict_text(whole.verdicts)
    assert sorted(path.name for path in DIRECTORY.iterdir()) == sorted(
        path.name for path in Path("harness-reports/whole").iterdir()
    )


def test_outputs_of_a_resumed_gate_state_the_resumption(player: Player, capsys: pytest.CaptureFixture[str]) -> None:
    interrupted(player, "held", "violated", "undecided", at=2)
    player.stop = 2  # and interrupted once more
    with pytest.raises(SystemExit):
        resumed(command=("harness", "again"))
    player.stop = None
    judgement = resumed(command=("harness", "at", "last"))
    header = read_bundle(DIRECTORY).header
    assert header.command == ["harness", "verify"]
    assert [(each.command[1:], each.executed, each.cut_off) for each in header.resumed] == [
        (["again"], [NAMES["undecided"], NAMES["violated"]], [NAMES["violated"]]),
        (["at", "last"], [NAMES["undecided"]], [NAMES["undecided"]]),
    ]
    last = header.resumed[-1].at
    sentence = f"Resumed 2 times, last at {last} with 1 run left; cut off and begun again: 2 runs."
    assert judgement.view.resumed_sentence() == sentence
    assert sentence in html.unescape(render(judgement.view))
    assert escape(sentence) in render_markdown(judgement.view)
    print_results(judgement.view)
    assert sentence in capsys.readouterr().out
    assert json.loads(session.judgement_json(judgement))["resumed"][1]["executed"] == [NAMES["undecided"]]


def test_an_uninterrupted_gate_reports_no_resumption(player: Player) -> None:
    write_contract("held")
    judgement = session.verify(CONTRACTS, session.VerifyOptions(name="run"))
    assert judgement.view.resumed_sentence() == ""
    assert json.loads(session.judgement_json(judgement))["resumed"] == []


def test_a_run_that_died_without_the_interruption_stays_an_error(player: Player) -> None:
    """Resuming must not repeat a run until it passes. What killed the worker may be gone, but the ERROR stays."""
    interrupted(player, "error", "held", at=2)
    death = DIRECTORY / "evidence" / NAMES["error"] / "death.json"
    before = death.read_bytes()
    judgement = resumed()
    assert player.executed == [NAMES["held"]]
    assert [str(verdict.status) for verdict in judgement.verdicts] == ["ERROR", "PASS"]
    assert death.read_bytes() == before


def test_a_link_left_by_a_run_is_still_an_error_after_resuming(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links are removed from a run directory when the run ends.

    The error was noted before, and is used when judging later.
    """
    import scripted_system

    def leaves_a_link(run: Run, directory: Path, *rest: object, **options: object) -> Death | None:
        death = scripted_system.play(run, directory)
        (directory / "link").symlink_to("/")
        return death

    def interrupt(*_: object) -> None:
        raise SystemExit(143)

    player.play = leaves_a_link
    with monkeypatch.context() as patch:
        patch.setattr("harness.api.session.write_reports", interrupt)
        interrupted(player, "held", at=0)
    player.play = scripted_system.play
    assert [verdict.reason for verdict in resumed().verdicts] == ["worker_garbage"]
    assert player.executed == []


def test_a_worker_killed_by_the_interruption_is_executed_again(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a service is stopped, all of its processes are terminated, in any order."""
    monkeypatch.setattr("harness.api.execute.noted", [signal.SIGTERM])
    interrupted(player, "error", "held", "violated", at=3)
    monkeypatch.setattr("harness.api.execute.noted", [])
    resumed()
    assert player.executed == [NAMES["error"], NAMES["violated"]]


def test_resuming_a_gate_interrupted_in_judging_runs_nothing(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise SystemExit(143)

    with monkeypatch.context() as patch:
        patch.setattr("harness.api.session.write_reports", interrupt)
        interrupted(player, "held", "violated", at=0)
    assert [str(verdict.status) for verdict in resumed().verdicts] == ["PASS", "FAIL"]
    assert player.executed == []


def test_redacted_evidence_is_not_redacted_again_by_resuming(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(player, "held", "violated", at=2, redact=True)
    resumed(redact=True)
    assert player.executed == [NAMES["violated"]]
    with pytest.raises(EvidenceError, match="another machine: redacted"):
        interrupted(player, "held", "violated", at=2, name="other", redact=True)
        resumed(resume=Path("harness-reports/other"))


def rewrite(name: str, old: str, new: str) -> None:
    path = DIRECTORY / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


CHANGES: dict[str, tuple[Callable[[], object], str]] = {
    "evidence": (
        lambda: rewrite(f"evidence/{NAMES['held']}/fast.0.csv", "1.25", "1.5"),
        f"evidence/{NAMES['held']}: changed since the run ended",
    ),
    "a file more": (
        lambda: (DIRECTORY / "evidence" / NAMES["held"] / "telemetry.jsonl").write_text("{}"),
        f"evidence/{NAMES['held']}: changed since the run ended",
    ),
    "a file less": (
        (DIRECTORY / "evidence" / NAMES["held"] / "fast.0.csv").unlink,
        f"evidence/{NAMES['held']}: changed since the run ended",
    ),
    "header": (lambda: rewrite("run.json", '"started_at": "2', '"started_at": "1'), "run.json: changed"),
    "journal": (lambda: rewrite("journal.json", '"format_version": 1', '"format_version":  1'), "journal.json was"),
    "contract": (
        lambda: rewrite("contracts/scripted-v1.yaml", "agree in bits", "agree"),
        "contracts/scripted-v1.yaml: changed",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_resuming_a_changed_run_directory_is_refused(player: Player, name: str) -> None:
    interrupted(player, "held", "violated", at=2)
    change, found = CHANGES[name]
    change()
    with pytest.raises(
        EvidenceError, match="an interrupted run can be resumed only if its files are unchanged"
    ) as refused:
        resumed()
    assert found in str(refused.value)
    assert player.executed == []


def test_resuming_with_changed_contracts_is_refused(player: Player) -> None:
    interrupted(player, "held", "violated", at=2)
    path = Path("contracts/scripted-v1.yaml")
    path.write_text(path.read_text().replace("0.1", "0.2"))
    with pytest.raises(
        EvidenceError,
        match=r"contract scripted-v1 with digest [0-9a-f]{12}, but the run was started "
        r"with",
    ):
        resumed()


OTHERS: dict[str, tuple[dict[str, object], str]] = {
    "claims": (
        {"claims": ("SCRIPT-001",)},
        "--claim SCRIPT-001, but the run was started with all claims and workloads",
    ),
    "workloads": ({"workloads": ("held",)}, "--workload held, but the run was started with all claims and workloads"),
    "fault": ({"fault": "nan_tail"}, "the fault nan_tail, but the run was started as a verify without --fault"),
    "data": ({"data": Path("contracts")}, "another --data, or changed files in it"),
    "model": ({"model_directory": Path("contracts")}, "another --model, or changed files in it"),
    "wall limit": ({"wall_limit_s": 7.0}, "another --wall-limit"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_resuming_with_different_options_is_refused(player: Player, name: str) -> None:
    interrupted(player, "held", "violated", at=2)
    options, found = OTHERS[name]
    with pytest.raises(EvidenceError) as refused:
        resumed(**options)
    assert found in str(refused.value)
    assert "start a new run, without --resume" in str(refused.value)


def test_resuming_with_changed_data_is_refused(player: Player) -> None:
    Path("data.txt").write_text("before")
    interrupted(player, "held", "violated", at=2, data=Path("data.txt"))
    Path("data.txt").write_text("behind it")
    with pytest.raises(EvidenceError, match="another --data, or changed files in it"):
        resumed(data=Path("data.txt"))


MACHINES: dict[str, tuple[str, object, str]] = {
    "processor": ("devices.environment.cpu_model", "another", "another machine: cpu"),
    "memory": ("devices.environment.host_memory_gib", 1.0, "another machine: host_memory_gib"),
    "commit": ("devices.environment.git_commit", "abc", "the commit abc, but the run was started at"),
    "sources": ("devices.environment.source_digest", "0" * 64, "sources that differ"),
    "packages": (
        "evidence.sources.package_digests",
        {"harness": "0" * 64},
        "sources of the package harness with digest 000000000000",
    ),
    "versions": ("devices.environment._version", "0.0", "bitsandbytes 0.0, but the run was started with bitsandbytes"),
}


@pytest.mark.parametrize("name", MACHINES)
def test_resuming_on_another_machine_or_harness_is_refused(
    player: Player, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    interrupted(player, "held", "violated", at=2)
    function, value, found = MACHINES[name]
    monkeypatch.setattr(f"harness.{function}", lambda *_: value)
    with pytest.raises(EvidenceError) as refused:
        resumed()
    assert found in str(refused.value)


def test_resuming_on_a_different_gpu_is_refused(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.evidence.environment_records import GpuFacts

    monkeypatch.setattr(environment, "gpu_facts", lambda: GpuFacts(name="H200", uuid="GPU-1"))
    interrupted(player, "held", "violated", at=2)
    monkeypatch.setattr(environment, "gpu_facts", lambda: GpuFacts(name="H200", uuid="GPU-2"))
    with pytest.raises(EvidenceError, match=r"another machine: gpu .*GPU-2.*, but the run was started with .*GPU-1"):
        resumed()


def test_resuming_a_complete_run_or_the_run_of_another_command_is_refused(player: Player) -> None:
    interrupted(player, "held", "violated", at=2)
    refused: list[tuple[Path, str]] = []
    session.verify(CONTRACTS, session.VerifyOptions(name="whole"))
    refused.append((Path("harness-reports/whole"), "found a complete run directory; read it with `harness judge`"))
    refused.append((Path("contracts"), "found a folder that is not a run directory"))
    (DIRECTORY / "journal.json").unlink()
    refused.append((DIRECTORY, "nothing shows which of its runs had ended"))
    for directory, found in refused:
        with pytest.raises(UsageError, match="only an interrupted run directory can be resumed") as error:
            resumed(resume=directory)
        assert found in str(error.value)
    with pytest.raises(UsageError, match="nowhere: the path must exist"):
        resumed(resume=Path("nowhere"))


def test_resuming_a_run_that_is_being_resumed_or_under_a_new_name_is_refused(player: Player) -> None:
    interrupted(player, "held", "violated", at=2)
    with alone_in(DIRECTORY), pytest.raises(UsageError, match="only one process at a time may write a run directory"):
        resumed()
    with pytest.raises(UsageError, match="leave out --name"):
        resumed(name="other")
    assert resumed().run_directory == DIRECTORY


def test_a_run_name_in_use_by_a_running_process_is_refused_before_any_run(player: Player) -> None:
    write_contract("held")
    under_way = Path("harness-reports/same[1].incomplete-at-random")
    under_way.mkdir(parents=True)
    options = session.VerifyOptions(name="same[1]")
    with alone_in(under_way), pytest.raises(UsageError, match=r"same\[1\]: .* another process that is writing it, in "):
        session.verify(CONTRACTS, options)
    assert player.executed == []
    assert list(under_way.parent.iterdir()) == [under_way]
    # one that was killed holds no name
    assert session.verify(CONTRACTS, options).run_directory == under_way.with_name("same[1]")


def test_an_interrupted_drill_can_be_resumed(player: Player) -> None:
    write_contract("held")
    player.stop = 2
    with pytest.raises(SystemExit):
        drill(CONTRACTS, DrillOptions(name="run"))
    player.stop = None
    player.executed.clear()
    with pytest.raises(HarnessError, match="another --fault"):
        drill(CONTRACTS, DrillOptions(resume=DIRECTORY, faults=("nan_tail",)))
    result = drill(CONTRACTS, DrillOptions(resume=DIRECTORY))
    assert player.executed == [f"{NAMES['held']}+nan_tail"]
    whole = drill(CONTRACTS, DrillOptions(name="whole"))
    assert [vars(row) for row in result.record.rows] == [vars(row) for row in whole.record.rows]
    assert rejudged(DIRECTORY).problems == []


def test_the_resume_option_is_refused_together_with_gpus(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_contract("held")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["harness", "verify", "contracts", "--resume", "x", "--gpus", "all"])
        with pytest.raises(SystemExit) as left:
            application.main()
    assert left.value.code == 2
    assert "leave out --gpus or --resume" in capsys.readouterr().err


def unfinished() -> Path:
    [found] = Path("reports").iterdir()
    return found


def processes(directory: Path) -> dict[str, list[str]]:
    """What was noted of the processes of each run, which no other process has: moments to the nanosecond."""
    found: dict[str, list[str]] = {}
    for path in sorted((directory / "evidence").glob("**/process.json")):
        found.setdefault(path.relative_to(directory / "evidence").parts[0], []).append(path.read_text())
    return found


ENDED = ("held", "violated", "leaves")


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, object]:
    """The exit code and the claims of the gate that is killed below, of which nobody killed this one."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tests" / "support" / "scripted"))
        patch.setenv("PYTHONPATH", f"{ROOT / 'tests' / 'support' / 'scripted'}:{ROOT}")
        patch.delenv("GITHUB_ACTIONS", raising=False)
        patch.chdir(folder)
        Path("contracts").mkdir()
        write_contract(*ENDED, "waits")
        Path("go").touch()
        done = subprocess.run([*HARNESS, "verify", "contracts", "--json"], capture_output=True, check=False)
    return done.returncode, json.loads(done.stdout)["claims"]


@pytest.mark.parametrize(
    "number", slow_but([signal.SIGKILL], [signal.SIGKILL, signal.SIGTERM]), ids=["SIGKILL", "SIGTERM"]
)
@pytest.mark.parametrize("awaited", slow_but([ENDED], [(), ENDED]), ids=["at its first line", "behind three ends"])
def test_a_killed_gate_can_be_resumed_with_equal_verdicts(
    folder: Path, number: signal.Signals, awaited: tuple[str, ...], never_killed: tuple[int, object]
) -> None:
    """The test kills a real command during its last run. The verdicts must be those of a gate that was not killed."""
    write_contract(*ENDED, "waits")
    command = [*HARNESS, "verify", "contracts", "--reports", "reports", "--name", "run"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wanted = {f"scripted-v1+{name}+paired" for name in awaited}
        eventually(lambda: _has_ended(wanted), f"{wanted} have ended", process)
        process.send_signal(number)
    directory = unfinished()
    before = processes(directory)
    ended = json.loads((directory / "journal.json").read_text())["ended"].keys()
    assert ended >= wanted
    Path("go").touch()
    again = subprocess.run(
        [*HARNESS, "verify", "contracts", "--resume", str(directory), "--json"], capture_output=True, check=False
    )
    printed = json.loads(again.stdout)
    assert again.returncode == 12
    assert (again.returncode, printed["claims"]) == never_killed
    assert printed["run_directory"] == "reports/run"
    after = processes(Path("reports/run"))
    assert sorted(after) == sorted(f"scripted-v1+{name}+paired" for name in (*ENDED, "waits"))
    assert {run for run in after if before.get(run) == after[run]} == set(ended)
    assert printed["resumed"][0]["executed"] == sorted(after.keys() - set(ended))
    assert rejudged(Path("reports/run")).problems == []


def _has_ended(runs: set[str]) -> bool:
    for journal in Path("reports").glob("*/journal.json"):
        try:
            return bool(runs <= json.loads(journal.read_text())["ended"].keys())
        except (OSError, ValueError):
            return False
    return False


def test_a_running_gate_cannot_be_resumed(folder: Path) -> None:
    write_contract("waits")
    command = [*HARNESS, "verify", "contracts", "--reports", "reports", "--name", "run"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ}) as process:
        eventually(lambda: _has_ended(set()), "it is under way", process)
        second = subprocess.run(
            [*HARNESS, "verify", "contracts", "--resume", str(unfinished())], capture_output=True, check=False
        )
        Path("go").touch()
        assert process.wait(LIMIT_S) == 0
    assert second.returncode == 2
    assert b"another process that is writing it" in second.stderr
    assert rejudged(Path("reports/run")).problems == []


def change_file() -> None:
    Path("our_train.py").write_text("rate = 2\n")


def commit() -> None:
    identity = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    for words in (["init", "--quiet"], ["add", "*.py"], ["commit", "--quiet", "--allow-empty", "-m", "A trainer"]):
        subprocess.run(["git", *identity, *words], check=True)


TRAINERS: dict[str, tuple[Callable[[], None], str]] = {
    "a file": (change_file, "sources of the package our_train with digest "),
    "a commit": (commit, "the trainer our_adapter:System at the commit "),
}


@pytest.mark.parametrize("name", TRAINERS)
def test_resuming_with_a_changed_trainer_is_refused(player: Player, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The module of the system is unchanged, but it imports the changed module within a function."""
    change, found = TRAINERS[name]
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.setattr("scripted_system.CONTRACT", scripted_contract("our_adapter:System"))
    adapter = "from scripted_system import ScriptedSystem as System\n\n\ndef build():\n    import our_train\n"
    Path("our_adapter.py").write_text(adapter)
    Path("our_train.py").write_text("rate = 1\n")
    commit()
    interrupted(player, "held", "violated", at=2)
    change()
    with pytest.raises(
        EvidenceError, match="an interrupted run can be resumed only with its original settings"
    ) as refused:
        resumed()
    assert found in str(refused.value)
    assert player.executed == []


def scripted_contract(system: str) -> str:
    from scripted_system import CONTRACT

    return CONTRACT.replace("scripted_system:ScriptedSystem", system)
