"""The adapter and the contract of docs/plugging-in-a-trainer.md, taken from the page and run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "plugging-in-a-trainer.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The page's first block of that language."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_page_works_as_written(tmp_path: Path) -> None:
    (tmp_path / "my_trainer.py").write_text(block("python"))
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "my-step-v1.yaml").write_text(block("yaml"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def harness(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "harness", *arguments]  # found in the working directory, as installed
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    checked = harness("check", "contracts")
    assert (checked.returncode, checked.stdout) == (0, "1 contracts · 1 claims · 0 errors · 0 warnings\n")
    held = harness("verify", "contracts", "--json")
    [claim] = json.loads(held.stdout)["claims"]
    assert (claim["status"], claim["denominators"]["steps"]) == ("PASS", 40)
    stale = harness("verify", "contracts", "--fault", "stale_batch", "--json")
    [claim] = json.loads(stale.stdout)["claims"]
    assert (stale.returncode, claim["status"]) == (1, "FAIL")
