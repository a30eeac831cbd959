"""Recordings of loops that differ in one planted way, and what their comparison says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import recorded_loops
from recorded_loops import train
from waiting import LIMIT_S

from harness.cli.compare_runs import comparison_json, comparison_lines, comparison_markdown
from harness.devices import environment
from harness.evidence.environment_records import CpuFacts, Environment
from harness.judging.verdict import Status
from harness.recorded_loops.compared_loops import ComparedRuns, compared
from harness.recorded_loops.recordings import read_recording

Record = Callable[..., str]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Records a run of the toy loop and returns its folder's name."""
    monkeypatch.chdir(tmp_path)
    facts = environment.collect()
    monkeypatch.setattr(environment, "collect", lambda: facts)

    def run(name: str, **settings: Any) -> str:
        train(Path(name), **settings)
        return name

    return run


def compare(baseline: str, candidate: str, *repeats: str, again: tuple[str, ...] = ()) -> ComparedRuns:
    first, second = (read_recording(Path(name)) for name in (baseline, candidate))
    more = ([read_recording(Path(name)) for name in names] for names in (repeats, again))
    return compared(first, second, *more)


def test_equal_recorded_runs_pass_and_list_what_was_not_controlled(record: Record) -> None:
    result = compare(record("a"), record("b"), record("a2"))
    assert (result.judgement.status, result.judgement.reason) == (Status.PASS, "held")
    assert (
        result.judgement.message
        == "b equals a in bits: loss, grad_norm, learning rates, batches, the end of 12 steps at 1 rank"
    )
    assert [each.partition(":")[0] for each in result.not_controlled] == ["random numbers", "horizon"]
    assert result.first is None


def test_recordings_with_only_losses_are_compared_by_losses(record: Record) -> None:
    result = compare(record("a", given=()), record("b", given=()))
    assert result.judgement.status is Status.PASS
    assert result.judgement.message == "b equals a in bits: loss of 12 steps at 1 rank"
    assert {each.partition(":")[0] for each in result.not_controlled} >= {"start", "batches", "end", "horizon"}


@pytest.mark.parametrize(
    ("change", "reason", "step", "quantity"),
    [
        ({"learning_rate": 0.11}, "unequal_start", -1, "start"),
        ({"learning_rate": 0.11, "given": ("model",)}, "differs", 0, "optimizer.group0.lr"),
        ({"learning_rate": 0.11, "given": ()}, "differs", 1, "loss"),
        ({"dropped": 1}, "unequal_lengths", 11, "number of steps"),
        ({"dropped": 1, "given": ()}, "unequal_lengths", 11, "number of steps"),
        ({"swapped_at": 0}, "unequal_batches", 0, "batch"),
        ({"swapped_at": 0, "given": ()}, "differs", 0, "loss"),
        ({"late": 0.01}, "end_differs", 11, "end"),
        ({"seed": 1}, "unequal_start", -1, "start"),
    ],
)
def test_a_planted_change_of_a_recorded_loop_is_named_with_its_step(
    change: dict[str, Any], reason: str, step: int, quantity: str, record: Record
) -> None:
    same = {"given": change["given"]} if "given" in change else {}
    baseline, candidate, repeat = record("a", **same), record("b", **change), record("a2", **same)
    alone = compare(baseline, candidate)
    assert (alone.judgement.status, alone.judgement.reason) == (Status.INCONCLUSIVE, "too_few_processes")
    assert alone.judgement.message.endswith("a repeats itself: record the baseline again and pass it with --repeat")
    result = compare(baseline, candidate, repeat)
    assert result.first is not None
    assert (result.first.step, result.first.quantity, result.first.rank) == (step, quantity, 0)
    assert (result.judgement.status, result.judgement.reason) == (Status.FAIL, reason), result.judgement.message


def test_a_differing_optimizer_setting_is_named_with_both_values(record: Record) -> None:
    result = compare(record("a"), record("b", learning_rate=0.11), record("a2"))
    assert "optimizer group0.lr (0.11 and 0.1)" in result.judgement.message


def test_a_changed_learning_rate_schedule_is_named_at_its_first_step(record: Record) -> None:
    result = compare(record("a"), record("b", warmup=5), record("a2"))
    assert result.judgement.message.startswith(
        "optimizer.group0.lr of b and a differs at step 0: 0.02 and 0.1, 0.08 apart"
    )
    noisy = compare(record("c", **NOISE), record("d", **NOISE, warmup=5), record("c2", **NOISE))
    assert (noisy.judgement.status, noisy.judgement.reason) == (Status.FAIL, "differs")
    assert noisy.judgement.message.startswith("optimizer.group0.lr of d and c differs at step 0")


def test_a_baseline_that_does_not_repeat_its_batches_is_undecided(record: Record) -> None:
    result = compare(record("a"), record("b", swapped_at=0), record("a2", swapped_at=0))
    assert (result.judgement.status, result.judgement.reason) == (Status.INCONCLUSIVE, "baseline_not_repeatable")


NOISE = {"noise": 1e-5, "given": ("start", "batch", "model")}


def test_one_noisy_repeat_is_undecided_but_a_shorter_run_still_fails(record: Record) -> None:
    baseline, repeat = record("a", **NOISE), record("a2", **NOISE)
    equal = compare(baseline, record("b", **NOISE), repeat)
    assert (equal.judgement.status, equal.judgement.reason) == (Status.INCONCLUSIVE, "too_few_processes")
    assert equal.judgement.message.endswith("to decide, pass 3 more --repeat and 4 more --candidate-repeat")
    changed = compare(baseline, record("c", **NOISE, dropped=1), repeat)
    assert (changed.judgement.status, changed.judgement.reason) == (Status.FAIL, "unequal_lengths")


def test_five_runs_of_each_loop_are_decided_within_noise(record: Record) -> None:
    baseline, *repeats = (record(f"a{index}", **NOISE) for index in range(5))
    candidate, *again = (record(f"b{index}", **NOISE) for index in range(5))
    equal = compare(baseline, candidate, *repeats, again=tuple(again))
    assert (equal.judgement.status, equal.judgement.reason) == (Status.PASS, "held"), equal.judgement.message
    other = NOISE | {"given": ("batch", "model")}  # without a start, the seed shows in what is trained alone
    baseline, *repeats = (record(f"c{index}", **other) for index in range(5))
    candidate, *again = (record(f"d{index}", **other, seed=1) for index in range(5))
    wrong = compare(baseline, candidate, *repeats, again=tuple(again))
    assert (wrong.judgement.status, wrong.judgement.reason) == (Status.FAIL, "beyond_noise"), wrong.judgement.message


def test_an_interrupted_run_is_read_and_decides_no_equality(record: Record) -> None:
    with pytest.raises(RuntimeError, match="the loop died"):
        record("b", dies_at=7)
    assert read_recording(Path("b")).ranks[0].steps == 7
    result = compare(record("a"), "b", record("a2"))
    assert (result.judgement.status, result.judgement.reason) == (Status.INCONCLUSIVE, "end_state_unrecorded")
    assert "7 steps are equal in bits, but a run was interrupted (b: RuntimeError: the loop died)" in (
        result.judgement.message
    )
    with pytest.raises(RuntimeError, match="the loop died"):
        record("c", dies_at=7, swapped_at=0)
    assert compare("a", "c", "a2").judgement.reason == "unequal_batches"


def test_a_recording_from_another_machine_is_not_controlled(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = record("a")
    monkeypatch.setattr(environment, "collect", lambda: Environment(cpu=CpuFacts(model="another")))
    result = compare(baseline, record("b"))
    assert any(each.startswith("processor: another in b, ") for each in result.not_controlled)


def test_text_json_and_markdown_of_a_comparison_state_the_same_result(record: Record) -> None:
    result = compare(record("a"), record("b", swapped_at=0), record("a2"))
    lines = comparison_lines(result)
    assert lines[0] == "b against a, repeated by a2"
    assert lines[-1].startswith("VIOLATED: b and a read different batches at step 0")
    found = json.loads(comparison_json(result))
    assert (found["exit_code"], found["status"], found["reason"]) == (1, "FAIL", "unequal_batches")
    assert found["first_difference"] | {"sentence": ""} == {"step": 0, "rank": 0, "quantity": "batch", "sentence": ""}
    assert comparison_markdown(result).startswith("**VIOLATED**: b and a read different batches at step 0")


def torchrun(folder: Path, **settings: Any) -> str:
    script = Path(recorded_loops.__file__)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [str(script), str(folder), json.dumps(settings)]
    subprocess.run([*command, *arguments], check=True, timeout=LIMIT_S, capture_output=True, text=True)
    return str(folder)


@pytest.mark.slow
def test_recorded_ranks_are_compared_one_by_one_and_the_differing_rank_is_named(tmp_path: Path) -> None:
    baseline, equal, repeat = (torchrun(tmp_path / name) for name in ("a", "b", "a2"))
    held = compare(baseline, equal, repeat)
    assert held.judgement.status is Status.PASS, held.judgement.message
    assert "at 2 ranks" in held.judgement.message
    changed = torchrun(tmp_path / "c", swapped_at=1)
    result = compare(baseline, changed, repeat)
    assert result.judgement.reason == "unequal_batches"
    assert f"{changed} at rank 1" in result.judgement.message
    assert result.first is not None
    assert (result.first.step, result.first.rank) == (0, 1)
