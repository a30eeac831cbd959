"""Training that goes on in another process: a right system passes, one that forgets something fails for its reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from between_steps import fork_other_processes, resumed, resumed_by
from budget import slow_but

from harness.drill.faults import is_killed
from harness.processes.child import child_path
from harness.system.wrappers import HARNESS_FAULTS


@pytest.fixture
def forked(warm: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both processes on one thread: sums in another order have other bits."""
    fork_other_processes(monkeypatch)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_correct_checkpoint_resumes_the_uninterrupted_training_in_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", child_path())
    verdict = resumed("Right", tmp_path)
    assert verdict.reason == "held", verdict.message


ARMS: list[list[dict[str, Any]]] = [
    [{"candidate": "plain"}, {"candidate": "plain", "equality": "within"}],
    [{"candidate": "captured"}],
    [{"candidate": "captured", "baseline": "plain"}],
    [{"candidate": "captured", "baseline": "plain", "steps_before_load": 2}],
]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("claims", ARMS, ids=[" ".join(map(str, each[0].values())) for each in ARMS])
def test_a_correct_checkpoint_resumes_before_and_after_the_capture(
    tmp_path: Path, claims: list[dict[str, Any]]
) -> None:
    for verdict in resumed_by("Right", tmp_path, *claims):
        assert verdict.reason == "held", verdict.message
        assert verdict.figures["not_restored_tensors"].value == 0
    assert len([*tmp_path.iterdir()]) == 1


WRONG = {
    "WithoutSchedule": ("not_restored", "optimizer"),
    "WithoutOptimizer": ("not_restored", "optimizer"),
    "WithoutGenerator": ("not_restored", "generators"),
    "WithoutLoader": ("unequal_batches", "generators"),
    "EpochOnly": ("unequal_batches", "generators"),
    "LaterEpochsDiffer": ("unequal_batches", "generators"),
    "WithoutAverage": ("end_differs", ""),
    "ParametersOnly": ("not_restored", "buffers"),
    "RenamedLayer": ("not_restored", "parameters"),
    "RenamedModel": ("nothing_loaded", "buffers, parameters"),
    "AnotherModel": ("not_restored", "optimizer"),
    "HalfPrecision": ("not_restored", "buffers, parameters"),
    "StepCountRestarts": ("not_restored", "optimizer"),
    "ScheduleSteppedOnLoad": ("not_restored", "optimizer"),
    "EvalModeAfterLoad": ("differs", ""),
    "SavesTheFirstAgain": ("unequal_batches", "buffers, generators, optimizer, parameters"),
    "TrainsOnFromItsAverage": ("differs", ""),
    "ElsewhereThanAsked": ("vacuous_nothing_saved", "buffers, generators, optimizer, parameters"),
}


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("system", slow_but([*WRONG][::5], WRONG))
def test_a_checkpoint_that_lacks_some_state_fails_with_the_reason_for_this_state(tmp_path: Path, system: str) -> None:
    verdict = resumed(system, tmp_path)
    assert (str(verdict.status), verdict.reason, verdict.figures["not_restored"].value) == ("FAIL", *WRONG[system])


FAULTS = [name for name, each in HARNESS_FAULTS.items() if "resume" in each.breaks]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("fault", slow_but(FAULTS[:3], FAULTS))
def test_every_planted_checkpoint_fault_fails_with_its_expected_reason(tmp_path: Path, fault: str) -> None:
    within: dict[str, Any] = {"equality": "within"} if fault == "scaled_checkpoint" else {}
    verdict = resumed("ByIndex", tmp_path, fault=fault, **within)
    assert is_killed(HARNESS_FAULTS[fault].breaks["resume"], verdict), (verdict.reason, verdict.message)


@pytest.mark.usefixtures("forked")
def test_a_resume_claim_within_a_bound_needs_no_equal_bits(tmp_path: Path) -> None:
    """bfloat16 weights come back near enough for a wide bound, and not for a narrow one."""
    bounds = [{"equality": "within", "max_abs_difference": bound} for bound in (1.0, 1e-6)]
    wide, narrow = resumed_by("HalfPrecision", tmp_path, *bounds)
    assert (wide.reason, narrow.reason) == ("held", "exceeds_tolerance")
    assert wide.figures["end_max_abs_difference"].value is not None


@pytest.mark.usefixtures("forked")
def test_a_checkpoint_kept_only_in_module_memory_fails_in_a_new_process(tmp_path: Path) -> None:
    """If one process saved and resumed, the claim would pass although the checkpoint does not contain the state."""
    assert resumed("InMemory", tmp_path).reason == "nothing_loaded"
