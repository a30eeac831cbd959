"""A plain arm that secretly captures, opened by each probe as it is: its record says so, and its claims do not hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from between_steps import EVALUATION, RESUME, fork_other_processes
from claims_in_process import CLAIM, contract_of, executed, judged_on
from torch import Tensor

from harness.contract.schema import Arm, Workload
from harness.devices import telemetry
from harness.evidence.arm_records import ArmEnd
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_evidence import parsed
from harness.execution import opening
from harness.system.protocol import TrainingRun
from harness.system.replay.traced import TracedStep
from harness.system.resolve import resolve
from harness.system.wrappers import FaultyRun


def capture() -> None:
    value = torch.ones(2)
    TracedStep(value.sum, lambda: {"value": value}).record()


class CapturesInAStep(FaultyRun):
    def step(self, index: int) -> Tensor:
        if index == 3:
            capture()
        return self._inner.step(index)


class System:
    """A user's system, whose arms that ask for no capture make one."""

    def __init__(self, inner: Any, when: str) -> None:
        self._inner, self._when = inner, when

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, workload: Any, arm: Any, **more: Any) -> TrainingRun:
        run: TrainingRun = self._inner.open(workload, arm, **more)
        if arm.capture != "none":
            return run
        if self._when == "as it opens":
            capture()
            return run
        return CapturesInAStep(run, workload.steps)


@pytest.fixture
def forked(warm: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All processes on one thread: sums in another order have other bits."""
    fork_other_processes(monkeypatch)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["as it opens", "in a step"])
def secret(request: pytest.FixtureRequest, forked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "resolve", lambda name: System(resolve(name), request.param))


LONG: dict[str, Any] = {
    **{name: CLAIM[name] for name in ("id", "title", "why", "if_fails", "judged_on", "candidate", "baseline")},
    "kind": "long_replay",
    "mechanism": "traced",
    "steps": 12,
    "every": 4,
    "distinct_batches": 12,
}
REPEATS = {
    **{name: CLAIM[name] for name in ("id", "title", "why", "if_fails", "judged_on", "equality", "max_abs_difference")},
    "kind": "repeatability",
    "candidate": "plain",
    "runs": 2,
    "guards": {"steps": 12},
}
# Of systems that hold without secret captures, as the tests of each kind show.
CLAIMS: dict[str, list[dict[str, Any]]] = {
    "step_function_systems:Regression": [CLAIM, REPEATS, LONG],
    "checkpoint_systems:Right": [
        RESUME | {"candidate": "captured", "baseline": "plain"},
        EVALUATION | {"candidate": "captured", "plain": "plain", "max_relative_difference": 1e-6},
    ],
}


@pytest.mark.usefixtures("secret", "short_turns")
@pytest.mark.parametrize("system", CLAIMS)
def test_claims_whose_plain_arm_captures_fail(system: str, tmp_path: Path) -> None:
    claim, *beside = CLAIMS[system]
    for verdict in judged_on(contract_of(system, claim, beside=beside), tmp_path):
        assert (str(verdict.status), verdict.reason) == ("FAIL", "vacuous_baseline_captured"), verdict.message


def counts(directory: Path) -> dict[str, set[int | None]]:
    """Captures of each arm, as the recorders wrote them."""
    found: dict[str, set[int | None]] = {}
    for line in (directory / "records.jsonl").read_text().splitlines():
        record = parsed(line)
        if isinstance(record, ArmEnd):
            found.setdefault(record.arm, set()).add(record.capture_attempts)
    return found


TIMED = Run(
    id="t1",
    contract="c",
    probe="throughput",
    workload_name="w",
    workload=Workload(model="any", batch_size=2, seq_len=4, steps=12),
    arms={
        "plain": PlannedArm(arm=Arm(), system="step_function_systems:Regression"),
        "captured": PlannedArm(arm=Arm(capture="step"), system="step_function_systems:Regression"),
    },
    settings={"candidate": "captured", "baseline": "plain", "blocks": 4, "block_steps": 3},
    process=5,
)
FOLLOWED = Run(
    id="r",
    contract="c",
    probe="step_match",
    workload_name="w",
    workload=Workload(model="any", batch_size=4, seq_len=6, steps=8),
    arms={
        "exact": PlannedArm(arm=Arm(capture="step", dtype="float64"), system="single_step_systems:Reference"),
        "noisy": PlannedArm(arm=Arm(capture="step", dtype="float32"), system="single_step_systems:Reference"),
        "trained": PlannedArm(arm=Arm(), system="single_step_systems:Trained"),
    },
    settings={"reference": "exact", "yardstick": "noisy", "candidate": "trained"},
)


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize(
    ("run", "found"),
    [
        pytest.param(TIMED, {"plain": {1}, "captured": {1}}, id="throughput"),
        pytest.param(FOLLOWED, {"exact": {0}, "noisy": {0}, "trained": {1}}, id="step_match"),
    ],
)
def test_captures_that_no_setting_requests_are_counted_for_each_open_arm(
    run: Run, found: dict[str, set[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "pace", lambda: 1e-3)
    executed(run, tmp_path / "run")
    assert counts(tmp_path / "run") == found
