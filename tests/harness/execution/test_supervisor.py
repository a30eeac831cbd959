"""Every way for a worker to end, with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from process_table import await_end
from run_builders import stand_in_run
from waiting import LIMIT_S, eventually

from harness.evidence.plan_records import Run
from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import Death
from harness.execution import supervisor
from harness.execution.recorder import HEARTBEAT
from harness.execution.supervisor import execute
from harness.execution.watched_worker import Progress, Stopped

pytestmark = pytest.mark.usefixtures("stand_in", "warm_commands", "ends_alone")


def _execute(run: Run, tmp_path: Path) -> Death:
    death = execute(run, tmp_path / "run")
    assert death is not None
    _, evidence = read_run(tmp_path / "run")
    assert evidence.death == death  # what is read back is what the supervisor saw
    return death


def test_a_worker_that_completes_leaves_evidence_and_no_record_of_a_death(tmp_path: Path) -> None:
    run = stand_in_run("one_arm")
    assert execute(run, tmp_path / "run") is None
    read, evidence = read_run(tmp_path / "run")
    assert read == run
    assert evidence.death is None
    [arm] = evidence.arms["plain"]
    assert arm.series.loss[:2].tolist() == [2.5, 0.30000000000000004]
    assert arm.series.loss[2] != arm.series.loss[2]  # NaN stays NaN
    assert arm.series.batch_digest == ["b0", "b1", "b2"]
    assert arm.series.clip_active_groups.tolist() == [1, -1, 0]
    assert arm.series.tokens.tolist() == [64, 64, 64]
    assert arm.end is not None
    assert arm.end.steps_called == 3
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"run.json", "records.jsonl", "plain.0.csv", "process.json"}


def test_the_record_of_a_worker_ended_by_sigkill_names_the_signal_and_the_phase(tmp_path: Path) -> None:
    death = _execute(stand_in_run("killed"), tmp_path)
    assert (death.cause, death.detail, death.phase) == ("signal", "SIGKILL", "about to be killed")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: str(number.name))
def test_a_cancelled_job_leaves_no_recorded_death_for_a_worker_that_ends_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """If a job is cancelled or its node is lost, the worker may end before the supervisor.

    The run then has no result.
    """
    monkeypatch.setattr(supervisor, "ENDED_TOGETHER_S", 60.0)
    waited: list[float | None] = []

    class SetMeanwhile(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            self.set()
            return True

    with pytest.raises(Stopped):
        execute(stand_in_run("killed", number=int(number)), tmp_path / "run", stop=SetMeanwhile())
    assert waited == [60.0]
    assert (tmp_path / "run" / "process.json").exists()  # the worker is gone
    assert not (tmp_path / "run" / "death.json").exists()


def test_a_crash_in_native_code_leaves_its_python_stack(tmp_path: Path) -> None:
    death = _execute(stand_in_run("crashes"), tmp_path)
    assert (death.cause, death.detail, death.phase) == ("signal", "SIGSEGV", "native code")
    assert "in crashes" in death.stack


@pytest.fixture
def fast_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`fast_clock(phase)`: the supervisor's clock runs wild once the worker is in that phase.

    Limits of minutes then pass in a moment, however slowly a busy machine starts its workers.
    """

    def install(phase: str) -> None:
        ahead = 0.0

        def monotonic() -> float:
            nonlocal ahead
            heartbeat = tmp_path / "run" / HEARTBEAT
            if heartbeat.exists() and heartbeat.read_text().startswith(f"{phase}\n"):
                ahead += 100.0
            return time.monotonic() + ahead

        monkeypatch.setattr(
            "harness.execution.watched_worker.time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
        )

    return install


@pytest.mark.parametrize(
    ("limits", "cause", "detail"),
    [
        ({"heartbeat_s": 500.0, "wall_limit_s": 9000.0}, "heartbeat", "no progress for 500 s"),
        ({"wall_limit_s": 500.0, "heartbeat_s": 9000.0}, "wall_limit", "still running after 500 s"),
    ],
)
def test_a_hanging_worker_is_ended_with_its_stack(
    tmp_path: Path, fast_clock: Callable[[str], None], limits: dict[str, float], cause: str, detail: str
) -> None:
    fast_clock("hanging")
    death = _execute(stand_in_run("hangs", **limits), tmp_path)
    assert (death.cause, death.detail, death.phase) == (cause, detail, "hanging")
    assert "in _wait_for_ever" in death.stack


def test_a_worker_that_sends_an_endless_line_is_killed_at_the_wall_limit(
    tmp_path: Path, fast_clock: Callable[[str], None]
) -> None:
    fast_clock("dripping")
    death = _execute(stand_in_run("drips", wall_limit_s=500.0, heartbeat_s=9000.0), tmp_path)
    assert (death.cause, death.phase) == ("wall_limit", "dripping")
    assert "in drips" in death.stack


def test_a_worker_that_floods_its_message_line_counts_as_dead(tmp_path: Path) -> None:
    death = _execute(stand_in_run("floods", wall_limit_s=1e6, heartbeat_s=1e6), tmp_path)
    detail = "it wrote more than 16 MiB on the harness's own line, without a complete message"
    assert (death.cause, death.detail, death.phase) == ("garbage", detail, "flooding")
    assert "in floods" in death.stack


def test_a_worker_that_reads_no_answers_is_killed_at_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast_clock: Callable[[str], None]
) -> None:
    monkeypatch.setattr("harness.processes.child.SENDING_S", 0.0001)
    fast_clock("hanging")
    death = _execute(stand_in_run("asks_and_asks", wall_limit_s=500.0, heartbeat_s=9000.0), tmp_path)
    assert (death.cause, death.phase) == ("wall_limit", "hanging")


def test_heartbeats_do_not_extend_the_wall_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this test advances only with the worker's heartbeats, so a slow machine cannot change the result."""
    seconds, seen = 0.0, 0

    def monotonic() -> float:
        nonlocal seconds, seen
        heartbeat = tmp_path / "run" / HEARTBEAT
        if heartbeat.exists() and (beat := heartbeat.stat().st_mtime_ns) != seen:
            seconds, seen = seconds + 100.0, beat
        return seconds

    monkeypatch.setattr("harness.execution.watched_worker.time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    death = _execute(stand_in_run("busy", wall_limit_s=500.0, heartbeat_s=350.0), tmp_path)
    assert (death.cause, death.phase) == ("wall_limit", "busy")


def test_a_worker_that_blocks_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast_clock: Callable[[str], None]
) -> None:
    fast_clock("deaf")
    monkeypatch.setattr("harness.execution.watched_worker.TERMINATION_GRACE_S", 0.5)
    death = _execute(stand_in_run("hangs_deaf", wall_limit_s=500.0, heartbeat_s=9000.0), tmp_path)
    assert (death.cause, death.phase) == ("wall_limit", "deaf")


def test_a_worker_that_exits_with_0_before_its_last_record_counts_as_dead(tmp_path: Path) -> None:
    death = _execute(stand_in_run("exits_early"), tmp_path)
    assert (death.cause, death.phase) == ("incomplete", "half way")
    assert death.detail == "the `complete` record is missing"


def test_an_exit_status_of_a_worker_is_recorded_with_its_phase(tmp_path: Path) -> None:
    death = _execute(stand_in_run("exits_with_three"), tmp_path)
    assert (death.cause, death.detail, death.phase) == ("exit_code", "exit status 3", "half way")


def test_the_last_output_of_a_worker_with_a_full_disk_is_its_recorded_cause(tmp_path: Path) -> None:
    death = _execute(stand_in_run("fills_the_disk"), tmp_path)
    words = "OSError: [Errno 27] File too large"
    # the phase that it could not write any more is not seen, and the one before is not lost
    assert (death.cause, death.detail, death.phase) == (
        "exit_code",
        f"exit status 1, and its last output was {words!r}",
        "disk full",
    )


def test_the_phase_of_a_worker_that_removed_its_directory_is_known(tmp_path: Path) -> None:
    death = _execute(stand_in_run("removes_its_directory_at_once"), tmp_path)
    assert (death.cause, death.phase) == ("incomplete", "here")


def test_endless_output_is_cut_off(tmp_path: Path) -> None:
    death = _execute(stand_in_run("prints_100_mb"), tmp_path)
    assert (death.cause, death.detail, death.phase) == (
        "output_limit",
        "printed more than 10 MiB",
        "printing",
    )
    assert (tmp_path / "run" / "stderr.txt").stat().st_size == 256 * 2**10


def test_a_worker_that_cannot_import_the_systems_module_counts_as_dead_by_an_exception(tmp_path: Path) -> None:
    death = _execute(stand_in_run("import_fails"), tmp_path)
    assert (death.cause, death.phase) == ("exception", "open the system")
    place = 'import_fails.py:1 in <module> `raise RuntimeError("this module cannot be imported")`'
    assert death.detail == f"{place}: RuntimeError: this module cannot be imported"
    assert "import_fails.py" in death.stack


def test_an_exception_in_a_step_keeps_the_evidence_of_earlier_arms(tmp_path: Path) -> None:
    death = _execute(stand_in_run("fails_in_a_step"), tmp_path)
    assert (death.cause, death.phase) == ("exception", "arm graphed")
    place = r"worker_behaviours\.py:\d+ in fails_in_a_step `raise ValueError\(.*\)`"
    assert re.fullmatch(place + r": ValueError: step 7 broke \?", death.detail)  # a lone surrogate cannot be written
    assert "in fails_in_a_step" in death.stack
    _, evidence = read_run(tmp_path / "run")
    assert len(evidence.arms["plain"][0].series.loss) == 3


def test_a_system_exit_with_code_0_does_not_count_as_completion(tmp_path: Path) -> None:
    death = _execute(stand_in_run("leaves_by_system_exit"), tmp_path)
    assert death.cause == "exception"
    place = r"worker_behaviours\.py:\d+ in leaves_by_system_exit `raise SystemExit\(0\)`: SystemExit: 0"
    assert re.fullmatch(place, death.detail)


def test_a_worker_that_writes_an_invalid_record_counts_as_dead(tmp_path: Path) -> None:
    death = _execute(stand_in_run("writes_garbage"), tmp_path)
    assert death.cause == "garbage"
    assert death.detail.startswith("records.jsonl:4: ")


def test_a_unit_whose_system_is_not_available_does_not_run_and_its_worker_does_not_count_as_dead(
    tmp_path: Path,
) -> None:
    assert execute(stand_in_run("not_available"), tmp_path / "run") is None
    _, evidence = read_run(tmp_path / "run")
    assert evidence.death is None
    assert evidence.obstacle is not None
    assert (evidence.obstacle.reason, evidence.obstacle.message) == (
        "not_available",
        "needs the package `peft`",
    )


@pytest.mark.parametrize("then_hang", [False, True])
def test_no_process_outlives_its_run(tmp_path: Path, fast_clock: Callable[[str], None], *, then_hang: bool) -> None:
    fast_clock("children run")
    children = tmp_path / "children"
    run = stand_in_run(
        "leaves_children",
        wall_limit_s=500.0 if then_hang else 1e6,
        heartbeat_s=1e6,
        children=str(children),
        then_hang=then_hang,
    )
    death = execute(run, tmp_path / "run")
    assert (death is not None) == then_hang
    processes = [int(line) for line in children.read_text().split()]
    assert len(processes) == 2
    await_end(*processes)


def test_workers_get_a_repeatable_environment(tmp_path: Path) -> None:
    assert execute(stand_in_run("shows_environment"), tmp_path / "run") is None
    printed = (tmp_path / "run" / "stderr.txt").read_text()
    assert printed == "OMP_WAIT_POLICY=PASSIVE PYTHONHASHSEED=0 leader=True\n"


def test_repeated_runs_have_different_python_hash_seeds(tmp_path: Path) -> None:
    run = stand_in_run("shows_environment")
    again = {"plain": run.arms["plain"].model_copy(update={"first_replica": 1})}
    assert execute(run.model_copy(update={"arms": again}), tmp_path / "run") is None
    assert "PYTHONHASHSEED=1" in (tmp_path / "run" / "stderr.txt").read_text()


def test_progress_reports_each_phase_and_the_end(tmp_path: Path, fast_clock: Callable[[str], None]) -> None:
    fast_clock("hanging")
    seen: list[Progress] = []
    death = execute(stand_in_run("hangs", wall_limit_s=500.0, heartbeat_s=9000.0), tmp_path / "run", seen.append)
    assert death is not None
    assert [progress.phase for progress in seen][-2:] == ["hanging", ""]
    assert seen[-1].seconds >= 500.0


def test_a_timing_leaves_telemetry_of_the_host_also_without_a_gpu(tmp_path: Path) -> None:
    run = stand_in_run("one_arm").model_copy(update={"probe": "throughput"})
    assert execute(run, tmp_path / "run") is None
    telemetry = json.loads((tmp_path / "run" / "telemetry.jsonl").read_text())
    assert telemetry["record"] == "telemetry"
    assert telemetry["samples"][0]["foreign_processes"] == 0
    assert telemetry["samples"][0]["sm_clock_mhz"] is None


SUPERVISE = """
import sys
from pathlib import Path
from run_builders import stand_in_run
from harness.execution.supervisor import execute
execute(stand_in_run("leaves_children", children=sys.argv[2], then_hang=True), Path(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -9)]
)
def test_ending_the_supervisor_ends_the_worker(tmp_path: Path, number: signal.Signals, code: int) -> None:
    children = tmp_path / "children"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", SUPERVISE, str(tmp_path / "run"), str(children)]
    supervisor = subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL)
    worker = _wait_for_worker(children, supervisor)
    supervisor.send_signal(number)
    assert supervisor.wait(LIMIT_S) == code
    await_end(worker, *map(int, children.read_text().split()))
    assert not (tmp_path / "run" / "death.json").exists()  # nobody judged: the evidence is incomplete


def _wait_for_worker(children: Path, supervisor: subprocess.Popen[bytes]) -> int:
    """The worker's process id, once its children run."""
    started = lambda: children.exists() and children.read_text().endswith("\n")
    eventually(started, "the worker has started its children", supervisor)
    child = int(children.read_text().split()[0])
    return int(Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[1])
