"""Differences are located once all is decided and sealed: whatever ends that costs an answer, and no verdict."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.api import session
from harness.api.rejudge import rejudged
from harness.errors import ExitCode
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import Death
from harness.execution.watched_worker import Progress as Moved
from harness.report.located import located
from harness.report.terminal import Progress
from harness.run_directory.verdict_file import write_verdicts

RUN = Path("harness-reports/run")


@pytest.fixture
def contracts(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.api.session.write_reports", lambda *_: None)
    (tmp_path / "scripted-v1.yaml").write_text(contract_text("held", "violated"))
    return tmp_path / "scripted-v1.yaml"


def verified(
    contracts: Path,
    monkeypatch: pytest.MonkeyPatch,
    locates: Callable[[Path], None],
    watch: Progress | None = None,
    **options: float,
) -> session.Judgement:
    import scripted_system

    def play(run: Run, directory: Path, tell: Callable[[Moved], None], **_: object) -> object:
        death = scripted_system.play(run, directory)
        if run.probe == "where":
            tell(Moved(run.id, "fast.0: steps", 1.0))
            assert rejudged(RUN).problems == []  # it is whole by then
            locates(directory)
        return death

    monkeypatch.setattr("harness.execution.supervisor.execute", play)
    return session.verify([contracts], session.VerifyOptions(name="run", where=True, **options), watch)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interruption_while_locating_a_difference_leaves_the_run_complete(
    contracts: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def locates(_folder: Path) -> None:
        raise error

    with pytest.raises(error) as interrupted:
        verified(contracts, monkeypatch, locates)
    assert interrupted.value.__notes__ == [f"all verdicts are in {RUN}, but the first differences were not located"]
    assert not (RUN / "where").exists()
    assert [str(verdict.status) for verdict in rejudged(RUN).judgement.verdicts] == ["PASS", "FAIL"]
    assert rejudged(RUN).problems == []


def test_evidence_of_a_located_difference_is_sealed(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judgement = verified(contracts, monkeypatch, lambda _folder: None)
    assert [path.name for path in RUN.glob("where/*/*")] == ["0"]
    assert [rejudged(RUN).problems, rejudged(RUN).bundle.seal.digest] == [[], judgement.manifest]


@pytest.mark.parametrize("error", [IndexError, KeyError, ValueError, MemoryError, OSError])
def test_an_error_while_locating_a_difference_discards_only_the_located_answer(
    contracts: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def locates(_folder: Path) -> None:
        raise error

    assert verified(contracts, monkeypatch, locates).exit_code is ExitCode.VIOLATED
    assert not (RUN / "where").exists()
    assert rejudged(RUN).problems == []


def _socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made.bind("s")


@pytest.mark.parametrize(
    "leaves", [lambda folder: (folder / "link").symlink_to("/"), _socket], ids=["a link", "a socket"]
)
def test_a_special_file_left_by_the_locating_run_discards_only_the_located_answer(
    contracts: Path, monkeypatch: pytest.MonkeyPatch, leaves: Callable[[Path], None]
) -> None:
    assert verified(contracts, monkeypatch, leaves).exit_code is ExitCode.VIOLATED
    assert not (RUN / "where").exists()
    assert rejudged(RUN).problems == []


def test_an_interrupted_locating_run_leaves_the_recorded_run_unchanged(
    contracts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[int]()
    write = write_verdicts

    def write_second(*given: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("harness.api.session.write_verdicts", write_second)
    with pytest.raises(KeyboardInterrupt):
        verified(contracts, monkeypatch, lambda _folder: None)
    assert not (RUN / "where").exists()
    assert rejudged(RUN).problems == []


def test_evidence_that_changed_while_a_difference_was_located_is_not_sealed_again(
    contracts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locates(_folder: Path) -> None:
        [records, *_] = sorted(RUN.glob("evidence/*/records.jsonl"))
        records.write_text(records.read_text() + "more")

    verified(contracts, monkeypatch, locates)
    assert not rejudged(RUN).bundle.seal.whole


def test_only_differences_that_decided_a_claim_are_located(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses that differ within a tolerance fail no claim.

    A claim that fails by a guard has no difference to locate.
    """
    text = contracts.read_text().replace("guards: {steps: 5}", "guards: {steps: 6}")
    contracts.write_text(text.replace("steps: 5, needs", "steps: 6, needs"))
    asked = list[Path]()
    judgement = verified(contracts, monkeypatch, asked.append)
    assert {verdict.reason for verdict in judgement.verdicts} == {"vacuous_steps", "differs"}
    assert len(asked) == 1


def test_an_arm_that_died_while_locating_is_named(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(folder: Path) -> None:
        death = Death(cause="signal", detail="SIGSEGV", phase="fast.0: steps", stack="")
        (folder / "death.json").write_text(death.model_dump_json())

    [found] = verified(contracts, monkeypatch, dies).view.located.values()
    assert located(found) == "not seen: arm `fast` ended: SIGSEGV"


def test_locating_a_difference_has_the_time_limit_of_the_run(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verified(contracts, monkeypatch, lambda _folder: None, wall_limit_s=7.0)
    [run] = RUN.glob("where/*/0/run.json")
    assert json.loads(run.read_text())["wall_limit_s"] == 7.0


@pytest.mark.parametrize("settings", [{}, {"last": "x"}, {"candidate": [], "last": 10**15}])
def test_damaged_evidence_of_a_located_difference_does_not_stop_the_judging(
    contracts: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    verified(contracts, monkeypatch, lambda _folder: None)
    [path] = RUN.glob("where/*/0/run.json")
    run = json.loads(path.read_text())
    path.write_text(json.dumps({**run, "settings": {**run["settings"], **settings} if settings else {}}))
    assert [str(verdict.status) for verdict in rejudged(RUN).judgement.verdicts] == ["PASS", "FAIL"]


def test_the_progress_names_the_claim_that_is_being_located(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Progress(stream=io.StringIO())
    verified(contracts, monkeypatch, lambda _folder: None, watch)
    _, located, phase = watch.parts()
    assert located == "locating SCRIPT-001"
    assert phase.startswith("fast.0: steps, ")  # and for how long, which is the machine's
