"""Rehearse a workflow file: run its steps here, in their order and under their conditions.

    python scripts/rehearse_workflow.py [--workflow .github/workflows/gpu-gate.yml] [--skip verify.install] [folder]

The folder (by default this one) takes the checkout's place; the exit code is 0 when every job succeeded. Known are
`run` steps, checkout (nothing to do), upload-artifact (the files must be there), `if: always()`, `needs`,
`${{ needs.JOB.result }}`, and jobs that call a workflow beside their own, with its inputs. Any other condition
counts as true.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

Results = dict[str, str]  # job or `job.step` -> success, failure, skipped
_RESULT = re.compile(r"\$\{\{\s*needs\.([\w-]+)\.result\s*\}\}")
_INPUT = re.compile(r"\$\{\{\s*inputs\.([\w-]+)\s*\}\}")
_BESIDE = "./.github/workflows/"
_EXPRESSION = re.compile(r"\$\{\{.*?\}\}")


def read_workflow(path: Path) -> dict[str, Any]:
    """A workflow file, with the jobs of a workflow that it calls in the place of the job that calls it.

    Raises ValueError for a workflow of another repository, and where an input is missing or unknown.
    """
    workflow: dict[str, Any] = yaml.safe_load(path.read_text())
    jobs: dict[str, Any] = {}
    for name, job in workflow["jobs"].items():
        if "uses" in job:
            jobs |= called_jobs(path.parent, job)
        else:
            jobs[name] = job
    return {**workflow, "jobs": jobs}


def called_jobs(folder: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    """The jobs of the workflow in `folder` that a job calls, with the values that it gives to the inputs."""
    if not job["uses"].startswith(_BESIDE):
        raise ValueError(f"a rehearsal does not know {job['uses']}")
    called = yaml.safe_load((folder / job["uses"].removeprefix(_BESIDE)).read_text())
    declared = called[True]["workflow_call"]["inputs"]  # to YAML 1.1 the key `on` is a boolean
    given = job.get("with", {})
    missing = [name for name, one in declared.items() if one.get("required") and name not in given]
    if wrong := [*missing, *(given.keys() - declared.keys())]:
        raise ValueError(f"missing or unknown inputs: {', '.join(wrong)}")
    values = {name: one.get("default") for name, one in declared.items()} | given
    jobs: dict[str, Any] = _filled(called["jobs"], values)
    return jobs


def _filled(value: Any, inputs: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, inputs) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, inputs) for each in value]
    return _INPUT.sub(lambda found: str(inputs[found[1]]), value) if isinstance(value, str) else value


def rehearse(
    workflow: Mapping[str, Any],
    folder: Path,
    *,
    skip: frozenset[str] = frozenset(),
    after: Mapping[str, Callable[[], object]] | None = None,
) -> Results:
    """Run the jobs in the file's order. `skip`: jobs, or `job.step`s, that do not run; `after`: called after a step.

    Raises ValueError for what a rehearsal does not know.
    """
    results: Results = {}
    environment = {**os.environ, "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(folder / "step-summary.md")}
    for name, job in workflow["jobs"].items():
        needs = job.get("needs", [])
        needed = [results[one] for one in ([needs] if isinstance(needs, str) else needs)]
        blocked = job.get("if") != "always()" and any(result != "success" for result in needed)
        if name in skip or blocked:
            results[name] = "skipped"
            continue
        steps = _steps(name, job["steps"], folder, results, environment, skip, after or {})
        results |= {f"{name}.{step}": result for step, result in steps.items()}
        results[name] = "failure" if "failure" in steps.values() else "success"
    return results


def _steps(
    job: str,
    steps: list[dict[str, Any]],
    folder: Path,
    results: Results,
    environment: Mapping[str, str],
    skip: frozenset[str],
    after: Mapping[str, Callable[[], object]],
) -> Results:
    ended: Results = {}
    for number, step in enumerate(steps):
        name = step.get("id", str(number))
        goes_on = "failure" not in ended.values() or step.get("if") == "always()"
        if f"{job}.{name}" in skip or not goes_on:
            ended[name] = "skipped"
        elif "run" in step:
            script = _RESULT.sub(lambda found: results[found[1]], step["run"])
            _refuse_expressions(script)
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
            code = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
            ended[name] = "failure" if code else "success"
        else:
            ended[name] = _action(step, folder)
        print(f"{job}.{name}: {ended[name]}", flush=True)
        after.get(f"{job}.{name}", lambda: None)()
    return ended


def _refuse_expressions(script: str) -> None:
    if found := _EXPRESSION.search(script):
        raise ValueError(f"a rehearsal does not know {found[0]}")


def _action(step: Mapping[str, Any], folder: Path) -> str:
    action = str(step["uses"]).partition("@")[0]
    if action == "actions/checkout":
        return "success"
    if action != "actions/upload-artifact":
        raise ValueError(f"a rehearsal does not know {action}")
    options = step["with"]
    there = any(folder.glob(str(options["path"]).rstrip("/")))
    return "success" if there or options.get("if-no-files-found") != "error" else "failure"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    parser.add_argument("--workflow", type=Path, default=Path(".github/workflows/gpu-gate.yml"))
    parser.add_argument("--skip", action="append", default=[], help="a job, or a `job.step`; may be repeated")
    arguments = parser.parse_args()
    workflow = read_workflow(arguments.workflow)
    results = rehearse(workflow, arguments.folder.resolve(), skip=frozenset(arguments.skip))
    jobs = {name: results[name] for name in workflow["jobs"]}
    print("; ".join(f"{name}: {result}" for name, result in jobs.items()))
    return 0 if set(jobs.values()) == {"success"} else 1


if __name__ == "__main__":
    sys.exit(main())
