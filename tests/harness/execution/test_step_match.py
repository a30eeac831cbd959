"""The step_match probe, over a regression: what it writes, what it begins each step from, what it needs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import single_step_systems
import torch
from single_step_systems import TrainedRun

from harness.contract.schema import Arm, Workload
from harness.evidence.arm_records import ArmEnd, ArmStart, CaptureEvidence, ComparedStep
from harness.evidence.base import Record
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_evidence import parsed
from harness.execution.probes import single_steps
from harness.execution.recorder import Recorder
from harness.system.protocol import NotAvailable

STEPS = 8
RUN = Run(
    id="r",
    contract="c",
    probe="step_match",
    workload_name="w",
    workload=Workload(model="any", batch_size=4, seq_len=6, steps=STEPS),
    arms={
        "exact": PlannedArm(arm=Arm(dtype="float64"), system="single_step_systems:Reference"),
        "noisy": PlannedArm(arm=Arm(dtype="float32"), system="single_step_systems:Reference"),
        "trained": PlannedArm(arm=Arm(), system="single_step_systems:Trained"),
    },
    settings={"reference": "exact", "yardstick": "noisy", "candidate": "trained"},
)
ROUNDING = 2.0**-24


def executed(directory: Path, run: Run = RUN) -> list[Record]:
    with Recorder(directory) as recorder:
        single_steps.execute_step_match(run, recorder)
    return [parsed(line) for line in (directory / "records.jsonl").read_text().splitlines()]


def errors(records: list[Record], quantity: str) -> list[float]:
    steps = [record for record in records if isinstance(record, ComparedStep)]
    return [each.error for step in steps for each in step.readings if each.quantity == quantity]


def test_a_step_match_run_compares_every_step_and_records_start_and_end_of_every_arm(tmp_path: Path) -> None:
    records = executed(tmp_path)
    steps = [record for record in records if isinstance(record, ComparedStep)]
    assert [step.step for step in steps] == list(range(STEPS))
    assert {(step.arm, step.reference, step.yardstick) for step in steps} == {("trained", "exact", "noisy")}
    for kind in (ArmStart, ArmEnd):
        assert Counter(record.arm for record in records if isinstance(record, kind)) == dict.fromkeys(RUN.arms, 1)
    assert all(len((tmp_path / f"{arm}.0.csv").read_text().splitlines()) == 1 + STEPS for arm in RUN.arms)


def test_a_correct_trainer_differs_by_a_few_roundings_at_every_step(tmp_path: Path) -> None:
    records = executed(tmp_path)
    for quantity in ("loss", "norms", "gradients", "exp_avg", "exp_avg_sq", "parameters"):
        found = errors(records, quantity)
        assert len(found) == STEPS
        assert max(found) <= 20 * ROUNDING, quantity
    noise = [each.yardstick for step in records if isinstance(step, ComparedStep) for each in step.readings]
    assert [value is None for value in noise] == [False, False, False, True, True, True] * STEPS
    assert 0 < max(value for value in noise if value is not None) <= 20 * ROUNDING


def test_step_match_records_whether_a_requested_capture_took_place(tmp_path: Path) -> None:
    asking = RUN.arms["trained"].model_copy(update={"arm": Arm(capture="step")})
    records = executed(tmp_path, RUN.model_copy(update={"arms": {**RUN.arms, "trained": asking}}))
    [capture] = [record for record in records if isinstance(record, CaptureEvidence)]
    assert (capture.arm, capture.requested, capture.captured) == ("trained", True, False)


@pytest.mark.parametrize(
    ("change", "shown", "beside"),
    [("reset", "exp_avg", ("exp_avg_sq", "gradients")), ("nudge", "gradients", ("exp_avg", "exp_avg_sq"))],
)
def test_a_state_change_between_steps_shows_only_in_the_errors_of_the_next_step(
    change: str, shown: str, beside: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainedRun, "changes", {5: change})
    records = executed(tmp_path)
    large = [step for step, error in enumerate(errors(records, shown)) if error > 100 * ROUNDING]
    assert large == [5]
    assert [step for step, error in enumerate(errors(records, "parameters")) if error > 100 * ROUNDING] == [5]
    for quantity in beside:
        assert max(errors(records, quantity)) <= 20 * ROUNDING


def test_optimizer_moments_nonzero_at_the_start_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Warm(TrainedRun):
        def __init__(self) -> None:
            super().__init__()
            self.second += 1e-3

    monkeypatch.setattr(single_step_systems, "TrainedRun", Warm)
    found = errors(executed(tmp_path), "exp_avg_sq")
    assert [step for step, error in enumerate(found) if error > 100 * ROUNDING] == [0]


@pytest.mark.parametrize(
    ("role", "arm", "capability"), [("reference", "trained", "single_steps"), ("candidate", "noisy", "moments")]
)
def test_an_arm_that_lacks_a_capability_is_not_available(role: str, arm: str, capability: str, tmp_path: Path) -> None:
    run = RUN.model_copy(update={"settings": {**RUN.settings, role: arm}})
    with pytest.raises(NotAvailable, match=rf"arm {arm} lacks the capability `{capability}`"):
        executed(tmp_path, run)


def test_step_results_are_copied_before_the_next_call_overwrites_them() -> None:
    """A captured step always returns the same tensor, and the update of a reference may overwrite a tensor."""

    class Overwrites:
        def __init__(self) -> None:
            self.loss, self.norm, self.gradient = torch.ones(()), torch.ones(1), torch.ones(2)

        def gradient_norms(self) -> dict[str, torch.Tensor]:
            return {"before": self.norm}

        def gradient_groups(self) -> dict[str, list[str]]:
            return {"all": ["a"]}

        def gradients(self) -> dict[str, torch.Tensor]:
            return {"a": self.gradient}

    training = Overwrites()
    seen = single_steps._seen(training, training.loss)  # type: ignore[arg-type]
    for tensor in (training.loss, training.norm, training.gradient):
        tensor.zero_()
    assert (float(seen.loss), float(seen.norms["all"]), seen.gradients["a"].tolist()) == (1.0, 1.0, [1.0, 1.0])
