"""A long replay on a machine without CUDA: what its probe keeps, and what its faults make the judge say."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from budget import slow_but
from claims_in_process import contract_of, executed, judged
from step_function_systems import Regression

from harness.contract.schema import Arm
from harness.drill.faults import is_killed
from harness.evidence.plan_records import PlannedArm, Run
from harness.execution.opening import REPLAY_ROUNDS, WARMUP_STEPS
from harness.execution.probes.long_replay import SeenSteps
from harness.execution.probes.timed_arm import TimedArm
from harness.execution.recorder import Recorder, SeriesWriter, StepRows
from harness.system.wrappers import HARNESS_FAULTS

pytestmark = pytest.mark.usefixtures("short_turns")

SYSTEM = "step_function_systems:Regression"
STEPS, EVERY = 99, 3  # 33 blocks: the fewest of which time is judged
CLAIM: dict[str, Any] = {
    "id": "LONG",
    "title": "t",
    "why": "w",
    "if_fails": "f",
    "judged_on": ["w"],
    "kind": "long_replay",
    "mechanism": "traced",
    "candidate": "captured",
    "baseline": "plain",
    "steps": STEPS,
    "every": EVERY,
    "distinct_batches": STEPS,
}
ENDS = CLAIM | {"steps": 90, "distinct_batches": 60}
WITHOUT_TIME = ["late_stale_batch", "late_dropped_update", "late_nan", "one_batch", "nan_end_state", "constant_loss"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads of a small step only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run_of(arm: str, steps: int, every: int) -> Run:
    return Run(
        id=arm,
        contract="c",
        probe="long_replay",
        workload_name="w",
        workload=contract_of(SYSTEM, CLAIM, steps=STEPS).workloads["w"].model_copy(update={"steps": steps}),
        arms={arm: PlannedArm(arm=Arm(capture="step" if arm == "captured" else "none"), system=SYSTEM)},
        settings={"candidate": "captured", "every": every},
    )


def test_a_long_replay_without_a_fault_passes(tmp_path: Path) -> None:
    verdict = judged(SYSTEM, tmp_path, CLAIM, steps=STEPS)
    assert (verdict.reason, verdict.mechanism) == ("held", "traced"), verdict.message
    assert verdict.denominators == {"steps": STEPS, "blocks": STEPS // EVERY, "state_tensors": 27}


def test_a_training_that_ends_by_itself_is_compared_over_its_actual_steps(tmp_path: Path) -> None:
    verdict = judged("step_function_systems:Ending", tmp_path, ENDS, steps=STEPS)
    assert verdict.reason == "held", verdict.message
    assert (verdict.denominators["steps"], verdict.denominators["blocks"]) == (97, 33)
    assert "at all 97 steps" in verdict.message
    assert f"both arms ended after these steps, although the workload has {STEPS}: " in verdict.message
    assert "no rate for update 98" in verdict.message


def test_a_fault_in_a_training_that_ends_by_itself_is_found(tmp_path: Path) -> None:
    verdict = judged("step_function_systems:Ending", tmp_path, ENDS, fault="late_dropped_update", steps=STEPS)
    assert verdict.reason == "differs", verdict.message


def test_a_training_that_ends_before_the_requested_steps_is_an_error(tmp_path: Path) -> None:
    verdict = judged("step_function_systems:EndingEarly", tmp_path, CLAIM, steps=STEPS)
    assert verdict.reason == "worker_exception", verdict.message
    assert f"both arms ended after 25 of the {STEPS} required steps" in verdict.message
    assert "no rate for update 26" in verdict.message


def test_an_arm_that_ends_before_the_other_arm_is_an_error(tmp_path: Path) -> None:
    verdict = judged("step_function_systems:EndingAlone", tmp_path, CLAIM, steps=STEPS)
    assert verdict.reason == "worker_exception"
    assert "candidate captured ended alone after 97 steps: " in verdict.message


def test_a_training_that_ends_in_its_first_block_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no rate for update 3"):
        judged("step_function_systems:EndingAtOnce", tmp_path, CLAIM, steps=STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(("system", "reason"), [("AveragesLater", "end_differs"), ("ListsItsLosses", "held")])
def test_loose_tensors_of_the_plain_arm_are_compared_in_a_long_replay(system: str, reason: str, tmp_path: Path) -> None:
    """A loose tensor belongs to no module and to no optimizer."""
    verdict = judged(f"loose_systems:{system}", tmp_path, CLAIM, steps=STEPS)
    assert verdict.reason == reason, verdict.message


@pytest.mark.parametrize("fault", slow_but(["late_stale_batch", "late_nan"], WITHOUT_TIME))
def test_a_fault_late_in_a_long_replay_is_killed(fault: str, tmp_path: Path) -> None:
    verdict = judged(SYSTEM, tmp_path, CLAIM, fault=fault, steps=STEPS)
    assert is_killed(HARNESS_FAULTS[fault].breaks["long_replay"], verdict), (verdict.reason, verdict.message)


class Clock:
    """Time that passes when somebody looks at it, a millisecond each, and when somebody sleeps."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-3
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("fault", "reason"), [("slowing_steps", "slows_down"), (None, "held")])
def test_steps_that_become_slower_fail_the_long_replay_claim(
    fault: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("harness.execution.probes.long_replay.monotonic", clock.perf_counter)
    monkeypatch.setattr("harness.execution.probes.timed_arm.monotonic", clock.perf_counter)
    monkeypatch.setattr("harness.system.memory_faults.time", clock)
    verdict = judged(SYSTEM, tmp_path, CLAIM | {"slowdown_at_most": 0.2}, fault=fault, steps=STEPS)
    assert verdict.reason == reason, verdict.message


@pytest.mark.parametrize("fault", ["slowing_steps", None])
def test_a_long_replay_alternates_with_a_fresh_run(
    fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of this test advances by a millisecond at each reading, so only the planted sleep makes the old run
    slower.
    """
    clock = Clock()
    monkeypatch.setattr("harness.execution.probes.timed_arm.monotonic", clock.perf_counter)
    monkeypatch.setattr("harness.system.memory_faults.time", clock)
    planted = {"fault": fault, "fault_arms": ["captured"]} if fault else {}
    evidence = executed(run_of("captured", 20, 10).model_copy(update=planted), tmp_path / "captured")
    replay = evidence.arms["captured"][0].long_replay
    assert replay is not None
    assert replay.rounds is not None
    assert len(replay.rounds) == REPLAY_ROUNDS
    slower = sum(sum(each.old) > sum(each.fresh) for each in replay.rounds)
    assert slower == (REPLAY_ROUNDS if fault else 0)
    end = evidence.arms["captured"][0].end
    assert end is not None
    assert end.steps_called == 20  # what follows is no part of the training


def test_long_replay_turns_use_each_input_shape_equally_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise more long shapes in the blocks of the old run would look like a slowdown."""
    made: list[int] = []
    block = TimedArm.block

    def counted(arm: TimedArm, steps: int) -> object:
        made.append(steps)
        return block(arm, steps)

    monkeypatch.setattr(TimedArm, "block", counted)
    monkeypatch.setattr("harness.execution.opening.REPLAY_BLOCK_STEPS", 4)
    run = run_of("captured", 4, 2)
    run = run.model_copy(update={"workload": run.workload.model_copy(update={"seq_len": [2, 3, 4]})})
    [evidence] = executed(run, tmp_path / "captured").arms["captured"]
    assert evidence.long_replay is not None
    assert evidence.long_replay.no_rounds is None
    assert made == [WARMUP_STEPS, *[6] * (4 * REPLAY_ROUNDS)]


def test_each_block_of_a_long_replays_comparison_with_a_fresh_run_sends_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a step takes an eighth of a second, 960 steps without a heartbeat would exceed the limit for missing
    heartbeats.
    """
    phases: list[str] = []
    monkeypatch.setattr(Recorder, "heartbeat", lambda recorder: phases.append(recorder.current_phase))
    executed(run_of("captured", 4, 2), tmp_path / "captured")
    assert phases.count("captured: turns with a fresh run") >= 4 * REPLAY_ROUNDS


@pytest.mark.parametrize(("limit", "rounds"), [(0.02, None), (100.0, REPLAY_ROUNDS)])
def test_a_long_replays_comparison_with_a_fresh_run_ends_within_the_time_limit(
    limit: float, rounds: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of this test advances by a millisecond at each reading.

    A process that its time limit ends would keep no evidence.
    """
    clock = Clock()
    for module in ("long_replay", "timed_arm"):
        monkeypatch.setattr(f"harness.execution.probes.{module}.monotonic", clock.perf_counter)
    run = run_of("captured", 4, 2).model_copy(update={"wall_limit_s": limit})
    replay = executed(run, tmp_path / "captured").arms["captured"][0].long_replay
    assert replay is not None
    assert len(replay.blocks) == 2
    assert (None if replay.rounds is None else len(replay.rounds)) == rounds
    assert (replay.no_rounds is None) == (rounds is not None)


def test_a_baseline_of_a_long_replay_has_no_fresh_run(tmp_path: Path) -> None:
    replay = executed(run_of("plain", 4, 2), tmp_path / "plain").arms["plain"][0].long_replay
    assert replay is not None
    assert (replay.rounds, replay.no_rounds) == (None, None)


def test_an_arm_that_cannot_be_opened_twice_keeps_its_long_replay_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    once = Regression.open

    def open_once(self: Regression, *given: Any, **named: Any) -> Any:
        opened.append("")
        if len(opened) > 1:
            raise MemoryError("no room for two")
        return once(self, *given, **named)

    monkeypatch.setattr(Regression, "open", open_once)
    evidence = executed(run_of("captured", 4, 2), tmp_path / "captured")
    replay = evidence.arms["captured"][0].long_replay
    assert replay is not None
    assert (replay.rounds, replay.no_rounds, len(replay.blocks)) == (None, "MemoryError: no room for two", 2)
    assert evidence.death is None


def test_a_long_replay_block_stores_its_last_row_and_a_digest_of_all_rows(tmp_path: Path) -> None:
    long, short = (executed(run_of("plain", 23, every), tmp_path / str(every)) for every in (10, 23))
    replay = long.arms["plain"][0].long_replay
    assert replay is not None
    assert [(block.first_step, block.steps) for block in replay.blocks] == [(0, 10), (10, 10), (20, 3)]
    assert replay.distinct_batches == 23
    rows = list(csv.DictReader((tmp_path / "10" / "plain.0.csv").read_text().splitlines()))
    assert [row["step"] for row in rows] == ["9", "19", "22"]
    with Regression().open(run_of("plain", 23, 10).workload, Arm()) as plain:
        losses = [float(plain.step(index).double()) for index in range(23)]
    assert [float(row["loss"]) for row in rows] == [losses[9], losses[19], losses[22]]
    assert long.arms["plain"][0].end == short.arms["plain"][0].end  # blocks change nothing of the training


def test_a_long_replay_candidate_has_the_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[str] = []
    monkeypatch.setattr("harness.execution.recorder.Recorder.alone", lambda self: Alone(self.current_phase, alone))
    for arm in ("plain", "captured"):
        executed(run_of(arm, 4, 2), tmp_path / arm)
    assert alone == ["captured: steps", "captured: turns with a fresh run"]


class Alone:
    """Notes in which phase somebody was alone."""

    def __init__(self, phase: str, noted: list[str]) -> None:
        self._phase, self._noted = phase, noted

    def __enter__(self) -> None:
        self._noted.append(self._phase)

    def __exit__(self, *_: object) -> None:
        pass


class Rows(SeriesWriter):
    """Takes the rows that would be written."""

    def __init__(self) -> None:
        self.written: list[tuple[Any, ...]] = []

    def rows(self, *rows: Any) -> None:
        self.written.append(rows)


def block_of(losses: list[float], batches: list[str]) -> Any:
    seen = SeenSteps(Rows())
    steps = list(range(len(losses)))
    seen.rows(StepRows(steps, losses, batches, [-1] * len(losses), [8] * len(losses), {}))
    return seen.block(1.0, 0.1)


def test_a_changed_loss_or_batch_changes_the_block_digest() -> None:
    first = block_of([1.0, 2.0, 3.0], ["a", "b", "c"])
    other_loss = block_of([1.0, 2.0000000000000004, 3.0], ["a", "b", "c"])
    other_batch = block_of([1.0, 2.0, 3.0], ["a", "a", "c"])
    assert (first.losses == other_loss.losses, first.batches == other_loss.batches) == (False, True)
    assert (first.losses == other_batch.losses, first.batches == other_batch.batches) == (True, False)


def test_the_first_nan_loss_of_a_long_replay_is_named() -> None:
    assert block_of([1.0, float("inf"), float("nan")], ["a", "b", "c"]).first_non_finite == 1
    assert block_of([1.0], ["a"]).first_non_finite is None
