"""The trainer's checkpoint and its evaluation, and the faults of both that are its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness.contract.schema import Needs
from harness.system.protocol import Arm, Evaluates, Resumes, Workload
from reference_impl.between_steps import HELD_OUT_BATCHES
from reference_impl.config import learning_rate_at
from reference_impl.errors import ReferenceImplError
from reference_impl.system import QLoRARun, QLoRASystem

WORKLOAD = Workload(model="tiny", batch_size=1, seq_len=8, steps=6, needs=Needs(device="cpu"))


def opened(*, fault: str | None = None, batch_size: int = 1, **settings: object) -> QLoRARun:
    workload = WORKLOAD.model_copy(update={"batch_size": batch_size})
    return QLoRASystem().open(workload, Arm.model_validate(settings), fault=fault)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[Path]:
    """Saved after three steps."""
    with opened() as run:
        for index in range(3):
            run.step(index)
        run.save(tmp_path / "saved")
        yield tmp_path / "saved"


def state_of(run: QLoRARun) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in run.between.state().items()}


def test_the_qlora_system_offers_resume_and_evaluate() -> None:
    with opened() as run:
        assert isinstance(run, Resumes)
        assert isinstance(run, Evaluates)
    assert {"resume", "evaluate"} <= QLoRASystem().describe().capabilities


def test_loading_a_checkpoint_fills_the_existing_tensors(checkpoint: Path) -> None:
    """Captured graphs contain the addresses of these tensors."""
    with opened() as saved, opened() as run:
        for index in range(3):
            saved.step(index)
        before = {name: tensor.data_ptr() for name, tensor in run.between.state().items()}
        run.load(checkpoint)
        assert {name: tensor.data_ptr() for name, tensor in run.between.state().items()} == before
        ours, theirs = state_of(run), state_of(saved)
        assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
        assert ours["step_count"] == 3


def test_a_checkpoint_with_a_different_lora_rank_is_refused(checkpoint: Path) -> None:
    workload = WORKLOAD.model_copy(update={"options": {"rank": 4}})
    with (
        QLoRASystem().open(workload, Arm()) as run,
        pytest.raises(
            ReferenceImplError,
            match="checkpoint: saved holds tensors whose shapes differ from the step's; load it",
        ),
    ):
        run.load(checkpoint)


def test_an_evaluation_uses_the_last_batches_of_the_text_and_changes_no_state() -> None:
    with opened(batch_size=2) as run, opened(batch_size=2) as other:
        for each in (run, other):
            each.step(0)
        before, inputs = state_of(run), {name: tensor.clone() for name, tensor in run.inputs().items()}
        found = run.evaluate()
        last = other.trainer.data.distinct(2, 8)
        losses = []
        for index in range(last - HELD_OUT_BATCHES, last):
            other.trainer.prepare(index)
            losses.append(other.trainer.forward_body().clone())
        assert torch.equal(found, torch.stack(losses).mean())
        after = state_of(run)
        assert [name for name in before if not torch.equal(before[name], after[name])] == []
        assert all(torch.equal(tensor, inputs[name]) for name, tensor in run.inputs().items())


def test_after_the_lost_schedule_fault_training_resumes_with_the_first_learning_rate(checkpoint: Path) -> None:
    rates = []
    for fault in (None, "lost_schedule"):
        with opened(fault=fault) as run:
            run.load(checkpoint)
            run.step(3)
            rates.append(run.trainer.optimizer.learning_rate.item())
            config = run.trainer.config
    assert rates == pytest.approx([learning_rate_at(config, 3), learning_rate_at(config, 0)])


def test_the_orphaned_moments_fault_replaces_the_moment_tensors_at_the_load(checkpoint: Path) -> None:
    with opened(fault="orphaned_moments") as run:
        before = run.trainer.optimizer.exp_avg
        run.load(checkpoint)
        assert run.trainer.optimizer.exp_avg is not before
        assert not torch.equal(run.trainer.optimizer.exp_avg, before)


def test_the_replayed_training_step_fault_trains_during_an_evaluation() -> None:
    with opened(fault="replayed_training_step") as run:
        run.step(0)
        before = run.trainer.trainable.flat.clone()
        run.evaluate()
        assert not torch.equal(run.trainer.trainable.flat, before)


def test_the_fault_of_evaluating_in_static_buffers_changes_the_next_step() -> None:
    with opened(fault="evaluated_in_static_buffers") as run, opened() as right:
        for each in (run, right):
            each.step(0)
            each.evaluate()
            each.step(1)
        assert not torch.equal(run.inputs()["tokens"], right.inputs()["tokens"])
        run.step(2)
        right.step(2)
        assert torch.equal(run.inputs()["tokens"], right.inputs()["tokens"])
