"""The watch over every step: detectors that are made once count each step by itself, and leave torch as it was."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch

from harness.devices import host_waits
from harness.devices.host_waits import SyncWarnings, WaitingCalls, after_the_step, not_of_the_step
from harness.execution.watchers.host_sync import SeriesWatch
from harness.execution.watchers.sync_detectors import sync_here


def test_operations_and_syncs_are_counted_for_each_step() -> None:
    """Of the four watched steps, steps 1, 2 and 4 have one operation.

    Step 3 reads a value, which is a second operation.
    """
    watch = SeriesWatch("cpu", captured=True, unwatched=1, captures=lambda: 1)
    value = torch.ones(3)
    for index in range(5):
        with watch.step(index):
            total = value.sum()
            if index == 3:
                total.item()
    operations = watch.operations()
    assert operations is not None
    assert (operations.steps, operations.fewest_operations, operations.most_operations) == (4, 1, 2)
    assert operations.busiest_step == 3
    (reading,) = watch.readings()
    assert (reading.detector, reading.steps, reading.count, reading.first_step) == ("dispatch_mode", 4, 1, 3)


def test_operations_after_the_step_are_counted_separately_from_the_step() -> None:
    watch, value = SeriesWatch("cpu", captured=True, unwatched=1, captures=lambda: 1), torch.ones(3)
    with torch.profiler.profile() as profile:
        for index in range(4):
            with watch.step(index):
                value.sum()
                with after_the_step():
                    for _ in range(index):
                        value.add_(1)
    assert [event.name for event in profile.events()].count(host_waits.AFTER) == 4
    operations = watch.operations()
    assert operations is not None
    assert (operations.fewest_operations, operations.most_operations, operations.most_after) == (1, 1, 3)


def test_the_step_with_the_most_syncs_is_reported() -> None:
    watch = SeriesWatch("cpu", captured=True, unwatched=1, captures=lambda: 1)
    value = torch.ones(3)
    for index, reads in enumerate([0, 1, 3, 0, 3]):
        with watch.step(index):
            for _ in range(reads):
                value.sum().item()
    (reading,) = watch.readings()
    assert (reading.count, reading.first_step, reading.most, reading.busiest_step) == (7, 1, 3, 2)


def test_a_step_that_captured_is_left_out_of_the_operation_counts() -> None:
    captures = [1]
    watch = SeriesWatch("cpu", captured=True, unwatched=1, captures=lambda: captures[0])
    for index in range(4):
        with watch.step(index):
            torch.ones(3).sum()
            if index == 2:
                captures[0] = 2
                torch.ones(3).sum()
    operations = watch.operations()
    assert operations is not None
    assert (operations.steps, operations.most_operations) == (2, 2)


def test_the_first_watched_step_is_skipped_when_it_captures_a_second_shape() -> None:
    captures = [1]
    watch = SeriesWatch("cpu", captured=True, unwatched=1, captures=lambda: captures[0])
    for index in range(4):
        with watch.step(index):
            torch.ones(3).sum()
            if index == 1:
                captures[0] = 2
                torch.ones(3).sum()
    operations = watch.operations()
    assert operations is not None
    assert (operations.steps, operations.fewest_operations, operations.most_operations) == (2, 2, 2)


def test_a_sync_in_a_later_replay_is_found_after_a_capture_with_no_extra_operations() -> None:
    """Steps 0 to 3 are plain, and step 3 is also captured. Steps 4 to 7 are replays, and step 6 reads a value."""
    captures, value = [0], torch.ones(3)
    watch = SeriesWatch("cpu", captured=True, unwatched=1, captures=lambda: captures[0], attempts=lambda: captures[0])
    for index in range(8):
        with watch.step(index):
            if index == 3:
                captures[0] = 1
            total = value.sum() + (value.prod() if index <= 3 else 0)
            if index == 6:
                total.item()
    [reading] = watch.readings()
    assert (reading.steps, reading.count, reading.first_step) == (6, 1, 6)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Something that waits, in place of torch's calls."""
    found = SimpleNamespace(__name__="library", synchronize=lambda: "waited")
    monkeypatch.setattr(host_waits, "_WAITING_CALLS", ((found, "synchronize"), (found, "absent")))
    return found


def test_waits_are_counted_block_by_block_and_the_original_function_is_restored(library: SimpleNamespace) -> None:
    original, waits, counts = library.synchronize, WaitingCalls(sync_here), []
    for times in (2, 0, 1):
        with waits as seen:
            for _ in range(times):
                assert library.synchronize() == "waited"
            with not_of_the_step():  # a batch that waits for its copy
                assert library.synchronize() == "waited"
        counts.append(seen.total())
        assert library.synchronize is original
    assert counts == [2, 0, 1]


def test_the_wrapper_of_a_waiting_function_calls_a_replacement_made_meanwhile_and_keeps_it(
    library: SimpleNamespace,
) -> None:
    waits = WaitingCalls(sync_here)
    with waits:
        library.synchronize()
    library.synchronize = replaced = lambda: "waited otherwise"
    with waits as seen:
        assert library.synchronize() == "waited otherwise"
    assert seen.total() == 1
    assert library.synchronize is replaced


def test_a_wait_for_the_current_accelerator_counts_as_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    monkeypatch.setattr(torch._C, "_accelerator_synchronizeDevice", waited.append)
    monkeypatch.setattr(torch.accelerator, "_get_device_index", lambda *_, **__: 0, raising=False)
    with WaitingCalls(sync_here) as seen:
        torch.accelerator.synchronize()
    assert (seen.total(), len(waited)) == (1, 1)


def test_sync_warnings_of_torch_are_counted_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[object] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    shown, detector, counts = warnings.showwarning, SyncWarnings(sync_here), []
    for times in (1, 0, 2):
        with detector as seen:
            for _ in range(times):
                warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            with not_of_the_step():
                warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            warnings.warn("something else", stacklevel=1)
        counts.append(seen.total())
    assert counts == [1, 0, 2]
    assert modes == [0, "warn", 0, "warn", 0, "warn", 0]
    assert warnings.showwarning is shown
