"""Whatever a script keeps state in: found, put back after a trial, told where replays miss it, and no arm's start."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import held_averages
import numpy as np
import pytest
import torch
from held_averages import DATA, IN_PLACE, REBOUND, TABLE
from torch import Tensor, nn

from harness.system.built import StepFunction
from harness.system.replay import places
from harness.system.replay.found_state import found_state
from harness.system.replay.places import Values
from harness.system.replay.reachable import reach
from harness.system.replay.snapshots import HostChanges, keep_up
from harness.system.replay.state import StateGuard
from harness.system.replay.traced import TracedStep, fake_pass
from harness.system.step_function_run import StepFunctionRun


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    held_averages.forget_tables()
    yield
    held_averages.forget_tables()


@pytest.mark.parametrize("name", [*REBOUND, *IN_PLACE])
def test_an_average_of_weights_has_the_same_name_before_and_after_the_step(name: str) -> None:
    step, read = (REBOUND | IN_PLACE)[name]()
    names: list[str] = []
    for _ in range(2):
        [found] = [key for key, each in found_state(step)["tensors"].items() if each.data_ptr() == read().data_ptr()]
        names.append(found)
        step()
    assert names[0] == names[1]
    assert "tensor(" not in names[0]
    assert " at 0x" not in names[0]


@pytest.mark.parametrize("name", [*REBOUND, *IN_PLACE])
def test_a_trial_step_leaves_rebound_or_changed_tensors_unchanged(name: str) -> None:
    step, read = (REBOUND | IN_PLACE)[name]()
    before = read()
    with StateGuard(dict, [step]) as guard:
        step()
        assert read().tolist() == [1.0, 1.0]
        guard.restore()
    assert read() is before
    assert before.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", REBOUND)
def test_a_tensor_bound_anew_by_the_step_is_reported_as_a_host_change(name: str) -> None:
    step, _ = REBOUND[name]()
    changes = HostChanges([step], of_device=False)
    step()
    assert [each.endswith("(another Tensor)") for each in changes.found([])] == [True]


@pytest.mark.parametrize("name", REBOUND)
def test_a_rebound_result_is_updated_after_each_replay(name: str) -> None:
    step, read = REBOUND[name]()
    changes = HostChanges([step], of_device=False)
    step()
    keep_up(changes.kept_up({"average": read()}), {"average": (newer := torch.full((2,), 9.0))})
    assert read() is newer


@pytest.mark.parametrize("name", DATA)
def test_a_trial_step_leaves_data_without_tensors_unchanged(name: str) -> None:
    step, read = DATA[name]()
    before = read()
    with StateGuard(dict, [step]) as guard:
        step()
        assert str(read()) != str(before)
        guard.restore()
    assert str(read()) == str(before)


@pytest.mark.parametrize("name", DATA)
def test_data_changed_in_place_by_the_step_is_reported_with_its_place(name: str) -> None:
    step, _ = DATA[name]()
    quiet, changes = (HostChanges([step], of_device=False) for _ in range(2))
    assert quiet.found([]) == []
    step()
    [told] = changes.found([])
    assert "held" in told
    assert told.endswith("changed in place)")


def test_numeric_arrays_are_state_and_cached_function_results_are_not() -> None:
    array = np.zeros(2)

    @functools.cache
    def table() -> Any:
        return np.ones(2)

    table()
    words = np.array(["a"])

    def step() -> object:
        return array, table, words

    [(name, found)] = found_state(step)["tensors"].items()
    array += 1
    assert (name, found.tolist()) == ("array", [1.0, 1.0])


def test_replays_of_a_recorded_step_also_change_an_array_in_the_memory_of_a_tensor() -> None:
    average = torch.zeros(2)
    array = average.numpy()
    step = lambda: (average.add_(1), array)
    changes = [HostChanges([step], of_device=each) for each in (False, True)]
    step()  # type: ignore[no-untyped-call]
    assert [len(each.found([])) for each in changes] == [0, 2]


def test_arrays_too_large_to_copy_and_readonly_arrays_are_not_restored_after_a_trial_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "LARGEST", 1000)
    arrays = [np.zeros(125), np.zeros(126), np.zeros(2)]
    arrays[2].flags.writeable = False
    found = reach(lambda: arrays)
    assert [each.owner is arrays[0] for each in found.places if isinstance(each, Values)] == [True]


class Reads:
    """A trained weight, and a table that the first step makes."""

    def __init__(self, table: Callable[[], Tensor]) -> None:
        self.weight, self.table = nn.Parameter(torch.ones(2)), table

    def step(self, batch: Any = None) -> Tensor:
        loss = (self.weight * self.table()).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self.weight.sub_(0.1)
        self.weight.grad = None
        return loss.detach()

    def function(self) -> StepFunction:
        return StepFunction(
            step=self.step, batch=lambda _index: {"x": torch.zeros(1)}, parameters=lambda: {"w": self.weight}
        )


@pytest.mark.parametrize("name", TABLE)
def test_a_pass_on_fake_tensors_leaves_no_fake_tensor_in_a_table_of_cached_results(name: str) -> None:
    reads = Reads(TABLE[name])
    assert fake_pass(reads.step, dict, [reads.step]).created_state
    assert type(TABLE[name]()) is Tensor
    assert TABLE[name]().tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", TABLE)
def test_a_step_whose_first_call_creates_a_table_can_be_recorded(name: str) -> None:
    reads = Reads(TABLE[name])
    traced = TracedStep(reads.step, lambda: {"weight": reads.weight}, roots=[reads.step])
    traced.record()
    losses = [traced.replay().item() for _ in range(3)]
    assert losses == pytest.approx([2.0, 1.8, 1.6])
    assert traced.host_changes == []


@pytest.mark.parametrize("name", TABLE)
def test_an_arm_starts_without_tables_created_by_the_previous_arm(name: str) -> None:
    starts: list[set[str]] = []
    for _ in range(2):
        with StepFunctionRun(Reads(TABLE[name]).function(), capture="none", layers=1) as run:
            starts.append({name for tensors in run.state().values() for name in tensors})
            run.step(0)
    assert starts[0] == starts[1]


def test_a_generators_last_batch_and_loss_are_not_state() -> None:
    """A replay executes no Python, so these would stay those of the capture.

    Tensors that existed at the start are watched.
    """
    weight = nn.Parameter(torch.ones(2))

    def loop() -> Any:
        average, loss = torch.zeros(2), None
        while True:
            batch = yield loss
            average.add_(batch["x"])
            loss = weight.sum().detach()

    running: Any = loop()
    next(running)
    function = StepFunction(
        step=running.send,
        batch=lambda index: {"x": torch.full((2,), float(index))},
        parameters=lambda: {"w": weight},
    )
    with StepFunctionRun(function, capture="none", layers=1) as run:
        run.state()
        for index in range(3):
            run.step(index)
        assert {name: each.tolist() for name, each in run.state()["tensors"].items()} == {
            "<locals>.average": [3.0, 3.0]
        }


def test_results_cached_by_a_function_are_not_state() -> None:
    """The function would compute them again, and which results are cached depends on earlier callers."""
    held_averages.bounded(2)
    step = TABLE["lru_cache"]
    assert found_state(step)["tensors"] == {}
    assert [each.tolist() for each in reach(step).memoized.values()] == [[1.0, 1.0]]


def test_results_cached_before_a_trial_step_are_kept() -> None:
    earlier = held_averages.bounded(2)
    step: Callable[[], object] = lambda: held_averages.bounded(3)
    with StateGuard(dict, [step]) as guard:
        step()
        guard.restore()
    assert held_averages.bounded(2) is earlier


def test_a_trial_step_keeps_objects_that_a_library_binds_in_its_own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the library would set up again what it has already set up outside of Python."""
    monkeypatch.setattr("harness.system.replay.holders.is_users_file", lambda _file: False)
    step, read = REBOUND["module"]()
    with StateGuard(dict, [step]) as guard:
        step()
        guard.restore()
    assert read().tolist() == [1.0, 1.0]


def test_a_cache_of_an_unknown_function_is_not_an_error() -> None:
    @functools.cache
    def table() -> Tensor:
        return torch.ones(2)

    vars(table)["__wrapped__"] = _unrelated
    table()
    assert reach(table).memoized == {}


def _unrelated() -> None: ...


@pytest.mark.parametrize("kind", ["O", [("name", object), ("score", float)]], ids=["objects", "rows with objects"])
def test_an_object_array_is_unchanged_while_it_holds_the_same_objects(kind: Any) -> None:
    """numpy creates a new row object each time that a row is read."""
    array = np.zeros(2, dtype=kind)
    array["name" if array.dtype.names else ...] = "a", ["b"]
    values = Values(array, "")
    before = values.read()
    assert values.is_as(before)
    array[0] = array[1]
    assert not values.is_as(before)
    values.restore(before, lambda _slot, _value: False)
    assert values.is_as(before)


class Unnamed(type):
    def __getattribute__(cls, name: str) -> object:
        if name in {"__name__", "__qualname__", "__module__"}:
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Nameless(metaclass=Unnamed):
    """Its class says no name."""


class Proxy:
    """Of a request that is none now: it raises whatever it is asked."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("working outside of a request")


def test_an_object_that_raises_when_inspected_does_not_end_the_search_for_state() -> None:
    shy, average = [Nameless(), Proxy(), Nameless], torch.zeros(2)
    found = reach(lambda: (shy, average))
    assert [*found.tensors] == ["average"]


def test_an_assertion_rewritten_by_pytest_adds_no_state_of_pytest() -> None:
    average = torch.zeros(2)

    def step() -> None:
        assert average.sum() == 0
        assert str(average) != "x"

    assert any(name.startswith("@") for name in step.__code__.co_names)  # so that this test shows something
    assert not [each.path for each in reach(step).places if "_config" in each.path]


KEYS: dict[str, Callable[[Tensor], object]] = {
    "id": id,
    "text": lambda one: f"{id(one)}_momentum",
    "pair": lambda one: (id(one), 0),
    "hexadecimal": lambda one: hex(id(one)),
    "object's text": object.__repr__,
    "data pointer": Tensor.data_ptr,
}


@pytest.mark.parametrize("key", KEYS)
def test_state_keyed_by_an_object_address_is_named_by_its_position(key: str) -> None:
    """In another process the addresses are different, and the positions are the same."""
    parameters = [torch.ones(2), torch.ones(3)]
    moments = {KEYS[key](parameter): torch.zeros(2) for parameter in parameters}
    owner = SimpleNamespace(**{str(KEYS[key](parameter)): torch.zeros(2) for parameter in parameters})

    def step() -> object:
        return moments, owner

    assert [*reach(step).tensors] == ["moments.0", "moments.1", "owner.0", "owner.1"]


def test_state_keyed_by_short_numbers_is_named_by_the_number() -> None:
    kept: dict[object, Tensor] = {7: torch.zeros(1), 0.30000000000000004: torch.zeros(1), ("a", 1): torch.zeros(1)}

    def step() -> object:
        return kept

    assert [*reach(step).tensors] == ["kept.7", "kept.0.30000000000000004", "kept.('a', 1)"]
