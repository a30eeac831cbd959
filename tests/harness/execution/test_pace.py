"""The pace of a processor: what it counts, and what it does not."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from harness.devices import telemetry as module
from harness.devices.telemetry import Paces, pace, slower
from harness.evidence.run_records import Block


def scripted(monkeypatch: pytest.MonkeyPatch, paces: Iterator[float | None]) -> None:
    monkeypatch.setattr(module, "pace", lambda: next(paces))


ALONE = "from harness.devices.telemetry import pace; print(*[pace() for _ in range(20)])"


def test_a_pace_is_the_processor_time_of_a_fixed_amount_of_work() -> None:
    """The test starts its own process, because threads of earlier tests may still be working in this process."""
    found = subprocess.run([sys.executable, "-c", ALONE], check=True, capture_output=True, text=True).stdout.split()
    measured = [float(seconds) for seconds in found if seconds != "None"]
    assert len(measured) > 10
    assert 1e-5 < min(measured) < 0.1


def test_threads_of_the_worker_process_do_not_count_as_neighbour_load() -> None:
    """These threads may belong to an arm, and slowness that an arm itself causes must count."""
    over = threading.Event()
    data = bytes(2**24)

    def work() -> None:
        while not over.is_set():
            hashlib.sha256(data)  # without the interpreter's lock

    thread = threading.Thread(target=work)
    thread.start()
    try:
        found = [pace() for _ in range(50)]
    finally:
        over.set()
        thread.join()
    assert found.count(None) > 25


def test_the_slower_of_two_machine_paces_is_unknown_if_one_pace_is_unknown() -> None:
    assert slower(1.0, 2.0) == 2.0
    assert slower(None, 2.0) is None
    assert slower(1.0, None) is None


def test_the_reference_pace_is_the_smallest_of_all_measured_paces(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, iter([2.0, None, 1.0, 3.0, 3.0]))
    paces = Paces()
    assert paces.least == math.inf
    paces.look()
    assert paces.least == 1.0
    block = Block(arm="a", round=0, position=0, steps=1, seconds=1.0, first_step=0)
    assert [paces.disturbed(block.model_copy(update={"pace": p})) for p in (None, 1.35, 1.36)] == [False, False, True]
