"""The fixture `check_step`: a test without a contract, and how its failure reads."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from first_steps import written
from report_views import verdict, view_with

from harness.api import session
from harness.first_contract.draft import Draft
from harness.first_contract.trying import Tried
from harness.judging.verdict import Status, Verdict

HELD = verdict("TRAIN-SAME", message="equal in bits")
REPEATS = verdict("TRAIN-REPEATS", message="equal in bits")
UNSAID = verdict("TRAIN-SAME", status=Status.INCONCLUSIVE, reason="clip_unseen", message="no bound acted")
WAITS = verdict("TRAIN-SYNCS", status=Status.FAIL, reason="sync_count", message="it waits, at train.py:19")
OPEN = verdict("TRAIN-SYNCS", status=Status.INCONCLUSIVE, reason="detectors_disagree", message="they disagree")
BROKEN = verdict("TRAIN-SYNCS", status=Status.ERROR, reason="worker_died", message="it died")
TEST = "def test_step(check_step):\n    check_step({arguments})\n"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytester.makeini("[pytest]\naddopts = -p harness.pytest_plugin\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    written(pytester.path)
    return pytester.path


def run(pytester: pytest.Pytester, arguments: str, *options: str) -> tuple[dict[str, int], str]:
    """Run a test that calls the fixture; return its outcomes, and what pytest prints of a failure."""
    (pytester.path / "test_train.py").write_text(TEST.format(arguments=arguments))
    result = pytester.runpytest_inprocess("test_train.py", *options)
    return result.parseoutcomes(), result.stdout.str()


@pytest.mark.parametrize(
    ("verdicts", "options", "outcome", "shown"),
    [
        ([HELD], (), "passed", ""),
        ([HELD, WAITS], (), "failed", "NO  never waits for the device it waits, at train.py:19"),
        ([HELD, BROKEN], (), "failed", "error  never waits for the device it died"),
        ([HELD, OPEN], (), "passed", ""),
        ([OPEN], (), "skipped", ""),
        ([REPEATS, UNSAID], (), "skipped", ""),
        ([REPEATS, UNSAID], ("--contract-gate",), "failed", "undecided  captured, trains the same  no bound acted"),
        ([HELD, OPEN], ("--contract-gate",), "failed", "undecided  never waits for the device they disagree"),
    ],
)
def test_the_verdicts_of_the_fixture_check_step_decide_whether_the_test_passes(
    verdicts: list[Verdict],
    options: tuple[str, ...],
    outcome: str,
    shown: str,
    pytester: pytest.Pytester,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def try_step(draft: Draft, *, reports: None, options: session.VerifyOptions) -> Tried:
        return Tried(draft, session.Judgement(replace(view_with(*verdicts), gate=options.gate)), reports)

    monkeypatch.setattr("harness.pytest_plugin.fixtures.try_step", try_step)
    outcomes, printed = run(pytester, '"train.py:make_step"', *options)
    assert outcomes == {outcome: 1}
    assert shown in printed
    assert ("fixtures.py" in printed) is False  # no frame of the harness


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('"train.py:make_stop"', "did you mean 'make_step'?"),
        ('"train.py:make_step", steps=3', "`steps` must be at least 8; found steps=3"),
        ('"train.py:make_step", baseline="main"', "not a git repository"),
    ],
)
def test_a_test_whose_step_check_cannot_run_fails(
    arguments: str, told: str, pytester: pytest.Pytester, project: Path
) -> None:
    outcomes, printed = run(pytester, arguments)
    assert outcomes == {"failed": 1}
    assert told in printed
    assert "fixtures.py" not in printed


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_the_fixture_check_step_can_compare_a_step_with_a_commit(pytester: pytest.Pytester, project: Path) -> None:
    def git(*arguments: str) -> Any:
        return subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=n@example.org", *arguments], check=True)

    git("init", "-q", "-b", "main")
    git("add", "train.py")
    git("commit", "-q", "-m", "A step")
    call = '"train.py:make_step", baseline="main", steps=12'
    assert run(pytester, call)[0] == {"passed": 1}
    written(project, before_update="model[0].weight.grad.mul_(1.01)")
    outcomes, printed = run(pytester, call)
    assert outcomes == {"failed": 1}
    assert "NO  trains as the baseline" in printed
    assert not (project / "harness-reports").exists()
