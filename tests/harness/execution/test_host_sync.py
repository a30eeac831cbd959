"""Host syncs: two detectors agree on the count and name the line; a blind detector says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import step_function_systems
import torch
from step_function_systems import Chooses, DividesByWhatItReads, OwnOperator, Regression, Waits
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.contract.schema import Arm, Workload
from harness.devices.host_waits import not_of_the_step
from harness.devices.profiler import profiler, raw_events
from harness.evidence.arm_records import HostSyncEvidence
from harness.execution.watchers import host_sync
from harness.execution.watchers.host_sync import observe_syncs
from harness.execution.watchers.sync_detectors import (
    _WINDOW,
    Sync,
    Syncs,
    by_dispatch_mode,
    by_fake_pass,
    needs_value,
    syncs_of_profile,
    waits_within,
)
from harness.system.replay.sites import Place

WORKLOAD = Workload(model="any", batch_size=2, seq_len=4, steps=8)
SOURCE = Path(step_function_systems.__file__).read_text().splitlines()


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SOURCE, start=1) if text in line)


def observed(system: Regression, capture: str = "none") -> HostSyncEvidence:
    arm = Arm.model_validate({"capture": capture})
    return observe_syncs(lambda: system.open(WORKLOAD, arm), "arm", 0, announced=WORKLOAD.steps)


def observe(system: Regression, capture: str = "none") -> dict[str, tuple[int, int, bool]]:
    evidence = observed(system, capture)
    return {reading.detector: (reading.count, reading.steps, reading.sees_planted) for reading in evidence.readings}


def test_both_detectors_count_the_same_syncs_of_a_waiting_step() -> None:
    assert observe(Waits()) == {"dispatch_mode": (10, 2, True), "fake_pass": (5, 1, True)}


def test_both_detectors_count_the_hidden_sync_of_boolean_indexing() -> None:
    assert observe(Chooses()) == {"dispatch_mode": (2, 2, True), "fake_pass": (1, 1, True)}


@pytest.mark.parametrize("capture", ["none", "step"])
def test_a_step_that_never_waits_counts_zero(capture: str) -> None:
    assert observe(Regression(), capture) == {"dispatch_mode": (0, 2, True), "fake_pass": (0, 1, True)}


def test_source_lines_that_wait_for_the_device_are_named() -> None:
    evidence = observed(Waits())
    for reading in evidence.readings:
        named = {(Path(place.file).name, place.line): place.count for place in reading.places}
        per_step = reading.steps
        assert named == {
            ("step_function_systems.py", line_of("WAITS_LINE")): per_step,
            ("step_function_systems.py", line_of("grad.norm().item()")): 4 * per_step,
        }
        assert not any(place.file.startswith("/") for place in reading.places)


@pytest.mark.parametrize(
    ("announced", "steps", "executions"), [(8, 2, [4]), (4, 4, [4, 2]), (2, 2, [2, 2]), (1, 2, [1, 1])]
)
def test_sync_observation_takes_no_more_steps_than_announced(announced: int, steps: int, executions: list[int]) -> None:
    """Each time that the arm is opened, executions of the step are counted, including passes on fake tensors."""
    made: list[int] = []

    @contextmanager
    def opens() -> Iterator[Any]:
        made.append(0)
        with Regression().open(WORKLOAD, Arm()) as training:
            body = training.step_body

            def counted() -> Callable[[], Tensor]:
                made[-1] += 1
                return body()

            training.step_body = counted  # type: ignore[method-assign]
            yield training

    observe_syncs(opens, "arm", 0, announced=announced, steps=steps)
    assert made == executions


def test_a_host_sync_detector_that_misses_the_planted_sync_reports_this(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_sync, "by_dispatch_mode", lambda *_, **__: Counter[object]())
    assert observe(Waits())["dispatch_mode"] == (0, 2, False)


def uses(function: Callable[[Tensor], object]) -> tuple[int, int]:
    tensor = torch.arange(6.0)
    execute = partial(function, tensor)
    return sum(by_dispatch_mode(execute, "cpu").values()), sum(by_fake_pass(execute, "cpu").values())


@pytest.mark.parametrize(
    ("function", "count"),
    [
        pytest.param(lambda t: t.sum().item(), 1, id="item"),
        pytest.param(lambda t: [bool(t[0] > 0), int(t[1])], 2, id="bool_and_int"),
        pytest.param(lambda t: t.nonzero().sum(), 1, id="nonzero"),
        pytest.param(lambda t: t[t > 2].sum(), 1, id="mask"),
        pytest.param(lambda t: t.masked_select(t > 2), 1, id="masked_select"),
        pytest.param(lambda t: torch.equal(t, t), 1, id="equal"),
        pytest.param(lambda t: t.unique(), 1, id="unique"),
        pytest.param(lambda t: t.int().bincount(), 1, id="bincount"),
        pytest.param(lambda t: (t * 2).clamp(max=3).sum(), 0, id="arithmetic"),
        pytest.param(lambda t: t[torch.tensor([0, 1])], 0, id="index_by_numbers"),
        pytest.param(lambda t: torch.where(t > 2, t, 0), 0, id="where"),
    ],
)
def test_operators_that_read_tensor_values_count_as_syncs(function: Callable[[Tensor], object], count: int) -> None:
    assert uses(function) == (count, count)


def test_on_cuda_only_reads_of_cuda_tensors_and_blocking_copies_are_syncs() -> None:
    copy = torch.ops.aten.copy_.default
    host = torch.zeros(2)
    device = torch.zeros(2, device="meta")
    assert needs_value(torch.ops.aten._local_scalar_dense.default, [host], {}, "cpu")
    assert not needs_value(torch.ops.aten._local_scalar_dense.default, [host], {}, "cuda")
    assert not needs_value(copy, [host, device], {}, "cuda")  # not between host and CUDA
    to_copy = torch.ops.aten._to_copy.default
    assert needs_value(to_copy, [host], {"device": torch.device("cuda")}, "cuda")
    assert not needs_value(to_copy, [host], {"device": torch.device("cuda"), "non_blocking": True}, "cuda")
    assert not needs_value(to_copy, [host], {"dtype": torch.float64}, "cuda")


@pytest.mark.parametrize(
    ("waits", "value", "how"),
    [
        pytest.param(False, lambda: torch.zeros(()), {}, id="a_value_of_the_hosts"),
        pytest.param(True, lambda: torch.zeros((), device="cuda"), {}, id="a_value_on_the_device"),
        pytest.param(True, lambda: torch.zeros(3, device="cuda"), {}, id="values"),
        pytest.param(True, lambda: torch.zeros(()), {"accumulate": True}, id="added_up"),
    ],
)
def test_a_masked_write_on_cuda_is_a_sync_unless_torch_fills_without_waiting(
    waits: bool, value: Callable[[], Tensor], how: dict[str, bool]
) -> None:
    with FakeTensorMode():
        tensor, mask = torch.empty(6, device="cuda"), torch.empty(6, device="cuda", dtype=torch.bool)
        given = (tensor, [mask], value())
        assert needs_value(torch.ops.aten.index_put_.default, given, how, "cuda") is waits
        assert needs_value(torch.ops.aten.index_put_.default, (*given, *how.values()), {}, "cuda") is waits
        assert needs_value(torch.ops.aten.index_put.default, given, how, "cuda") is waits


def test_a_masked_write_combined_with_a_second_index_is_a_sync() -> None:
    with FakeTensorMode():
        tensor, mask = torch.empty(6, 4, device="cuda"), torch.empty(6, device="cuda", dtype=torch.bool)
        numbers = torch.zeros(1, device="cuda", dtype=torch.int64)
        for indices, waits in (([mask, numbers], True), ([mask, None], False), ([numbers, None], False)):
            given = (tensor, indices, torch.zeros(()))
            assert needs_value(torch.ops.aten.index_put_.default, given, {}, "cuda") is waits


@pytest.mark.parametrize(("device", "waits"), [("cpu", True), ("cuda", False)])
def test_indexing_a_cuda_tensor_by_host_indices_counts_as_a_sync(device: str, waits: bool) -> None:
    with FakeTensorMode():
        tensor, places = torch.empty(6, device="cuda"), torch.zeros(2, device=device, dtype=torch.int64)
        assert needs_value(torch.ops.aten.index.Tensor, (tensor, [places]), {}, "cuda") is waits


def profiled(function: Callable[[], object]) -> Syncs:
    """On a CPU the operator itself stands for the CUDA call that it would make."""
    with profiler(stacks=True) as profile:
        torch.ones(2).sum().item()  # outside the window
        with torch.profiler.record_function(_WINDOW):
            function()
        torch.ones(2).sum().item()
    return syncs_of_profile(list(profile.events() or []), ["aten::_local_scalar_dense"])


def test_the_profile_is_read_inside_its_window_with_the_users_line() -> None:
    def waits() -> None:
        torch.ones(3).sum().item()

    (sync,) = profiled(waits).items()
    assert sync[1] == 1
    assert Path(sync[0].place.file).name == "test_host_sync.py"
    assert sync[0].place.line in range(waits.__code__.co_firstlineno, waits.__code__.co_firstlineno + 2)


def test_a_profile_without_syncs_is_empty() -> None:
    assert profiled(lambda: torch.ones(3).sum()) == Counter()


def test_raw_profiler_events_and_events_with_stacks_give_the_same_number_of_syncs() -> None:
    with profiler(stacks=True) as profile:
        torch.ones(2).sum().item()
        with torch.profiler.record_function(_WINDOW):
            [torch.ones(3).sum().item() for _ in range(3)]
        torch.ones(2).sum().item()
    names = ["aten::_local_scalar_dense"]
    counted = sum(syncs_of_profile(list(profile.events() or []), names).values())
    assert waits_within(_WINDOW, raw_events(profile), names) == counted == 3
    assert waits_within("another window", raw_events(profile), names) == 0


def test_syncs_by_the_harness_between_steps_are_not_counted_for_the_step() -> None:
    value = torch.ones(3)

    def waits() -> None:
        value.sum().item()

    names = ["aten::_local_scalar_dense"]
    with profiler(stacks=True) as profile, torch.profiler.record_function(_WINDOW):
        waits()
        with not_of_the_step():
            waits()
        waits()
    events = list(profile.events() or [])
    assert sum(event.name in names for event in events) == 3
    assert sum(syncs_of_profile(events, names).values()) == waits_within(_WINDOW, raw_events(profile), names) == 2

    def both() -> None:
        waits()
        with not_of_the_step():
            waits()

    assert sum(by_dispatch_mode(both, "cpu").values()) == 1


def looks(
    monkeypatch: pytest.MonkeyPatch, counted: int, placed: int, *, sees_planted: bool
) -> tuple[object, list[int]]:
    """What is recorded of a profiled arm on CUDA, and the steps that were executed for it."""
    executed: list[int] = []

    class Training:
        def facts(self) -> dict[str, object]:
            return {"device": "cuda", "layers": 2}

        def step(self, index: int) -> None:
            executed.append(index)

    def first(execute: Callable[[], object]) -> tuple[int, bool]:
        execute()
        return counted, sees_planted

    def second(execute: Callable[[], object]) -> Syncs:
        execute()
        return Counter({Sync(Place("clip.py", 7), "cudaStreamSynchronize"): placed})

    def other(execute: Callable[[], object], device: str) -> Syncs:
        execute()
        return Counter()

    monkeypatch.setattr(host_sync, "counted_by_profiler", first)
    monkeypatch.setattr(host_sync, "by_profiler", second)
    monkeypatch.setattr(host_sync, "by_dispatch_mode", other)
    monkeypatch.setattr(host_sync, "planted_sync", lambda _device: None)
    opens: Any = lambda: nullcontext(Training())
    reading, _ = observe_syncs(opens, "arm", 0, announced=20, unwatched=2).readings
    places = [(place.file, place.line, place.count) for place in reading.places]
    return (reading.detector, reading.steps, reading.count, places, reading.sees_planted), executed


def test_source_lines_are_looked_up_only_if_a_sync_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, executed = looks(monkeypatch, 0, 5, sees_planted=True)
    assert recorded == ("profiler", 2, 0, [], True)
    assert executed == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]  # two that are not watched, the profiler's, then the dispatch mode's, which is shown a planted one first


def test_syncs_are_counted_in_the_first_profile_and_located_in_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded, executed = looks(monkeypatch, 4, 3, sees_planted=False)
    assert recorded == ("profiler", 2, 4, [("clip.py", 7, 3)], False)
    assert executed == [0, 1, 2, 3, 4, 5, 6, 7]


class Event:
    """A profiler event, as far as it is read."""

    def __init__(self, name: str, start: int, end: int, stack: list[str] | None = None, device: str = "CPU") -> None:
        self.name, self.time_range = name, SimpleNamespace(start=start, end=end)
        self.stack, self.cpu_parent, self.device_type = stack or [], None, f"DeviceType.{device}"


WINDOW = Event(_WINDOW, 10, 20)
WAITS = ["cudaStreamSynchronize"]


def test_a_copy_to_pageable_memory_waits_even_without_a_synchronizing_call() -> None:
    copy = Event("Memcpy DtoH (Device -> Pageable)", 12, 13, device="CUDA")
    late, inside = Event("cudaStreamSynchronize", 30, 31), Event("cudaStreamSynchronize", 13, 14)
    assert sum(syncs_of_profile([WINDOW, copy, late], WAITS).values()) == 1
    assert sum(syncs_of_profile([WINDOW, copy, inside, late], WAITS).values()) == 1
    assert list(syncs_of_profile([WINDOW, inside], WAITS)) == [(Place("?", 0), "cudaStreamSynchronize")]


def test_a_runtime_call_without_a_parent_belongs_to_its_innermost_operator() -> None:
    call = Event("cudaStreamSynchronize", 15, 16)
    outer = Event("aten::item", 11, 19, ["torch/nn/module.py(5): call", "outer.py(1): train"])
    inner = Event("aten::_local_scalar_dense", 14, 17, ["torch/_tensor.py(9): item", "inner.py(7): clip"])
    after = Event("aten::add", 17, 18, ["after.py(3): train"])
    assert list(syncs_of_profile([WINDOW, outer, inner, after, call], WAITS)) == [
        (Place("inner.py", 7), "cudaStreamSynchronize")
    ]


def test_a_step_that_fails_on_fake_tensors_is_counted_until_the_failure() -> None:
    assert observe(DividesByWhatItReads()) == {"dispatch_mode": (2, 2, True), "fake_pass": (1, 1, True)}


def test_a_failed_pass_on_fake_tensors_gives_no_reading() -> None:
    evidence = observed(OwnOperator())
    assert [reading.detector for reading in evidence.readings] == ["dispatch_mode"]
    assert evidence.fake_tensors_error is not None
    assert "no fake impl registered" in evidence.fake_tensors_error


def test_an_error_of_the_step_itself_is_raised_by_the_sync_observation() -> None:
    def fails() -> None:
        raise ValueError("the step's own")

    with pytest.raises(ValueError, match="the step's own"):
        by_dispatch_mode(fails, "cpu")
