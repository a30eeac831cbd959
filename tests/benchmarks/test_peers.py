"""How a run proceeds: sittings, calls that go on with a folder, what is asked for; with workers that only answer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from peer_runs import BF16_FACTS, ENVIRONMENT, REFERENCE, floors

from benchmarks import peers
from benchmarks.peer_plan import COSTS
from benchmarks.worker_process import WorkerFailedError

GPU = {**ENVIRONMENT, "device_memory_gib": 139.8}


@dataclass
class Machine:
    """What workers did, in order, and what they answer."""

    done: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=lambda: dict(GPU))
    failing: dict[str, list[str]] = field(default_factory=dict)  # by worker: errors of its next openings
    seconds: float = 0.0
    opening_s: float = 0.0

    def did(self, what: str) -> list[str]:
        """The workers that did it, in order."""
        return [line.split()[1] for line in self.done if line.split()[0] == what]


class Worker:
    """Stands in for a `WorkerProcess`."""

    machine: Machine

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = folder.name, folder
        self.done("start")

    def done(self, what: str) -> None:
        self.machine.done.append(f"{what} {self.name}")

    def ask(self, request: dict[str, Any], _limit_s: float) -> dict[str, Any]:
        self.done(request["do"])
        if request["do"] == "open":
            self.machine.seconds += self.machine.opening_s
        if request["do"] in {"open", "floors"} and (errors := self.machine.failing.get(self.name)):
            raise WorkerFailedError(errors.pop(0))
        return self._answer(request)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        job = request.get("job", {})
        answers: dict[str, dict[str, Any]] = {
            "environment": {"environment": self.machine.environment},
            "checkpoint": {"tokenized": "somewhere"},
            "reference": {"losses": [REFERENCE] * len(request.get("jobs", []))},
            "floors": floors(),
            "open": {
                "loss_step_0": None if job.get("arm") == "gemm_floor" else REFERENCE["nf4"]["all"],
                "batch_digest": "same",
                "facts": {**BF16_FACTS, "mechanism": "cuda_graph"},
                "startup_s": 1.0,
            },
            "measure": {"milliseconds": [25.0] * 5, "block_ms": 24.0, "block_steps": 5},
            "finish": {"peak_gib": 4.0, "peak_reserved_gib": 4.5, "steps": 60},
        }
        return answers[request["do"]]

    @contextlib.contextmanager
    def alone(self, others: Iterable[Worker]) -> Iterator[None]:
        self.machine.done.append(f"stop {' '.join(sorted(other.name for other in others if other is not self))}")
        yield

    def last_output(self) -> str:
        return "its last lines"

    def close(self) -> None:
        self.done("end")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(Worker, "machine", made, raising=False)
    monkeypatch.setattr(peers, "WorkerProcess", Worker)
    monkeypatch.setattr(peers, "plot", lambda _run, _path: None)
    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: made.seconds))
    return made


def call(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code, and what details.json says."""
    monkeypatch.setattr("sys.argv", ["peers", "--out", str(out), *arguments])
    code = peers.main()
    return code, json.loads((out / "details.json").read_text())


def names(details: dict[str, Any]) -> list[str]:
    return [f"{arm['arm']} {arm['batch_size']}x{arm['seq_len']}" for arm in details["measured"]]


def test_a_run_with_all_arms_of_a_length_and_its_floors_is_complete(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The floors of a sequence length are the times of its matrix products alone."""
    code, details = call(monkeypatch, tmp_path, "--seq-lens", "2048")
    assert (code, details["complete"], details["same_mathematics"]) == (0, True, True)
    assert names(details) == [f"{arm} 4x2048" for arm in COSTS]
    assert list(details["floors"]) == ["4x2048"]
    assert {arm["sitting"] for arm in details["measured"]} == {"1.0", "1.1"}
    assert all(len(arm["milliseconds"]) == 25 and len(arm["block_ms"]) == 5 for arm in details["measured"])


def test_nothing_is_timed_while_arms_are_being_opened(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Processes of the next group of arms have started by then, but open no arm yet."""
    call(monkeypatch, tmp_path, "--seq-lens", "2048")
    first, second = machine.did("open")[:8], machine.did("open")[8:]
    order = [line for line in machine.done if line.split()[0] in {"open", "measure", "end", "start"}]
    timed = [index for index, line in enumerate(order) if line.startswith("measure")]
    assert {line for line in order[: timed[0]] if line.startswith("open")} == {f"open {name}" for name in first}
    assert {f"start {name}" for name in second} < set(order[: timed[0]])
    # The first sitting's processes are gone before the second touches the GPU.
    assert max(order.index(f"end {name}") for name in first) < min(order.index(f"open {name}") for name in second)
    # Whoever is timed, all others of both are stopped.
    stopped = next(line for line in machine.done if line.startswith("stop")).split()[1:]
    assert len(stopped) == len(first) + len(second) - 1


@pytest.mark.parametrize(
    "why",
    [
        "OutOfMemoryError: CUDA out of memory.",
        "AcceleratorError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_an_arm_that_runs_out_of_memory_next_to_other_arms_is_opened_again_by_itself(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str
) -> None:
    machine.failing["hf_eager-4x2048"] = [why]
    code, details = call(monkeypatch, tmp_path, "--seq-lens", "2048")
    assert (code, details["absent"]) == (0, {})
    eager = next(arm for arm in details["measured"] if arm["arm"] == "hf_eager")
    assert eager["sitting"] == "1.1-hf_eager-4x2048"
    assert machine.did("open")[-1] == "hf_eager-4x2048"
    assert machine.done[-1] == "end hf_eager-4x2048"


def test_an_arm_that_fails_for_another_reason_is_absent(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine.failing |= {"unsloth-4x512": ["ModuleNotFoundError: unsloth"], "floors-4x512": ["killed by SIGKILL"]}
    code, details = call(monkeypatch, tmp_path, "--seq-lens", "512")
    assert code == 1
    assert details["absent"] == {
        "unsloth at 4x512": "ModuleNotFoundError: unsloth",
        "floors at 4x512": "killed by SIGKILL",
    }
    assert machine.did("open").count("unsloth-4x512") == 1


def test_arms_not_requested_are_listed_and_make_the_run_incomplete(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, details = call(monkeypatch, tmp_path, "--seq-lens", "512", "--arms", "graphed", "hf_eager")
    assert (code, details["complete"]) == (1, False)
    assert names(details) == ["graphed 4x512", "hf_eager 4x512"]
    assert details["floors"] == {}
    left = {f"{arm} at 4x512": "not asked for" for arm in (*COSTS, "floors") if arm not in {"graphed", "hf_eager"}}
    assert details["absent"] == left


def test_a_second_call_measures_the_arms_that_the_first_call_lacks(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine.failing["unsloth-4x512"] = ["killed by SIGKILL"]
    call(monkeypatch, tmp_path, "--seq-lens", "512", "--arms", "graphed", "unsloth", "floors")
    machine.done.clear()
    code, details = call(monkeypatch, tmp_path, "--seq-lens", "512", "--shapes", "1x8192")
    assert (code, details["absent"]) == (0, {})
    assert "graphed-4x512" not in machine.did("open")
    assert machine.did("floors") == ["floors-1x8192"]
    assert machine.did("open").count("unsloth-4x512") == 1
    assert names(details)[len(COSTS) :] == [
        *("graphed 1x8192", "graphed_dense 1x8192", "graphed_fp8 1x8192", "ungraphed 1x8192", "gemm_floor 1x8192")
    ]
    assert len(details["call_seconds"]) == 2
    sittings = {arm["arm"]: arm["sitting"] for arm in details["measured"] if arm["seq_len"] == 512}
    assert (sittings["graphed"], sittings["unsloth"]) == ("1.0", "2.0")


def test_a_call_whose_arms_are_all_measured_starts_no_measurement(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, before = call(monkeypatch, tmp_path, "--seq-lens", "512")
    machine.done.clear()
    code, after = call(monkeypatch, tmp_path, "--seq-lens", "512")
    assert code == 0
    assert machine.done == ["start prepare", "environment prepare", "end prepare"]
    assert after["measured"] == before["measured"]


def test_a_run_of_another_gpu_is_refused_before_anything_is_computed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, before = call(monkeypatch, tmp_path, "--seq-lens", "512")
    machine.environment["device_uuid"] = "GPU-2"
    machine.done.clear()
    code, after = call(monkeypatch, tmp_path, "--seq-lens", "2048")
    assert code == 2
    assert "device_uuid was 'GPU-1' but is now 'GPU-2'" in capsys.readouterr().err
    assert machine.done == ["start prepare", "environment prepare", "end prepare"]
    assert after == before


def test_when_time_is_up_no_further_arms_are_opened_and_unmeasured_arms_are_listed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine.opening_s = 10.0  # of eight arms
    code, details = call(monkeypatch, tmp_path, "--seq-lens", "2048", "--limit-s", "60")
    assert code == 1
    assert details["call_seconds"] == [80.0]
    assert len(details["measured"]) == 8
    assert details["absent"]["ungraphed at 4x2048"] == "not started: out of time"
    assert "graphed at 4x2048" not in details["absent"]  # what all are compared with comes first
    # Those of the next sitting that had started are ended.
    assert sorted(machine.did("start")) == sorted(machine.did("end"))
    machine.opening_s = 0.0
    code, details = call(monkeypatch, tmp_path, "--seq-lens", "2048")
    assert (code, details["absent"]) == (0, {})


def test_a_call_without_any_shape_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        call(monkeypatch, tmp_path, "--seq-lens")
    assert "no shape is requested; give at least one" in capsys.readouterr().err


def test_a_killed_benchmark_leaves_a_readable_result_file(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, before = call(monkeypatch, tmp_path, "--seq-lens", "512")

    def killed(_path: Path, _target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        call(monkeypatch, tmp_path, "--seq-lens", "2048")
    assert json.loads((tmp_path / "details.json").read_text()) == before


def test_an_invalid_shape_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        call(monkeypatch, tmp_path, "--shapes", "8192")
    assert "8192" in capsys.readouterr().err
