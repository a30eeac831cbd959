"""The paired probe, over small systems: every figure that it writes, and every fault of the harness it plants."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from step_function_systems import Regression
from torch import Tensor

from harness.contract.schema import Arm, Workload
from harness.devices.profiler import Watched
from harness.errors import UsageError
from harness.evidence.arm_records import ArmEnd, ArmStart, CaptureEvidence, Gradients, HostSyncEvidence
from harness.evidence.base import Record
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_evidence import parsed
from harness.execution import series_block
from harness.execution.probes import paired
from harness.execution.recorder import Recorder
from harness.execution.watchers import capture_watch
from harness.system.wrappers import FAULTY_STEP

SYSTEM = "step_function_systems:Regression"
STEPS = 20
Kind = TypeVar("Kind", bound=Record)


def make_run(**changes: object) -> Run:
    settings: dict[str, object] = {
        "id": "r1",
        "contract": "c",
        "probe": "paired",
        "workload_name": "small",
        "workload": Workload(model="any", batch_size=2, seq_len=4, steps=STEPS),
        "arms": {
            "plain": PlannedArm(arm=Arm(), system=SYSTEM, replicas=2, observe_syncs=True),
            "captured": PlannedArm(arm=Arm(capture="step"), system=SYSTEM, observe_syncs=True),
            "untrained": PlannedArm(arm=Arm(learning_rate=0.0), system=SYSTEM),
        },
        "baseline_of": {"captured": "plain"},
        "gradient_steps": [0, 7],
    }
    return Run.model_validate(settings | changes)


class Executed:
    def __init__(self, run: Run, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        with Recorder(directory) as recorder:
            paired.execute(run, recorder)
        self.directory = directory
        self.records: list[Record] = [parsed(line) for line in (directory / "records.jsonl").read_text().splitlines()]

    def of(self, kind: type[Kind], arm: str) -> list[Kind]:
        return [record for record in self.records if isinstance(record, kind) and getattr(record, "arm", "") == arm]

    def series(self, arm: str, replica: int = 0) -> list[dict[str, str]]:
        return list(csv.DictReader((self.directory / f"{arm}.{replica}.csv").read_text().splitlines()))

    def losses(self, arm: str, replica: int = 0) -> list[str]:
        return [row["loss"] for row in self.series(arm, replica)]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Executed:
    return Executed(make_run(), tmp_path_factory.mktemp("paired") / "run")


def plain_losses(steps: int, rate: float = 1e-2) -> list[str]:
    workload = make_run().workload
    with Regression().open(workload, Arm(learning_rate=rate)) as training:
        return [repr(float(training.step(index).double())) for index in range(steps)]


def test_the_series_file_contains_every_loss_with_all_its_bits(executed: Executed) -> None:
    expected = plain_losses(STEPS)
    assert executed.losses("plain", 0) == expected
    assert executed.losses("plain", 1) == expected
    assert executed.losses("captured") == expected
    assert executed.losses("untrained") == plain_losses(STEPS, rate=0.0)
    assert [int(row["step"]) for row in executed.series("captured")] == list(range(STEPS))
    assert {row["tokens"] for row in executed.series("plain")} == {"8"}


def test_batch_digests_are_equal_across_arms_and_different_at_each_step(executed: Executed) -> None:
    digests = [[row["batch_digest"] for row in executed.series(arm)] for arm in ("plain", "captured", "untrained")]
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests[0])) == STEPS


def test_gradients_are_recorded_at_the_steps_at_which_a_claim_reads_them(tmp_path: Path) -> None:
    executed = Executed(make_run(gradient_arms=["captured", "plain"]), tmp_path / "run")
    recorded = {arm: [(r.replica, r.step) for r in executed.of(Gradients, arm)] for arm in executed_arms(executed)}
    assert recorded == {"plain": [(0, 0), (0, 7)], "captured": [(0, 0), (0, 7)], "untrained": []}


def executed_arms(executed: Executed) -> list[str]:
    return list(dict.fromkeys(record.arm for record in executed.records if isinstance(record, ArmStart)))


def test_digests_of_the_start_and_end_parameters_are_recorded(executed: Executed) -> None:
    starts = [executed.of(ArmStart, arm)[0] for arm in ("plain", "captured", "untrained")]
    assert len({start.trainable_digest for start in starts}) == 1
    assert starts[0].trainable_tensors == 4
    assert starts[0].facts["layers"] == 2
    plain, captured, untrained = (executed.of(ArmEnd, arm)[0] for arm in ("plain", "captured", "untrained"))
    assert plain.trainable_digest == captured.trainable_digest != starts[0].trainable_digest
    assert untrained.trainable_digest == starts[0].trainable_digest
    assert captured.steps_called == STEPS


def test_gradients_are_compared_with_the_baselines_of_the_same_step(executed: Executed) -> None:
    records = executed.of(Gradients, "captured")
    assert [(record.step, record.baseline) for record in records] == [(0, "plain"), (7, "plain")]
    for record in records:
        assert len(record.tensors) == 4
        for tensor in record.tensors:
            assert tensor.digest == tensor.baseline_digest
            assert tensor.max_abs_difference == 0.0
            assert tensor.max_abs > 0
    first, later = (record.tensors[0].digest for record in records)
    assert first != later
    assert [record.baseline for record in executed.of(Gradients, "plain")] == [None] * 4


def test_a_differing_gradient_is_recorded_with_the_size_of_its_difference(tmp_path: Path) -> None:
    arms = {
        "plain": PlannedArm(arm=Arm(), system=SYSTEM),
        "untrained": PlannedArm(arm=Arm(learning_rate=0.0), system=SYSTEM),
    }
    executed = Executed(make_run(arms=arms, baseline_of={"untrained": "plain"}), tmp_path / "run")
    first, later = executed.of(Gradients, "untrained")
    assert [tensor.max_abs_difference for tensor in first.tensors] == [0.0] * 4  # nothing was trained before step 0
    for tensor in later.tensors:
        assert tensor.digest != tensor.baseline_digest
        assert tensor.max_abs_difference is not None
        assert tensor.baseline_max_abs is not None
        assert 0 < tensor.max_abs_difference <= tensor.max_abs + tensor.baseline_max_abs


def test_the_harness_itself_records_the_capture_of_an_arm(executed: Executed) -> None:
    (capture,) = executed.of(CaptureEvidence, "captured")
    assert (capture.mechanism, capture.captured, capture.replays, capture.uncaptured_steps) == ("traced", True, 20, 0)
    assert capture.observed_steps == capture_watch.WATCHED_STEPS
    assert capture.observed_replayed_operations is not None
    per_step = capture.recorded_operations + 1  # and the clone of the loss
    assert capture.observed_replayed_operations == per_step * 3
    assert (capture.static_buffers, capture.moved_buffers) == (6, [])
    assert executed.of(CaptureEvidence, "plain") == []


def test_host_syncs_are_observed_once_for_each_arm_whose_syncs_are_claimed(executed: Executed) -> None:
    (plain,) = executed.of(HostSyncEvidence, "plain")
    (captured,) = executed.of(HostSyncEvidence, "captured")
    assert executed.of(HostSyncEvidence, "untrained") == []
    assert (plain.replayed, captured.replayed, plain.layers) == (False, True, 2)
    for evidence in (plain, captured):
        assert [reading.detector for reading in evidence.readings] == ["dispatch_mode", "fake_pass"]
        assert [(reading.count, reading.sees_planted) for reading in evidence.readings] == [(0, True)] * 2


def test_losses_of_the_last_partial_block_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_block, "BLOCK_STEPS", 6)
    run = make_run(arms={"plain": PlannedArm(arm=Arm(), system=SYSTEM)}, baseline_of={}, gradient_steps=[])
    assert Executed(run, tmp_path / "run").losses("plain") == plain_losses(STEPS)


def faulty(tmp_path: Path, fault: str, arms: list[str]) -> Executed:
    planned = {
        "plain": PlannedArm(arm=Arm(), system=SYSTEM),
        "captured": PlannedArm(arm=Arm(capture="step"), system=SYSTEM, observe_syncs=fault == "extra_sync"),
    }
    return Executed(make_run(arms=planned, gradient_steps=[], fault=fault, fault_arms=arms), tmp_path / "run")


def test_the_nan_tail_fault_makes_losses_nan_from_its_step_on(tmp_path: Path) -> None:
    losses = faulty(tmp_path, "nan_tail", ["captured"]).losses("captured")
    assert losses[FAULTY_STEP:] == ["NaN"] * (STEPS - FAULTY_STEP)
    assert losses[:FAULTY_STEP] == plain_losses(STEPS)[:FAULTY_STEP]


def test_the_constant_loss_fault_repeats_the_first_loss(tmp_path: Path) -> None:
    executed = faulty(tmp_path, "constant_loss", ["captured", "plain"])
    assert set(executed.losses("captured")) == set(executed.losses("plain")) == {plain_losses(1)[0]}


@pytest.mark.parametrize("fault", ["dropped_step", "doubled_step"])
def test_a_dropped_or_doubled_step_changes_the_losses_from_that_step_on(tmp_path: Path, fault: str) -> None:
    losses, plain = faulty(tmp_path, fault, ["captured"]).losses("captured"), plain_losses(STEPS)
    assert losses[:FAULTY_STEP] == plain[:FAULTY_STEP]
    assert all(ours != theirs for ours, theirs in zip(losses[FAULTY_STEP:], plain[FAULTY_STEP:], strict=True))


def test_the_stale_batch_fault_changes_the_batch_digests(tmp_path: Path) -> None:
    executed = faulty(tmp_path, "stale_batch", ["captured"])
    stale = [row["batch_digest"] for row in executed.series("captured")]
    fresh = [row["batch_digest"] for row in executed.series("plain")]
    assert stale == [fresh[0], *fresh[:-1]]


def test_both_detectors_find_a_planted_extra_sync(tmp_path: Path) -> None:
    (syncs,) = faulty(tmp_path, "extra_sync", ["captured"]).of(HostSyncEvidence, "captured")
    assert [(reading.detector, reading.count, reading.steps) for reading in syncs.readings] == [
        ("dispatch_mode", 2, 2),
        ("fake_pass", 1, 1),
    ]
    assert {place.file for reading in syncs.readings for place in reading.places} == {"harness/system/wrappers.py"}


def test_fewer_tokens_change_the_batch(tmp_path: Path) -> None:
    executed = faulty(tmp_path, "fewer_tokens", ["captured"])
    assert executed.series("captured")[0]["batch_digest"] != executed.series("plain")[0]["batch_digest"]


def test_the_swapped_arms_fault_runs_the_candidate_uncaptured(tmp_path: Path) -> None:
    executed = faulty(tmp_path, "swapped_arms", ["captured", "plain"])
    (capture,) = executed.of(CaptureEvidence, "captured")
    assert (capture.captured, capture.replays) == (False, 0)


def test_a_fault_in_one_arm_leaves_the_losses_of_other_arms_unchanged(tmp_path: Path) -> None:
    assert faulty(tmp_path, "nan_tail", ["captured"]).losses("plain") == plain_losses(STEPS)


def test_an_unknown_fault_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nan_tail"):
        faulty(tmp_path, "no_such_fault", ["captured"])


def test_a_nan_loss_of_the_system_is_recorded_as_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(self: Regression, loss: Tensor, model: torch.nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(math.inf)

    monkeypatch.setattr(Regression, "before_update", explode)
    run = make_run(arms={"plain": PlannedArm(arm=Arm(), system=SYSTEM)}, baseline_of={}, gradient_steps=[])
    assert Executed(run, tmp_path / "run").losses("plain")[1] == "NaN"


def test_only_the_last_profiled_window_has_the_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work would lengthen kernel times in the last window. The first window only counts launches."""
    order: list[str] = []

    @contextmanager
    def alone(_recorder: Recorder) -> Iterator[None]:
        order.append("alone")
        yield
        order.append("no longer alone")

    @contextmanager
    def window(
        watched: Watched, steps: int, *, ranks: int, replays: bool, over: Callable[[], object]
    ) -> Iterator[None]:
        assert ranks == 1
        order.append(f"profile {steps} replays" if replays else f"profile {steps} steps")
        yield
        over()
        order.append("profile closed")

    monkeypatch.setattr(Recorder, "alone", alone)
    monkeypatch.setattr(capture_watch, "graph_launches", window)
    windows = {0: (3, False), STEPS - 2: (2, True)}
    monkeypatch.setattr(capture_watch, "profiled_steps", lambda *_: windows)
    run = make_run(arms={"plain": PlannedArm(arm=Arm(), system=SYSTEM)}, baseline_of={}, gradient_steps=[])
    assert Executed(run, tmp_path / "run").losses("plain") == plain_losses(STEPS)
    assert order == [
        "profile 3 steps", "profile closed",
        "alone", "profile 2 replays", "no longer alone", "profile closed",
    ]  # fmt: skip
