"""Every `run:` block of the workflows: bash accepts it, and those of the gate do what the gate needs of them.

The harness is a stand-in here, which ends as a test says. What decides whether a block runs is GitHub's to evaluate:
the tests compare the conditions that keep foreign code out as they are written.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from dry_run import BASH, Block, blocks, filled

from harness.contract.load import load_contracts
from harness.errors import ExitCode

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
SUPPORT = ROOT / "tests" / "support"
BLOCKS = {
    f"{path.name} {name}": block
    for path in (*sorted(WORKFLOWS.glob("*.yml")), ROOT / "action.yml")
    for name, block in blocks(path).items()
}
OF_OURS = "github.event.pull_request.head.repo.full_name == github.repository"
VALUES = {
    "inputs.install": "touch installed\ntouch $PWD/too",
    "inputs.contracts": "demands/",
    "inputs.options": "--claim A-1",
    "inputs.parts": '["--workload a"]',
    "matrix.options": "--workload a",
    "strategy.job-index": "0",
    "matrix.part": "part-0",
    "github.workspace": "/workspace",
    "github.token": "token",
    "github.sha": "0" * 40,
    "github.repository": "owner/project",
    "github.event.pull_request.number": "7",
    "github.server_url": "https://github.invalid",
    "github.run_id": "1",
    "github.workflow": "gate",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with the stand-ins of `harness` and of `gh`, and a contract's folder."""
    for name, script in (("harness", "stand_in_harness.py"), ("gh", "stand_in_gh.py")):
        command = tmp_path / ".venv" / "bin" / name
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{SUPPORT / script}" "$@"\n')
        command.chmod(0o755)
    return tmp_path


Run = Callable[..., int]


@pytest.fixture
def run(folder: Path) -> Run:
    """Run a block in the checkout, with the stand-ins on PATH, and return its exit code."""

    def call(block: str, **ends: int) -> int:
        (folder / "ends.json").write_text(json.dumps({name.replace("_", "-"): code for name, code in ends.items()}))
        environment = {
            **os.environ,
            "PATH": f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_ACTIONS": "true",
            "GITHUB_STEP_SUMMARY": str(folder / "step-summary.md"),
            "GH_COMMENTS": str(folder / "comments.json"),
        }
        return BLOCKS[block].run(folder, VALUES, environment).returncode

    return call


@pytest.mark.parametrize("name", BLOCKS)
def test_bash_accepts_the_syntax_of_every_workflow_block(name: str) -> None:
    block = BLOCKS[name]
    script = filled(block.script, dict.fromkeys(block.expressions, "value"))
    assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0


def test_every_workflow_step_with_a_script_is_a_block_that_can_be_run() -> None:
    written = sum(path.read_text().count(" run: ") for path in (*WORKFLOWS.glob("*.yml"), ROOT / "action.yml"))
    assert len(BLOCKS) == written > 20


def test_a_workflow_block_ends_with_the_code_of_its_first_failure(tmp_path: Path) -> None:
    assert Block("exit ${{ code }}\ntouch after", {}).run(tmp_path, {"code": "3"}).returncode == 3
    assert Block("false | cat\ntouch after", {}).run(tmp_path, {}).returncode == 1
    assert not (tmp_path / "after").exists()
    assert "-e" in BASH[3]


def test_a_workflow_expression_without_a_given_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no value for secrets\.TOKEN; give each as EXPRESSION=VALUE"):
        Block("touch made", {"TOKEN": "${{ secrets.TOKEN }}"}).run(tmp_path, {})
    assert not (tmp_path / "made").exists()


def test_the_dry_run_command_lists_the_blocks_of_workflows_and_runs_one_of_them(folder: Path) -> None:
    script = [sys.executable, str(Path(sys.modules["dry_run"].__file__ or "")), str(WORKFLOWS / "gate.yml")]
    listed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert "verify.contracts github.workspace= inputs.contracts=\n" in listed
    (folder / "ends.json").write_text(json.dumps({"check": 11}))
    values = ["github.workspace=.", "inputs.contracts=contracts/"]
    done = subprocess.run([*script, "verify.contracts", *values], cwd=folder, check=False)
    assert done.returncode == ExitCode.INVALID_CONTRACT
    refused = subprocess.run([*script, "verify.none"], cwd=folder, capture_output=True, text=True, check=False)
    assert refused.returncode == ExitCode.USAGE
    assert "no block verify.none" in refused.stderr


def test_the_gate_workflow_verifies_each_part_and_judges_all_parts(run: Run, folder: Path) -> None:
    assert (run("gate.yml verify.contracts"), run("gate.yml verify.gate")) == (0, 0)
    header = json.loads((folder / "parts" / "part-0" / "run.json").read_text())
    assert header["arguments"] == [
        *("verify", "demands/", "--gate", "--reports", "parts", "--name", "part-0"),
        *("--claim", "A-1", "--workload", "a"),
    ]
    # GitHub shows fifty annotations of a run: a part's would take the room of the whole's
    assert header["seen"] == {"GITHUB_ACTIONS": None, "GITHUB_STEP_SUMMARY": None}
    assert run("gate.yml merge.gate") == 0
    assert (folder / "step-summary.md").read_text() == "judged: part-0\n"
    assert (folder / "badge.json").exists()
    assert (folder / "merged" / "report.html").exists()


@pytest.mark.parametrize("code", [1, 10, 12, 143])
def test_a_workflow_block_exits_with_the_code_of_the_harness(run: Run, code: int) -> None:
    assert run("gate.yml verify.contracts", check=code) == code
    assert run("gate.yml verify.gate", part_0=code) == code
    assert run("gate.yml merge.gate", judge=code) == code
    assert run("drill.yml drill.drill", drill=code) == code


@pytest.mark.parametrize("results", ["success failure", "failure success", "skipped skipped", "cancelled success"])
def test_the_required_check_passes_only_if_both_jobs_succeeded(tmp_path: Path, results: str) -> None:
    block = BLOCKS["gate.yml gate.every-unit-held"]
    verify, merge = results.split()
    values = {"needs.verify.result": verify, "needs.merge.result": merge}
    assert block.run(tmp_path, values).returncode == 1
    assert block.run(tmp_path, dict.fromkeys(values, "success")).returncode == 0


def jobs(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((WORKFLOWS / name).read_text())["jobs"])


def test_code_from_forks_runs_only_on_hosted_runners() -> None:
    """The test compares the conditions of the jobs as text, and actionlint checks their grammar."""
    gate, ours, drill = jobs("gate.yml"), jobs("gpu-gate.yml"), jobs("drill.yml")["drill"]
    by_a_person = "github.triggering_actor != 'dependabot[bot]'"
    assert gate["verify"]["if"] == (f"inputs.forks || ({by_a_person} && (!github.event.pull_request || {OF_OURS}))")
    assert gate["gate"]["if"] == "always()"
    assert gate["gate"]["needs"] == ["verify", "merge"]
    assert drill["if"] == f"!github.event.pull_request || {OF_OURS}"
    on_our_machines = {name for name, job in ours.items() if "self-hosted" in str(job.get("with", {}).get("runner"))}
    assert on_our_machines == {"gpu", "drill"}
    assert not any(ours[name]["with"].get("forks") for name in on_our_machines)
    assert ours["forks"]["if"] == f"github.event.pull_request && {OF_OURS.replace('==', '!=')}"


def test_only_code_of_this_repository_may_comment_and_sign() -> None:
    """A branch of a fork may also be called `main`, so the repository is compared."""
    run = "github.event.workflow_run"
    assert jobs("comment.yml")["comment"]["if"] == f"github.event.pull_request && {OF_OURS}"
    assert jobs("attest.yml")["attest"]["if"] == (
        f"{run}.event == 'push' && {run}.head_repository.full_name == github.repository"
    )


def test_a_caller_of_the_gate_may_ask_for_the_history_that_a_baseline_needs() -> None:
    checkout = jobs("gate.yml")["verify"]["steps"][0]
    assert checkout["with"]["fetch-depth"] == "${{ inputs.history }}"


def test_every_part_of_the_gate_is_attested() -> None:
    parts = json.loads(jobs("gpu-gate.yml")["gpu"]["with"]["parts"])
    assert jobs("attest.yml")["attest"]["strategy"]["matrix"]["part"] == [f"part-{at}" for at in range(len(parts))]


def test_the_parts_of_the_gpu_gate_cover_all_workloads() -> None:
    parts = json.loads(jobs("gpu-gate.yml")["gpu"]["with"]["parts"])
    words = [word for part in parts for word in part.split() if word != "--workload"]
    claims = [claim for loaded in load_contracts([ROOT / "contracts"]) for claim in loaded.contract.claims]
    assert sorted(words) == sorted({workload for claim in claims for workload in claim.judged_on})


def test_a_statement_is_signed_with_the_manifest_digest_as_its_subject(run: Run, folder: Path) -> None:
    assert run("attest.yml attest.statement") == 0
    assert json.loads((folder / "predicate.json").read_text()) == {"result": "part-0"}
    assert (folder / "subjects.txt").read_text() == f"{'0' * 64}  manifest.json\n"


def test_the_drill_workflow_publishes_the_summary_of_the_drill(run: Run, folder: Path) -> None:
    assert run("drill.yml drill.drill", drill=1) == 1
    assert run("drill.yml drill.summary") == 0
    assert (folder / "step-summary.md").read_text() == "drilled\n"


@pytest.mark.parametrize(
    ("tag", "heading", "version", "notes"),
    [
        ("v1.2.3", "## 1.2.3 (2026-12-01)", 0, 0),
        ("v1.2.3", "## 1.2.3 (unreleased)", 0, 1),
        ("v1.2.4", "## 1.2.3 (2026-12-01)", 1, 1),
    ],
)
def test_a_release_has_the_version_of_its_tag_and_a_dated_section_in_the_changelog(
    tmp_path: Path, tag: str, heading: str, version: int, notes: int
) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\n{heading}\n\n- A line.\n\n## 1.2.2 (2026-11-01)\n\n- Older.\n"
    )
    environment = {**os.environ, "GITHUB_REF_NAME": tag}
    assert BLOCKS["release.yml build.version"].run(tmp_path, {}, environment).returncode == version
    assert BLOCKS["release.yml build.notes"].run(tmp_path, {}, environment).returncode == notes
    assert (tmp_path / "release" / "notes.md").read_text() == ("" if notes else f"{heading}\n\n- A line.\n\n")


def test_a_release_has_both_archives_the_scorecard_and_the_signature(tmp_path: Path) -> None:
    files = ["dist/a.tar.gz", "dist/a.whl", "release/scorecard.md", "release/notes.md", "bundle.json"]
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "gh").write_text('#!/bin/sh\nprintf "%s " "$@" > given\n')
    (tmp_path / "gh").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_REF_NAME": "v1.2.3",
        "GITHUB_REPOSITORY": "owner/project",
    }
    values = {"steps.attest.outputs.bundle-path": "bundle.json", "github.token": "token"}
    assert BLOCKS["release.yml release.release"].run(tmp_path, values, environment).returncode == 0
    assert (tmp_path / "given").read_text() == (
        "release create v1.2.3 --repo owner/project --verify-tag --title v1.2.3 --notes-file release/notes.md "
        "dist/a.tar.gz dist/a.whl release/scorecard.md release/attestation.sigstore.json "
    )
    assert (tmp_path / "release" / "attestation.sigstore.json").exists()


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        (["harness/a.py"], 1),
        (["contracts/a.yaml", "changes/a.bogus.md"], 1),
        (["reference_impl/a.py", "changes/a.fixed.md"], 0),
        (["docs/a.md", "tests/a.py"], 0),
    ],
)
def test_a_change_of_shipped_files_needs_a_changelog_fragment(tmp_path: Path, changed: list[str], code: int) -> None:
    def git(*words: str) -> None:
        author = ["-c", "user.name=a", "-c", "user.email=a@example.invalid", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    (tmp_path / "changes").mkdir()
    for name in ("pyproject.toml", "CHANGELOG.md", "changes/template.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    git("add", ".")
    git("commit", "-q", "-m", "base")
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    for name in changed:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("Something.\n")
    git("add", ".")
    git("commit", "-q", "-m", "change")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "GITHUB_BASE_REF": "main"}
    assert BLOCKS["checks.yml fragment.asked"].run(tmp_path, {}, environment).returncode == code


def commented(run: Run, folder: Path, summary: str) -> list[dict[str, Any]]:
    """Return the pull request's comments after a run with this summary."""
    (folder / "merged").mkdir(exist_ok=True)
    (folder / "merged" / "summary.md").write_text(summary)
    assert run("comment.yml comment.comment") == 0
    comments: list[dict[str, Any]] = json.loads((folder / "comments.json").read_text())
    return comments


def test_the_gate_comment_is_rewritten_and_other_comments_are_kept(run: Run, folder: Path) -> None:
    quoted = "<!-- contract-harness: gate --> quoted by somebody"
    others = [{"id": number, "user": {"login": "ada"}, "body": quoted} for number in range(1, 36)]
    others += [{"id": 36, "user": {"login": "github-actions[bot]"}, "body": "another workflow's"}]
    (folder / "comments.json").write_text(json.dumps(others))
    for summary in ("1 planned · 0 held\n", "1 planned · 1 held\n"):
        *rest, last = commented(run, folder, summary)
        assert rest == others
        assert last["body"] == (
            "<!-- contract-harness: gate -->\n"
            "[The whole page, and the run directories](https://github.invalid/owner/project/actions/runs/1)\n\n"
            f"{summary}"
        )


def test_a_long_summary_in_the_gates_comment_is_cut_between_lines(run: Run, folder: Path) -> None:
    [comment] = commented(run, folder, f"{'x' * 999}\n" * 100)
    head, *lines = comment["body"].split("\n\n", 1)[1].splitlines()
    assert (head, lines[-1], {*lines[:-3]}) == ("x" * 999, "The rest is on the page.", {"x" * 999})
    assert len(lines) == 62
