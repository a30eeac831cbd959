"""Attempts at a timing are counted: in a folder, by CI, among directories that are judged together; and are shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_builders import LOADED, RUN_ID, Loaded, finished, header, unit
from report_page import Page
from report_views import full_view

from harness.api.session import judge_bundles, judgement_json, with_earlier_runs
from harness.evidence.plan_records import Unit
from harness.report.html import render
from harness.report.markdown import render_markdown
from harness.report.terminal import print_results
from harness.report.view import ReportView
from harness.run_directory.bundle import Attempts, Header, Resumption, TimedBefore, read_bundle
from harness.run_directory.shards import CI_ATTEMPTS, attempts_before, joined_attempts

UNIT = ("c", "C", "w")
OTHER_TEXT = Loaded(LOADED.contract, "id: c  # changed\n")


def timing(
    *units: Unit, started_at: str = "2026-11-20T12:00:00Z", source: str = "s", loaded: Loaded = LOADED
) -> Header:
    """The header of a run that times all its units."""
    described = header(*units, started_at=started_at, source=source, loaded=loaded)
    return described.model_copy(update={"runs": {RUN_ID: "throughput"}})


def before(reports: Path, **environment: str) -> Attempts:
    return attempts_before(timing(), reports, environment)


def test_a_first_attempt_has_no_earlier_attempts(tmp_path: Path) -> None:
    assert before(tmp_path / "none") == Attempts()


def test_earlier_runs_of_the_same_unit_are_listed_by_name(tmp_path: Path) -> None:
    finished(tmp_path / "b", timing())
    finished(tmp_path / "a", timing())
    assert before(tmp_path).directories(UNIT) == ["a", "b"]


@pytest.mark.parametrize(
    "other",
    [
        timing(source="t"),
        timing(loaded=OTHER_TEXT),
        timing(unit("D")),
        header(),
        timing().model_copy(update={"purpose": "fault", "fault": "stale"}),
        timing().model_copy(update={"purpose": "drill"}),
    ],
    ids=["other sources", "another contract", "another claim", "not timed", "a fault", "a drill"],
)
def test_a_directory_of_different_units_is_not_counted_as_an_earlier_attempt(tmp_path: Path, other: Header) -> None:
    finished(tmp_path / "other", other)
    assert before(tmp_path) == Attempts()


def test_a_unit_that_was_not_run_is_not_an_earlier_attempt(tmp_path: Path) -> None:
    finished(tmp_path / "a", timing(Unit(contract="c", claim="C", workload="w")))
    assert before(tmp_path) == Attempts()


def test_an_unreadable_directory_does_not_count_as_an_earlier_run(tmp_path: Path) -> None:
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    finished(tmp_path / "a", timing())
    assert before(tmp_path).directories(UNIT) == ["a"]


@pytest.mark.parametrize(
    ("variable", "value", "attempt"),
    [
        ("GITHUB_RUN_ATTEMPT", "1", 1),
        ("GITHUB_RUN_ATTEMPT", "3", 3),
        ("BUILDKITE_RETRY_COUNT", "0", 1),
        ("BUILDKITE_RETRY_COUNT", "2", 3),
        ("SYSTEM_JOBATTEMPT", "2", 2),
        ("GITHUB_RUN_ATTEMPT", "0", None),
        ("GITHUB_RUN_ATTEMPT", "two", None),
        ("GITHUB_RUN_ATTEMPT", "²", None),
        ("GITHUB_RUN_ATTEMPT", "", None),
        ("HOME", "2", None),
    ],
)
def test_the_ci_attempt_is_counted_from_one(tmp_path: Path, variable: str, value: str, attempt: int | None) -> None:
    assert before(tmp_path, **{variable: value}).ci == attempt


def test_the_ci_attempt_comes_from_the_first_known_variable_that_is_set(tmp_path: Path) -> None:
    assert next(iter(CI_ATTEMPTS)) == "GITHUB_RUN_ATTEMPT"
    assert before(tmp_path, BUILDKITE_RETRY_COUNT="8", GITHUB_RUN_ATTEMPT="2").ci == 2


def test_earlier_attempts_are_recorded_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_RUN_ATTEMPT", "2")
    finished(tmp_path / "a", timing())
    bundle = finished(tmp_path / "b", with_earlier_runs(timing(), [], tmp_path))
    recorded = read_bundle(bundle.path).header.attempts
    assert (recorded.directories(UNIT), recorded.ci) == (["a"], 2)


def test_an_older_header_has_no_attempts(tmp_path: Path) -> None:
    bundle = finished(tmp_path / "a", timing())
    path = bundle.path / "run.json"
    values = json.loads(path.read_text())
    del values["attempts"]
    path.write_text(json.dumps(values))
    assert read_bundle(bundle.path).header.attempts == Attempts()


def test_directories_that_are_judged_together_count_as_attempts_at_the_same_unit() -> None:
    first = timing(started_at="2026-11-20T10:00:00Z")
    before_it = first.model_copy(update={"attempts": tried("lost")})
    later = timing(started_at="2026-11-20T11:00:00Z").model_copy(update={"attempts": tried("lost", "a", ci=3)})
    joined = joined_attempts({"b": later, "a": before_it})
    assert (joined.directories(UNIT), joined.ci) == (["lost", "b"], 3)


def test_shards_of_different_units_are_not_attempts_at_each_other() -> None:
    assert joined_attempts({"a": timing(unit("C")), "b": timing(unit("D"))}) == Attempts()


def test_a_gate_counts_attempts_among_its_own_directories(tmp_path: Path) -> None:
    bundles = [
        finished(tmp_path / name, timing(started_at=f"2026-11-20T1{hour}:00:00Z")) for hour, name in enumerate("abc")
    ]
    contracts: list[Any] = [LOADED]
    judgement = judge_bundles(bundles, contracts, gate=True)
    assert judgement.view.header.attempts.directories(UNIT) == ["b", "c"]
    published = json.loads(judgement_json(judgement))["attempts"]
    assert published == {
        "timings": [{"contract": "c", "claim": "C", "workload": "w", "directories": ["b", "c"]}],
        "ci": None,
    }


def tried(*directories: str, ci: int | None = None, unit: tuple[str, str, str] = UNIT) -> Attempts:
    contract, claim, workload = unit
    timed = TimedBefore(contract=contract, claim=claim, workload=workload, directories=list(directories))
    return Attempts(timings=[timed], ci=ci)


def having(view: ReportView, attempts: Attempts) -> ReportView:
    return replace(view, header=view.header.model_copy(update={"attempts": attempts}))


SAID = "3 attempts: also timed in morning, noon"


def test_earlier_attempts_are_shown_wherever_verdicts_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    view = full_view()
    verdict = view.verdicts[-1]
    attempts = tried("morning", "noon", ci=2, unit=(verdict.contract, verdict.claim, verdict.workload))
    shown = having(view, attempts)
    print_results(shown)
    printed = capsys.readouterr().out
    for text in (printed, render_markdown(shown), Page(render(shown)).words()):
        assert SAID in text.replace("\\", "")
        assert "Attempt 2 of its CI job." in text


def test_outputs_of_a_first_attempt_do_not_mention_attempts(capsys: pytest.CaptureFixture[str]) -> None:
    view = having(full_view(), Attempts(ci=1))
    print_results(view)
    assert "ttempt" not in capsys.readouterr().out + render_markdown(view)


def test_an_interrupted_timing_reports_its_resumption(tmp_path: Path) -> None:
    """Somebody could interrupt a timing that looks bad.

    A timing that began again is therefore marked next to its verdict.
    """
    twice = [Resumption(at="2026-11-21", command=[], executed=[RUN_ID], cut_off=[RUN_ID])] * 2
    bundle = finished(tmp_path / "a", timing().model_copy(update={"resumed": twice}))
    contracts: list[Any] = [LOADED]
    view = judge_bundles([bundle], contracts).view
    assert view.tried(view.verdicts[0]) is None  # the evidence is of a run that is not timed
    timed = {run: replace(seen, probe="throughput") for run, seen in view.evidence.items()}
    view = replace(view, evidence=timed)
    assert view.tried(view.verdicts[0]) == "cut off while it was timed, and timed again, in 2 interruptions"
    other = finished(tmp_path / "b", bundle.header)
    assert judge_bundles([bundle, other], contracts).view.header.resumed == twice * 2
