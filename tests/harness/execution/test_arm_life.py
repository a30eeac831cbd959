"""The life of an arm: equal evidence whichever probe asks for it, and watchers whose errors cost their parts alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from claims_in_process import executed
from torch import Tensor

from harness.contract.schema import Arm, Workload
from harness.devices import telemetry
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import ArmEvidence
from harness.execution.arm import ArmLife
from harness.execution.recorder import Recorder
from harness.execution.sharing import write_run
from harness.execution.watchers import capture_watch
from harness.execution.watchers.capture_watch import Watcher

STEPS = 6
# probe -> its settings, and how many steps of an execution it calls
PROBES: dict[str, tuple[dict[str, object], int]] = {
    "paired": ({}, STEPS),
    "seeds": ({"seeds": [0]}, STEPS),
    "recapture": ({"after": 1}, 4),
    "long_replay": ({"every": 3, "candidate": "captured"}, STEPS),
    "throughput": ({"candidate": "captured", "baseline": "plain", "blocks": 2, "block_steps": 3}, 16),
    "evaluation": ({"candidate": "captured", "plain": "plain", "every": 3}, STEPS),
}


def run_of(probe: str, settings: dict[str, object], *arms: str) -> Run:
    system = "checkpoint_systems:Right" if probe == "evaluation" else "step_function_systems:Regression"
    planned = {"plain": PlannedArm(arm=Arm(), system=system)}
    planned |= {"captured": PlannedArm(arm=Arm(capture="step"), system=system)}
    return Run.model_validate(
        {
            "id": "r",
            "contract": "c",
            "probe": probe,
            "workload_name": "w",
            "settings": settings,
            "workload": Workload(model="any", batch_size=4, seq_len=4, steps=STEPS),
            "arms": {arm: planned[arm] for arm in arms},
        }
    )


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("probe", PROBES)
def test_every_probe_writes_the_same_arm_records(probe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "pace", lambda: 1e-3)  # nothing else works here: no round is timed again
    settings, steps = PROBES[probe]
    arms = ("captured",) if probe in ("recapture", "long_replay") else ("plain", "captured")
    evidence = executed(run_of(probe, settings, *arms), tmp_path / "run")
    for arm, executions in evidence.arms.items():
        for execution in executions:
            end = execution.end
            assert end is not None
            assert (end.steps_called, end.input_shapes, end.differences is None) == (steps, 1, False)
            assert end.input_names
            assert end.updates == [steps]
            assert execution.start.state is not None
            assert end.state is not None
            assert (execution.capture is not None, bool(end.operators and end.capture_attempts)) == (
                (True, True) if arm == "captured" else (False, False)
            )


def lived(directory: Path, watch: Callable[[ArmLife], object]) -> ArmEvidence:
    """One execution of three steps, with watchers."""
    run = run_of("paired", {}, "plain")
    write_run(run, directory)
    with Recorder(directory) as recorder:
        with ArmLife(run, "plain", recorder, 0) as life:
            watch(life)
            life.train(range(3))
        recorder.complete()
    [execution] = read_run(directory)[1].arms["plain"]
    return execution


def test_watchers_of_an_arm_are_entered_in_order_and_left_in_reverse(tmp_path: Path) -> None:
    seen: list[str] = []

    @contextmanager
    def around(name: str) -> Iterator[None]:
        seen.append(f"{name} in")
        yield
        seen.append(f"{name} out")

    def noted(name: str) -> Watcher:
        return Watcher(
            before=lambda _index: seen.append(f"{name} before"),
            around=lambda _index: around(name),
            after=lambda _index: seen.append(f"{name} after"),
            at_end=lambda: seen.append(f"{name} end"),
        )

    lived(tmp_path, lambda life: life.watchers.extend([noted("first"), noted("second")]))
    step = [
        *("first before", "second before", "first in", "second in"),
        *("second out", "first out", "second after", "first after"),
    ]
    assert seen == [*step * 3, "second end", "first end"]


@contextmanager
def fails_behind(_index: int) -> Iterator[None]:
    yield
    raise RuntimeError("a defect of a watcher")


def fails(*_given: object) -> object:
    raise RuntimeError("a defect of a watcher")


@pytest.mark.parametrize("hook", ["before", "around", "after", "at_end"])
def test_an_error_of_a_watcher_fails_its_parts_of_the_evidence_or_else_the_arm(tmp_path: Path, hook: str) -> None:
    calls: list[object] = []

    def planted(*given: object) -> object:
        calls.append(given)
        return fails_behind(0) if hook == "around" else fails()

    watcher = Watcher(**{hook: planted})  # type: ignore[arg-type]
    with_parts = watcher._replace(parts=("memory", "syncs"))
    (tmp_path / "parts").mkdir()
    execution = lived(tmp_path / "parts", lambda life: life.watchers.append(with_parts))
    assert (set(execution.failed_parts), len(calls)) == ({"memory", "syncs"}, 1)
    assert (len(execution.series.loss), execution.end is not None and execution.end.steps_called) == (3, 3)
    (tmp_path / "none").mkdir()
    with pytest.raises(RuntimeError, match="a defect of a watcher"):
        lived(tmp_path / "none", lambda life: life.watchers.append(watcher))


def test_a_defect_of_a_watcher_around_a_step_is_raised_and_not_recorded_as_a_failed_part(tmp_path: Path) -> None:
    def watch(life: ArmLife) -> None:
        life.watchers.append(Watcher(("capture",), around=fails_behind))
        life.training.step = fails  # type: ignore[method-assign, assignment]

    with pytest.raises(RuntimeError, match="a defect of a watcher"):
        lived(tmp_path, watch)
    assert '"part_failed"' not in (tmp_path / "records.jsonl").read_text()


def test_watching_random_draws_in_a_step_does_not_change_its_operation_count(tmp_path: Path) -> None:
    [execution] = executed(run_of("paired", {}, "captured"), tmp_path / "run").arms["captured"]
    assert execution.end is not None
    assert execution.end.draws is not None
    assert execution.end.draws.step == 1
    assert execution.capture is not None
    watch = execution.capture.every_step
    assert watch is not None
    assert watch.steps == STEPS - 1
    assert watch.most_operations == watch.fewest_operations


def test_a_profile_of_a_step_that_raises_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    @contextmanager
    def profile(*_arguments: object, **_keywords: object) -> Iterator[None]:
        yield
        read.append("profile")
        raise RuntimeError("the device is still capturing")

    def steps(life: ArmLife) -> None:
        def capture(_index: int) -> Tensor:
            raise ValueError("the step's own error")

        monkeypatch.setattr(life.training, "step", capture)

    monkeypatch.setattr(capture_watch, "profiled_steps", lambda *_: {0: (3, False)})
    monkeypatch.setattr(capture_watch, "graph_launches", profile)
    with pytest.raises(ValueError, match="the step's own error"):
        lived(tmp_path, steps)
    assert read == []
