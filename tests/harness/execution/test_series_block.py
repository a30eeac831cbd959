"""The series' figures, kept a block at a time: as they would be if each step's were fetched at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from harness.contract.schema import Arm, Workload
from harness.devices import device_memory
from harness.evidence.arm_records import MemorySample
from harness.evidence.plan_records import PlannedArm, Run
from harness.execution import series_block
from harness.execution.recorder import Recorder
from harness.execution.series_block import SeriesBlock, batch_digests
from harness.execution.watchers.reductions import as_hex, combine_on_device

RUN = Run(
    id="r",
    contract="c",
    probe="paired",
    workload_name="w",
    workload=Workload(model="any", batch_size=2, seq_len=[4, 6], steps=9),
    arms={"only": PlannedArm(arm=Arm(), system="s:S")},
)


class Training:
    """Overwrites its inputs, its norms and its loss at each step; two shapes take turns."""

    def __init__(self) -> None:
        self._inputs: dict[str, Tensor] = {}
        self._before, self._max_norm = torch.zeros(3), torch.tensor(1.0)
        self._loss = torch.zeros(1)

    def step(self, index: int) -> Tensor:
        shape = (2, 4 if index % 2 == 0 else 6)
        values = torch.arange(shape[0] * shape[1]).reshape(shape)
        kept = self._inputs.get("tokens")
        if kept is None or kept.shape != shape:
            self._inputs = {"tokens": values.clone(), "mask": (values > 3)}
        self._inputs["tokens"].copy_(values + index)
        self._before.copy_(torch.tensor([0.5, 1.5, 0.9 + index]))
        return self._loss.fill_(1 / (3 + index))

    def inputs(self) -> Mapping[str, Tensor]:
        return self._inputs

    def gradient_norms(self) -> Mapping[str, Tensor]:
        return {"before": self._before, "max_norm": self._max_norm}

    def metrics(self) -> Mapping[str, Tensor]:
        return {"first": self._before[0], "doubled": 2 * self._loss}

    def gradient_groups(self) -> Mapping[str, list[str]]:
        return {"a": [], "b": [], "c": []}


def written(directory: Path, steps: int) -> list[str]:
    """The rows of a series of so many steps."""
    training = Training()
    with Recorder(directory) as recorder:
        block = SeriesBlock(RUN, recorder, recorder.series("only", 0), training)  # type: ignore[arg-type]
        for index in range(steps):
            block.add(index, training.step(index))
        block.write()
    return (directory / "only.0.csv").read_text().splitlines()[1:]


def at_once(steps: int) -> list[str]:
    """The same, each figure read after its step."""
    training, rows = Training(), []
    for index in range(steps):
        loss = float(training.step(index).double())
        digest = as_hex(int(combine_on_device(training.inputs())))
        active = 2 if index >= 1 else 1
        rows.append(f"{index},{loss!r},{digest},{active},{8 if index % 2 == 0 else 12},0.5,{2 * loss!r}")
    return rows


def test_a_series_block_equals_the_series_computed_at_once(tmp_path: Path) -> None:
    assert written(tmp_path, 9) == at_once(9)


def test_a_series_in_several_blocks_equals_one_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_block, "BLOCK_STEPS", 4)
    assert written(tmp_path, 9) == at_once(9)


def test_large_inputs_make_short_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_block, "KEPT_BYTES", 100)  # a step of 8 tokens keeps 72 bytes, one of 12 keeps 108
    assert written(tmp_path, 9) == at_once(9)


def test_shapes_of_inputs_are_counted_over_all_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_block, "BLOCK_STEPS", 2)
    training, counts = Training(), []
    with Recorder(tmp_path) as recorder:
        block = SeriesBlock(RUN, recorder, recorder.series("only", 0), training)  # type: ignore[arg-type]
        for index in range(5):
            block.add(index, training.step(index))
            counts.append(block.input_shapes)
    assert counts == [1, 2, 2, 2, 2]


def test_each_batch_of_a_timed_block_has_its_own_digest() -> None:
    training, batches = Training(), []
    for index in range(5):
        training.step(index)
        batches.append({name: tensor.clone() for name, tensor in training.inputs().items()})
    assert batch_digests(batches) == [as_hex(int(combine_on_device(batch))) for batch in batches]


def test_allocated_and_reserved_memory_are_read_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """`memory_allocated` and `memory_reserved` would each read the whole table of statistics."""
    counted = {
        "allocated_bytes": {"all": {"current": 5, "peak": 7}, "small_pool": {"current": 1}},
        "reserved_bytes": {"all": {"current": 11, "peak": 13}},
    }
    asked: list[None] = []

    def table(device: None = None) -> dict[str, dict[str, dict[str, int]]]:
        asked.append(device)
        return counted

    monkeypatch.setattr(device_memory, "has_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "memory_stats_as_nested_dict", table)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", table)
    expected = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    asked.clear()
    sample = device_memory.memory_sample(3)
    assert sample is not None
    assert (sample.step, sample.allocated_bytes, sample.reserved_bytes) == (3, *expected) == (3, 5, 11)
    assert len(asked) == 1


def test_memory_before_the_first_use_of_cuda_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_memory.memory_sample(0) is None
    monkeypatch.setattr(device_memory, "has_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", dict)
    assert device_memory.memory_sample(0) == MemorySample(step=0, allocated_bytes=0, reserved_bytes=0)


class Shows:
    """A run that shows the inputs it is given, and nothing else."""

    def __init__(self, *inputs: Mapping[str, Tensor]) -> None:
        self._inputs, self._last = inputs, inputs[0]

    def step(self, index: int) -> Tensor:
        self._last = self._inputs[index % len(self._inputs)]
        return torch.ones(())

    def inputs(self) -> Mapping[str, Tensor]:
        return self._last


def block_of(directory: Path, training: Shows, steps: int) -> tuple[SeriesBlock, list[str]]:
    """The block, and the digest of each step's inputs."""
    with Recorder(directory) as recorder:
        block = SeriesBlock(RUN, recorder, recorder.series("only", 0), training)  # type: ignore[arg-type]
        for index in range(steps):
            block.add(index, training.step(index))
        block.write()
    return block, [row.split(",")[2] for row in (directory / "only.0.csv").read_text().splitlines()[1:]]


def test_a_step_without_visible_inputs_has_no_batch_digest(tmp_path: Path) -> None:
    some = {"tokens": torch.arange(4)}
    block, digests = block_of(tmp_path, Shows(some, {}), 4)
    assert digests == [*batch_digests([some]), ""] * 2
    assert block.input_names == []
    assert batch_digests([{}, some]) == ["", digests[0]]


def test_a_system_may_report_a_single_gradient_norm_as_a_tensor_without_dimensions(tmp_path: Path) -> None:
    class OneGroup(Shows):
        def gradient_norms(self) -> Mapping[str, Tensor]:
            return {"before": torch.tensor(2.0), "max_norm": torch.tensor(1.0)}

        def gradient_groups(self) -> Mapping[str, list[str]]:
            return {"all": []}

    block_of(tmp_path, OneGroup({"tokens": torch.arange(4)}), 3)
    assert [row.split(",")[3] for row in (tmp_path / "only.0.csv").read_text().splitlines()[1:]] == ["1"] * 3


def test_reordered_input_names_do_not_count_as_a_new_input_shape(tmp_path: Path) -> None:
    one, two = {"a": torch.arange(4), "b": torch.ones(2)}, {"b": torch.ones(2), "a": torch.arange(4)}
    block, digests = block_of(tmp_path, Shows(one, two), 4)
    assert (block.input_shapes, len(set(digests))) == (1, 1)


def test_memory_kept_for_rare_input_shapes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: with batches of many different lengths, the memory for each length was never freed."""
    monkeypatch.setattr(series_block, "KEPT_BYTES", 8 * 1000)
    given = [{"tokens": torch.arange(length)} for length in range(1, 101)]
    block, digests = block_of(tmp_path, Shows(*given), 200)
    assert digests == batch_digests(given) * 2
    assert block.input_shapes == 100
    assert block._inputs.held_bytes <= 3 * 8 * 1000  # one shape's room is what may lie above twice as much
