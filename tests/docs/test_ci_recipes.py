"""The recipes for GitLab and Buildkite: what their services accept, and what their commands do, the harness aside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from needed_programs import absent

from harness.errors import ExitCode
from harness.first_contract.draft import LONG, STEPS, Arms, Draft, kept_files
from harness.first_contract.step_source import read_step_source

ROOT = Path(__file__).parents[2]
RECIPES = {"gitlab-ci": ROOT / "docs" / "ci" / "gitlab-ci.yml", "buildkite": ROOT / "docs" / "ci" / "buildkite.yml"}
STAND_IN = ROOT / "tests" / "support" / "stand_in_harness.py"
SCHEMAS = Path(sys.prefix) / "bin" / "check-jsonschema"
AGENT = """#!/bin/sh
case "$1 $2" in
"artifact download") test -e parts ;;
"annotate --context") cat > annotation.md ;;
*) exit 64 ;;
esac
"""


def gitlab(job: str) -> tuple[list[str], dict[str, str], list[int]]:
    """A job's commands, its variables, and the exit codes that are a warning; the install lines are left out."""
    recipe = yaml.safe_load(RECIPES["gitlab-ci"].read_text())
    found = recipe[job]
    return found["script"], {"WORKLOAD": "small"}, found.get("allow_failure", {}).get("exit_codes", [])


def buildkite(label: str) -> tuple[list[str], dict[str, str], list[int]]:
    """The same of a step: `{{matrix}}` is filled in, `$$` is one `$`, as the agent does it."""
    steps = yaml.safe_load(RECIPES["buildkite"].read_text())["steps"]
    [step] = [each for each in steps if each.get("label", "").startswith(label)]
    commands = [line.replace("{{matrix}}", "small").replace("$$", "$") for line in step["command"]]
    soft = [each["exit_status"] for each in step.get("soft_fail", [])]
    return [line for line in commands if " -m venv " not in line and " install " not in line], {}, soft


JOBS = {"gitlab-ci": gitlab, "buildkite": buildkite}


@pytest.fixture(params=RECIPES)
def service(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout in which the install lines have run."""
    for name, text in (
        (".venv/bin/harness", f'#!/bin/sh\nexec "{sys.executable}" -I -S "{STAND_IN}" "$@"\n'),
        ("bin/buildkite-agent", AGENT),
    ):
        command = tmp_path / name
        command.parent.mkdir(parents=True)
        command.write_text(text)
        command.chmod(0o755)
    return tmp_path


def run(service: str, job: str, folder: Path, **ends: int) -> int:
    """The exit code of a job's commands, as its service joins them."""
    (folder / "ends.json").write_text(json.dumps({name.replace("_", "-"): code for name, code in ends.items()}))
    commands, variables, _ = JOBS[service](job)
    environment = {**os.environ, **variables, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    script = "\n".join(commands)
    return subprocess.run(["bash", "-e", "-c", script], cwd=folder, env=environment, check=False).returncode


def complaints(service: str, path: Path) -> str:
    if not SCHEMAS.exists():
        absent("check-jsonschema (`make install` installs it)")
    command = [str(SCHEMAS), "--builtin-schema", f"vendor.{service}", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout if done.returncode else ""


def test_the_schema_of_each_ci_service_accepts_the_documented_pipeline(service: str) -> None:
    assert complaints(service, RECIPES[service]) == ""


@pytest.mark.parametrize(
    ("service", "right", "wrong"),
    [("gitlab-ci", "exit_codes: [10]", "exit_codes: {a: 10}"), ("buildkite", "- exit_status: 10", "- exit_status: {}")],
)
def test_a_planted_mistake_in_a_documented_pipeline_is_found(
    tmp_path: Path, service: str, right: str, wrong: str
) -> None:
    text = RECIPES[service].read_text()
    assert right in text
    (tmp_path / "planted.yml").write_text(text.replace(right, wrong))
    assert "planted.yml" in complaints(service, tmp_path / "planted.yml")


def test_a_documented_pipeline_runs_a_part_and_the_gate_over_this_part(service: str, folder: Path) -> None:
    assert run(service, "verify", folder) == 0
    header = json.loads((folder / "parts" / "part-small" / "run.json").read_text())
    assert header["arguments"][:5] == ["verify", "contracts/", "--gate", "--workload", "small"]
    assert run(service, "gate", folder) == 0
    assert (folder / "merged" / "summary.md").read_text() == "judged: part-small\n"
    assert (folder / "badge.json").exists()


def test_in_ci_only_an_undecided_part_does_not_fail_the_build(service: str, folder: Path) -> None:
    _, _, allowed = JOBS[service]("verify")
    assert allowed == [ExitCode.UNDECIDED]
    assert run(service, "verify", folder, part_small=int(ExitCode.UNDECIDED)) == ExitCode.UNDECIDED


@pytest.mark.parametrize("code", [ExitCode.VIOLATED, ExitCode.UNDECIDED, ExitCode.ERROR])
def test_a_closed_gate_fails_the_build(service: str, folder: Path, code: ExitCode) -> None:
    run(service, "verify", folder)
    assert run(service, "gate", folder, judge=int(code)) == code
    assert JOBS[service]("gate")[2] == []
    assert (folder / "merged" / "report.html").exists()


def test_a_ci_gate_without_parts_is_closed(service: str, folder: Path) -> None:
    """The gate has no parts if the code is from a fork, because no GPU machine executes such code."""
    assert run(service, "gate", folder) != 0


def test_a_refused_gate_keeps_its_exit_code(service: str, folder: Path) -> None:
    """A refused gate writes no page, so steps that publish the page must not replace the gate's exit code."""
    (folder / "parts").mkdir()
    assert run(service, "gate", folder) == ExitCode.USAGE


@pytest.mark.parametrize("name", ["ci.md", "ci/gitlab-ci.yml", "ci/buildkite.yml", "ci/kueue-job.yml"])
def test_copied_pipelines_select_workloads_that_init_writes(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def make_step(seed=0):\n    return step, batch, model\n")
    source = read_step_source("train.py:make_step", "make_step", tmp_path / "train.py", tmp_path, "train")
    draft = Draft(source, STEPS, Arms(compiled=False, timed=False, memory=False), long=LONG)
    written = yaml.safe_load(draft.contract())["workloads"].keys()
    text = (ROOT / "docs" / name).read_text()
    [listed] = re.findall(r"(?:matrix: \[|WORKLOAD: \[|parts=\(|parts: )(.*)", text)
    selected = re.findall(r"[a-z]+", listed.partition("#")[0].replace("--workload", ""))
    assert set(selected) == set(written)


def test_the_documented_jenkins_pipeline_reads_the_run_directory_that_its_command_names() -> None:
    [block] = re.findall(r"```groovy\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)
    [reports, name] = re.findall(r"--reports (\S+) --name \$(\w+)", block)[0]
    assert re.findall(r'^(?:junit|archiveArtifacts) "(.+)"$', block, re.MULTILINE) == [
        f"{reports}/${{env.{name}}}/{files}" for files in ("junit.xml", "**")
    ]


def test_the_nightly_ci_drill_reports_a_violation(service: str, folder: Path) -> None:
    assert run(service, "drill", folder, drill=int(ExitCode.VIOLATED)) == ExitCode.VIOLATED
    assert (folder / "drills" / "drill" / "summary.md").exists()


def test_buildkite_annotates_with_the_summary(folder: Path) -> None:
    run("buildkite", "verify", folder)
    run("buildkite", "gate", folder, judge=1)
    assert (folder / "annotation.md").read_text() == "judged: part-small\n"


def test_the_documented_gitlab_pipeline_keeps_the_artifacts_that_its_commands_write() -> None:
    recipe: dict[str, Any] = yaml.safe_load(RECIPES["gitlab-ci"].read_text())
    kept = {job: recipe[job]["artifacts"] for job in ("verify", "gate", "drill")}
    assert {job: each["paths"] for job, each in kept.items()} == {
        "verify": ["parts/"],
        "gate": ["merged/", "badge.json"],
        "drill": ["drills/"],
    }
    assert {each["when"] for each in kept.values()} == {"always"}


def test_the_documented_workflow_grants_each_called_workflow_its_inputs_and_permissions() -> None:
    """GitHub refuses to start a caller that grants fewer permissions than the jobs of the called workflow request."""
    page = (ROOT / "docs" / "ci.md").read_text()
    [_, caller] = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(name:.*?)```", page, re.DOTALL)]
    called = []
    for job in caller["jobs"].values():
        path = ROOT / job["uses"].partition("@")[0].removeprefix("OWNER/contract-harness/")
        granted = job.get("permissions", caller["permissions"])
        whole = yaml.safe_load(path.read_text())
        inputs = (whole[True]["workflow_call"] or {}).get("inputs", {})  # to YAML 1.1 the key `on` is a boolean
        required = {name for name, declared in inputs.items() if declared.get("required")}
        assert required <= job.get("with", {}).keys() <= inputs.keys()
        asked = [whole["permissions"], *(one.get("permissions", {}) for one in whole["jobs"].values())]
        assert all(one.items() <= granted.items() for one in asked)
        called.append(path.name)
    assert called == ["gate.yml", "comment.yml"]


def test_the_ci_page_begins_with_a_workflow_for_contracts_written_by_init() -> None:
    """The workflow reads contracts where `init` writes them, and uses only inputs that the action has."""
    page = (ROOT / "docs" / "ci.md").read_text()
    first, block = re.findall(r"^(## .+?)$.*?```yaml\n(name:.*?)```", page, re.DOTALL | re.MULTILINE)[0]
    assert first == "## The workflow to copy"
    assert page.index(first) == page.index("## ")
    [job] = yaml.safe_load(block)["jobs"].values()
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    used = job["steps"][-1]
    assert used["uses"] == "OWNER/contract-harness@main"
    assert used["with"].keys() <= action["inputs"].keys()
    assert used["with"]["contracts"] == action["inputs"]["contracts"]["default"] == f"{kept_folder()}/"
    assert "timeout-minutes" in job


def kept_folder() -> str:
    """Where `init` writes a contract."""
    draft = SimpleNamespace(adapter_name="a.py", contract_name="c.yaml", long_contract=lambda: None)
    return kept_files(cast("Draft", draft), Path())[1].parent.name
