"""Faults of the step that no drill on a CPU shows, or whose traces lie beside the step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from harness.contract.schema import Needs
from harness.system.protocol import Arm, Workload
from reference_impl.config import learning_rate_at
from reference_impl.faults import STEP, plant
from reference_impl.system import QLoRASystem

WORKLOAD = Workload(model="tiny", batch_size=1, seq_len=8, steps=4, needs=Needs(device="cpu"))


def test_the_cross_stream_race_fault_copies_later_batches_on_a_separate_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    @contextmanager
    def on(stream: str) -> Iterator[None]:
        happened.append(f"enter {stream}")
        yield
        happened.append(f"leave {stream}")

    monkeypatch.setattr("torch.cuda.Stream", lambda: "the other stream")
    monkeypatch.setattr("torch.cuda.stream", on)
    monkeypatch.setattr("reference_impl.faults.step.RACE_BYTES", 4)
    made = torch.empty

    def not_pinned(size: int, *, pin_memory: bool = False, **keywords: Any) -> torch.Tensor:
        return made(size, **keywords)

    monkeypatch.setattr("torch.empty", not_pinned)
    monkeypatch.setattr(
        "torch.Tensor.copy_", lambda _target, source, **_: happened.append(f"copy {source.numel()} bytes")
    )
    trainer = cast("Any", SimpleNamespace(prepare=lambda index: happened.append(f"batch {index}"), device="cpu"))
    plant("cross_stream_race", STEP, trainer)
    trainer.prepare(0)
    assert happened == ["batch 0"]
    trainer.prepare(1)
    assert happened[1:] == ["enter the other stream", "copy 4 bytes", "batch 1", "leave the other stream"]


def test_the_global_clip_fault_has_one_group_of_all_tensors_and_unchanged_facts() -> None:
    with QLoRASystem().open(WORKLOAD, Arm()) as run:
        names, layers = [*run.parameters()], run.trainer.model_config.num_layers
        assert [len(group) for group in run.gradient_groups().values()] == [6] * layers
    with QLoRASystem().open(WORKLOAD, Arm(), fault="global_clip") as run:
        run.step(0)
        assert run.gradient_groups() == {"all": names}
        assert run.gradient_norms()["before"].shape == (1,)
        assert run.facts()["clip_scope"] == "per_layer"


def test_the_frozen_learning_rate_fault_keeps_the_rate_of_the_first_step() -> None:
    with QLoRASystem().open(WORKLOAD, Arm(), fault="frozen_learning_rate") as run:
        run.step(0)
        run.step(1)
        assert run.trainer.optimizer.learning_rate.item() == pytest.approx(learning_rate_at(run.trainer.config, 0))
        assert learning_rate_at(run.trainer.config, 1) != pytest.approx(learning_rate_at(run.trainer.config, 0))
