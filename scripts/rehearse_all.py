"""Rehearse every workflow of this project with its own steps, installation included: `.ci/long rehearsals`.

    python scripts/rehearse_all.py [NAME ...]
    python scripts/rehearse_all.py --installed

Prints each step; the last line has the figures. It fails where a job or an exit code is not as it must be on a machine
without a GPU. What is not run here: docs/ci.md. `--installed` runs in a minute what needs no installation, `BLOCKS`,
with the environment of this Python in place of each that a job makes, whichever Python the job asks for: `.ci/run`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from newest_python import VERSIONS
from rehearse_workflow import REPOSITORY, Rehearsal, event

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
UNDECIDED = 10  # what a gate that needs a GPU ends with here
OF_MAIN = {"event": "push", "head_repository": {"full_name": REPOSITORY}, "head_sha": "", "id": 1}


@dataclass(frozen=True)
class Planned:
    """A rehearsal: its workflow, the event, inputs of one that is called, what is left out; and how it must end.

    `jobs`: the results that are not `success`, apart from jobs that are `skipped` or `elsewhere`; `codes`: exit codes
    of scripts that are not 0.
    """

    workflow: str
    github: Mapping[str, Any]
    given: Mapping[str, Any] | None = None
    skip: frozenset[str] = frozenset()
    jobs: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)


_INSTALL = ".venv/bin/pip install --constraint constraints.txt --editable '.[run,reference]'"
_SHUT = {f"gpu{name}": "failure" for name in ("", "/verify", "/verify(0)", "/verify(1)", "/merge", "/gate")}
REHEARSALS = {
    "forks": Planned(
        "gpu-gate.yml",
        event("pull_request", fork=True),
        jobs={"gpu": "failure", "gpu/gate": "failure"},
        codes={"gpu/gate.every-unit-held": 1},
    ),
    "pull request": Planned(
        "gpu-gate.yml",
        event("pull_request"),
        jobs=_SHUT,
        codes={
            **dict.fromkeys(("gpu/verify(0).gate", "gpu/verify(1).gate", "gpu/merge.gate"), UNDECIDED),
            "gpu/gate.every-unit-held": 1,
        },
    ),
    "attest": Planned("attest.yml", event("workflow_run", workflow_run=OF_MAIN)),  # of the pull request's parts
    "drill": Planned(
        "drill.yml",
        event("schedule"),
        {
            "install": _INSTALL,
            "contracts": "contracts/traced-step-v1.yaml",
            "options": "--claim TRACED-STEP-002 --fault stale_batch",
        },
    ),
    "checks": Planned(
        "checks.yml", event("push"), skip=frozenset({"checks(1)", "checks(2)"})
    ),  # `.ci/run` is these two
    "release": Planned("release.yml", {**event("push"), "ref_name": f"v{VERSION}"}),
}
# the attestation is of the fork's gate, which is one part; the other jobs of `checks` install, build or take minutes
BLOCKS = {
    "forks": REHEARSALS["forks"],
    "attest": replace(REHEARSALS["attest"], skip=frozenset({"attest(1)"})),
    "drill": REHEARSALS["drill"],
    "checks": replace(
        REHEARSALS["checks"],
        skip=frozenset({"checks", "newest-python", "site", "runs-elsewhere", ".torch-is-absent"}),
    ),
}


def rehearsed(name: str, planned: Planned, scratch: Path, *, installed: bool) -> tuple[Rehearsal, list[str]]:
    """The rehearsal, and what did not end as it must, a line each. installed: this Python's environment is used."""
    (scratch / "bin").mkdir(parents=True, exist_ok=True)
    if not (gh := scratch / "bin" / "gh").exists():
        gh.symlink_to(ROOT / "scripts" / "stand_in_gh.py")
    variables = {
        "PATH": f"{scratch / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "GH_COMMENTS": str(scratch / "comments.json"),
    }
    rehearsal = Rehearsal(ROOT, scratch, planned.github, planned.skip, variables=variables)
    if installed:
        rehearsal.installed, rehearsal.python = Path(sys.prefix), VERSIONS[0]
    rehearsal.run(WORKFLOWS / planned.workflow, planned.given)
    jobs = {job: result for job, result in rehearsal.results.items() if "." not in job}
    bad = {job: result for job, result in jobs.items() if result == "failure"}
    codes = {step: code for step, code in rehearsal.codes.items() if code}
    wrong = [] if bad == planned.jobs else [f"{name}: failed {bad}, not {planned.jobs}"]
    return rehearsal, wrong + ([] if codes == planned.codes else [f"{name}: exit codes {codes}, not {planned.codes}"])


def main() -> int:
    installed = sys.argv[1:] == ["--installed"]
    chosen = BLOCKS if installed else {name: REHEARSALS[name] for name in sys.argv[1:] or REHEARSALS}
    wrong: list[str] = []
    executed = elsewhere = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, planned in chosen.items():
            # attest.yml goes on with what the gate uploaded
            scratch = Path(folder) / (("forks" if installed else "pull request") if name == "attest" else name)
            rehearsal, found = rehearsed(name, planned, scratch, installed=installed)
            wrong += found
            executed += len(rehearsal.codes)
            elsewhere += sum("(" in job for job, result in rehearsal.results.items() if result == "elsewhere")
    for line in wrong:
        print(line)
    print(
        f"{len(chosen)} rehearsals, {executed} scripts executed, {elsewhere} jobs for other machines, "
        f"{len(wrong)} not as they must be"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
