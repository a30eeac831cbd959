"""`verify` with a baseline of another commit, from a small real repository to verdicts, header and pages."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from two_commits import GRADIENTS, LAST_UPDATE, NEAR, OTHER_UPDATE, UserRepository

from harness.api import session
from harness.api.rejudge import contradictions, judged, rejudged
from harness.api.session import Judgement, VerifyOptions, verify
from harness.contract.load import load_contracts
from harness.errors import EvidenceError, UsageError
from harness.evidence.plan_records import Run
from harness.judging.verdict import Status
from harness.report.terminal import Progress
from harness.run_directory.bundle import read_bundle

pytestmark = pytest.mark.usefixtures("warm")
FINDER = """\
import importlib.util, sys

class Editable:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "lab":
            return None
        file, places = {package!r} + "/__init__.py", [{package!r}]
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)

sys.meta_path.{insert}
"""


@dataclass(frozen=True)
class Compared:
    """A run of two commits, and where it lies."""

    repository: UserRepository
    judgement: Judgement

    @property
    def directory(self) -> Path:
        assert self.judgement.run_directory is not None
        return self.judgement.run_directory


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as context:
        context.setattr(sys, "path", list(sys.path))
        context.setattr(sys, "meta_path", list(sys.meta_path))
        yield context


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory, warm: None, patch: pytest.MonkeyPatch) -> Compared:
    """A dirty tree that trains as `main` does; its package lies in `src` and is installed in editable mode."""
    folder = tmp_path_factory.mktemp("equal")
    repository = UserRepository.make(folder / "repository", folder="src", package="lab.")
    repository.contract(GRADIENTS, equality="within")
    _install_editable(repository, folder / "site", patch)
    patch.chdir(folder)
    options = VerifyOptions(name="run", baseline="main", reports=folder / "reports")
    return Compared(repository, verify([repository.root], options))


def _install_editable(
    repository: UserRepository, site: Path, patch: pytest.MonkeyPatch, insert: str = "append(Editable)"
) -> None:
    """As setuptools does it, by a finder that names the package's folder: it is on no path."""
    site.mkdir()
    (site / "sitecustomize.py").write_text(FINDER.format(package=str(repository.folder), insert=insert))
    sys.path.insert(0, str(site))
    patch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)

    exec((site / "sitecustomize.py").read_text(), {})  # noqa: S102 - what every child does at its start


def test_equal_commits_pass_the_comparison(equal: Compared) -> None:
    assert [(verdict.claim, verdict.status) for verdict in equal.judgement.verdicts] == [
        ("SAME", Status.PASS),
        ("GRADIENTS", Status.PASS),
    ]
    assert "their parameters differ by up to 0 at the end" in equal.judgement.verdicts[0].message


def test_the_run_header_names_both_commits_and_the_uncommitted_changes(equal: Compared) -> None:
    commits = read_bundle(equal.directory).header.commits
    assert commits is not None
    head = equal.repository.git("rev-parse", "HEAD")
    assert (commits.baseline.commit, commits.baseline.named, commits.candidate.commit) == (head, "main", head)
    assert (commits.candidate.changes, commits.baseline.changes) == (1, 0)


@pytest.mark.parametrize("page", ["report.html", "summary.md", "junit.xml"])
def test_every_page_names_the_commit_and_the_uncommitted_changes(page: str, equal: Compared) -> None:
    text = (equal.directory / page).read_text().replace("\\", "")
    head = equal.repository.git("rev-parse", "HEAD")[:12]
    assert text.count(head) >= 2
    assert "uncommitted changes in 1 file" in text


def test_the_evidence_records_the_commit_that_each_process_trained(equal: Compared) -> None:
    head = equal.repository.git("rev-parse", "HEAD")
    lanes = sorted(equal.directory.glob("evidence/*/lane.*"))
    runs = [Run.model_validate(_json(lane / "run.json")) for lane in lanes]
    arms = [{name: arm.commit for name, arm in run.arms.items()} for run in runs]
    assert arms == [{"main": head}, {"main": head}, {"here": None}]
    assert [_json(lane / "process.json")["trained"] for lane in lanes] == [[head]] * 3


def test_judging_a_commit_comparison_again_gives_the_same_verdicts(equal: Compared) -> None:
    assert rejudged(equal.directory).problems == []


def test_a_run_of_another_commit_contradicts_the_header(equal: Compared) -> None:
    bundle = read_bundle(equal.directory)
    assert bundle.header.commits is not None
    other = bundle.header.commits.baseline.model_copy(update={"commit": "c0ffee"})
    both = {"baseline": other, "candidate": other}
    header = bundle.header.model_copy(update={"commits": bundle.header.commits.model_copy(update=both)})
    object.__setattr__(bundle, "header", header)
    head = equal.repository.git("rev-parse", "HEAD")
    assert contradictions(bundle, [one.contract for one in load_contracts([equal.repository.root])]) == [
        f"run.json: the tested commits are c0ffee, but run lane.{lane} trained {head}" for lane in (0, 1, 2)
    ]
    [verdict, _] = session.judge_bundles([bundle], load_contracts([equal.repository.root])).verdicts
    assert (verdict.status, verdict.reason) == (Status.NOT_RUN, "evidence_of_another_contract")
    assert f"arms.main.commit: 'c0ffee' in the contract, {head!r} in the evidence" in verdict.message


def test_shards_that_compare_different_commits_are_refused(equal: Compared, tmp_path: Path) -> None:
    copy = shutil.copytree(equal.directory, tmp_path / "copy")
    bundle = read_bundle(copy)
    header = bundle.header.model_copy(update={"commits": None})
    object.__setattr__(bundle, "header", header)
    with pytest.raises(EvidenceError, match="shards must compare the same commits"):
        session.judge_bundles([read_bundle(equal.directory), bundle], load_contracts([equal.repository.root]))
    assert judged([equal.directory, copy])[1].verdicts


def test_a_comparison_of_commits_leaves_no_worktree(equal: Compared) -> None:
    assert equal.repository.worktrees() == 1
    assert not list(equal.directory.rglob("*exchange*"))


@pytest.mark.slow
def test_a_commit_that_trains_differently_fails_at_the_first_differing_step(repository: UserRepository) -> None:
    repository.write("update.py", OTHER_UPDATE)
    repository.commit("Another rate from step 3 on")
    [verdict] = verify([repository.root], VerifyOptions(name="run", baseline="main~1")).verdicts
    assert (verdict.status, verdict.reason) == (Status.FAIL, "differs")
    assert verdict.figures["first_differing_step"].value == 4


@pytest.mark.slow
def test_end_states_are_compared_with_a_control_of_the_baseline_commit(repository: UserRepository) -> None:
    """The working tree changes only the last update.

    A control arm of the working tree would change as much, and would wrongly excuse the difference.
    """
    repository.contract(equality=NEAR)
    repository.commit("Ends within a hundredth")
    contract = repository.root / "as-main.yaml"
    [held] = verify([contract], VerifyOptions(name="equal", baseline="main")).verdicts
    assert (held.status, held.figures["end_distance"].value) == (Status.PASS, 0)
    repository.write("update.py", LAST_UPDATE)
    repository.commit("Another rate of the last update")
    [verdict] = verify([contract], VerifyOptions(name="other", baseline="main~1")).verdicts
    assert (verdict.status, verdict.reason) == (Status.FAIL, "ends_apart"), verdict.message


def test_an_interrupted_comparison_of_commits_leaves_no_worktree(repository: UserRepository) -> None:
    class Interrupting(Progress):
        def moves(self, _run: Run, _phase: str, _seconds: float) -> None:
            assert repository.worktrees() == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify([repository.root], VerifyOptions(name="run", baseline="main"), Interrupting())
    assert repository.worktrees() == 1


def test_without_a_baseline_commit_two_arms_with_equal_settings_are_not_compared(repository: UserRepository) -> None:
    [unit] = session.plan_contracts(load_contracts([repository.root]), VerifyOptions()).units
    assert unit.obstacle is not None
    assert (unit.obstacle.reason, unit.runs) == ("needs_baseline", [])


def test_planting_a_fault_is_refused_when_two_commits_are_compared(repository: UserRepository) -> None:
    with pytest.raises(UsageError, match="--baseline cannot be combined with a planted fault; found --fault"):
        verify([repository.root], VerifyOptions(baseline="main", fault="stale_batch"))


def _json(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text())
    return found
