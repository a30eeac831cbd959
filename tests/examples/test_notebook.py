"""The notebook shows what its cells print: each is executed, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_failure.ipynb"
ANSWER = re.compile(r"(?m)^ *(?:yes|NO|undecided|not run|exit code) .*")


def answers(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """Return the answers that each cell with `harness try` printed, sorted: an answer is printed once it is known."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and "harness try" in cell.source]
    return [sorted(ANSWER.findall("".join(each.get("text", "") for each in cell.outputs))) for cell in cells]


@pytest.mark.slow
def test_each_notebook_cell_prints_its_committed_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    shown, executed = (nbformat.reads(NOTEBOOK.read_text(), as_version=4) for _ in range(2))  # type: ignore[no-untyped-call]
    nbclient.NotebookClient(executed, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert answers(executed) == answers(shown)
    violated, held = answers(shown)
    assert "exit code 1" in violated
    assert "exit code 0" in held
    assert any(line.lstrip().startswith("NO ") for line in violated)
