"""Everything that shows a verdict says that the trainer ran in the process that recorded it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.cli import application as cli

SAID = "The trainer ran in the process that recorded it."


@pytest.mark.parametrize("behaviour", ["held", "not_run"])
def test_every_output_states_who_recorded_the_evidence_if_something_ran(
    played: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    behaviour: str,
) -> None:
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    Path("contract.yaml").write_text(contract_text(behaviour))
    monkeypatch.setattr(sys, "argv", ["harness", "verify", "contract.yaml", "--name", "run"])
    with pytest.raises(SystemExit):
        cli.main()
    pages = {"terminal": capsys.readouterr().out}
    for name in ("summary.md", "junit.xml", "report.html"):
        pages[name] = Path("harness-reports/run", name).read_text(encoding="utf-8")
    assert {name for name, text in pages.items() if SAID in text} == (set(pages) if behaviour == "held" else set())
