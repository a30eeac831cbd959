"""The first difference of two commits, from `verify` to page, Markdown, JSON and `harness where`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from two_commits import OTHER_UPDATE, UserRepository

from harness.api.rejudge import rejudged
from harness.api.session import Judgement, VerifyOptions, judgement_json, verify
from harness.cli.where import where

pytestmark = pytest.mark.usefixtures("warm")
ANSWER = "arm `here`, step 3: batch and state are equal; the update differs: `aten.mul` at trainer.py:16 is given 0.02"


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Judgement:
    """A commit that trains with another rate from step 3 on, against the one before it."""
    repository = UserRepository.make(tmp_path_factory.mktemp("changed") / "repository")
    repository.write("update.py", OTHER_UPDATE)
    repository.commit("Another rate")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository.root)
        patch.setattr(sys, "path", [str(repository.root), *sys.path])
        options = VerifyOptions(name="run", baseline="main~1", reports=repository.root / "reports", where=True)
        return verify([repository.root / "as-main.yaml"], options)


def folder(judgement: Judgement) -> Path:
    assert judgement.run_directory is not None
    return judgement.run_directory


@pytest.mark.slow
def test_every_report_of_the_run_states_the_first_difference(changed: Judgement) -> None:
    [problem] = (folder(changed) / "problems").glob("*.md")
    assert "trainer.py:16 is given 0.02, in arm" in problem.read_text().replace("\\", "")
    page = (folder(changed) / "report.html").read_text()
    assert "First difference:" in page
    assert "<td>update</td><td>differs</td><td>parameters weight</td>" in page
    [found] = json.loads(judgement_json(changed))["first_differences"]
    assert (found["step"], found["part"], found["numbers"]) == (3, "update", ["0.02", "0.01"])


@pytest.mark.slow
def test_the_located_step_is_judged_again_from_recorded_observations(
    changed: Judgement, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rejudged(folder(changed)).problems == []
    with pytest.raises(BaseException) as ended:
        where(folder(changed), "SAME")
    assert getattr(ended.value, "exit_code", None) == 0
    assert ANSWER in capsys.readouterr().out.replace("\n", " ")
