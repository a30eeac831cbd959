"""A trial as JSON, for programs, and as Markdown, for a pull request."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from first_steps import called, written
from report_views import verdict, view_with

from harness.api import session
from harness.devices.environment import Machine
from harness.first_contract.draft import Arms, Choice, Draft
from harness.first_contract.step_source import find_step_source
from harness.first_contract.trial_texts import trial_json, trial_markdown
from harness.first_contract.trying import Tried
from harness.judging.verdict import Figure, Status

COMMAND = ["harness", "try", "train.py:make_step", "--baseline", "main"]
FAILED: dict[str, Any] = {
    "status": Status.FAIL,
    "reason": "sync_count",
    "message": "it waits 1 time a step, at train.py:3",
}


@pytest.fixture
def draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Draft:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.devices.environment.machine", lambda: Machine(False, "no CUDA device", (), 64.0))
    (tmp_path / "train.py").write_text(
        "def make_step():\n    def step(batch):\n        loss.item()\n    return step, 1, 2\n"
    )
    return Draft(find_step_source("train.py:make_step"), 40, Arms(False, False, memory=False))


def tried(draft: Draft, *verdicts: Any) -> Tried:
    return Tried(draft, session.Judgement(view_with(*verdicts, command=COMMAND)), None)


def test_each_answer_has_status_reason_sentence_figures_and_lines_of_code(draft: Draft) -> None:
    ratio = {"mean_ratio": Figure(value=1.374, unit="x")}
    verdicts = (verdict("TRAIN-REPEATS", message="equal", figures=ratio), verdict("TRAIN-SYNCS", **FAILED))
    told = json.loads(trial_json(tried(draft, *verdicts), replace(draft, choice=Choice(why="measured"))))
    repeats, faster, syncs, *_ = told["answers"]
    assert repeats["figures"] == {"mean_ratio": {"value": 1.374, "unit": "x"}}
    assert (faster["status"], faster["reason"], faster["claim"]) == ("NOT_RUN", None, None)
    assert faster["sentence"] == "speed is decided only on a GPU: no CUDA device"
    assert syncs == {
        "question": "never waits for the device",
        "claim": "TRAIN-SYNCS",
        "status": "FAIL",
        "reason": "sync_count",
        "sentence": "it waits 1 time a step, at train.py:3",
        "figures": {},
        "code": [{"file": "train.py", "line": 3, "text": "loss.item()"}],
        "advice": ["keep the tensor (`losses.append(loss.detach())`) and read it after the step, outside of it"],
    }
    assert (told["step"], told["place"], told["steps"]) == ("train.py:make_step", "train.py:1", 40)
    assert told["compares"] == {"equality": "bitwise", "deterministic": False, "why": "measured"}
    assert (told["headline"]["word"], told["exit_code"], told["format_version"]) == ("VIOLATED", 1, 1)


def test_trial_markdown_begins_with_the_finding_and_ends_with_the_command(draft: Draft) -> None:
    text = trial_markdown(tried(draft, verdict("TRAIN-REPEATS"), verdict("TRAIN-SYNCS", **FAILED)), draft)
    lines = text.splitlines()
    assert lines[0].replace("\\", "") == (
        "**VIOLATED**: never waits for the device: it waits 1 time a step, at train.py:3"
    )
    start = lines.index("| answer | question | what was seen |")
    assert [line.split(" | ")[0] for line in lines[start + 2 : start + 5]] == ["| yes", "| not run", "| **NO**"]
    assert "- train.py:3: loss.item()" in lines
    assert lines[-3:] == ["```", "harness try train.py:make_step --baseline main", "```"]


def test_trial_markdown_of_a_passing_trial_begins_with_the_headline(draft: Draft) -> None:
    text = trial_markdown(tried(draft, verdict("TRAIN-REPEATS")), draft)
    assert text.startswith("**HELD**: Every planned unit held.\n")


def test_trial_markdown_escapes_markup_in_messages_of_a_step(draft: Draft) -> None:
    hostile: dict[str, Any] = {"status": Status.FAIL, "reason": "differs", "message": "a | b\n# <script> @everyone"}
    text = trial_markdown(tried(draft, verdict("TRAIN-SYNCS", **hostile)), draft)
    assert "<script>" not in text
    assert "@everyone" not in text
    assert "\n# " not in text
    assert "a | b" not in text


def test_a_step_that_did_not_run_has_no_table(draft: Draft) -> None:
    missing: dict[str, Any] = {"status": Status.NOT_RUN, "reason": "torch_missing", "message": "torch is not installed"}
    one = tried(draft, verdict("TRAIN-SYNCS", **missing))
    assert trial_markdown(one, draft).startswith("**NOT DECIDED**: torch is not installed\n")
    assert "| answer" not in trial_markdown(one, draft)
    assert json.loads(trial_json(one, draft))["untried"] == "torch is not installed"


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("option", ["--json", "--markdown"])
def test_try_with_json_or_markdown_prints_only_that_format(option: str, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    written(tmp_path, before_update="loss.item()")
    code, printed, _ = called(tmp_path, "try", "train.py:make_step", "--no-compile", "--steps", "12", option)
    assert code == 1
    if option == "--json":
        assert {each["status"] for each in json.loads(printed)["answers"]} >= {"PASS", "FAIL"}
    else:
        assert printed.startswith("**VIOLATED**: is captured")
        assert printed.endswith("```\n")


def test_json_and_markdown_options_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    written(tmp_path)
    code, printed, errors = called(tmp_path, "try", "train.py:make_step", "--json", "--markdown")
    assert (code, printed) == (2, "")
    assert "cannot be combined; found --json and --markdown; leave out all except one" in errors
