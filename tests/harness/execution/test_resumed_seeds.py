"""Claims over several seeds whose candidate goes on in another process: right ones hold, each fault has its reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from between_steps import COMMON, SAVE_AT, STEPS, fork_other_processes
from budget import slow_but
from claims_in_process import judged

from harness.drill.faults import is_killed
from harness.evidence.read_run import read_run
from harness.judging.verdict import Verdict
from harness.kinds.seeds.model import NotWorse
from harness.system.wrappers import HARNESS_FAULTS

SEEDS = [3, 1, 4, 0, 5]
CLAIM: dict[str, Any] = {
    **COMMON,
    "kind": "not_worse",
    "baseline": "captured",
    "direction": "lower_is_better",
    "last": 3,
    "margin": 0.05,
    "seeds": SEEDS,
    "save_at": SAVE_AT,
    "guards": {"steps": STEPS, "distinct_batches": STEPS},
}


@pytest.fixture(autouse=True)
def forked(warm: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All processes on one thread: sums in another order have other bits."""
    fork_other_processes(monkeypatch)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def over_seeds(system: str, directory: Path, *, fault: str | None = None, **claim: Any) -> Verdict:
    return judged(f"checkpoint_systems:{system}", directory, CLAIM | claim, fault=fault)


def test_both_halves_of_each_resumed_seed_run_in_separate_processes(tmp_path: Path) -> None:
    verdict = over_seeds("Right", tmp_path)
    assert verdict.reason == "held", verdict.message
    assert "plain (resumed after step 5; mean of the last 3 steps)" in verdict.message
    assert (verdict.denominators["seeds"], verdict.denominators["steps"]) == (5, 5 * STEPS)
    assert verdict.figures["worse_by"].value == 0.0  # it goes on with every bit
    assert verdict.figures["not_restored_tensors"].value == 0
    [directory] = tmp_path.iterdir()
    _, evidence = read_run(directory)
    halves = evidence.arms["plain"]
    assert [half.start.facts["seed"] for half in halves] == [seed for seed in SEEDS for _ in range(2)]
    assert [len(half.series.loss) for half in halves] == [SAVE_AT, STEPS - SAVE_AT] * 5
    saved = [half.saved.process for half in halves[::2] if half.saved is not None]
    loaded = [half.loaded.process for half in halves[1::2] if half.loaded is not None]
    assert len({*saved, *loaded}) == 10
    assert [each.start.facts["seed"] for each in evidence.arms["captured"]] == SEEDS
    assert not (directory / "checkpoint").exists()


@pytest.mark.slow
def test_a_training_resumed_from_an_incomplete_checkpoint_may_end_no_worse_over_seeds(tmp_path: Path) -> None:
    """A bitwise claim of the kind `resume` would fail such a checkpoint."""
    verdict = over_seeds("WithoutAverage", tmp_path)
    assert verdict.reason == "held", verdict.message


@pytest.mark.slow
def test_a_checkpoint_that_loses_parameters_ends_worse_over_seeds(tmp_path: Path) -> None:
    verdict = over_seeds("Right", tmp_path, fault="scaled_checkpoint", margin=None, relative_margin=0.1)
    assert (verdict.status, verdict.reason) == ("FAIL", "worse")
    assert int(str(verdict.figures["not_restored_tensors"].value)) > 0


# the others of these differ in nothing that a probe over seeds does: judge_cases_resumed_seeds.py has their evidence
@pytest.mark.slow
@pytest.mark.parametrize("fault", slow_but(["idle_load"], ["idle_load", "restarted_data"]))
def test_each_checkpoint_fault_is_killed_by_the_not_worse_claim(tmp_path: Path, fault: str) -> None:
    verdict = over_seeds("Right", tmp_path, fault=fault)
    assert is_killed(HARNESS_FAULTS[fault].breaks["not_worse"], verdict), f"{verdict.reason}: {verdict.message}"


def test_only_the_system_of_the_candidate_must_be_able_to_save_a_checkpoint() -> None:
    claim = NotWorse.model_validate({name: CLAIM[name] for name in CLAIM.keys() & NotWorse.model_fields.keys()})
    assert claim.candidate_capabilities() == {"resume"}
    assert claim.baseline_capabilities() == frozenset()
    assert claim.model_copy(update={"save_at": None}).candidate_capabilities() == frozenset()


def test_a_save_at_the_last_step_is_refused_because_no_step_remains_to_resume() -> None:
    claim = NotWorse.model_validate({name: CLAIM[name] for name in CLAIM.keys() & NotWorse.model_fields.keys()})
    rule = f"`save_at` ({SAVE_AT}) must be smaller than the workload's number of steps"
    assert (("save_at",), rule) in list(claim.beyond(SAVE_AT))
    assert rule not in [said for _, said in claim.beyond(SAVE_AT + 1)]
