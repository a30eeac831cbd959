"""The throughput probe: ABBA blocks over equal steps, and the clock around the steps alone."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from step_function_systems import Regression

from harness.contract.schema import Arm, Workload
from harness.devices import telemetry
from harness.devices.profiler import Watched
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_records import TimingEvidence
from harness.execution import arm as arm_life
from harness.execution import opening
from harness.execution.probes import throughput, timed_arm
from harness.execution.recorder import Recorder
from harness.system import wrappers
from harness.system.protocol import NotAvailable
from harness.system.wrappers import CANDIDATE_SLOWDOWN

SYSTEM = "step_function_systems:Regression"


@pytest.fixture(autouse=True)
def nothing_else_works_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that something disturbs are timed again (`test_pace`)."""
    monkeypatch.setattr(telemetry, "pace", lambda: 1e-3)


def make_run(**changes: object) -> Run:
    settings: dict[str, object] = {
        "id": "t1",
        "contract": "c",
        "probe": "throughput",
        "workload_name": "small",
        "workload": Workload(model="any", batch_size=2, seq_len=4, steps=20),
        "arms": {
            "plain": PlannedArm(arm=Arm(), system=SYSTEM),
            "captured": PlannedArm(arm=Arm(capture="step"), system=SYSTEM),
        },
        "settings": {"candidate": "captured", "baseline": "plain", "blocks": 4, "block_steps": 3},
        "process": 5,
    }
    return Run.model_validate(settings | changes)


def execute(run: Run, directory: Path) -> list[dict[str, Any]]:
    directory.mkdir()
    with Recorder(directory) as recorder:
        throughput.execute(run, recorder)
    return [json.loads(line) for line in (directory / "records.jsonl").read_text().splitlines()]


def timing(records: list[dict[str, Any]]) -> TimingEvidence:
    (record,) = [record for record in records if record["record"] == "timing"]
    return TimingEvidence.model_validate(record)


def series(directory: Path, arm: str) -> list[dict[str, str]]:
    return list(csv.DictReader((directory / f"{arm}.0.csv").read_text().splitlines()))


def test_blocks_are_interleaved_over_the_same_steps(tmp_path: Path) -> None:
    evidence = timing(execute(make_run(), tmp_path / "run"))
    assert evidence.process == 5
    assert [(block.round, block.position, block.arm, block.first_step) for block in evidence.blocks] == [
        (0, 0, "captured", 10),
        (0, 1, "plain", 10),
        (0, 2, "plain", 13),
        (0, 3, "captured", 13),
        (1, 0, "captured", 16),
        (1, 1, "plain", 16),
        (1, 2, "plain", 19),
        (1, 3, "captured", 19),
    ]
    assert {block.steps for block in evidence.blocks} == {3}
    assert evidence.observed_steps == opening.TIMED_WATCHED_STEPS


@pytest.mark.parametrize(
    ("disturbed_rounds", "rounds"),
    [(set(), 2), ({0}, 3), ({0, 2}, 4), ({0, 1, 2, 3}, 4), ({2}, 2)],
    ids=["none", "first", "two", "all", "later"],
)
def test_disturbed_rounds_are_repeated_up_to_the_requested_number(
    disturbed_rounds: set[int], rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim requires two rounds.

    The machine's pace is measured before and after each block, and only the last block of a disturbed round is slow.
    """
    before_the_rounds = 4 * telemetry.LOOKS
    measured = iter(range(10_000))

    def paced() -> float:
        number = next(measured) - before_the_rounds
        return 2e-3 if number % 8 == 7 and number // 8 in disturbed_rounds else 1e-3

    monkeypatch.setattr(telemetry, "pace", paced)
    evidence = timing(execute(make_run(), tmp_path / "run"))
    assert [block.round for block in evidence.blocks] == [number for number in range(rounds) for _ in range(4)]
    slow = {block.round for block in evidence.blocks if block.pace == 2e-3}
    assert slow == {number for number in disturbed_rounds if number < rounds}


def test_timed_losses_and_batches_are_recorded_for_both_arms(tmp_path: Path) -> None:
    execute(make_run(), tmp_path / "run")
    captured, plain = series(tmp_path / "run", "captured"), series(tmp_path / "run", "plain")
    assert captured == plain
    assert [int(row["step"]) for row in plain] == list(range(10, 22))
    with Regression().open(make_run().workload, Arm()) as training:
        losses = [repr(float(training.step(index).double())) for index in range(22)]
    assert [row["loss"] for row in plain] == losses[10:]
    assert len({row["batch_digest"] for row in plain}) == 12
    assert {row["tokens"] for row in plain} == {"8"}


def test_timed_arms_record_random_draws_of_their_second_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Regression, "before_update", lambda *_: torch.rand(3))
    ends = [each for each in execute(make_run(), tmp_path / "run") if each["record"] == "arm_end"]
    drawn = {each["arm"]: each["draws"] for each in ends}
    assert [each["step"] for each in drawn.values()] == [1, 1]
    assert drawn["plain"]["operators"] == drawn["captured"]["captured"][0] == ["aten.rand of float32 3"]
    assert drawn["plain"]["generators"] == drawn["captured"]["generators"] != {}


@pytest.mark.parametrize(
    "named",
    [lambda models: models[0](), lambda models: models[-1]()],
    ids=["one-model-for-all", "newest-model-as-in-a-store-of-the-process"],
)
def test_arms_that_share_parameters_are_not_timed_in_one_process(
    named: Callable[[list[Any]], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, models = Regression.build, list[Any]()

    def shared_build(system: Regression, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        step, batch, parameters = build(system, workload, arm)
        models.append(parameters)
        return step, batch, lambda: named(models)

    monkeypatch.setattr(Regression, "build", shared_build)
    with pytest.raises(NotAvailable, match=r"captured took over parameters of arm plain \(.*0\.weight"):
        execute(make_run(), tmp_path / "run")


class Clock:
    """What is timed, and what a fault sleeps, by a clock that tests move: no busy machine moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def move(self, seconds: float) -> None:
        self.now += seconds

    def read(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Each step moves it by 1 s."""
    assert vars(timed_arm)["monotonic"] is time.monotonic
    moved = Clock()
    monkeypatch.setattr(timed_arm, "monotonic", moved.read)
    monkeypatch.setattr(wrappers, "time", SimpleNamespace(sleep=moved.move, perf_counter=moved.read))
    monkeypatch.setattr(Regression, "before_update", lambda *_: moved.move(1))
    return moved


def uncaptured(**changes: object) -> Run:
    return make_run(arms={name: PlannedArm(arm=Arm(), system=SYSTEM) for name in ("plain", "captured")}, **changes)


def test_timed_seconds_are_those_of_the_steps_in_a_block(clock: Clock, tmp_path: Path) -> None:
    assert {block.seconds for block in timing(execute(uncaptured(), tmp_path / "run")).blocks} == {3.0}


def test_enqueue_time_is_measured_at_the_first_step_of_a_block(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for the device advances the clock of this test by 100 s, which the enqueue time must not contain."""
    monkeypatch.setattr(timed_arm, "synchronize", lambda: clock.move(100))
    blocks = timing(execute(uncaptured(), tmp_path / "run")).blocks
    assert {(block.enqueue_seconds, block.seconds) for block in blocks} == {(1.0, 103.0)}


def test_writing_a_series_block_is_not_timed(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = timed_arm.TimedArm.write_block

    def slow(arm: timed_arm.TimedArm) -> None:
        clock.move(100)
        write(arm)

    monkeypatch.setattr(timed_arm.TimedArm, "write_block", slow)
    assert {block.seconds for block in timing(execute(uncaptured(), tmp_path / "run")).blocks} == {3.0}
    assert clock.now > 800  # eight blocks were written


def test_the_slow_candidate_fault_makes_the_candidate_slower(clock: Clock, tmp_path: Path) -> None:
    run = uncaptured(fault="slow_candidate", fault_arms=["captured"])
    seconds = {(block.arm, block.seconds) for block in timing(execute(run, tmp_path / "run")).blocks}
    assert seconds == {("plain", 3.0), ("captured", 3.0 * CANDIDATE_SLOWDOWN)}
    assert CANDIDATE_SLOWDOWN > 1.5


def test_the_swapped_arms_fault_exchanges_the_opened_systems(tmp_path: Path) -> None:
    run = make_run(fault="swapped_arms", fault_arms=["captured", "plain"])
    records = execute(run, tmp_path / "run")
    (capture,) = [record for record in records if record["record"] == "capture"]
    assert (capture["arm"], capture["captured"]) == ("captured", False)


def test_launches_are_watched_outside_the_census_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = []
    watch = timed_arm.TimedArm.watch_launches

    def watched(arm: timed_arm.TimedArm) -> Watched:
        phases.append(arm.life.recorder.current_phase)
        return watch(arm)

    monkeypatch.setattr(timed_arm.TimedArm, "watch_launches", watched)
    arms = {name: PlannedArm(arm=Arm(capture="step"), system=SYSTEM) for name in ("captured", "plain")}
    execute(make_run(arms=arms), tmp_path / "run")
    assert phases == ["watch launches", "watch launches"]


def test_phases_and_digests_frame_the_timed_part(tmp_path: Path) -> None:
    records = execute(make_run(), tmp_path / "run")
    phases = [record["name"] for record in records if record["record"] == "phase"]
    assert phases[-4:] == ["timed", "end", "watch launches", "captured: census"]
    starts = {record["trainable_digest"] for record in records if record["record"] == "arm_start"}
    ends = [record for record in records if record["record"] == "arm_end"]
    assert len(starts) == 1
    assert len({record["trainable_digest"] for record in ends}) == 1
    assert {record["steps_called"] for record in ends} == {22}


class Counting:
    """A counter that tells three launches a block, and when it was in use."""

    failure = None
    sees_planted = True

    def __init__(self, order: list[str]) -> None:
        self._order, self._told = order, 0

    def __enter__(self) -> Self:
        self._order.append("counter begins")
        return self

    def __exit__(self, *_raised: object) -> None:
        self._order.append("counter ends")

    def count(self) -> int:
        self._told += 3
        return self._told


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a process with CUDA does one after the other, as far as these stand-ins see it."""
    seen: list[str] = []

    @contextmanager
    def alone(_recorder: Recorder) -> Iterator[None]:
        seen.append("alone")
        yield
        seen.append("no longer alone")

    @contextmanager
    def profiled(
        watched: Watched, steps: int, *, ranks: int, replays: bool, over: Callable[[], object]
    ) -> Iterator[None]:
        assert (ranks, replays) == (1, True)
        seen.append("profiled")
        yield
        over()
        seen.append("profile closed")
        watched.steps, watched.graph_launches, watched.device_seconds, watched.sees_planted = steps, 5, 0.5, True

    def noted(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def note(*arguments: Any, **keywords: Any) -> Any:
            seen.append(what)
            return call(*arguments, **keywords)

        return note

    for module in (throughput, timed_arm):
        monkeypatch.setattr(module, "has_cuda", lambda: True)
    monkeypatch.setattr(timed_arm, "raise_clocks", lambda: seen.append("clocks raised"))
    monkeypatch.setattr(throughput, "prime_profiler", lambda: seen.append("profiler set up"))
    monkeypatch.setattr(throughput, "counter_of_this_process", lambda: Counting(seen))
    monkeypatch.setattr(timed_arm, "graph_launches", profiled)
    monkeypatch.setattr(Recorder, "alone", alone)
    for module, names in ((arm_life, ("opened", "capture_evidence")), (throughput, ("timed_rounds",))):
        for name in names:
            monkeypatch.setattr(module, name, noted(name, getattr(module, name)))
    monkeypatch.setattr(arm_life.ArmLife, "_end_record", noted("arm_end", arm_life.ArmLife._end_record))
    return seen


def test_the_first_process_is_profiled_after_its_timed_blocks(tmp_path: Path, order: list[str]) -> None:
    evidence = timing(execute(make_run(process=0), tmp_path / "run"))
    watched = ["alone", "clocks raised", "profiled", "no longer alone", "profile closed"]
    assert order == [
        "opened", "opened",
        "alone", "clocks raised", "timed_rounds", "no longer alone",
        "arm_end", "arm_end", "profiler set up", *watched, *watched, "capture_evidence",
    ]  # fmt: skip
    assert (evidence.observed_steps, evidence.profiler_sees_planted) == (5, True)
    assert evidence.observed_graph_launches == {"plain": 5, "captured": 5}
    assert evidence.observed_device_seconds == {"plain": 0.1, "captured": 0.1}
    assert {block.graph_launches for block in evidence.blocks} == {None}
    assert (evidence.counter_sees_planted, evidence.counter_failure) == (None, None)


def test_every_second_timing_process_counts_launches_without_a_profile(tmp_path: Path, order: list[str]) -> None:
    evidence = timing(execute(make_run(process=5), tmp_path / "run"))
    assert order == [
        "opened", "opened",
        "counter begins", "alone", "clocks raised", "timed_rounds", "no longer alone", "counter ends",
        "arm_end", "arm_end", "capture_evidence",
    ]  # fmt: skip
    assert (evidence.observed_steps, evidence.observed_graph_launches, evidence.observed_device_seconds) == (0, {}, {})
    assert [block.graph_launches for block in evidence.blocks] == [3] * 8
    assert (evidence.counter_sees_planted, evidence.profiler_sees_planted) == (True, None)


def test_a_timing_process_that_counts_launches_only_runs_its_timed_blocks(tmp_path: Path, order: list[str]) -> None:
    records = execute(make_run(process=5), tmp_path / "run")
    (capture,) = [record for record in records if record["record"] == "capture"]
    assert (capture["observed_steps"], capture["device_work"], capture["profiler_sees_planted"]) == (0, None, None)
    assert capture["replays"] == 22
    assert order.count("profiled") == 0


def test_a_launch_counter_failure_is_stored(tmp_path: Path, order: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "sees_planted", False)
    monkeypatch.setattr(Counting, "failure", "no libcupti is loaded in this process")
    monkeypatch.setattr(Counting, "count", lambda _self: None)
    evidence = timing(execute(make_run(process=5), tmp_path / "run"))
    assert (evidence.counter_sees_planted, evidence.counter_failure) == (False, "no libcupti is loaded in this process")
    assert {block.graph_launches for block in evidence.blocks} == {None}
    assert "counter ends" in order


def test_without_cuda_every_process_watches_an_untimed_block(tmp_path: Path) -> None:
    evidence = timing(execute(make_run(process=5), tmp_path / "run"))
    assert (evidence.observed_steps, evidence.observed_graph_launches) == (5, {"plain": 0, "captured": 0})
    assert (evidence.counter_sees_planted, evidence.profiler_sees_planted) == (None, None)
