"""Every wrong adapter in one `harness verify`: what the terminal, the verdicts, the page and JUnit say of it."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from warm_start import path_of_commands
from wrong_adapters import ADAPTERS, DESCRIBED, RIGHT

from harness.api.rejudge import rejudged

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PLACED = {**ADAPTERS, **DESCRIBED}


@dataclass(frozen=True)
class Verified:
    """One `harness verify` of all of them."""

    code: int
    printed: str
    claims: dict[str, dict[str, Any]]
    page: str
    cases: dict[str, str]  # JUnit's message and text by claim


def claim(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "title": name,
        "kind": "trajectory_match",
        "candidate": name,
        "baseline": "right",
        "equality": "within",
        "max_abs_difference": 1.0,
        "guards": {"steps": 4},
        "judged_on": ["w"],
        "why": "w",
        "if_fails": "f",
        "falsified_by": ["nan_tail"],
    }


@pytest.fixture(scope="module")
def verified(warm: None, tmp_path_factory: pytest.TempPathFactory) -> Verified:
    folder = tmp_path_factory.mktemp("user")
    (folder / "right.py").write_text(RIGHT)
    for name, wrong in PLACED.items():
        wrong.write(folder / f"wrong_{name}.py")
    contract = {
        "schema": "contract/v2",
        "id": "wrong-v1",
        "title": "wrong",
        "system": "right:System",
        "workloads": {"w": {"model": "m", "batch_size": 2, "seq_len": 4, "steps": 4}},
        "arms": {"right": {}, "also_right": {"learning_rate": 0.1}}
        | {name: {"system": f"wrong_{name}:System"} for name in PLACED},
        "claims": [claim(name) for name in ("also_right", *PLACED)],
    }
    (folder / "contract.yaml").write_text(yaml.safe_dump(contract))
    command = [sys.executable, "-P", "-m", "harness", "verify", "contract.yaml", "--name", "run"]
    environment = {**os.environ, "PYTHONPATH": path_of_commands(ROOT), "COLUMNS": "1000"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    run = folder / "harness-reports" / "run"
    cases = {
        str(case.get("name")).removesuffix("[w]"): f"{ended.get('message')} {ended.text}"
        for case in ET.parse(run / "junit.xml").iter("testcase")  # noqa: S314 - the harness wrote it
        for ended in case.findall("error")
    }
    return Verified(
        done.returncode,
        done.stdout,
        {each.claim: each.model_dump(mode="json") for each in rejudged(run).judgement.verdicts},
        html.unescape((run / "report.html").read_text()),
        cases,
    )


def test_a_correct_adapter_passes_and_each_wrong_adapter_is_an_error(verified: Verified) -> None:
    statuses = {name: each["status"] for name, each in verified.claims.items()}
    assert statuses == {"also_right": "PASS", **dict.fromkeys(PLACED, "ERROR")}
    assert verified.code == 12


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_verdict_on_each_wrong_adapter_states_the_defect_and_its_place(verified: Verified, name: str) -> None:
    message = verified.claims[name]["message"]
    assert message.endswith(ADAPTERS[name].message(f": wrong_{name}.py")), message


@pytest.mark.parametrize("name", PLACED)
def test_the_place_is_in_the_terminal_the_page_and_junit(verified: Verified, name: str) -> None:
    place = re.compile(rf"\bwrong_{name}\.py:{PLACED[name].line()}\b")
    [line] = [line for line in verified.printed.splitlines() if f" {name} on w: " in line]
    where = {"terminal": line, "page": verified.page, "junit": verified.cases[name]}
    assert [each for each, text in where.items() if not place.search(text)] == []
