"""`harness try --baseline`: the working tree's step against the same function at another commit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from first_steps import called, written

from harness.api.session import VerifyOptions
from harness.contract import strict_yaml
from harness.contract.load import loaded_from
from harness.first_contract.draft import Arms, Choice, Draft
from harness.first_contract.step_source import find_step_source
from harness.first_contract.trying import at_baseline, checked_out_step

TRY = ("try", "train.py:make_step", "--steps", "12", "--baseline", "main")
Repository = Callable[..., Path]


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Make a repository whose branch `main` holds a step; the arguments are those of `written`."""

    def make(**parts: str) -> Path:
        (tmp_path / "temporary").mkdir()
        (tmp_path / ".gitignore").write_text("temporary/\n__pycache__/\n")
        written(tmp_path, **parts)
        git(tmp_path, "init", "-q", "-b", "main")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", "A step")
        return tmp_path

    return make


def answers(printed: str) -> dict[str, list[str]]:
    """Return the answers of each question, the last trial's last: its word, and the sentence behind it."""
    found: dict[str, list[str]] = {}
    for line in printed.splitlines():
        if line[:9].strip() and line[9:11] == "  " and line[11:12].strip():
            found.setdefault(line[11:37].strip(), []).append(f"{line[:9].strip()}: {line[38:]}")
    return found


@pytest.mark.usefixtures("warm")
def test_a_step_equal_to_its_baseline_commit_passes_and_writes_no_file(repository: Repository) -> None:
    project = repository()
    (project / "notes.txt").write_text("not committed\n")
    code, printed, errors = called(project, *TRY)
    assert "Traceback" not in errors
    head = git(project, "rev-parse", "HEAD")[:12]
    assert printed.splitlines()[1:3] == [
        f'candidate: {head} with uncommitted changes in 1 file "A step"',
        f'baseline: {head} "A step" (main)',
    ]
    words = {question: told[-1].partition(":")[0] for question, told in answers(printed).items()}
    assert words == {
        "repeats itself": "yes",
        "trains as the baseline": "yes",
        "leaves the same gradients": "yes",
        "is not slower": "not run",
        "on a GPU": "foreseen",
    }
    assert code == 0
    assert git(project, "status", "--porcelain").splitlines() == ["?? notes.txt"]
    assert len(git(project, "worktree", "list").splitlines()) == 1
    assert [each.name for each in (project / "temporary").iterdir()] == []


@pytest.mark.usefixtures("warm")
def test_a_step_that_leaves_no_gradients_is_compared_without_gradients(repository: Repository) -> None:
    code, printed, _ = called(repository(after="optimizer.zero_grad()"), *TRY)
    words = {question: told[-1].partition(":")[0] for question, told in answers(printed).items()}
    assert (words["trains as the baseline"], words["leaves the same gradients"], code) == ("yes", "not run", 0), printed


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"before_update": "model[0].weight.grad.mul_(1.01)"}, "leaves the same gradients"),
        ({"before": "optimizer.param_groups[0]['lr'] = 2e-2"}, "trains as the baseline"),
    ],
)
def test_a_step_that_trains_differently_from_its_baseline_is_reported(
    repository: Repository, change: dict[str, str], told: str
) -> None:
    project = repository()
    written(project, **change)
    code, printed, _ = called(project, *TRY)
    assert answers(printed)[told][0].startswith("NO: ")
    assert answers(printed)["trains as the baseline"][-1].startswith("NO: ")
    assert ("group0.lr" in printed) is (told == "trains as the baseline")
    assert code == 1


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_baseline_with_different_operators_is_compared_within_rounding(repository: Repository) -> None:
    """The function in the baseline's commit takes no seed, so its adapter is drafted from that commit."""
    project = repository()
    text = (project / "train.py").read_text().replace("def make_step(seed):", "def make_step():\n    seed = 0")
    (project / "train.py").write_text(text)
    git(project, "commit", "-qam", "Without a seed")
    written(project, loss="(lambda out, y: (out * out - 2 * out * y + y * y).mean())")
    source = (project / "train.py").read_text().replace("manual_seed(seed)", "manual_seed(0)")
    (project / "train.py").write_text(source.replace("1000 * seed", "0 * seed"))
    code, printed, errors = called(project, *TRY, "--reports", "runs", "--name", "first")
    assert "Traceback" not in errors
    changes = [json.loads((project / "runs" / run / "run.json").read_text())["commits"]["candidate"]["changes"]
               for run in ("first", "first-chosen")]  # fmt: skip
    assert changes == [1, 1]  # earlier runs make no tree dirty
    assert "compares: within rounding, since only arm plain ran aten." in printed
    assert answers(printed)["trains as the baseline"][-1].startswith("yes: ")
    assert answers(printed)["leaves the same gradients"][-1].startswith("yes: ")
    assert code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_script_in_a_folder_can_be_compared_next_to_an_existing_adapter(repository: Repository) -> None:
    project = repository()
    (project / "lab").mkdir()
    (project / "train.py").rename(project / "lab" / "train.py")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "In a folder")
    (project / "lab" / "train_harness.py").write_text("raise ValueError('another adapter')\n")
    code, printed, _ = called(project, "try", "lab/train.py:make_step", "--steps", "12", "--baseline", "main")
    assert answers(printed)["trains as the baseline"][-1].startswith("yes: ")
    assert code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_step_that_raises_at_the_baseline_commit_is_an_error_with_its_line(repository: Repository) -> None:
    project = repository(before="raise ValueError('at the commit')")
    written(project)
    code, printed, _ = called(project, *TRY)
    assert answers(printed)["trains as the baseline"][-1].startswith("error: ")
    assert "ValueError: at the commit" in printed
    assert code == 12


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("train.py:make_step", "--baseline", "nowhere"), "found no commit `nowhere`; fetch the commit first"),
        (("new.py:make_step", "--baseline", "main"), "found no new.py; name a commit that has the file: `git log"),
        (("train.py:make_new", "--baseline", "main"), "train.py, at {head}: `make_new` must be defined with `def`"),
        (
            ("train.py:make_step", "--baseline", "main", "--write-contract"),
            "--baseline and --write-contract cannot be combined",
        ),
    ],
)
def test_an_incomparable_baseline_is_refused(repository: Repository, arguments: tuple[str, ...], error: str) -> None:
    project = repository()
    text = (project / "train.py").read_text()
    (project / "new.py").write_text(text)
    (project / "train.py").write_text(f"{text}\n\ndef make_new(seed):\n    return make_step(seed)\n")
    code, printed, errors = called(project, "try", *arguments)
    assert (code, printed) == (2, "")
    assert error.format(head=git(project, "rev-parse", "HEAD")[:12]) in errors
    assert len(git(project, "worktree", "list").splitlines()) == 1


def test_a_branch_that_moves_during_a_try_is_compared_at_its_first_commit(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = repository()
    monkeypatch.chdir(project)
    began = git(project, "rev-parse", "HEAD").strip()
    draft = at_baseline(Draft(find_step_source("train.py:make_step"), 12, Arms(False, False, memory=False)), "main")
    (project / "train.py").write_text("def make_step(seed):\n    return None\n")
    git(project, "commit", "-qam", "Another step")
    with checked_out_step(draft, VerifyOptions()) as checkout:
        assert (checkout.commits.baseline.commit, checkout.commits.baseline.named) == (began, "main")


def test_a_baseline_in_a_folder_that_is_not_a_git_repository_is_refused(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    written(tmp_path)
    code, _, errors = called(tmp_path, *TRY)
    assert code == 2
    assert "not a git repository" in errors


@pytest.mark.parametrize("argument", ["seed", "captured", "optimized"])
@pytest.mark.parametrize(
    "choice",
    [Choice(), Choice(deterministic=True), Choice("within", deterministic=True), Choice("noise", repeats=False)],
    ids=str,
)
def test_a_contract_drafted_for_a_comparison_with_a_commit_can_be_loaded(
    choice: Choice, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(f"def make_step({argument}=0):\n    return step, batch, model\n")
    source = find_step_source("train.py:make_step")
    draft = Draft(source, 12, Arms(True, True, memory=False), choice=choice, commit="main")
    contract = loaded_from(strict_yaml.parse(draft.contract(), where="train.yaml"), tmp_path / "train.yaml").contract
    faster = next(claim for claim in contract.claims if claim.id == "TRAIN-FASTER")
    timed = "_timed" if choice.deterministic else ""
    assert (faster.arms()["candidate"], faster.arms()["baseline"]) == (f"plain{timed}", f"at_commit{timed}")
    assert not draft.long_contract()
