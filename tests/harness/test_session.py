"""The Python API: what it refuses, what it hands on, what it leaves behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.api import session
from harness.api.rejudge import rejudged
from harness.contract.load import load_contracts
from harness.errors import EvidenceError, ExitCode, UsageError
from harness.evidence.plan_records import Run
from harness.execution import supervisor
from harness.run_directory.bundle import read_bundle


@pytest.fixture
def contracts(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.api.session.write_reports", lambda *_: None)
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "scripted-v1.yaml").write_text(contract_text("held", "violated", "not_run"))
    return folder


def test_verify_returns_the_verdicts_exit_code_and_run_directory(contracts: Path) -> None:
    outcome = session.verify([contracts], session.VerifyOptions(name="run"))
    assert [(verdict.workload, str(verdict.status)) for verdict in outcome.verdicts] == [
        ("held", "PASS"),
        ("violated", "FAIL"),
        ("not_run", "NOT_RUN"),
    ]
    assert outcome.exit_code is ExitCode.VIOLATED
    assert outcome.run_directory == Path("harness-reports/run")
    assert outcome.counts.line().startswith("3 units · 1 held · 1 violated")


def test_a_run_narrowed_to_a_workload_records_the_narrowing(contracts: Path) -> None:
    outcome = session.verify([contracts], session.VerifyOptions(name="run", workloads=("held",)))
    assert outcome.exit_code is ExitCode.HELD
    header = read_bundle(Path("harness-reports/run")).header
    assert (header.narrowed.claims, header.narrowed.workloads) == ([], ["held"])


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (session.VerifyOptions(claims=("SCRIPT-01",)), UsageError, "did you mean `SCRIPT-001`"),
        (session.VerifyOptions(workloads=("hel",)), UsageError, "did you mean `held`"),
        (session.VerifyOptions(fault="no_such_fault"), UsageError, "no contract has this fault"),
        (session.VerifyOptions(data=Path("nowhere")), UsageError, "nowhere: the path must exist"),
        (
            session.VerifyOptions(waivers=Path("nowhere.yaml")),
            UsageError,
            "nowhere.yaml: the path must exist",
        ),
    ],
    ids=["claim", "workload", "fault", "data", "waivers"],
)
def test_an_unknown_name_in_the_options_is_refused_before_anything_runs(
    contracts: Path, options: session.VerifyOptions, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        session.verify([contracts], options)
    assert not Path("harness-reports").exists()


def test_a_run_directory_is_never_written_a_second_time(contracts: Path) -> None:
    session.verify([contracts], session.VerifyOptions(name="run"))
    with pytest.raises(UsageError, match="a run directory can be written only once"):
        session.verify([contracts], session.VerifyOptions(name="run"))


def test_the_time_limit_of_the_options_applies_to_every_run(contracts: Path) -> None:
    loaded = load_contracts([contracts])
    planned = session.plan_contracts(loaded, session.VerifyOptions())
    limited = session.plan_contracts(loaded, session.VerifyOptions(wall_limit_s=7.0))
    assert {run.wall_limit_s for run in limited.runs} == {7.0}
    assert 7.0 not in {run.wall_limit_s for run in planned.runs}
    limited = session.plan_contracts(loaded, session.VerifyOptions(heartbeat_s=9.0))
    assert {(run.wall_limit_s, run.heartbeat_s) for run in limited.runs} == {(planned.runs[0].wall_limit_s, 9.0)}
    assert limited.units == planned.units


def test_an_error_during_a_session_keeps_the_evidence_and_names_its_place(
    contracts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import scripted_system

    def breaks_at_the_second(run: Run, directory: Path, *rest: object, **options: object) -> None:
        if run.workload_name == "violated":
            raise OSError("the disk is full")
        scripted_system.play(run, directory)

    monkeypatch.setattr("harness.execution.supervisor.execute", breaks_at_the_second)
    with pytest.raises(OSError, match="the disk is full") as broken:
        session.verify([contracts], session.VerifyOptions(name="run"))
    assert broken.value.__notes__ == ["kept the evidence so far, marked INCOMPLETE: harness-reports/run"]
    bundle = read_bundle(Path("harness-reports/run"))
    outcome = session.judge_bundles([bundle], load_contracts(bundle.contract_paths()))
    assert not bundle.complete
    assert [str(verdict.status) for verdict in outcome.verdicts] == ["PASS", "ERROR", "NOT_RUN"]


def test_a_system_that_removes_the_run_directory_loses_only_the_evidence_written_before(
    contracts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that ended before the removal lose their evidence. Later runs keep it, and all other files are written."""
    import scripted_system

    def removes_at_the_second(run: Run, directory: Path, *rest: object, **options: object) -> None:
        if run.workload_name == "violated":
            shutil.rmtree(directory.parents[1])
        scripted_system.play(run, directory)

    monkeypatch.setattr("harness.execution.supervisor.execute", removes_at_the_second)
    monkeypatch.setattr("harness.execution.schedule._processors", lambda _machine: 1)  # one after the other
    outcome = session.verify([contracts], session.VerifyOptions(name="run"))
    assert [verdict.reason for verdict in outcome.verdicts] == ["worker_incomplete", "differs", "module_missing"]
    assert outcome.exit_code is ExitCode.ERROR
    assert rejudged(Path("harness-reports/run")).problems == []


def test_a_system_that_removes_the_reports_folder_at_the_end_still_gets_a_run_directory(
    contracts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removes(run: Run, directory: Path, *rest: object, **options: object) -> None:
        shutil.rmtree("harness-reports", ignore_errors=True)

    monkeypatch.setattr("harness.execution.supervisor.execute", removes)
    outcome = session.verify([contracts], session.VerifyOptions(name="run"))
    assert [str(verdict.status) for verdict in outcome.verdicts] == ["ERROR", "ERROR", "NOT_RUN"]
    assert rejudged(Path("harness-reports/run")).problems == []


def test_runs_started_in_the_same_second_get_different_names(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run begins and ends while the first runs, and a third run begins when both directories exist."""
    monkeypatch.setattr("harness.api.session.directory_name", lambda *_: "2026-11-22-100000-cpu")
    execute = supervisor.execute

    def begins_another(run: Run, directory: Path, *rest: object, **options: object) -> None:
        monkeypatch.setattr("harness.execution.supervisor.execute", execute)
        inner.append(session.verify([contracts], session.VerifyOptions(workloads=("held",))))
        execute(run, directory)

    inner: list[session.Judgement] = []
    monkeypatch.setattr("harness.execution.supervisor.execute", begins_another)
    outer = session.verify([contracts], session.VerifyOptions(workloads=("held",)))
    third = session.verify([contracts], session.VerifyOptions(workloads=("held",)))
    name = Path("harness-reports/2026-11-22-100000-cpu")
    directories = [judgement.run_directory for judgement in (*inner, outer, third)]
    assert directories == [name, Path(f"{name}-2"), Path(f"{name}-3")]
    assert all(rejudged(Path(str(directory))).problems == [] for directory in directories)


def test_a_run_whose_name_was_taken_keeps_no_finished_pages(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw_late(directory: Path, *_: object) -> None:
        for name in ("report.html", "summary.md", "junit.xml"):
            (directory / name).touch()
        Path("harness-reports/run").mkdir()
        Path("harness-reports/run/other").touch()

    monkeypatch.setattr("harness.api.session.write_reports", draw_late)
    with pytest.raises(EvidenceError, match="a run directory can be written only once"):
        session.verify([contracts], session.VerifyOptions(name="run", workloads=("held",)))
    [kept] = Path("harness-reports").glob("run.incomplete-*")
    left = sorted(path.name for path in kept.iterdir())
    assert left == ["INCOMPLETE", "contracts", "evidence", "journal.json", "journal.lock", "junit.xml", "run.json"]
    assert "the run did not finish" in (kept / "junit.xml").read_text().lower()


def test_the_printed_json_extends_the_stored_verdicts(contracts: Path) -> None:
    outcome = session.verify([contracts], session.VerifyOptions(name="run"))
    printed = json.loads(session.judgement_json(outcome))
    stored = json.loads(Path("harness-reports/run/verdicts.json").read_text())
    spent = outcome.view.costs.model_dump(mode="json")
    beside: dict[str, object] = {"run_directory": "harness-reports/run", "manifest": outcome.manifest, "waived": []}
    beside |= {
        "attempts": {"timings": [], "ci": None},
        "commits": None,
        "resumed": [],
        "claims_without_fault": [],
        "first_differences": [],
    }
    sentences = [claim.pop("message") for claim in printed["claims"]]
    assert printed == {**stored, "costs": spent, **beside}
    assert sentences == [verdict.message for verdict in outcome.verdicts]
    assert set(stored) == {"format_version", "counts", "gate", "claims"}


def test_a_unit_that_another_contract_does_not_have_is_not_run(contracts: Path, tmp_path: Path) -> None:
    from scripted_system import contract_text

    session.verify([contracts], session.VerifyOptions(name="run"))
    other = tmp_path / "other.yaml"
    other.write_text(contract_text("held"))
    outcome = session.judge_bundles([read_bundle(Path("harness-reports/run"))], load_contracts([other]))
    assert [(verdict.workload, verdict.reason) for verdict in outcome.verdicts] == [
        ("held", "held"),
        ("violated", "not_in_contract"),
        ("not_run", "not_in_contract"),
    ]


def test_shards_of_one_contract_are_judged_as_one_gate(contracts: Path) -> None:
    for name in ("held", "not_run"):
        session.verify([contracts], session.VerifyOptions(name=name, workloads=(name,)))
    bundles = [read_bundle(Path("harness-reports") / name) for name in ("held", "not_run")]
    outcome = session.judge_bundles(bundles, load_contracts([contracts]), gate=True)
    assert [verdict.reason for verdict in outcome.verdicts] == ["held", "not_planned", "module_missing"]
    assert outcome.exit_code is ExitCode.UNDECIDED
    assert outcome.view.narrowed() == ""  # each was of a part, both are judged over the whole


def test_shards_with_a_drill_among_them_are_refused(contracts: Path) -> None:
    session.verify([contracts], session.VerifyOptions(name="plain", workloads=("held",)))
    session.verify([contracts], session.VerifyOptions(name="drill", workloads=("held",), fault="nan_tail"))
    bundles = [read_bundle(Path("harness-reports") / name) for name in ("plain", "drill")]
    with pytest.raises(EvidenceError, match="a shard of a gate must not plant a fault"):
        session.judge_bundles(bundles, load_contracts([contracts]), gate=True)


DRAW = """
import sys
import numpy
from harness.api import execute
execute._import_for_pages()
known = set(sys.modules)
from harness.report.charts.plots import Curve, trajectories
from harness.report.charts.plots import Role
trajectories([Curve("plain", next(iter(Role)), numpy.arange(5.0))])
print(*sorted(name for name in set(sys.modules) - known if name.startswith(("matplotlib", "harness"))))
"""


def test_everything_that_a_plot_needs_is_imported_while_runs_execute() -> None:
    done = subprocess.run([sys.executable, "-c", DRAW], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
