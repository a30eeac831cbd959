"""The gate's workflows, rehearsed: which jobs run for whom, what shuts the gate, and what is kept whatever happens.

The harness is a stand-in here, which ends as a test says: what it finds is tested elsewhere. `.ci/long rehearsals` runs
every workflow with the real one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rehearse_workflow import Rehearsal, event, inputs_of

from harness.contract.load import load_contracts

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
PARTS = {"install": "false", "parts": '["--workload a", "--workload b"]'}
OPEN = ("success", "success", "success")
Rehearse = Callable[..., Rehearsal]
Ends = Callable[..., None]


def jobs(rehearsal: Rehearsal, prefix: str = "") -> tuple[str, str, str]:
    verify, merge, gate = (rehearsal.results[f"{prefix}{name}"] for name in ("verify", "merge", "gate"))
    return verify, merge, gate


def artifacts(rehearsal: Rehearsal) -> list[str]:
    return sorted(each.name for each in (rehearsal.scratch / "artifacts").iterdir())


def test_parts_are_verified_apart_and_judged_together(rehearse: Rehearse) -> None:
    rehearsal = rehearse("gate.yml", PARTS)
    assert jobs(rehearsal) == OPEN
    assert artifacts(rehearsal) == ["merged", "part-0", "part-1", "report.html"]
    merged = rehearsal.scratch / "artifacts" / "merged"
    run = [json.loads((merged / "parts" / f"part-{part}" / "run.json").read_text()) for part in range(2)]
    assert [each["arguments"][-2:] for each in run] == [["--workload", "a"], ["--workload", "b"]]
    assert (merged / "badge.json").exists()
    assert (merged / "merged" / "report.html").exists()


def test_annotations_and_summary_are_the_merged_gates_alone(rehearse: Rehearse) -> None:
    """GitHub shows fifty annotations of a run: a part's would take the room of the whole's."""
    rehearsal = rehearse("gate.yml", PARTS)
    header = json.loads((rehearsal.scratch / "artifacts" / "part-0" / "part-0" / "run.json").read_text())
    assert header["seen"] == {"GITHUB_ACTIONS": None, "GITHUB_STEP_SUMMARY": None}
    summaries = [path.read_text() for path in rehearsal.scratch.glob("jobs/*/summary.md")]
    assert summaries == ["judged: part-0, part-1\n"]


@pytest.mark.parametrize("code", [1, 10, 12, 143])
def test_a_part_that_does_not_hold_shuts_the_gate_and_all_is_kept(rehearse: Rehearse, ends: Ends, code: int) -> None:
    ends(part_1=code)
    rehearsal = rehearse("gate.yml", PARTS)
    assert jobs(rehearsal) == ("failure", "success", "failure")
    assert artifacts(rehearsal) == ["merged", "part-0", "part-1", "report.html"]


def test_parts_that_hold_apart_and_not_together_shut_it_and_the_page_is_kept(rehearse: Rehearse, ends: Ends) -> None:
    ends(judge=10)
    rehearsal = rehearse("gate.yml", PARTS)
    assert jobs(rehearsal) == ("success", "failure", "failure")
    assert artifacts(rehearsal) == ["merged", "part-0", "part-1", "report.html"]


@pytest.fixture
def quick_venv(tmp_path: Path) -> dict[str, str]:
    """Variables under which an environment is made without pip, which takes seconds."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    python = tmp_path / "bin" / "python3"
    python.write_text('#!/bin/sh\ntest "$1 $2" = "-m venv" && mkdir -p "$3/bin"\n')
    python.chmod(0o755)
    return {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def test_an_install_step_that_fails_shuts_it(rehearse: Rehearse, quick_venv: dict[str, str]) -> None:
    rehearsal = rehearse("gate.yml", {"install": "false"}, skip=frozenset(), variables=quick_venv)
    assert (rehearsal.results["verify.install"], rehearsal.results["verify.gate"]) == ("failure", "skipped")
    assert jobs(rehearsal) == ("failure", "failure", "failure")


def test_an_installed_environment_stands_for_what_install_steps_make(
    rehearse: Rehearse, source: Path, tmp_path: Path
) -> None:
    installed = (source / ".venv").rename(tmp_path / "installed")
    options = {"skip": frozenset(), "installed": installed, "python": "3.0"}
    assert jobs(rehearse("gate.yml", {"install": "false"}, **options)) == OPEN
    (tmp_path / "workflow.yml").write_text(
        "jobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n"
        "      - {uses: actions/setup-python@v1, with: {python-version: '3.0'}}\n"
        "      - {id: install, run: 'false'}\n"
        "      - {id: found, run: 'test $(command -v harness) = $INSTALLED/bin/harness'}\n"
    )
    options["variables"] = {"INSTALLED": str(installed)}
    assert rehearse(str(tmp_path / "workflow.yml"), **options).results["a.found"] == "success"


def test_a_contract_that_check_refuses_shuts_it(rehearse: Rehearse, ends: Ends) -> None:
    ends(check=11)
    rehearsal = rehearse("gate.yml", {"install": "false"})
    assert (rehearsal.results["verify.contracts"], rehearsal.results["verify.gate"]) == ("failure", "skipped")
    assert jobs(rehearsal) == ("failure", "failure", "failure")


def test_a_verification_that_was_skipped_shuts_it(rehearse: Rehearse) -> None:
    rehearsal = rehearse("gate.yml", PARTS, skip=frozenset({"verify"}))
    assert jobs(rehearsal) == ("skipped", "skipped", "failure")


def test_one_job_of_a_matrix_can_be_left_out(rehearse: Rehearse) -> None:
    rehearsal = rehearse("gate.yml", PARTS, skip=frozenset({"verify(1)", ".install"}))
    assert artifacts(rehearsal) == ["merged", "part-0", "report.html"]
    assert rehearsal.results["verify(1)"] == "skipped"


def test_a_missing_page_shuts_it(rehearse: Rehearse) -> None:
    lost = {"merge.gate": lambda workspace: (workspace / "merged" / "report.html").unlink()}
    rehearsal = rehearse("gate.yml", PARTS, after=lost)
    assert jobs(rehearsal) == ("success", "failure", "failure")


def test_what_was_compiled_is_kept_for_the_same_part_and_never_with_the_run(rehearse: Rehearse) -> None:
    def compile_a_kernel(workspace: Path) -> None:
        (workspace / ".cache" / "triton").mkdir(parents=True)
        (workspace / ".cache" / "triton" / "kernel").touch()

    rehearsal = rehearse("gate.yml", PARTS, after={"verify(1).gate": compile_a_kernel})
    caches = sorted(
        path.relative_to(rehearsal.scratch / "caches") for path in rehearsal.scratch.glob("caches/**/kernel")
    )
    assert caches == [Path("gate-Linux-X64-1-/triton/kernel")]
    again = Rehearsal(rehearsal.source, rehearsal.scratch, rehearsal.github, rehearsal.skip)
    found: list[bool] = []
    again.after = {
        f"verify({part}).cache": lambda workspace: found.append((workspace / ".cache" / "triton" / "kernel").exists())
        for part in range(2)
    }
    for artifact in rehearsal.scratch.glob("artifacts/*"):
        artifact.rename(rehearsal.scratch / artifact.name)
    again.run(WORKFLOWS / "gate.yml", PARTS)
    assert found == [False, True]


def test_another_repositorys_call_installs_and_verifies_what_it_says(
    rehearse: Rehearse, quick_venv: dict[str, str]
) -> None:
    given = {"install": "touch installed\ntouch $PWD/too", "contracts": "demands/", "options": "--claim A-1"}
    rehearsal = rehearse("gate.yml", given, skip=frozenset(), variables=quick_venv)
    workspace = rehearsal.scratch / "jobs" / "verify" / "workspace"
    header = json.loads((workspace / "parts" / "part-0" / "run.json").read_text())
    assert header["arguments"] == [
        *("verify", "demands/", "--gate", "--reports", "parts", "--name", "part-0", "--claim", "A-1")
    ]
    assert ((workspace / "installed").exists(), (workspace / "too").exists()) == (True, True)


@pytest.mark.parametrize(
    ("name", "given", "runs"),
    [
        ("push", {}, ["gpu/gate", "gpu/merge", "gpu/verify"]),
        ("schedule", {}, ["drill/drill"]),
        ("pull_request", {}, ["comment/comment", "gpu/gate", "gpu/merge", "gpu/verify"]),
        ("pull_request", {"fork": True}, ["forks/gate", "forks/merge", "forks/verify", "gpu/gate"]),
    ],
    ids=["push", "nightly", "pull request", "fork"],
)
def test_who_gets_which_jobs(
    rehearse: Rehearse, gh: dict[str, str], name: str, given: dict[str, Any], runs: list[str]
) -> None:
    """Foreign code gets a hosted runner alone, and its gate on the GPU stays shut; else all that runs succeeds."""
    rehearsal = rehearse("gpu-gate.yml", github=event(name, **given), variables=gh)
    innermost = {job: result for job, result in rehearsal.results.items() if "/" in job and not {".", "("} & {*job}}
    assert sorted(job for job, result in innermost.items() if result != "skipped") == runs
    assert [job for job in runs if innermost[job] != "success"] == (["gpu/gate"] if given else [])
    on_our_machines = [job for job, runner in rehearsal.runners.items() if isinstance(runner, list)]
    assert bool(on_our_machines) is not bool(given)


@pytest.fixture
def gh(tmp_path: Path) -> dict[str, str]:
    """Variables under which `gh` is a stand-in; the pull request's comments are a file."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gh").symlink_to(ROOT / "scripts" / "stand_in_gh.py")
    return {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GH_COMMENTS": str(tmp_path / "comments.json"),
    }


def commented(rehearse: Rehearse, gh: dict[str, str], summary: str) -> list[dict[str, Any]]:
    """The comments after a run with this summary; `comment.yml` alone, with what the gate leaves."""

    def bring(workspace: Path) -> None:
        (workspace / "merged").mkdir()
        (workspace / "merged" / "summary.md").write_text(summary)

    rehearsal = rehearse(
        "comment.yml",
        {},
        github=event("pull_request"),
        variables=gh,
        skip=frozenset({"comment.0"}),
        after={"comment.0": bring},
    )
    assert rehearsal.results["comment"] == "success"
    comments: list[dict[str, Any]] = json.loads(Path(gh["GH_COMMENTS"]).read_text())
    return comments


def test_the_comment_is_rewritten_and_others_are_left(rehearse: Rehearse, gh: dict[str, str]) -> None:
    quoted = "<!-- contract-harness: rehearsal --> quoted by somebody"
    others = [{"id": number, "user": {"login": "ada"}, "body": quoted} for number in range(1, 36)]
    others += [{"id": 36, "user": {"login": "github-actions[bot]"}, "body": "another workflow's"}]
    Path(gh["GH_COMMENTS"]).write_text(json.dumps(others))
    for summary in ("1 planned · 0 held\n", "1 planned · 1 held\n"):
        *rest, last = commented(rehearse, gh, summary)
        assert rest == others
        assert last["body"] == (
            "<!-- contract-harness: rehearsal -->\n"
            "[The whole page, and the run directories](https://github.invalid/owner/project/actions/runs/1)\n\n"
            f"{summary}"
        )


def test_a_long_summary_is_cut_between_lines(rehearse: Rehearse, gh: dict[str, str]) -> None:
    [comment] = commented(rehearse, gh, f"{'x' * 999}\n" * 100)
    head, *lines = comment["body"].split("\n\n", 1)[1].splitlines()
    assert (head, lines[-1], {*lines[:-3]}) == ("x" * 999, "The rest is on the page.", {"x" * 999})
    assert len(lines) == 62


def test_a_drill_that_a_fault_survives_fails_and_is_kept(rehearse: Rehearse, ends: Ends) -> None:
    ends(drill=1)
    rehearsal = rehearse("drill.yml", {"install": "false", "options": "--claim A-1"})
    assert (rehearsal.results["drill.drill"], rehearsal.results["drill"]) == ("failure", "failure")
    assert artifacts(rehearsal) == ["drill"]
    assert (rehearsal.scratch / "jobs" / "drill" / "summary.md").read_text() == "drilled\n"


def test_foreign_code_is_not_drilled(rehearse: Rehearse) -> None:
    drilled = rehearse("drill.yml", {"install": "false"}, github=event("pull_request", fork=True))
    assert drilled.results == {"drill": "skipped"}


def of_a_gate(name: str = "push", repository: str = "owner/project") -> dict[str, Any]:
    """The event of a gate that has ended."""
    run = {"event": name, "head_repository": {"full_name": repository}, "head_sha": "0", "id": 1}
    return event("workflow_run", workflow_run=run)


def test_every_part_of_the_gate_on_main_is_attested(rehearse: Rehearse, source: Path) -> None:
    gate = rehearse("gpu-gate.yml")
    path = f"{source / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    attest = Rehearsal(source, gate.scratch, of_a_gate(), frozenset({".1", ".install"}), variables={"PATH": path})
    attest.run(WORKFLOWS / "attest.yml")
    parts = [name for name in artifacts(gate) if name.startswith("part-")]
    attested = [
        json.loads(each.read_text())["result"] for each in sorted(gate.scratch.glob("jobs/attest*/*/predicate.json"))
    ]
    assert (attest.results["attest"], attested) == ("success", parts)


@pytest.mark.parametrize(
    "github", [of_a_gate("pull_request", "else/fork"), of_a_gate("push", "else/fork"), of_a_gate("pull_request")]
)
def test_nothing_but_a_push_to_our_own_main_is_attested(rehearse: Rehearse, github: dict[str, Any]) -> None:
    """A fork's branch may be called `main`, too."""
    assert rehearse("attest.yml", github=github).results == {"attest": "skipped"}


def test_the_parts_of_our_gate_are_the_whole_of_it() -> None:
    import yaml

    given = yaml.safe_load((WORKFLOWS / "gpu-gate.yml").read_text())["jobs"]["gpu"]["with"]
    words = [word for part in json.loads(given["parts"]) for word in part.split() if word != "--workload"]
    claims = [claim for loaded in load_contracts([ROOT / "contracts"]) for claim in loaded.contract.claims]
    assert sorted(words) == sorted({workload for claim in claims for workload in claim.judged_on})


@pytest.mark.parametrize(
    ("given", "wrong"),
    [({}, "missing or unknown inputs: install"), ({"install": "", "runs": "x"}, "missing or unknown inputs: runs")],
)
def test_a_call_that_github_would_refuse_is_refused(given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        inputs_of(WORKFLOWS / "gate.yml", given)


@pytest.mark.parametrize(
    ("job", "unknown"),
    [
        ("{runs-on: ubuntu-latest, steps: [{run: 'echo ${{ secrets.TOKEN }}'}]}", r"\$\{\{ secrets.TOKEN \}\}"),
        ("{runs-on: ubuntu-latest, steps: [{uses: some/action@v1}]}", "some/action@v1"),
        ("{uses: some/one/.github/workflows/gate.yml@v1}", "some/one/.github"),
    ],
)
def test_what_a_rehearsal_does_not_know_is_refused(rehearse: Rehearse, tmp_path: Path, job: str, unknown: str) -> None:
    (tmp_path / "workflow.yml").write_text(f"jobs:\n  a: {job}\n")
    with pytest.raises(ValueError, match=f"a rehearsal does not know {unknown}"):
        rehearse(str(tmp_path / "workflow.yml"))
