"""Every guard of a shipped contract leaves a correct trainer room, by measurements that the page shows."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import guard_room
import measure_guard_room as measure
import pytest
import torch
from guard_room import EFFECT, Guard, Room

from reference_impl.config import TrainConfig
from reference_impl.data import DEFAULT_TEXT_SHA256


@cache
def rooms() -> list[Room]:
    return guard_room.rooms()


def devices() -> dict[str, str]:
    """The device of every case."""
    cases = json.loads(measure.CASES.read_text(encoding="utf-8"))
    return {key: case["config"]["device"] for key, case in cases.items()}


def test_the_guard_room_cases_are_generated_from_the_contracts() -> None:
    assert measure.CASES.read_text(encoding="utf-8") == guard_room.cases_text()


def test_every_guard_was_measured_and_has_room() -> None:
    on_gpu = any(not record["machine"]["device"].endswith("CPU") for record in guard_room.records())
    device = devices()
    asked = [each for each in rooms() if on_gpu or device[each.guard.cases[0]] == "cpu"]
    assert len(asked) >= 20
    assert [f"{each.guard.place} {each.problem}" for each in asked if each.problem is not None] == []


def test_guard_room_measurements_on_a_cpu_cover_ten_seeds_and_two_python_versions() -> None:
    seen: dict[str, set[tuple[str, int]]] = {key: set() for key, device in devices().items() if device == "cpu"}
    for record in guard_room.records():
        for row in record["rows"]:
            if row["case"] in seen:
                seen[row["case"]].add((record["machine"]["python"], row["seed"]))
    counts = [(len({seed for _, seed in rows}), len({python for python, _ in rows})) for rows in seen.values()]
    assert counts
    assert all(seeds >= 10 and pythons >= 2 for seeds, pythons in counts), counts


def test_guard_room_measurements_use_the_default_text() -> None:
    assert {row["text_digest"] for record in guard_room.records() for row in record["rows"]} == {DEFAULT_TEXT_SHA256}


@pytest.mark.parametrize(
    ("room", "problem"),
    [
        (Room(Guard("c", "C", "w", EFFECT, 0.1, 4, ("k",)), 0.0347, 10, 0.002), "requires more than 0.5"),
        (Room(Guard("c", "C", "w", EFFECT, 0.1, 4, ("k",)), 0.3, 10, 0.12), "accepts a training that learns"),
        (Room(Guard("c", "C", "w", EFFECT, 0.1, 4, ("k",))), "was not measured"),
        (Room(Guard("c", "C", "w", guard_room.CLIP, 12, None, ("k",)), 12, 10), "requires more than 0.9"),
    ],
)
def test_a_guard_without_room_is_reported(room: Room, problem: str) -> None:
    assert room.problem is not None
    assert problem in room.problem


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_control_is_a_training_at_learning_rate_zero_that_changes_no_global_state(ranks: int) -> None:
    config = TrainConfig.preset("tiny", device="cpu", seq_len=8, batch_size=4, steps=3, micro_batches=ranks)
    case = measure.Case("case", config, (8, 4), ranks, (2,), is_trained=True)
    looked, alone = measure.Training(case, 1), measure.Training(case, 1)
    frozen = measure.Training(replace(case, config=replace(config, learning_rate=0.0)), 1)
    control = [looked.untrained(index) for index in range(3)]
    for index in range(3):
        assert torch.equal(frozen.step(index), control[index])
        assert torch.equal(looked.step(index), alone.step(index))
    assert control[0].shape == (ranks,)
    for name, tensor in alone.trainer.state_tensors().items():
        assert torch.equal(tensor, looked.trainer.state_tensors()[name]), name
