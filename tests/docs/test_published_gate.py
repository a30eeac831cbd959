"""The gate that `reports/README.md` gives as the present trainer's is judged as the page says."""

from __future__ import annotations

import re
from pathlib import Path

from harness.rejudge import judged

REPORTS = Path(__file__).parents[2] / "reports"
COMMAND = re.compile(
    r"^harness judge --gate (\S+(?: \S+)*) +# (\d+) of (\d+) held, (\d+) violated, (\d+) undecided: exit code (\d+)$",
    re.MULTILINE,
)


def test_the_published_gate_holds_as_the_page_says() -> None:
    [(names, held, planned, violated, undecided, code)] = COMMAND.findall((REPORTS / "README.md").read_text())
    _, judgement = judged([REPORTS.parent / name for name in names.split()], gate=True)
    assert judgement.counts.line() == (
        f"{planned} planned · {held} held · {violated} violated · {undecided} undecided · 0 not run · 0 errors"
    )
    assert judgement.exit_code == int(code)
