"""Rehearse a workflow file: run its steps here, in their order and under their conditions.

    python scripts/rehearse_workflow.py [--workflow .github/workflows/gpu-gate.yml] [--skip verify.install] [folder]

The folder (by default this one) takes the checkout's place; the exit code is 0 when every job succeeded. Known are
`run` steps, checkout (nothing to do), upload-artifact (the files must be there), `if: always()`, `needs` and
`${{ needs.JOB.result }}`. Any other condition counts as true.
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
_EXPRESSION = re.compile(r"\$\{\{.*?\}\}")


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
    workflow = yaml.safe_load(arguments.workflow.read_text())
    results = rehearse(workflow, arguments.folder.resolve(), skip=frozenset(arguments.skip))
    jobs = {name: results[name] for name in workflow["jobs"]}
    print("; ".join(f"{name}: {result}" for name, result in jobs.items()))
    return 0 if set(jobs.values()) == {"success"} else 1


if __name__ == "__main__":
    sys.exit(main())
