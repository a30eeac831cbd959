"""The workflow's steps, rehearsed: open when everything held, shut for everything else. Its install step, too."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from offline_packages import offline_checkout

from harness.contract.load import load_contracts

ROOT = Path(__file__).parents[2]
SCRIPTED = ROOT / "tests" / "support" / "scripted"
WORKFLOW = ROOT / ".github" / "workflows" / "gpu-gate.yml"
INSTALL = frozenset({"verify.install"})  # the rehearsal brings its own
INSTALLED_WITH_EXTRAS = re.compile(r"'\.\[([\w,-]+)\]'")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rehearse_workflow", ROOT / "scripts" / "rehearse_workflow.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the harness where the workflow's install step puts it."""
    monkeypatch.syspath_prepend(str(SCRIPTED))
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    write_harness(tmp_path)
    (tmp_path / "contracts").mkdir()
    return tmp_path


@pytest.fixture
def bare_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the runner checks it out: nothing is installed, and pip finds stand-ins in place of an index."""
    monkeypatch.syspath_prepend(str(SCRIPTED))
    for name, value in offline_checkout(ROOT, tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    (tmp_path / "contracts").mkdir()
    return tmp_path


def write_harness(checkout: Path) -> None:
    harness = checkout / ".venv" / "bin" / "harness"
    harness.write_text(f'#!/bin/sh\nPYTHONPATH="{SCRIPTED}:{ROOT}" exec "{sys.executable}" -m harness "$@"\n')
    harness.chmod(0o755)


def write_contract(checkout: Path, *behaviours: str) -> None:
    from scripted_system import contract_text

    (checkout / "contracts" / "scripted-v1.yaml").write_text(contract_text(*behaviours))


def write_waiver(checkout: Path, expires: str) -> None:
    (checkout / "contracts" / "waivers.yaml").write_text(
        "schema: waivers/v1\nwaivers:\n  - {contract: scripted-v1, claim: SCRIPT-001, workload: violated, owner: ada, "
        f"reason: known, expires: {expires}}}\n"
    )


def rehearsed(script: ModuleType, checkout: Path, skip: frozenset[str] = INSTALL, **options: Any) -> dict[str, str]:
    results: dict[str, str] = script.rehearse(script.read_workflow(WORKFLOW), checkout, skip=skip, **options)
    return results


def needed_modules() -> set[str]:
    """What the shipped contracts' workloads name under `needs: modules:`."""
    contracts = [loaded.contract for loaded in load_contracts([ROOT / "contracts"])]
    return {name for each in contracts for workload in each.workloads.values() for name in workload.needs.modules}


def absent_modules(checkout: Path, modules: set[str]) -> list[str]:
    """Those that the environment of the install step cannot find."""
    look = "import importlib.util, sys; print(*[m for m in sys.argv[1:] if importlib.util.find_spec(m) is None])"
    command = [str(checkout / ".venv" / "bin" / "python"), "-I", "-c", look, *sorted(modules)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_the_install_step_brings_what_the_contracts_need_and_the_gate_opens(
    script: ModuleType, bare_checkout: Path
) -> None:
    write_contract(bare_checkout, "held")
    absent: list[str] = []

    def look_and_replace_the_command() -> None:
        absent.extend(absent_modules(bare_checkout, needed_modules()))
        assert (bare_checkout / ".venv" / "bin" / "harness").exists()
        write_harness(bare_checkout)  # the installed one would find stand-ins in place of its libraries

    results = rehearsed(script, bare_checkout, frozenset(), after={"verify.install": look_and_replace_the_command})
    assert (results["verify.install"], absent) == ("success", [])
    assert results["gate"] == "success"


def test_an_install_step_that_fails_shuts_the_gate(script: ModuleType, bare_checkout: Path) -> None:
    write_contract(bare_checkout, "held")
    (bare_checkout / "constraints.txt").write_text("pydantic==0.0.1\n")
    results = rehearsed(script, bare_checkout, frozenset())
    assert (results["verify.install"], results["verify.gate"], results["gate"]) == ("failure", "skipped", "failure")


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / ".github" / "workflows").glob("*.yml")), ROOT / "docs" / "ci.md", ROOT / "Makefile"],
    ids=str,
)
def test_extras_that_are_installed_exist(path: Path) -> None:
    """pip only warns of an extra that there is not, and installs the rest."""
    existing = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {name for extras in INSTALLED_WITH_EXTRAS.findall(path.read_text()) for name in extras.split(",")}
    assert named <= existing.keys()


def test_everything_held_opens_the_gate(script: ModuleType, checkout: Path) -> None:
    write_contract(checkout, "held")
    results = rehearsed(script, checkout)
    assert (results["verify"], results["gate"]) == ("success", "success")
    summary = (checkout / "step-summary.md").read_text()
    assert summary.startswith("1 planned · 1 held · 0 violated")


def test_a_waiver_in_force_keeps_it_open(script: ModuleType, checkout: Path) -> None:
    write_contract(checkout, "held", "violated")
    write_waiver(checkout, "2999-12-31")
    assert rehearsed(script, checkout)["gate"] == "success"


@pytest.mark.parametrize("behaviour", ["violated", "undecided", "not_run", "killed"])
def test_anything_but_held_shuts_it_and_the_report_is_kept(script: ModuleType, checkout: Path, behaviour: str) -> None:
    write_contract(checkout, "held", behaviour)
    results = rehearsed(script, checkout)
    assert (results["verify.gate"], results["verify"], results["gate"]) == ("failure", "failure", "failure")
    assert (results["verify.report"], results["verify.run-directory"]) == ("success", "success")


def test_an_expired_waiver_shuts_it(script: ModuleType, checkout: Path) -> None:
    write_contract(checkout, "held", "violated")
    write_waiver(checkout, "2020-01-01")
    assert rehearsed(script, checkout)["gate"] == "failure"


def test_a_waiver_that_names_nothing_shuts_it(script: ModuleType, checkout: Path) -> None:
    write_contract(checkout, "held")
    write_waiver(checkout, "2999-12-31")
    results = rehearsed(script, checkout)
    assert (results["verify.contracts"], results["verify.gate"], results["gate"]) == ("failure", "skipped", "failure")


def test_a_verification_that_was_skipped_shuts_it(script: ModuleType, checkout: Path) -> None:
    write_contract(checkout, "held")
    results = rehearsed(script, checkout, frozenset({"verify"}))
    assert (results["verify"], results["gate"]) == ("skipped", "failure")


def test_a_missing_report_shuts_it(script: ModuleType, checkout: Path) -> None:
    write_contract(checkout, "held")

    def lose_the_report() -> None:
        [report] = checkout.glob("harness-reports/*/report.html")
        report.unlink()

    results = rehearsed(script, checkout, after={"verify.gate": lose_the_report})
    assert (results["verify.gate"], results["verify.report"], results["gate"]) == ("success", "failure", "failure")


def test_a_report_of_an_earlier_run_is_not_taken_for_this_ones(script: ModuleType, checkout: Path) -> None:
    write_contract(checkout, "held")
    rehearsed(script, checkout)
    (checkout / "contracts" / "scripted-v1.yaml").write_text("broken")
    assert rehearsed(script, checkout)["gate"] == "failure"


@pytest.mark.parametrize(("options", "gate"), [("--workload held", "success"), ("", "failure")])
def test_another_repositorys_call_installs_and_verifies_what_it_says(
    script: ModuleType, checkout: Path, options: str, gate: str
) -> None:
    (checkout / "demands").mkdir()
    write_contract(checkout, "held", "violated")
    (checkout / "contracts").rename(checkout / "demands" / "of-training")
    given = {"install": "touch installed\ntouch $PWD/too", "contracts": "demands/", "options": options}
    job = {"uses": "./.github/workflows/gate.yml", "with": given}
    results = script.rehearse({"jobs": script.called_jobs(WORKFLOW.parent, job)}, checkout)
    assert ((checkout / "installed").exists(), (checkout / "too").exists()) == (True, True)
    assert results["gate"] == gate


@pytest.mark.parametrize(
    ("job", "wrong"),
    [
        ({"uses": "./.github/workflows/gate.yml"}, "missing or unknown inputs: install"),
        ({"uses": "./.github/workflows/gate.yml", "with": {"install": "", "runs": "x"}}, "unknown inputs: runs"),
        ({"uses": "some/one/.github/workflows/gate.yml@v1"}, "does not know some/one"),
    ],
)
def test_a_call_that_github_would_refuse_is_refused(script: ModuleType, job: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        script.called_jobs(WORKFLOW.parent, job)


def test_what_a_rehearsal_does_not_know_is_refused(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"does not know \$\{\{ secrets.TOKEN \}\}"):
        script.rehearse({"jobs": {"a": {"steps": [{"run": "echo ${{ secrets.TOKEN }}"}]}}}, tmp_path)
    with pytest.raises(ValueError, match="does not know some/action"):
        script.rehearse({"jobs": {"a": {"steps": [{"uses": "some/action@v1"}]}}}, tmp_path)
