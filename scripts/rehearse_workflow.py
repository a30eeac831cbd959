"""Rehearse a workflow file: run its steps here, in their order and under their conditions.

    python scripts/rehearse_workflow.py [--workflow .github/workflows/gpu-gate.yml] [--event push] [--skip STEP] [DIR]

The folder (by default this one) is what is checked out; the exit code is 0 when no job failed. Every job has a
workspace of its own, actions are stand-ins (`workflow_actions.py`), workflows beside the file are called with their
inputs, a matrix is a job each. A job for another system or Python is not run, but counted as `elsewhere`. What a
rehearsal does not know is refused. An environment that is `installed` already stands for all that install steps make.

Jobs are named as in `gpu/verify`, those of a matrix `gpu/verify(0)`, steps `gpu/verify(0).install`, or by their number;
`.install` is that step of every job.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from workflow_actions import Job, perform
from workflow_expressions import filled, holds

Results = dict[str, str]  # job or `job.step` -> success, failure, skipped, elsewhere
BESIDE = "./.github/workflows/"
REPOSITORY = "owner/project"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def event(name: str, *, fork: bool = False, **payload: Any) -> dict[str, Any]:
    """The context `github` of an event of this repository; `fork`: of a pull request from another one."""
    if name == "pull_request":
        payload["pull_request"] = {"number": 7, "head": {"repo": {"full_name": "else/fork" if fork else REPOSITORY}}}
    known = {"repository": REPOSITORY, "server_url": "https://github.invalid", "run_id": "1", "token": "none"}
    return {**known, "event_name": name, "workflow": "rehearsal", "ref_name": "main", "event": payload}


@dataclass
class Rehearsal:
    """What is checked out, a folder for all that is made, the event; steps that are left out, and calls after steps.

    A step's `after` gets the job's workspace. installed: an environment in place of what the steps `install` make.
    python: the version for which jobs ask that run here.
    """

    source: Path
    scratch: Path
    github: Mapping[str, Any] = field(default_factory=lambda: event("push"))
    skip: frozenset[str] = frozenset()
    after: Mapping[str, Callable[[Path], object]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    installed: Path | None = None
    python: str = PYTHON
    results: Results = field(default_factory=dict)
    runners: dict[str, Any] = field(default_factory=dict)  # the labels of each job's machine
    codes: dict[str, int] = field(default_factory=dict)  # the exit code of each script

    def run(self, path: Path, given: Mapping[str, Any] | None = None) -> Results:
        """The result of every job and step; `given`: the inputs of a workflow that is called.

        Raises ValueError for what a rehearsal does not know.
        """
        self._jobs(path, "", {} if given is None else inputs_of(path, given))
        return self.results

    def _jobs(self, path: Path, prefix: str, inputs: Mapping[str, Any]) -> list[str]:
        ended: dict[str, str] = {}
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            needs = [job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", [])
            context = {
                "github": self.github,
                "needs": {one: {"result": ended[one]} for one in needs},
                "inputs": inputs,
                "fromJSON": json.loads,
                **_states([ended[one] for one in needs]),
            }
            full = f"{prefix}{name}"
            ended[name] = "skipped"
            if full not in self.skip and holds(job.get("if"), context):
                ended[name] = self._job(path, job, full, context)
            self.results[full] = ended[name]
        return list(ended.values())

    def _job(self, path: Path, job: Mapping[str, Any], name: str, context: dict[str, Any]) -> str:
        if "uses" in job:
            if not job["uses"].startswith(BESIDE):
                raise ValueError(f"a rehearsal does not know {job['uses']}")
            called, given = path.parent / job["uses"].removeprefix(BESIDE), filled(job.get("with", {}), context)
            return _together(self._jobs(called, f"{name}/", inputs_of(called, given)))
        rows = matrix(filled(job.get("strategy", {}).get("matrix", {}), context))
        ended = []
        for index, row in enumerate(rows):
            own = {**context, "matrix": row, "strategy": {"job-index": str(index)}}
            full = f"{name}({index})" if len(rows) > 1 else name
            self.runners[full] = filled(job["runs-on"], own)
            here = _is_here(job, self.runners[full], own, self.python)
            ended.append("skipped" if full in self.skip else self._steps(job, full, own) if here else "elsewhere")
            self.results[full] = ended[-1]
        return _together(ended)

    def _steps(self, job: Mapping[str, Any], name: str, context: dict[str, Any]) -> str:
        place = self._prepared(name)
        machine = {"os": "Linux", "arch": "X64", "temp": str(place.temporary)}
        github = {**self.github, "workspace": str(place.workspace)}
        context |= {"github": github, "runner": machine, "hashFiles": lambda *names: _digest(place.workspace, names)}
        place.environment |= {key: str(value) for key, value in filled(job.get("env", {}), context).items()}
        ended: list[str] = []
        for number, step in enumerate(job["steps"]):
            called = f".{step.get('id', number)}"
            full = f"{name}{called}"
            left_out = bool({full, called} & self.skip) or (self.installed is not None and called == ".install")
            goes_on = holds(step.get("if"), {**context, **_states([each for each in ended if each != "skipped"])})
            result = self._step(full, step, place, context) if goes_on and not left_out else "skipped"
            self.results[full] = result
            ended.append("success" if left_out else result)
            print(f"{full}: {result}", flush=True)
            if full in self.after:
                self.after[full](place.workspace)
        if "failure" not in ended:
            for save in place.to_save:
                save()
        return "failure" if "failure" in ended else "success"

    def _prepared(self, name: str) -> Job:
        folder = self.scratch / "jobs" / name.replace("/", "-")
        workspace, temporary = folder / "workspace", folder / "temporary"
        for each in (workspace, temporary, self.scratch / "artifacts", self.scratch / "caches"):
            each.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **self.variables, "CI": "true", "GITHUB_ACTIONS": "true"}
        environment |= {"GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "RUNNER_TEMP": str(temporary)}
        environment |= {"GITHUB_REPOSITORY": REPOSITORY, "GITHUB_REF_NAME": str(self.github["ref_name"])}
        shared = self.scratch / "artifacts", self.scratch / "caches"
        return Job(self.source, workspace, temporary, *shared, environment, to_save=[], installed=self.installed)

    def _step(self, name: str, step: Mapping[str, Any], job: Job, context: Mapping[str, Any]) -> str:
        if "run" not in step:
            return perform(step["uses"], job, filled(step.get("with", {}), context))
        script = job.temporary / "step.sh"
        script.write_text(filled(step["run"], context))
        own = {key: str(value) for key, value in filled(step.get("env", {}), context).items()}
        limit = float(filled(step.get("timeout-minutes", 360), context)) * 60
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        try:
            environment = {**job.environment, **own}
            done = subprocess.run(command, cwd=job.workspace, env=environment, check=False, timeout=limit)
        except subprocess.TimeoutExpired:
            return "failure"
        self.codes[name] = done.returncode
        return "failure" if done.returncode else "success"


def inputs_of(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """All inputs of a workflow that is called. Raises ValueError where one is missing or unknown."""
    called = yaml.safe_load(path.read_text())[True]["workflow_call"] or {}  # to YAML 1.1 the key `on` is a boolean
    declared = called.get("inputs", {})
    missing = [name for name, one in declared.items() if one.get("required") and name not in given]
    if wrong := [*missing, *(given.keys() - declared.keys())]:
        raise ValueError(f"missing or unknown inputs: {', '.join(wrong)}")
    return {name: one.get("default") for name, one in declared.items()} | dict(given)


def matrix(declared: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a matrix: `include` alone, or each combination; one row without any."""
    if "include" in declared:
        return list(declared["include"])
    return [dict(zip(declared, row, strict=True)) for row in itertools.product(*declared.values())]


def _is_here(job: Mapping[str, Any], runner: Any, context: Mapping[str, Any], python: str) -> bool:
    """Whether this machine may stand for the runner: Linux or our own, with the Python that the job asks for."""
    asked = {filled(each.get("with", {}).get("python-version"), context) for each in job["steps"]}
    return (isinstance(runner, list) or "ubuntu" in runner) and asked <= {None, python}


def _states(results: list[str]) -> dict[str, Callable[[], bool]]:
    return {
        "always": lambda: True,
        "cancelled": lambda: False,
        "failure": lambda: "failure" in results,
        "success": lambda: not {"failure", "skipped"} & {*results},
    }


def _together(results: list[str]) -> str:
    """Of several jobs: one that failed fails all, and skipped are all or none."""
    return next((each for each in ("failure", "success", "elsewhere") if each in results), "skipped")


def _digest(workspace: Path, patterns: tuple[str, ...]) -> str:
    files = sorted({each for pattern in patterns for each in workspace.glob(pattern)})
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest() if files else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    parser.add_argument("--workflow", type=Path, default=Path(".github/workflows/gpu-gate.yml"))
    parser.add_argument("--event", choices=["push", "pull_request", "schedule"], default="push")
    parser.add_argument("--skip", action="append", default=[], help="a job or step; may be repeated")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        skip = frozenset(arguments.skip)
        rehearsal = Rehearsal(arguments.folder.resolve(), Path(scratch), event(arguments.event), skip)
        results = rehearsal.run(arguments.workflow)
    jobs = {name: result for name, result in results.items() if "." not in name}
    print("; ".join(f"{name}: {result}" for name, result in jobs.items()))
    return 1 if "failure" in jobs.values() else 0


if __name__ == "__main__":
    sys.exit(main())
