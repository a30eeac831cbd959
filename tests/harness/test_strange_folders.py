"""A folder whose name is no text to Python's locale is a folder like any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

C = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
# one interpreter, whose locale it is, for commands with `;` between them
PROGRAM = """
import sys
from harness.cli.application import main

words = sys.argv[1:]
while words:
    end = words.index(";")
    sys.argv, words = ["harness", *words[:end]], words[end + 1 :]
    try:
        main()
    except SystemExit as left:
        if left.code:
            raise
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "locale"), [("prøject".encode(), C), (b"pr\xffject", {"PYTHONUTF8": "1"})], ids=["C", "no UTF-8"]
)
@pytest.mark.usefixtures("scripted")
def test_a_run_in_a_folder_with_an_unusual_name_is_verified_judged_and_packed(
    name: bytes, locale: dict[str, str], tmp_path: Path
) -> None:
    from scripted_system import contract_text

    folder = tmp_path / os.fsdecode(name)
    (folder / "contracts").mkdir(parents=True)
    (folder / "contracts" / "scripted-v1.yaml").write_text(contract_text("held"))
    run, packed = folder / "harness-reports" / "run", folder / "packed"
    commands: list[list[str | Path]] = [
        ["verify", folder / "contracts", "--gate", "--name", "run"],
        ["judge", "--check", run],
        ["pack", run, "--out", packed],
        ["judge", "--check", packed],
    ]
    words = [str(word) for command in commands for word in (*command, ";")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=folder, env={**os.environ, **locale}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr if done.returncode else "") == (0, "")
    assert done.stdout.count("same     ") == 2
