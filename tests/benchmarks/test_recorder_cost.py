"""The benchmark of the recorder runs both loops and prints their ratio; how large it is depends on the machine."""

from __future__ import annotations

import re

import pytest

from benchmarks import recorder_cost


def test_both_loops_run_and_their_ratio_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["recorder_cost", "1"])
    recorder_cost.main()
    printed = capsys.readouterr().out
    assert re.fullmatch(
        r"a step takes \d+\.\d\d ms; the recording adds [+-]\d+\.\d\d % of it, of which calls of `step` take \d+\.\d\d "
        r"%\n",
        printed,
    ), printed
