"""What runs cost together: alone, side by side, stopped in turn, and as older evidence has it."""

from __future__ import annotations

from typing import Any

import pytest
from times_builders import STARTED, clocked, old

from harness.evidence.read_run import WorkerTimes
from harness.run_directory.costs import Costs, Kind, PhaseSeconds, costs, joined

TIMED = "timed"


def cost_of(*workers: WorkerTimes, has_gpu: bool = False) -> Costs:
    return costs({f"r{place}": [worker] for place, worker in enumerate(workers)}, {}, has_gpu=has_gpu)


def held(**changes: Any) -> WorkerTimes:
    """A worker with a GPU: 2 s of imports, 4 s of steps, 1 s of its end."""
    values: dict[str, Any] = {"end": 6.0, "ended": 7.0, "gpu": "GPU-1"}
    return clocked(("plain.0: steps", 2.0), **(values | changes))


def test_sequential_runs_add_up_and_the_gap_between_them_belongs_to_no_kind() -> None:
    seen = cost_of(held(), held(started=STARTED + 10.0))
    assert (seen.clocked, seen.wall_seconds, seen.gpu_seconds) == (True, 17.0, 14.0)
    assert seen.by_kind == seen.gpu_by_kind == {Kind.IMPORTS: 4.0, Kind.JUDGED_TRAINING: 8.0, Kind.END: 2.0}


def test_time_on_a_shared_gpu_is_divided_among_its_processes() -> None:
    seen = cost_of(held(), held(started=STARTED + 3.0))
    assert (seen.wall_seconds, seen.gpu_seconds) == (10.0, 10.0)
    assert seen.by_kind == {Kind.IMPORTS: 4.0, Kind.JUDGED_TRAINING: 8.0, Kind.END: 2.0}
    # alone: 2 s imports, 1 s steps; steps and imports 2 s; steps twice 1 s; end and steps 1 s; then 2 s steps, 1 s end
    assert seen.gpu_by_kind == {Kind.IMPORTS: 3.0, Kind.JUDGED_TRAINING: 1.0 + 1.0 + 1.0 + 0.5 + 2.0, Kind.END: 1.5}


def test_time_on_two_gpus_is_added_and_not_divided() -> None:
    seen = cost_of(held(), held(gpu="GPU-2"))
    assert (seen.wall_seconds, seen.gpu_seconds) == (7.0, 14.0)


def test_a_run_without_a_gpu_adds_only_wall_time() -> None:
    seen = cost_of(held(), held(gpu=None, started=STARTED + 5.0))
    assert (seen.wall_seconds, seen.gpu_seconds) == (12.0, 7.0)
    assert seen.by_kind[Kind.JUDGED_TRAINING] == 8.0
    assert seen.gpu_by_kind[Kind.JUDGED_TRAINING] == 4.0


def test_two_processes_that_take_turns_share_the_seconds_of_one_gpu() -> None:
    """Both processes start at the same time. Then each of them measures while the other process is stopped."""
    times = [((6.0, 10.0),), ((2.0, 6.0),)]
    workers = [clocked((TIMED, 2.0), end=10.0, ended=10.0, gpu="GPU-1", stopped=stops) for stops in times]
    seen = cost_of(*workers)
    assert (seen.wall_seconds, seen.gpu_seconds) == (10.0, 10.0)
    assert seen.by_kind == {Kind.IMPORTS: 4.0, Kind.TIMED_BLOCKS: 8.0, Kind.WAITING: 8.0}
    assert seen.gpu_by_kind == {Kind.IMPORTS: 2.0, Kind.TIMED_BLOCKS: 8.0}


def test_time_while_every_process_is_stopped_costs_no_gpu_seconds() -> None:
    assert cost_of(held(stopped=((3.0, 5.0),))).gpu_seconds == 5.0


def test_the_time_of_an_earlier_worker_counts_for_its_run() -> None:
    workers = [clocked(("start", 2.0), ("plain.0: steps", 3.0), end=None, ended=8.0), held(started=STARTED + 8.0)]
    seen = costs({"r": workers}, {}, has_gpu=False)
    assert seen.by_run == {
        "r": [
            PhaseSeconds(phase="start of the interpreter", kind=Kind.IMPORTS, seconds=4.0),
            PhaseSeconds(phase="start", kind=Kind.IMPORTS, seconds=1.0),
            PhaseSeconds(phase="plain.0: steps", kind=Kind.JUDGED_TRAINING, seconds=9.0),
            PhaseSeconds(phase="end of the process", kind=Kind.END, seconds=1.0),
        ]
    }


def test_control_arms_are_looked_up_in_the_contract_of_the_run() -> None:
    assert Kind.UNTRAINED_CONTROL in costs({"r": [held()]}, {"c": {"plain"}}, has_gpu=False).by_kind
    assert Kind.UNTRAINED_CONTROL not in costs({"r": [held()]}, {"d": {"plain"}}, has_gpu=False).by_kind


def test_processor_seconds_sum_the_runs_that_recorded_them() -> None:
    assert cost_of(held(processor=5.5), held(processor=1.0), held(end=None)).processor_seconds == 6.5
    assert cost_of(held()).processor_seconds is None


@pytest.mark.parametrize(("has_gpu", "gpu_seconds"), [(True, 9.0), (False, 0.0)])
def test_evidence_without_clock_times_gives_costs_as_sums(has_gpu: bool, gpu_seconds: float) -> None:
    workers = [old(("start", 0.0), ("plain.0: steps", 3.0), end=5.0), old(("start", 0.0), end=4.0)]
    seen = cost_of(*workers, has_gpu=has_gpu)
    assert (seen.clocked, seen.wall_seconds, seen.gpu_seconds) == (False, 9.0, gpu_seconds)
    assert seen.by_kind == {Kind.IMPORTS: 7.0, Kind.JUDGED_TRAINING: 2.0}


def test_costs_of_all_runs_are_sums_of_seconds_if_one_run_has_no_clock_times() -> None:
    seen = cost_of(held(), held(gpu=None), old(("start", 0.0), end=4.0), has_gpu=True)
    assert (seen.clocked, seen.wall_seconds, seen.gpu_seconds) == (False, 18.0, 11.0)


def test_a_run_without_recorded_times_does_not_change_costs_that_are_based_on_clock_times() -> None:
    assert cost_of(held(), old(end=None)).clocked


def test_costs_of_no_runs_are_zero() -> None:
    assert cost_of() == Costs()


def test_costs_of_the_parts_of_a_gate_are_added() -> None:
    parts = [
        ("a", cost_of(held(processor=2.0))),
        ("b", cost_of(held(gpu=None))),
        ("c", cost_of(old(("start", 0.0), end=4.0))),
    ]
    seen = joined(parts)
    assert (seen.clocked, seen.wall_seconds, seen.gpu_seconds, seen.processor_seconds) == (False, 18.0, 7.0, 2.0)
    assert seen.by_kind == {Kind.IMPORTS: 8.0, Kind.JUDGED_TRAINING: 8.0, Kind.END: 2.0}
    assert list(seen.by_run) == ["a/r0", "b/r0", "c/r0"]


def test_joined_parts_with_equal_names_keep_all_their_seconds() -> None:
    part = cost_of(held())
    seen = joined([("a", part), ("a", part)])
    assert sum(phase.seconds for phase in seen.by_run["a/r0"]) == seen.run_seconds == 14.0
