"""No probe asks an arm for more steps than it announced to it: a system that refuses one more comes to its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from announced_systems import OneStepTooManyError

from harness.contract.schema import Arm, Workload
from harness.evidence.plan_records import PlannedArm, Run
from harness.execution.opening import UnannouncedStepError, announced_steps, opened
from harness.execution.recorder import Recorder
from harness.kinds import imported, probe_named

pytestmark = pytest.mark.usefixtures("short_turns")

SYSTEM = "announced_systems:Announced"
STEPS = 5
PAIR = {"candidate": "captured", "baseline": "plain"}
PROBES: dict[str, dict[str, Any]] = {
    "paired": {},
    "seeds": {"seeds": [3, 1]},
    "evaluation": {"candidate": "captured", "every": STEPS + 1},
    "long_replay": {"candidate": "captured", "every": 2},
    "recapture": {"after": 2},
    "throughput": {**PAIR, "blocks": 4, "block_steps": 3},
}


def run_of(probe: str, *, waits: bool = False, seq_len: int | list[int] = 4, steps: int = STEPS) -> Run:
    system = SYSTEM + "Waits" * waits
    watched = {"observe_syncs": probe == "paired", "watch_every_step": probe == "paired"}
    arms = {
        "plain": PlannedArm(arm=Arm(), system=system, replicas=2 if probe == "paired" else 1, **watched),
        "captured": PlannedArm(arm=Arm(capture="step"), system=SYSTEM, **watched),
    }
    if probe in ("evaluation", "long_replay"):
        del arms["plain"]
    return Run(
        id="r",
        contract="c",
        probe=probe,
        workload_name="w",
        workload=Workload(model="any", batch_size=2, seq_len=seq_len, steps=steps),
        arms=arms,
        baseline_of={"captured": "plain"} if probe == "paired" else {},
        gradient_steps=[0, steps - 1] if probe == "paired" else [],
        settings=PROBES[probe],
    )


def executed(run: Run, directory: Path) -> list[dict[str, Any]]:
    directory.mkdir()
    with Recorder(directory) as recorder:
        imported(probe_named(run.probe).execute)(run, recorder)
    return [json.loads(line) for line in (directory / "records.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("seq_len", [4, [3, 4]], ids=["one shape", "two shapes"])
def test_a_probe_takes_no_more_steps_than_it_announced(tmp_path: Path, probe: str, seq_len: int | list[int]) -> None:
    run = run_of(probe, seq_len=seq_len)
    records = executed(run, tmp_path / "run")
    assert not [each for each in records if each["record"] in ("arm_failed", "part_failed")]
    assert [each for each in records if each["record"] == "arm_end"]


@pytest.mark.parametrize("steps", [2, 3, 4, 43])
@pytest.mark.parametrize("waits", [False, True])
def test_a_paired_run_observes_syncs_and_captures_even_with_few_steps(tmp_path: Path, steps: int, waits: bool) -> None:
    records = executed(run_of("paired", waits=waits, steps=steps), tmp_path / "run")
    assert not [each for each in records if each["record"] in ("arm_failed", "part_failed")]
    syncs = {each["arm"]: each for each in records if each["record"] == "host_syncs"}
    for evidence in syncs.values():
        assert {reading["detector"] for reading in evidence["readings"]} == {"dispatch_mode", "fake_pass"}
    assert [bool(reading["count"]) for reading in syncs["plain"]["readings"]] == [waits, waits]
    [capture] = [each for each in records if each["record"] == "capture"]
    assert capture["observed_steps"] == min(3, steps - 1)


def test_a_step_beyond_the_announced_number_of_steps_raises_an_error() -> None:
    run = run_of("seeds")
    with opened(run, "plain") as training:
        for index in range(STEPS):
            training.step(index)
        with pytest.raises(UnannouncedStepError, match="announced 5 steps, but asks for step 5"):
            training.step(STEPS)


def test_the_test_system_itself_refuses_an_unannounced_step() -> None:
    """Otherwise the other tests in this file would pass although a probe takes too many steps."""
    from announced_systems import Announced

    with Announced().open(run_of("seeds").workload, Arm()) as training:
        for index in range(STEPS):
            training.step(index)
        with pytest.raises(OneStepTooManyError):
            training.step(STEPS)


def test_steps_that_a_probe_needs_beyond_the_workload_are_announced() -> None:
    assert announced_steps(run_of("paired")) == STEPS
    assert announced_steps(run_of("throughput")) == 10 + 2 * (2 * 2 * 3) + 5
    assert announced_steps(run_of("recapture")) == 8
