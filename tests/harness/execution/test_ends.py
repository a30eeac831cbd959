"""How far two executions ended apart: parameters by their largest difference, buffers over their largest element."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.evidence.arm_records import NOT_FINITE, EndDifference
from harness.execution.watchers.state_watch import BUFFER, Ends, StateWatch
from harness.system.replay.found_state import as_tensor


def difference(ended: dict[str, list[float]], kept: dict[str, list[float]]) -> EndDifference:
    ends = Ends()
    ends.keep(tensors(kept), "plain")
    [found] = ends.differences(tensors(ended))
    return found


def tensors(values: dict[str, list[float]]) -> dict[str, Tensor]:
    return {name: torch.tensor(each) for name, each in values.items()}


def test_end_differences_separate_parameters_from_buffers() -> None:
    kept = {"weight": [1.0, 2.0], f"{BUFFER}mean": [4.0, -8.0], f"{BUFFER}variance": [2.0], f"{BUFFER}other": [1.0]}
    ended = {"weight": [1.0, 2.5], f"{BUFFER}mean": [4.0, -6.0], f"{BUFFER}variance": [2.25], f"{BUFFER}mine": [9.0]}
    found = difference(ended, kept)
    assert (found.tensors, found.largest, found.tensor) == (1, 0.5, "weight")
    assert (found.buffers, found.buffers_relative, found.buffer) == (2, 0.25, "mean")


@pytest.mark.parametrize(
    ("ours", "theirs", "relative"),
    [
        ([1e-7], [0.0], 0.0),  # rounding, beside a buffer of 4
        ([1e-3], [0.0], math.inf),
        ([math.inf], [math.inf], 0.0),
        ([math.nan], [1.0], math.nan),
    ],
)
def test_buffer_distance_ignores_rounding_and_reports_non_finite_values(
    ours: list[float], theirs: list[float], relative: float
) -> None:
    large = {f"{BUFFER}large": [4.0]}
    found = difference({f"{BUFFER}mean": ours} | large, {f"{BUFFER}mean": theirs} | large)
    assert found.buffers_relative == pytest.approx(relative, nan_ok=True)


def test_end_states_without_buffers_have_no_buffer_distance() -> None:
    found = difference({"weight": [1.0]}, {"weight": [1.0]})
    assert (found.buffers, found.buffers_relative, found.buffer) == (0, None, None)


def test_end_differences_name_the_execution_whose_end_state_was_kept() -> None:
    """In a resumed arm, this is the second half, because it is the first execution that ends in this process."""
    ends = Ends()
    ends.keep(tensors({"weight": [1.0]}), "plain", 1)
    ends.keep(tensors({"weight": [9.0]}), "plain", 2)
    [found] = ends.differences(tensors({"weight": [1.5]}))
    assert (found.arm, found.replica, found.largest) == ("plain", 1, 0.5)
    ends.forget("plain")
    assert ends.differences(tensors({"weight": [1.5]})) == []


class ComesLate:
    """Its average comes with the first step, and is named as `torch.compile` names what is in a module."""

    def __init__(self) -> None:
        self._state: dict[str, Tensor] = {}

    def step(self, index: int) -> Tensor:
        return self._state.setdefault("model._orig_mod.average", torch.zeros(2)).add_(index)

    def state(self) -> dict[str, dict[str, Tensor]]:
        return {"tensors": self._state}


class Appends:
    """Each step adds an entry of its own; beside it lies an average that came with the first step, in a list too."""

    def __init__(self, entry: str) -> None:
        self._entry, self._weight = entry, torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self._state: dict[str, Tensor] = {}

    def step(self, index: int) -> None:
        self._state[self._entry.format(index)] = torch.tensor(float(index))
        self._state.setdefault("averages.0.slow.1", torch.zeros(2)).add_(self._weight)

    def state(self) -> dict[str, dict[str, Tensor]]:
        return {"tensors": self._state}


@pytest.mark.parametrize("entry", ["log.{}", "log.{}.2", "log.{}.loss", "run.0.loss.{}.2", "log.{}.more.0.loss"])
def test_a_tensor_in_an_entry_of_a_log_does_not_count_as_state_even_if_deeply_nested(entry: str) -> None:
    watch = after_two_steps(Appends(entry))
    assert list(watch.at_end().digests["tensors"]) == ["averages.0.slow.1"]
    assert watch.loose is not None
    assert watch.loose.roles is not None
    assert watch.loose.roles[entry.format(0)] == "log"


class Counts:
    """Its optimizer keeps its count of updates as a script keeps it: a number of Python's, or of torch's."""

    def __init__(self, count: object) -> None:
        self._count = as_tensor(count)

    def state(self) -> dict[str, dict[str, Tensor]]:
        return {"optimizer": {"p0.step": self._count}}


@pytest.mark.parametrize("count", [43, 43.0, torch.tensor(43.0), torch.tensor([43])])
def test_an_optimizer_count_is_recorded_by_its_value_for_every_type(count: object) -> None:
    ended = StateWatch(Counts(count)).at_end()  # type: ignore[arg-type]
    assert ended.numbers == {"optimizer p0.step": 43.0}


@pytest.mark.parametrize("setting", ["43", "int 43", True, torch.tensor([43, 0], dtype=torch.uint8), math.inf, 10**400])
def test_a_non_numeric_optimizer_setting_is_recorded_only_by_digest(setting: object) -> None:
    assert StateWatch(Counts(setting)).at_end().numbers == {}  # type: ignore[arg-type]


def after_two_steps(training: Any) -> StateWatch:
    watch = StateWatch(training, follows=True)
    watch.at_start()
    assert watch.steps is not None
    for index in range(2):
        with watch.steps.step(left=1 - index):
            loss = training.step(index)
        watch.steps.stepped(loss, left=1 - index)
        if index == 0:
            watch.after_first_step()
    return watch


def test_a_tensor_created_in_the_first_step_of_a_compiled_module_is_watched() -> None:
    watch = after_two_steps(ComesLate())
    assert list(watch.at_end().digests["tensors"]) == ["model.average"]


class Spoils:
    """Tensors that come with the first step: `mask` is filled anew, `shown` holds a NaN then, `average` later."""

    def __init__(self) -> None:
        self._state: dict[str, Tensor] = {}

    def step(self, index: int) -> Tensor:
        """Its loss reads all of them."""
        self._state = self._state or {
            "average": torch.ones(2),
            "count": torch.zeros(2, dtype=torch.int64),
            "mask": torch.zeros(2),
            "shown": torch.full((2,), math.nan),
        }
        self._state["mask"][index] = -math.inf
        self._state["average"][0] *= math.nan if index else 1.0
        self._state["shown"][0] = index
        return torch.stack([each.sum() for each in self._state.values()]).sum()

    def state(self) -> dict[str, dict[str, Tensor]]:
        return {"tensors": self._state}


def test_a_tensor_created_in_the_first_step_that_becomes_non_finite_is_reported() -> None:
    watch = after_two_steps(Spoils())
    digests = watch.at_end().digests["tensors"]
    assert [name for name, digest in digests.items() if digest.endswith(NOT_FINITE)] == ["average", "mask", "shown"]
    assert watch.spoiled == ["average"]
