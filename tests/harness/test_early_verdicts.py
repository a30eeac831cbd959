"""Verdicts as they fall: each as soon as its runs have ended, and the one that stands at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.api import drill as fire_drill
from harness.api import session
from harness.api.judged import AsTheyEnd
from harness.cli.application import application
from harness.evidence.plan_records import Run
from harness.judging.verdict import Verdict
from harness.run_directory.verdict_file import Row


class Watching:
    """Notes what a session tells, in its order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.verdicts: list[Verdict] = []
        self.rows: list[Row] = []

    def begins(self, runs: Sequence[Run]) -> None:
        self.told.append(f"{len(runs)} begin")

    def moves(self, run: Run, phase: str, seconds: float) -> None:
        if not phase:
            self.told.append(f"{run.workload_name} ended")

    def judged(self, verdict: Verdict) -> None:
        self.told.append(f"{verdict.workload} judged")
        self.verdicts.append(verdict)

    def drilled(self, row: Row) -> None:
        self.rows.append(row)


@pytest.fixture
def contracts(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.api.session.write_reports", lambda *_: None)
    monkeypatch.setattr("harness.execution.schedule._processors", lambda _machine: 1)  # one after the other
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "scripted-v1.yaml").write_text(contract_text("held", "violated", "not_run", "error"))
    return folder


def test_early_verdicts_of_a_run_equal_its_final_verdicts(contracts: Path) -> None:
    watch = Watching()
    outcome = session.verify([contracts], session.VerifyOptions(name="run"), watch)
    ended = [verdict for verdict in outcome.verdicts if verdict.workload != "not_run"]
    assert sorted(watch.verdicts, key=lambda verdict: verdict.workload) == sorted(
        ended, key=lambda verdict: verdict.workload
    )


def test_a_unit_is_judged_before_the_next_run_begins(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import scripted_system

    watch = Watching()

    def noted(run: Run, directory: Path, *rest: object, **options: object) -> object:
        watch.told.append(f"{run.workload_name} begins")
        return scripted_system.play(run, directory)

    monkeypatch.setattr("harness.execution.supervisor.execute", noted)
    session.verify([contracts], session.VerifyOptions(name="run", workloads=("held", "violated")), watch)
    assert watch.told == [
        "2 begin",
        "held begins",
        "held judged",
        "violated begins",
        "violated judged",
    ]


def test_early_rows_of_a_drill_equal_the_rows_of_its_record(contracts: Path) -> None:
    watch = Watching()
    result = fire_drill.drill([contracts], fire_drill.DrillOptions(name="drill"), watch)
    assert watch.rows == result.record.rows
    assert [row.fault for row in watch.rows] == ["nan_tail"]


def test_no_unit_is_printed_to_a_log_before_the_results(contracts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    application(["verify"])(["verify", str(contracts), "--json"], standalone_mode=False)
    streams = capsys.readouterr()
    assert streams.out.startswith("{")
    assert "SCRIPT-001" not in streams.err


def runs(*probes: tuple[str, str]) -> list[Run]:
    from harness.contract.schema import Workload

    workload = Workload(model="m", batch_size=1, seq_len=1, steps=1)
    values = {"contract": "c", "workload_name": "w", "workload": workload, "arms": {}}
    return [Run.model_validate({"id": name, "probe": probe, **values}) for name, probe in probes]


def test_nothing_is_judged_while_timings_measure() -> None:
    told: list[str] = []
    waiting = [({name}, lambda name=name: told.append(name)) for name in ("a", "t", "u")]
    early = AsTheyEnd(waiting, runs(("a", "paired"), ("t", "throughput"), ("u", "throughput")))
    early.look(["a"])
    assert told == ["a"]
    early.look(["a", "t"])
    assert told == ["a"]
    early.look(["a", "t", "u"])
    assert told == ["a", "t", "u"]


def test_a_unit_whose_arm_has_ended_is_judged_while_its_run_continues() -> None:
    told: list[str] = []
    ended = {"plain: open": [], "captured: open": ["plain"]}
    phases: list[str] = []
    waiting = [([("a", arm)], lambda arm=arm: told.append(arm)) for arm in ("captured", "plain")]
    early = AsTheyEnd(waiting, runs(("a", "paired")), {"a": lambda _run: ended[phases[-1]]})
    for phase in ended:
        phases.append(phase)
        early.moves(["a"], phase)
    assert told == ["plain"]
    early.look(["a"])
    assert told == ["plain", "captured"]


def test_an_error_in_an_early_judgement_does_not_stop_further_judgements() -> None:
    told: list[str] = []

    def fails() -> None:
        raise OSError("the evidence is gone")

    AsTheyEnd([({"a"}, fails), ({"a"}, lambda: told.append("second"))], runs(("a", "paired"))).look(["a"])
    assert told == ["second"]
