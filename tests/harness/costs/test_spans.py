"""One worker's time, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from times_builders import STARTED, clocked, old

from harness.evidence.read_run import WorkerTimes
from harness.run_directory.costs import Kind, Span, on_gpu, spans

OPEN, STEPS = "plain.0: open", "plain.0: steps"


def seen(worker: WorkerTimes) -> list[tuple[str, Kind, float]]:
    return [(span.phase, span.kind, span.seconds) for span in spans(worker)]


def test_the_phases_of_a_process_cover_its_time_from_start_to_end() -> None:
    worker = clocked(("start", 2.0), (OPEN, 5.0), (STEPS, 6.0), end=16.0, ended=17.5)
    assert seen(worker) == [
        ("start of the interpreter", Kind.IMPORTS, 2.0),
        ("start", Kind.IMPORTS, 3.0),
        (OPEN, Kind.OPENING, 1.0),
        (STEPS, Kind.JUDGED_TRAINING, 10.0),
        ("end of the process", Kind.END, 1.5),
    ]


def test_steps_of_a_control_arm_cost_untrained_control_time() -> None:
    worker = clocked((STEPS, 2.0), end=3.0, ended=3.0)
    assert [span.kind for span in spans(worker, {"plain"})] == [Kind.IMPORTS, Kind.UNTRAINED_CONTROL]


def test_a_prestarted_interpreter_and_a_run_queued_for_a_gpu_count_as_waiting() -> None:
    worker = clocked(("start", 9.0), end=10.0, ended=10.0, asked_for_gpu=-4.0, ready=3.0, given_run=8.0, gpu="GPU-1")
    assert seen(worker) == [
        ("wait for the GPU", Kind.WAITING, 4.0),
        ("start of the interpreter", Kind.IMPORTS, 3.0),
        ("wait for a run", Kind.WAITING, 5.0),
        ("start", Kind.IMPORTS, 1.0),
        ("start", Kind.IMPORTS, 1.0),
    ]
    assert on_gpu(worker, spans(worker)) == spans(worker)[3:]


def test_a_worker_with_a_gpu_at_the_start_holds_the_gpu_from_the_start() -> None:
    worker = clocked(("start", 2.0), end=3.0, ended=3.0, gpu="GPU-1")
    assert on_gpu(worker, spans(worker)) == spans(worker)


@pytest.mark.parametrize("worker", [clocked(("start", 2.0), end=3.0, ended=3.0), old(("start", 0.0), end=3.0)])
def test_a_worker_without_a_gpu_holds_no_gpu_time(worker: WorkerTimes) -> None:
    assert on_gpu(worker, spans(worker)) == []


def test_time_while_a_process_is_stopped_counts_as_waiting() -> None:
    stops = [(11.0, 12.0), (3.0, 5.0), (6.5, 8.0)]
    worker = clocked((OPEN, 2.0), (STEPS, 7.0), end=10.0, ended=12.0, gpu="GPU-1", stopped=stops)
    assert seen(worker) == [
        ("start of the interpreter", Kind.IMPORTS, 2.0),
        (OPEN, Kind.OPENING, 1.0),
        ("stopped", Kind.WAITING, 2.0),
        (OPEN, Kind.OPENING, 1.5),
        ("stopped", Kind.WAITING, 0.5),
        ("stopped", Kind.WAITING, 1.0),
        (STEPS, Kind.JUDGED_TRAINING, 2.0),
        ("end of the process", Kind.END, 1.0),
        ("stopped", Kind.WAITING, 1.0),
    ]
    assert on_gpu(worker, spans(worker)) == [span for span in spans(worker) if span.phase != "stopped"]


def test_recorded_stops_may_come_in_any_order() -> None:
    worker = clocked((STEPS, 2.0), end=9.0, ended=9.0, stopped=[(6.0, 7.0), (3.0, 5.0)])
    assert [span.seconds for span in spans(worker)] == [2.0, 1.0, 2.0, 1.0, 1.0, 2.0]


def test_phases_without_start_times_are_sums_within_the_process() -> None:
    worker = replace(old((OPEN, 0.0), (STEPS, 1.0), end=3.0), process=clocked(end=None, ended=9.0).process)
    assert seen(worker) == [(OPEN, Kind.OPENING, 1.0), (STEPS, Kind.JUDGED_TRAINING, 2.0)]


def test_the_last_phase_of_a_dead_process_ends_with_the_process() -> None:
    worker = clocked(("start", 2.0), (OPEN, 4.0), end=None, ended=9.0)
    assert seen(worker)[-1] == (OPEN, Kind.OPENING, 5.0)


def test_a_process_that_died_before_its_first_record_counts_as_starting() -> None:
    assert seen(clocked(end=None, ended=1.25)) == [("start of the interpreter", Kind.IMPORTS, 1.25)]


def test_the_costs_of_evidence_without_process_times_cover_the_time_from_first_to_last_phase() -> None:
    assert seen(old(("start", 0.0), (OPEN, 3.5), (STEPS, 4.0), end=14.0)) == [
        ("start", Kind.IMPORTS, 3.5),
        (OPEN, Kind.OPENING, 0.5),
        (STEPS, Kind.JUDGED_TRAINING, 10.0),
    ]


def test_the_last_phase_of_a_dead_process_in_older_evidence_has_no_duration() -> None:
    assert seen(old(("start", 0.0), (OPEN, 3.5), end=None)) == [("start", Kind.IMPORTS, 3.5)]


@pytest.mark.parametrize("moment", [math.nan, math.inf, -5.0])
def test_phases_with_impossible_start_times_are_left_out(moment: float) -> None:
    worker = clocked(("start", 2.0), (OPEN, moment), (STEPS, 6.0), end=8.0, ended=math.inf)
    assert all(math.isfinite(span.seconds) and span.seconds > 0 for span in spans(worker))
    assert Span(STEPS, Kind.JUDGED_TRAINING, STARTED + 6.0, STARTED + 8.0) in spans(worker)


def test_a_phase_of_older_evidence_that_ends_before_it_begins_has_no_span() -> None:
    assert seen(old((OPEN, 3.0), (STEPS, 2.0), end=4.0)) == [(STEPS, Kind.JUDGED_TRAINING, 2.0)]
