"""Which runs may go side by side."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from run_builders import stand_in_run

from harness.contract.schema import Needs
from harness.devices.cuda_driver import Gpu
from harness.devices.environment import Machine
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import Death
from harness.execution import schedule
from harness.execution.schedule import Schedule, Task, Work, tasks_of
from harness.execution.supervisor import Interpreters
from harness.execution.turns import ALONE

GPU = Gpu(name="NVIDIA H200", uuid="GPU-a", architecture="sm_90", memory_gib=100.0)
WITH_GPU = Machine(True, "", (GPU,), 64.0)
WITHOUT = Machine(False, "this machine has no CUDA device", (), 64.0)


def run(
    device: str = "cuda",
    memory_gib: float | None = 12.0,
    *,
    probe: str = "paired",
    steps: int = 10,
    measurement: int = 0,
) -> Run:
    made = stand_in_run("one_arm")
    needs = Needs.model_validate({"device": device, "memory_gib": memory_gib})
    workload = made.workload.model_copy(update={"needs": needs, "steps": steps})
    return made.model_copy(update={"workload": workload, "probe": probe, "measurement": measurement})


def tasks(*runs: Run, machine: Machine = WITH_GPU) -> list[Task]:
    return tasks_of([Work(one, Path(), lambda _progress: None, lambda _death: None) for one in runs], machine)


def begun(*runs: Run, machine: Machine = WITH_GPU) -> int:
    """How many of the runs begin before any of them has ended."""
    plan = Schedule(machine, Interpreters(0))
    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_one", lambda _task: None)
        plan._begin(tasks(*runs, machine=machine), pool)
    return len(plan._running)


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "usable_cores", lambda: 16)


def test_concurrent_runs_get_up_to_nine_tenths_of_the_gpu_memory() -> None:
    assert begun(*[run(memory_gib=29.0)] * 4) == 3  # 29.7 each, with its context


def test_at_most_six_trainings_share_a_gpu_and_kernel_comparisons_run_in_addition() -> None:
    assert begun(*[run(memory_gib=1.0)] * 12) == 6
    assert begun(*[run(memory_gib=1.0)] * 12, *[run(memory_gib=1.0, probe="kernel_match")] * 4) == 10


def test_a_run_that_declares_no_memory_has_the_gpu_to_itself() -> None:
    assert begun(run(memory_gib=None), run(memory_gib=None)) == 1
    assert begun(run(memory_gib=1.0), run(memory_gib=None)) == 1


def test_a_run_that_needs_more_memory_than_the_gpu_has_runs_alone() -> None:
    assert begun(run(memory_gib=99.0), run(memory_gib=1.0)) == 1


def test_runs_without_a_gpu_start_next_to_runs_that_fill_the_gpu() -> None:
    assert begun(run(memory_gib=80.0), run(memory_gib=80.0), run("cpu", None), run("cpu", None)) == 3


def test_cpu_runs_get_every_core_without_a_gpu_and_three_of_four_cores_with_one() -> None:
    assert begun(*[run("cpu", None)] * 20, machine=WITHOUT) == 16
    assert begun(*[run("cpu", None)] * 20, machine=WITH_GPU) == 12


def test_timing_processes_open_together_after_all_untimed_runs() -> None:
    timings = [run(probe="throughput")] * 8
    assert begun(*timings, run("cpu", None)) == 1
    assert begun(*timings) == 7  # 12.7 GiB each of 90


def test_a_later_measurement_starts_after_the_earlier_measurement() -> None:
    first, second = (run(probe="throughput", measurement=number) for number in (0, 1))
    assert begun(*[second] * 3, *[first] * 2) == 2
    assert begun(*[second] * 3) == 3


def test_measurements_are_scheduled_in_their_order_whatever_their_duration() -> None:
    timings = [run(probe="throughput", steps=10 * number, measurement=number) for number in (2, 0, 1)]
    assert [task.run.measurement for task in tasks(*timings)] == [0, 1, 2]


def test_a_run_whose_host_syncs_are_observed_is_expected_to_take_four_times_as_long() -> None:
    """The longest run starts first. 40 observed steps start before 130 unobserved steps and after 170."""
    watched = run(steps=40)
    arms = {name: arm.model_copy(update={"observe_syncs": True}) for name, arm in watched.arms.items()}
    order = tasks(run(steps=130), watched.model_copy(update={"arms": arms}), run(steps=170))
    assert [task.run.workload.steps for task in order] == [170, 40, 130]


def test_the_expected_duration_of_a_kernel_comparison_grows_with_its_cases() -> None:
    """Two operations at three magnitudes in one data type are expected to take as long as 250 to 350 steps."""
    settings = {"operations": ["a", "b"], "magnitudes": [1, 2, 3], "max_relative_error": {"float32": 1e-4}}
    compared = run("cpu", None, probe="kernel_match", steps=1).model_copy(update={"settings": settings})
    order = tasks(run("cpu", 1.0, steps=250), compared, run("cpu", 1.0, steps=350), machine=WITHOUT)
    assert [task.run.workload.steps for task in order] == [350, 1, 250]


def test_runs_are_scheduled_longest_first_with_timings_last() -> None:
    small = run(memory_gib=2.0, steps=30)
    order = tasks(run(probe="throughput", steps=1000), run(memory_gib=None), small, run(steps=10), run(steps=20))
    found = [(task.order, task.run.workload.steps) for task in order]
    assert found == [(0, 20), (0, 10), (0, 30), (1, 10), (2, 1000)]


def test_all_runs_get_equal_thread_counts_unless_the_user_sets_omp_num_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    plan = Schedule(WITHOUT, Interpreters(0))
    assert plan._threads(tasks(*[run("cpu", None)] * 3, machine=WITHOUT)) == 5
    assert plan._threads(tasks(*[run("cpu", None)] * 40, machine=WITHOUT)) == 1
    assert plan._threads(tasks(run("cpu", None), run("cpu", None, probe="throughput"), machine=WITHOUT)) == 16
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert plan._threads(tasks(run("cpu", None), machine=WITHOUT)) is None


class _Turn:
    """Notes what a session asks of its GPU."""

    def __init__(self) -> None:
        self.asked: list[float | None] = []
        self.alone = False

    def take(self, share: float | None) -> bool:
        self.alone = self.alone or share is ALONE
        self.asked.append(share)
        return True

    def close(self) -> None:
        self.asked.append(-1.0)


def executed(
    monkeypatch: pytest.MonkeyPatch, ends: Callable[[Task, bool], Death | None], *runs: Run
) -> tuple[list[float | None], list[str]]:
    """Execute the runs with a stand-in for their workers. Return what was asked of the GPU, and which runs ended."""
    turn, over = _Turn(), list[str]()

    def execute(run: Run, directory: Path, *_: object, **__: object) -> Death | None:
        over.append(run.probe)
        return ends(next(task for task in planned if task.directory == directory), turn.alone)

    planned = [replace(task, directory=Path(f"{number}")) for number, task in enumerate(tasks(*runs))]
    monkeypatch.setattr(schedule, "GpuTurn", lambda *_: turn)
    monkeypatch.setattr("harness.execution.supervisor.execute", execute)
    monkeypatch.setattr(schedule, "processes_on", lambda _uuid: set())
    Schedule(WITH_GPU, Interpreters(0)).execute(planned)
    return turn.asked, over


def test_a_command_shares_the_gpu_with_other_commands_until_its_first_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = run(memory_gib=9.2), run(memory_gib=None), run(memory_gib=5.0, probe="throughput")
    asked, _ = executed(monkeypatch, lambda *_: None, *runs)
    assert asked == [0.25, 0.25, ALONE, -1.0]


def test_a_run_that_ran_out_of_memory_next_to_other_commands_is_repeated_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Death(cause="exit_code", detail="CUDA out of memory. Tried to allocate 2 GiB", phase=None, stack="")
    ends = lambda _task, alone: None if alone else full
    asked, over = executed(monkeypatch, ends, run(memory_gib=None))
    assert (asked, over) == ([0.25, ALONE, -1.0], ["paired", "paired"])
