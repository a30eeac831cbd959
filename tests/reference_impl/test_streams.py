"""What a step enqueues on its second stream, and that the main line waits for all of it; with stand-ins for CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from reference_impl.config import ModelConfig, TrainConfig
from reference_impl.trainer import Trainer

SHAPE = ModelConfig(
    hidden_size=64, intermediate_size=96, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=256
)
CONFIG = TrainConfig(model=SHAPE, rank=4, batch_size=2, seq_len=16, device="cpu", steps=5)


@dataclass
class StandInEvent:
    device: torch.device
    number: int


@dataclass
class StandInStream:
    """Counts its events, and remembers the latest event of each other stream that it waited for."""

    name: str
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    recorded: int = 0
    waited: list[int] = field(default_factory=list)
    joined: list[str] = field(default_factory=list)

    def record_event(self) -> StandInEvent:
        self.recorded += 1
        return StandInEvent(self.device, self.recorded)

    def wait_event(self, event: StandInEvent) -> None:
        self.waited.append(event.number)

    def wait_stream(self, other: StandInStream) -> None:
        self.joined.append(other.name)


class StandIns:
    """The two streams of an overlapped step, in the place of CUDA's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main, self.side = StandInStream("main"), StandInStream("side")
        self._current = self.main
        monkeypatch.setattr(torch.cuda, "Stream", lambda _device, **_options: self.side)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _device=None: self._current)
        monkeypatch.setattr(torch.cuda, "stream", self._within)

    @contextmanager
    def _within(self, stream: StandInStream) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before


def test_a_step_waits_for_all_work_on_its_second_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, overlapped = Trainer(CONFIG), Trainer(CONFIG)
    stand_ins = StandIns(monkeypatch)
    for index in range(2):
        with overlapped.model.streams.overlapped():
            loss = overlapped.step(index)
        assert torch.equal(plain.step(index), loss)
    assert torch.equal(plain.trainable.flat, overlapped.trainable.flat)
    side, main = stand_ins.side, stand_ins.main
    # Forward: all but the first of 3 x 3 groups. Backward: all but the first 3 of 9, and 3 LoRA branches. Two steps.
    assert side.recorded == 2 * (8 + 6 + 3)
    assert sorted(main.waited) == list(range(1, side.recorded + 1))
    # Each piece of work beside starts after the main line.
    assert side.joined == ["main"] * side.recorded


def test_a_step_outside_of_an_overlapped_block_uses_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(CONFIG)
    stand_ins = StandIns(monkeypatch)
    with trainer.model.streams.overlapped():
        pass
    trainer.step(0)
    assert (stand_ins.side.recorded, stand_ins.side.joined) == (0, [])


def test_each_half_of_a_split_step_waits_for_the_work_that_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(CONFIG)
    stand_ins = StandIns(monkeypatch)
    trainer.prepare(0)
    for half, recorded in ((trainer.forward_body, 8), (trainer.backward_body, 8 + 6 + 3)):
        with trainer.model.streams.overlapped():
            half()
        assert stand_ins.side.recorded == recorded
        assert sorted(stand_ins.main.waited) == list(range(1, recorded + 1))
