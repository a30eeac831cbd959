"""What git tells of a user's repository, and the errors of a baseline that cannot be had, in the user's terms."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from installed_packages import record_installed
from two_commits import UserRepository

from harness.commits.checkout import Repository, checked_out
from harness.commits.import_path import rebased
from harness.contract.accepted_baselines import AcceptedBaseline
from harness.errors import UsageError
from harness.evidence.environment_records import AcceptedRecord

REPORTS = Path("harness-reports")
DAY = date(2026, 6, 15)


def test_a_repository_owned_by_another_user_is_reported_with_gits_message(
    repository: UserRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line of git's message would be a command that trusts the repository, so another line is quoted."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(UsageError, match="found fatal: detected dubious ownership in repository at"):
        Repository.around(repository.root)


def test_a_checkout_names_both_commits_with_their_subjects(repository: UserRepository) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.git("checkout", "--quiet", "-b", "faster")
    second = repository.commit("Faster, they say")
    with checked_out("main", ["trainer:Trainer"], REPORTS) as checkout:
        commits = checkout.commits
        assert (checkout.import_path.tree, repository.worktrees()) != ("", 1)
    assert (commits.baseline.commit, commits.candidate.commit) == (first, second)
    assert commits.lines() == {
        "candidate": f'{second[:12]} "Faster, they say"',
        "baseline": f'{first[:12]} "The first trainer" (main)',
    }
    assert not commits.equal


def test_comparing_a_commit_with_itself_is_reported(repository: UserRepository) -> None:
    with checked_out("HEAD", ["trainer:Trainer"], REPORTS) as checkout:
        assert checkout.commits.lines()["commits"] == "candidate and baseline are the same commit"


def test_uncommitted_changes_are_counted(repository: UserRepository) -> None:
    repository.write("update.py", "changed = True\n")
    repository.write("new.py", "")
    (repository.root / REPORTS).mkdir()
    (repository.root / REPORTS / "report.html").touch()
    with checked_out("main", ["trainer:Trainer"], REPORTS) as checkout:
        assert checkout.commits.candidate.changes == 2
        assert checkout.commits.candidate.line()[12:].startswith(" with uncommitted changes in 2 files ")
        assert checkout.commits.baseline.changes == 0
        assert "commits" not in checkout.commits.lines()
        assert "changed" not in (Path(checkout.import_path.tree) / "update.py").read_text()


def test_files_of_earlier_runs_do_not_count_as_uncommitted_changes(repository: UserRepository) -> None:
    """A folder with a run directory's files does not count, whatever the folder of reports of this command is."""
    for folder in ("harness-reports/first/evidence/a", "notes"):
        (repository.root / folder).mkdir(parents=True)
    repository.write("harness-reports/first/run.json", "{}")
    repository.write("harness-reports/first/evidence/a/rows.jsonl", "")
    repository.write("notes/run.json", "{}")
    with checked_out("main", ["trainer:Trainer"], REPORTS) as checkout:
        assert checkout.commits.candidate.changes == 1


def test_an_interrupted_checkout_leaves_no_worktree(repository: UserRepository) -> None:
    with pytest.raises(KeyboardInterrupt), checked_out("main", ["trainer:Trainer"], REPORTS) as checkout:
        tree = Path(checkout.import_path.tree)
        assert repository.worktrees() == 2
        raise KeyboardInterrupt
    assert (repository.worktrees(), tree.parent.exists()) == (1, False)


def test_a_git_worktree_removed_by_somebody_is_pruned(repository: UserRepository) -> None:
    with checked_out("main", ["trainer:Trainer"], REPORTS) as checkout:
        (Path(checkout.import_path.tree) / ".git").unlink()
    assert repository.worktrees() == 1


def test_hooks_of_the_repository_are_not_run(repository: UserRepository) -> None:
    hook = repository.root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    with checked_out("main", ["trainer:Trainer"], REPORTS) as checkout:
        assert (Path(checkout.import_path.tree) / "trainer.py").is_file()


def test_submodules_and_lfs_files_that_a_checkout_lacks_are_listed(repository: UserRepository, tmp_path: Path) -> None:
    UserRepository.make(tmp_path / "other")
    repository.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "other"), "other")
    repository.write(".gitattributes", "*.bin filter=lfs\n")
    repository.write("weights.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    repository.commit("Weights")
    with checked_out("main", ["trainer:Trainer"], REPORTS) as checkout:
        lacks = ["without 1 submodule (other)", "without 1 file of Git LFS (weights.bin)"]
        assert checkout.commits.baseline.lacks == lacks
        assert checkout.commits.baseline.line().endswith(f"(main; {'; '.join(lacks)})")


def refusal(name: str, *systems: str) -> str:
    with pytest.raises(UsageError) as refused, checked_out(name, systems, REPORTS):
        pass
    return str(refused.value)


@pytest.mark.parametrize("name", ["main", "origin/main", "hash"])
def test_an_unknown_baseline_commit_is_refused_with_a_command_that_fetches_it(
    repository: UserRepository, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In CI a checkout often has only one commit of one branch, so the baseline must be fetched."""
    name = repository.git("rev-parse", "HEAD") if name == "hash" else name
    repository.git("config", "uploadpack.allowAnySHA1InWant", "true")
    repository.git("checkout", "--quiet", "-b", "faster")
    repository.commit("Faster, they say")
    shallow = tmp_path / "shallow"
    repository.git("clone", "--quiet", "--depth=1", "--no-single-branch", repository.root.as_uri(), str(shallow))
    for branch in ("main", "HEAD"):
        subprocess.run(["git", "update-ref", "-d", f"refs/remotes/origin/{branch}"], cwd=shallow, check=True)
    subprocess.run(["git", "gc", "--quiet", "--prune=now"], cwd=shallow, check=True)
    monkeypatch.chdir(shallow)
    monkeypatch.syspath_prepend(shallow)
    refused = refusal(name, "trainer:Trainer")
    assert f"no commit `{name}`; fetch the commit first (`git fetch " in refused
    subprocess.run(refused.split("`")[3], cwd=shallow, shell=True, check=True)
    assert Repository(shallow).commit(name) == repository.git("rev-parse", "main")


def test_a_commit_name_that_looks_like_an_option_is_not_passed_to_git_as_an_option(repository: UserRepository) -> None:
    assert "no commit `--since=yesterday`" in refusal("--since=yesterday", "trainer:Trainer")


def test_a_system_outside_a_git_repository_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alone.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert "not a git repository" in refusal("main", "alone:System")


def test_a_baseline_without_git_is_refused(repository: UserRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    said = "no program `git` on this machine; install git, or run without --baseline"
    assert refusal("main", "trainer:Trainer").endswith(said)


def test_a_system_in_site_packages_has_no_commit_and_is_refused(repository: UserRepository) -> None:
    packages = repository.root / "environment" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "bought.py").touch()
    sys.path.insert(0, str(packages))
    assert f"a module in {packages}, which belongs to no commit" in refusal("main", "bought:System")


def test_systems_of_two_repositories_are_refused_with_a_baseline(repository: UserRepository, tmp_path: Path) -> None:
    other = UserRepository.make(tmp_path / "other", package="other.")
    sys.path.insert(0, str(other.root))
    found = f"found trainer:Trainer in {repository.root}, other.trainer:Trainer in {other.root}"
    said = refusal("main", "trainer:Trainer", "other.trainer:Trainer")
    assert said.endswith(f"needs all systems in the same repository; {found}")


def test_a_system_module_that_does_not_exist_is_refused(repository: UserRepository) -> None:
    assert "found no module `nowhere` that Python can import; run from the folder that holds" in refusal(
        "main", "nowhere:System"
    )


def test_the_import_path_in_the_worktree_corresponds_to_that_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, tree = tmp_path / "root", tmp_path / "tree"
    environment, outside = root / ".venv" / "lib" / "site-packages", tmp_path / "outside"
    for folder in (root / "src", root / "tools", root / "new", tree / "src", tree / "tools", environment, outside):
        folder.mkdir(parents=True)
    entries = [str(folder) for folder in (outside, root / "tools", environment, root / "new", root)]
    monkeypatch.setattr(sys, "path", ["", *entries])
    monkeypatch.chdir(root / "tools")
    target = root / "wheels"  # of no commit, as what is installed into a repository seldom is
    record_installed(target, {"bought.py": ""})
    sys.path.insert(2, str(target))
    found = rebased("c0ffee", root, tree, [root / "src"])
    assert found.folder == str(tree / "tools")
    expected = (tree / "src", tree / "tools", outside, target, environment, tree)
    assert found.path == [str(folder) for folder in expected]
    monkeypatch.chdir(root / "new")
    assert rebased("c0ffee", root, tree, []).folder == str(tree)


def test_checkout_in_a_git_hook_ignores_the_callers_git_dir(
    repository: UserRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a git hook, the variable GIT_DIR may name another repository."""
    UserRepository.make(tmp_path / "other").commit("Another")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    with checked_out("main", ["trainer:Trainer"], REPORTS) as checkout:
        assert checkout.commits.baseline.subject == "The first trainer"
    done = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1


# Where an accepted commit lies in the history.


def entry(commit: str, expires: date = DAY) -> AcceptedBaseline:
    return AcceptedBaseline(
        contract="as-main",
        claim="SAME",
        commit=commit,
        reviewer="ada",
        reason="a reason",
        expires=expires,
        where="accepted-baselines.yaml:3:5",
        file_text="",
    )


def recorded(accepted: AcceptedBaseline) -> AcceptedRecord:
    with checked_out("main", ["trainer:Trainer"], REPORTS, accepted=[accepted], day=DAY) as checkout:
        [record] = checkout.commits.accepted
        trees = {commit: Path(path.tree) for commit, path in checkout.import_paths.items()}
        assert len(trees) == (2 if record.state == "in_force" else 1)
        assert all((tree / "trainer.py").is_file() for tree in trees.values())
    return record


def test_an_accepted_commit_between_baseline_and_head_is_still_valid_on_its_last_day(
    repository: UserRepository,
) -> None:
    repository.git("checkout", "--quiet", "-b", "change")
    changed = repository.commit("A change")
    record = recorded(entry(changed))
    assert (record.state, record.commit.subject) == ("in_force", "A change")


def test_an_acceptance_has_expired_on_the_day_after_its_last_day(repository: UserRepository) -> None:
    repository.git("checkout", "--quiet", "-b", "change")
    record = recorded(entry(repository.commit("A change"), date(2026, 6, 14)))
    assert record.line() == (
        f"the run's; the acceptance of {record.commit.commit[:12]} by ada ended on 2026-06-14: "
        "renew or remove this entry"
    )


def test_an_expired_acceptance_of_an_unknown_commit_causes_no_error(repository: UserRepository) -> None:
    assert recorded(entry("c0ffee" * 6 + "beef", date(2026, 6, 14))).state == "expired"


def test_an_entry_whose_accepted_commit_the_baseline_already_contains_is_superfluous(
    repository: UserRepository,
) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.commit("Later")
    assert recorded(entry(first)).line() == (f"the run's; it contains {first[:12]}, accepted by ada: remove this entry")


def test_an_accepted_commit_that_git_does_not_know_is_refused(repository: UserRepository) -> None:
    with pytest.raises(UsageError, match="a commit between --baseline and HEAD; found no commit c0ffeec0ffee in") as no:
        recorded(entry("c0ffee" * 6 + "beef"))
    assert no.value.where == "accepted-baselines.yaml:3:5"


def test_an_accepted_commit_that_head_does_not_contain_is_refused(repository: UserRepository) -> None:
    repository.git("checkout", "--quiet", "-b", "aside")
    aside = repository.commit("Aside")
    repository.git("checkout", "--quiet", "main")
    with pytest.raises(
        UsageError, match=f"found {aside[:12]}, which HEAD .* does not contain; fetch the whole history"
    ):
        recorded(entry(aside))


def test_an_accepted_commit_that_does_not_contain_the_baseline_is_refused(repository: UserRepository) -> None:
    repository.git("checkout", "--quiet", "-b", "change")
    changed = repository.commit("A change")
    repository.git("branch", "--force", "main", repository.git("commit-tree", "HEAD^{tree}", "-m", "Unrelated"))
    with pytest.raises(UsageError, match=f"found {changed[:12]}, which does not contain the baseline"):
        recorded(entry(changed))
