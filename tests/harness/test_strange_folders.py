"""A folder whose name is no text to Python's locale is a folder like any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

C = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize(
    ("name", "locale"), [("prøject".encode(), C), (b"pr\xffject", {"PYTHONUTF8": "1"})], ids=["C", "no UTF-8"]
)
@pytest.mark.usefixtures("scripted")
def test_a_run_in_it_is_verified_judged_and_packed(name: bytes, locale: dict[str, str], tmp_path: Path) -> None:
    from scripted_system import contract_text

    folder = tmp_path / os.fsdecode(name)
    (folder / "contracts").mkdir(parents=True)
    (folder / "contracts" / "scripted-v1.yaml").write_text(contract_text("held"))
    environment = {**os.environ, **locale}

    def harness(*words: str | Path) -> tuple[int, str]:
        command = [sys.executable, "-m", "harness", *map(str, words)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr if done.returncode else ""

    run = folder / "harness-reports" / "run"
    assert harness("verify", folder / "contracts", "--gate", "--name", "run") == (0, "")
    assert harness("judge", "--check", run) == (0, "")
    assert harness("pack", run, "--out", folder / "packed") == (0, "")
    assert harness("judge", "--check", folder / "packed") == (0, "")
