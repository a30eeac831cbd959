"""A claim kind from another package, `tests/plugin_kind`: every command knows it, and no file of the harness does."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from toy_packages import ROOT, Harness, harness_with

from harness.contract.shared import RULE

PACKAGE = ROOT / "tests" / "plugin_kind"


def installed_in(folder: Path) -> None:
    """What an installer writes of the package's `pyproject.toml`: its metadata beside the module."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = folder / f"toy_kind-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    name, version = project["name"], project["version"]
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(groups))


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    """Runs a command in a folder with the contract, where the package is installed unless `without` it."""
    folder = tmp_path_factory.mktemp("toy")
    installed_in(folder / "packages")
    return harness_with(folder)


@pytest.fixture(scope="module")
def verified(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("verified") / "run"
    ended = harness("verify", "contracts", "--reports", str(out.parent), "--name", out.name)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return out


def test_the_package_is_small() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".toml"}]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= 120


def test_a_contract_may_use_the_kind_of_a_package(harness: Harness) -> None:
    ended = harness("check", "contracts")
    assert ended.stdout == "1 contract · 1 claim · 0 errors · 0 warnings\n"
    assert ended.stderr == f"contracts: 1 contract file ({RULE})\n"


def test_where_the_package_is_missing_the_kind_is_unknown(harness: Harness) -> None:
    ended = harness("check", "contracts", without=True)
    assert ended.returncode == 11
    assert "toy-v1.yaml:12:11: error: unknown kind; found 'loss_below'" in ended.stderr


def test_the_toy_kinds_judge_passes_a_sound_system(verified: Path) -> None:
    (verdict,) = json.loads((verified / "verdicts.json").read_text())["claims"]
    assert (verdict["status"], verdict["reason"]) == ("PASS", "held")
    assert verdict["denominators"] == {"steps": 5}


def test_a_verdict_of_the_toy_kind_is_judged_the_same_again(harness: Harness, verified: Path) -> None:
    ended = harness("judge", "--check", str(verified))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith(f"same     {verified}: 1 unit · 1 held")


def test_the_page_shows_its_card_and_links_its_evidence(verified: Path) -> None:
    page = (verified / "report.html").read_text(encoding="utf-8")
    assert "The loss ends below one and a half" in page
    assert 'href="#trajectories-1"' in page
    assert 'id="trajectories-1"' in page


def test_the_toy_kinds_own_fault_gives_its_own_reason(harness: Harness, tmp_path: Path) -> None:
    ended = harness("drill", "contracts", "--reports", str(tmp_path), "--name", "drill")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    record = json.loads((tmp_path / "drill" / "drill.json").read_text())
    seen = {row["fault"]: row["seen"] for row in record["rows"]}
    assert seen == {
        "last_loss_high": {"status": "FAIL", "reason": "loss_too_high", "figures": {"last_loss": 9.0}},
        "missing_run": {"status": "ERROR", "reason": "worker_incomplete", "figures": {}},
    }
    assert [control["status"] for control in record["controls"]] == ["PASS"]


def test_the_printed_schema_includes_package_kinds_and_the_committed_one_does_not(harness: Harness) -> None:
    printed = json.loads(harness("schema").stdout)
    assert printed["$defs"]["LossBelow"]["properties"]["below"]["description"] == (
        "What the loss at the last step must be below."
    )
    assert "LossBelowClaim" in printed["$defs"]
    checked_in = (ROOT / "harness" / "contract" / "contract.schema.json").read_text(encoding="utf-8")
    assert json.loads(harness("schema", without=True).stdout) == json.loads(checked_in)
