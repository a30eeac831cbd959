"""The step_accuracy probe over three made-up implementations of one regression, in 64, 32 and 16 bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from harness.contract.schema import Arm, Workload
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import RunEvidence
from harness.execution import opening
from harness.execution.probes import single_steps
from harness.execution.recorder import Recorder
from harness.execution.sharing import write_run
from harness.system.protocol import NotAvailable
from harness.system.replay.traced import TracedStep

WORKLOAD = Workload(model="m", batch_size=4, seq_len=1, steps=5)
SETTINGS: dict[str, object] = {
    "candidate": "ours",
    "peer": "theirs",
    "reference": "exact",
    "gradient_seeds": [3, 4],
    "gradient_steps": [0, 2],
    "loss_seeds": [4, 9],
}


class Regression:
    """Fits w of y = x w by gradient descent; its own precision is `dtype`, that of its parameters float32."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self.dtype = dtype
        self.restart(seed)

    def restart(self, seed: int) -> None:
        self.seed = seed
        self.w = torch.rand(3, generator=torch.Generator().manual_seed(seed))
        self.gradient = torch.zeros(3)

    def evaluate(self, index: int, parameters: Mapping[str, Tensor]) -> Tensor:
        self.w = parameters["w"].clone()
        generator = torch.Generator().manual_seed(100 * self.seed + index)
        self.tokens = torch.randint(-4, 5, (4, 3), generator=generator)
        x, w = self.tokens.to(self.dtype), self.w.to(self.dtype)
        error = x @ w - x.sum(dim=1)
        self.gradient = (x.t() @ error).to(torch.promote_types(self.dtype, torch.float32)) / 4
        return error.double().square().mean()

    def step(self, index: int) -> Tensor:
        loss = self.evaluate(index, {"w": self.w})
        self.w = self.w - 0.01 * self.gradient.to(self.w.dtype)
        return loss

    def facts(self) -> Mapping[str, Any]:
        return {"dtype": str(self.dtype)}

    def inputs(self) -> Mapping[str, Tensor]:
        return {"tokens": self.tokens}

    def parameters(self) -> Mapping[str, Tensor]:
        return {"w": self.w}

    def frozen(self) -> Mapping[str, Tensor]:
        return {}

    def gradients(self) -> Mapping[str, Tensor]:
        return {"w": self.gradient}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class System:
    """Opens a regression; notes where its weights were said to lie."""

    run: type[Regression] = Regression

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.opened: list[tuple[int, str | None]] = []

    def describe(self) -> SimpleNamespace:
        return SimpleNamespace(faults={})

    def open(self, workload: Workload, _arm: Arm, *, model_directory: str | None, **_: object) -> Regression:
        self.opened.append((workload.seed, model_directory))
        return self.run(self.dtype, workload.seed)


class WithCheckpoint(System):
    def checkpoint(self, _workload: Workload, folder: Path, *, model_directory: str | None = None) -> Path:
        (folder / "weights").mkdir()
        return folder / "weights"


def systems() -> dict[str, System]:
    return {"ours": WithCheckpoint(torch.bfloat16), "theirs": System(torch.float32), "exact": System(torch.float64)}


def executed(directory: Path, monkeypatch: pytest.MonkeyPatch, found: Mapping[str, object]) -> RunEvidence:
    run = Run(
        id="c+w+a",
        contract="c",
        probe="step_accuracy",
        workload_name="w",
        workload=WORKLOAD,
        arms={name: PlannedArm(arm=Arm(), system=name) for name in found},
        settings=SETTINGS,
    )
    for module in (opening, single_steps):
        monkeypatch.setattr(module, "resolve", lambda name: found[name])
    directory.mkdir()
    write_run(run, directory)
    with Recorder(directory) as recorder:
        single_steps.execute_step_accuracy(run, recorder)
        recorder.complete()
    return read_run(directory)[1]


def test_all_arms_of_a_step_accuracy_run_start_from_equal_state_and_read_equal_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = executed(tmp_path / "run", monkeypatch, systems())
    assert evidence.death is None
    starts = {arm: [each.start.trainable_digest for each in found] for arm, found in evidence.arms.items()}
    assert starts["ours"] == starts["theirs"] == starts["exact"]
    assert len(set(starts["ours"])) == 3
    assert [each.start.trainable_names for each in evidence.arms["ours"]] == [["w"]] * 3
    for record in evidence.step_errors:
        assert len(set(record.parameters.values())) == len(set(record.batches.values())) == 1


def test_captures_are_counted_in_all_step_accuracy_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Captures(Regression):
        def restart(self, seed: int) -> None:
            super().restart(seed)
            TracedStep(self.w.sum, lambda: {"w": self.w}).record()

    found = systems()
    found["theirs"].run = Captures
    evidence = executed(tmp_path / "run", monkeypatch, found)
    ends = {arm: [each.end for each in executions] for arm, executions in evidence.arms.items()}
    counted = {arm: [end.capture_attempts for end in each if end is not None] for arm, each in ends.items()}
    assert counted == {"ours": [0, 0, 0], "theirs": [2, 3, 4], "exact": [0, 0, 0]}, "opened once, begun anew each time"


def test_every_step_has_a_loss_where_losses_are_compared_and_gradient_steps_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = executed(tmp_path / "run", monkeypatch, systems())
    steps = {arm: [len(each.series.loss) for each in found] for arm, found in evidence.arms.items()}
    assert steps == {"ours": [3, 5, 5], "theirs": [0, 5, 5], "exact": [0, 5, 5]}
    assert [each.start.facts["seed"] for each in evidence.arms["ours"]] == [3, 4, 9]
    assert [(record.seed, record.step) for record in evidence.step_errors] == [(3, 0), (3, 2), (4, 0), (4, 2)]


def test_errors_are_norms_of_differences_from_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = executed(tmp_path / "run", monkeypatch, systems())
    record = evidence.step_errors[0]
    at_start = Regression(torch.float32, 3).parameters()
    gradients = {}
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        regression = Regression(dtype, 3)
        regression.evaluate(0, at_start)
        gradients[dtype] = regression.gradient.double()
    exact = gradients[torch.float64]
    [tensor] = record.tensors
    assert tensor.reference_norm == pytest.approx(float(exact.norm()), rel=1e-12)
    assert tensor.candidate_error == pytest.approx(float((gradients[torch.bfloat16] - exact).norm()), rel=1e-12)
    assert tensor.peer_error == pytest.approx(float((gradients[torch.float32] - exact).norm()), rel=1e-12)
    assert tensor.candidate_error > 1000 * tensor.peer_error > 0


def test_peer_and_reference_are_opened_once_and_all_read_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = systems()
    executed(tmp_path / "run", monkeypatch, found)
    assert [seed for seed, _ in found["ours"].opened] == [3, 4, 9]
    assert len(found["theirs"].opened) == len(found["exact"].opened) == 1
    folders = {directory for system in found.values() for _, directory in system.opened}
    assert [Path(folder or "").name for folder in folders] == ["weights"]
    assert not any(Path(folder or "").exists() for folder in folders)


def test_a_gradient_missing_in_one_arm_has_no_step_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Without(Regression):
        def gradients(self) -> Mapping[str, Tensor]:
            return {}

    found = systems()
    found["theirs"].run = Without
    evidence = executed(tmp_path / "run", monkeypatch, found)
    assert [record.tensors for record in evidence.step_errors] == [[], [], [], []]


def test_a_candidate_without_a_checkpoint_is_not_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {**systems(), "ours": System(torch.bfloat16)}
    with pytest.raises(NotAvailable, match="ours lacks the capability `checkpoint`"):
        executed(tmp_path / "run", monkeypatch, found)


def test_a_reference_that_cannot_restart_is_not_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stubborn(Regression):
        evaluate = None  # type: ignore[assignment]

        def step(self, index: int) -> Tensor:
            return Regression.step(self, index)

    found = systems()
    found["exact"].run = Stubborn
    with pytest.raises(NotAvailable, match="arm exact lacks the capability `peer`"):
        executed(tmp_path / "run", monkeypatch, found)
