"""Over how many steps `harness init` compares arms: as many as the step trains, and as time allows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from first_steps import called, written

from harness.cli.check import findings_of
from harness.contract.load import load_contract
from harness.errors import UsageError
from harness.first_contract.choosing import compared_steps, finite_steps, seconds_of
from harness.first_contract.draft import LONG_AT_LEAST, STEPS, Arms, Draft, keep
from harness.first_contract.step_source import find_step_source

ENDS = "steps = iter(range(12))"


@pytest.fixture
def draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Draft:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("def make_step(seed):\n    return step, batch, model\n")
    return Draft(find_step_source("train.py:make_step"), STEPS, Arms(False, False, memory=False))


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90.0), ("20m", 1200.0), ("1.5h", 5400.0)])
def test_a_time_budget_with_a_unit_is_converted_to_seconds(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["20", "m", "-1s", "1d"])
def test_an_invalid_time_budget_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        seconds_of(text)


def test_a_long_run_that_fits_is_drafted_next_to_the_other_claims(draft: Draft, tmp_path: Path) -> None:
    keep(replace(draft, long=2700), tmp_path, force=False)
    short, long = (
        load_contract(next((tmp_path / name).iterdir())).contract for name in ("contracts", "contracts-long")
    )
    [claim] = [claim for claim in short.claims if claim.id == "TRAIN-LONG"]
    assert (claim.value_at("steps"), short.workloads["long"].steps) == (LONG_AT_LEAST, 2700)
    assert "TRAIN-LONG" not in [claim.id for claim in long.claims]
    assert findings_of([tmp_path / "contracts", tmp_path / "contracts-long"])[1] == []


def test_a_long_run_that_does_not_fit_is_named_with_the_command_that_runs_it(draft: Draft) -> None:
    assert compared_steps(draft) == [
        "long run: TRAIN-LONG, of 10,000 steps, is in a separate contract: run it with `harness verify contracts-long/`"
    ]


def test_fewer_compared_steps_than_the_default_are_reported(draft: Draft) -> None:
    assert compared_steps(replace(draft, steps=43, long=500)) == [
        "steps: every claim compares 43 steps; the default is 211",
        "long run: TRAIN-LONG compares 500 steps, which take up to a minute here",
    ]


@pytest.mark.parametrize(("losses", "steps"), [([1, 2], 2), ([1, math.nan, 2], 3), ([1, math.nan, math.inf], 1)])
def test_a_training_ends_where_all_later_losses_are_non_finite(losses: list[float], steps: int) -> None:
    assert finite_steps(losses) == steps


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("end", ["next(steps)", "loss = loss * (0.0 if next(steps, 99) < 99 else math.nan)"])
def test_a_step_that_ends_its_training_early_is_compared_over_its_available_steps(tmp_path: Path, end: str) -> None:
    (tmp_path / "temporary").mkdir()
    written(tmp_path, at_import="import math", before=ENDS, after=end)
    code, printed, errors = called(tmp_path, "init", "train.py:make_step", "--no-compile", "--steps", "30")
    assert code == 0, errors
    assert "steps: every claim compares 12 steps; the default is 211" in printed
    assert "left out: TRAIN-LONG, since the step trains 12 steps and then ends:" in printed
    assert load_contract(tmp_path / "contracts" / "train-v1.yaml").contract.workloads["small"].steps == 12


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_time_budget_determines_the_steps_of_the_claims(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    written(tmp_path)
    code, printed, errors = called(tmp_path, "init", "train.py:make_step", "--no-compile", "--budget", "0.001s")
    assert code == 0, errors
    assert "steps: every claim compares 11 steps; the default is 211" in printed
    assert "TRAIN-LONG, of 10,000 steps, is in a separate contract" in printed
