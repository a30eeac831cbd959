"""Rules of the workflows that no linter knows: what may write, what is pinned, what has a limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
USERS = [*WORKFLOWS, ROOT / "action.yml"]  # the files that use actions
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
USED = re.compile(r"^ *(?:- )?uses: (.*)$", re.MULTILINE)
LIMITED = re.compile(r"harness (verify|judge|drill|attest)|pip install|inputs\.install")
# The jobs that may do more than read, and what for.
MAY_WRITE = {
    ("attest.yml", "attest"): {"attestations", "id-token"},
    ("comment.yml", "comment"): {"pull-requests"},
    ("gpu-gate.yml", "comment"): {"pull-requests"},
    ("release.yml", "publish"): {"id-token"},
    ("release.yml", "release"): {"attestations", "contents", "id-token"},
}
# What a stranger chooses: the title of a pull request, the name of a branch, a text, an author.
FOREIGN = re.compile(r"\$\{\{[^}]*(github\.event\.(?!workflow_run\.id)|github\.head_ref|github\.ref_name)[^}]*\}\}")


def jobs(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from yaml.safe_load(path.read_text())["jobs"].items()


def steps(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job in jobs(path):
        for step in job.get("steps", []):
            yield f"{name}.{step.get('id', step.get('uses'))}", step


def writes(permissions: Any) -> set[str]:
    """What a `permissions:` block lets write; `write-all` and its like are no block."""
    assert isinstance(permissions, dict)
    assert {*permissions.values()} <= {"read", "write", "none"}
    return {name for name, level in permissions.items() if level == "write"}


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.name)
def workflow(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.mark.parametrize("user", USERS, ids=lambda path: path.name)
def test_each_action_is_pinned_by_digest_with_its_version_in_a_comment(user: Path) -> None:
    used = [each for each in USED.findall(user.read_text()) if not each.startswith("./")]
    assert [each for each in used if PINNED.fullmatch(each) is None] == []


def test_each_action_has_the_same_version_in_all_workflows() -> None:
    used = {each for path in USERS for each in USED.findall(path.read_text()) if not each.startswith("./")}
    names = [each.partition("@")[0] for each in used]
    assert sorted(names) == sorted(set(names))


def test_every_workflow_job_has_a_time_limit(workflow: Path) -> None:
    assert [name for name, job in jobs(workflow) if "uses" not in job and "timeout-minutes" not in job] == []


def test_every_workflow_step_that_installs_or_runs_the_harness_has_a_time_limit(workflow: Path) -> None:
    unlimited = [
        name for name, step in steps(workflow) if LIMITED.search(step.get("run", "")) and "timeout-minutes" not in step
    ]
    assert unlimited == []


def test_workflows_have_read_permission_unless_a_job_needs_more(workflow: Path) -> None:
    whole = yaml.safe_load(workflow.read_text())
    assert writes(whole["permissions"]) == set()
    found = {(workflow.name, name): writes(job["permissions"]) for name, job in jobs(workflow) if "permissions" in job}
    assert found == {place: wanted for place, wanted in MAY_WRITE.items() if place[0] == workflow.name}


def test_a_job_that_may_comment_executes_no_code_of_a_pull_request() -> None:
    [path] = [path for path in WORKFLOWS if path.name == "comment.yml"]
    used = [step.get("uses", "").partition("@")[0] for _, step in steps(path)]
    assert used == ["actions/download-artifact", ""]
    commands = {word for _, step in steps(path) for word in re.findall(r"^\s*(\w+)", step.get("run", ""), re.MULTILINE)}
    assert commands == {"printf", "awk", "room", "own", "number", "if", "gh", "else", "fi"}


def test_no_workflow_gives_foreign_code_a_token_or_a_secret(workflow: Path) -> None:
    text = "\n".join(line for line in workflow.read_text().splitlines() if not line.lstrip().startswith("#"))
    assert "pull_request_target" not in text
    assert "secrets" not in text
    assert all(
        step["with"].get("persist-credentials") is False
        for _, step in steps(workflow)
        if step.get("uses", "").startswith("actions/checkout@")
    )


def test_no_workflow_script_interpolates_text_chosen_by_untrusted_people(workflow: Path) -> None:
    assert [name for name, step in steps(workflow) if FOREIGN.search(step.get("run", ""))] == []
