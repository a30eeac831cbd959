"""A difference accuses only where repeats of the baseline recorded the same thing and agree, whatever the thing is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import harness
from harness.errors import UsageError
from harness.judging.verdict import Status
from harness.recorded_loops.compared_loops import ComparedRuns, compared
from harness.recorded_loops.recordings import read_recording


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(
    name: str,
    losses: Sequence[float],
    norms: Sequence[float] = (),
    batches: Sequence[object] = (),
    start: dict[str, Tensor] | None = None,
    end: dict[str, Tensor] | None = None,
    learning_rate: float | None = None,
    *,
    dies: bool = False,
    leaves: bool = False,
    rates: Sequence[float] = (),
) -> str:
    """Record a loop of these numbers, which starts and ends with this state."""
    model, trained = nn.Module(), dict[str, Any]()
    for key, value in (start or {}).items():
        if value.is_floating_point():
            model.register_parameter(key, nn.Parameter(value.clone()))
        else:
            model.register_buffer(key, value.clone())
    if start is not None:
        trained["model"] = model
    if learning_rate is not None:
        trained["optimizer"] = torch.optim.SGD(model.parameters(), lr=learning_rate)
    recorder = harness.record(name, **trained)
    for step, loss in enumerate(losses):
        norm, batch = norms[step] if norms else None, batches[step] if batches else None
        for group in trained["optimizer"].param_groups if rates else ():
            group["lr"] = rates[step]
        recorder.step(loss, grad_norm=norm, batch=batch)
    with torch.no_grad():
        for key, value in (end or {}).items():
            getattr(model, key).copy_(value)
    if leaves:
        recorder._close_at_exit()
    recorder.close(RuntimeError("the loop died") if dies else None)
    return name


def judge(baseline: str, candidate: str, *repeats: str, again: Sequence[str] = ()) -> ComparedRuns:
    read = {name: read_recording(Path(name)) for name in (baseline, candidate, *repeats, *again)}
    return compared(read[baseline], read[candidate], [read[each] for each in repeats], [read[each] for each in again])


def said(result: ComparedRuns) -> tuple[str, str]:
    return result.judgement.status.value, result.judgement.reason


def ones(value: float = 1.0) -> dict[str, Tensor]:
    return {"weight": torch.full((4,), float(value))}


LOSSES = [4.0, 3.0, 2.0, 1.0]
SILENT: dict[
    str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
] = {  # candidate, baseline, and a repeat that recorded nothing of what differs
    "died before": ({"losses": [4.0, 3.0, 2.0, 0.5]}, {}, {"losses": LOSSES[:2], "dies": True}),
    "no batch": ({"batches": [1, 2, 3, 5]}, {"batches": [1, 2, 3, 4]}, {}),
    "no start": ({"start": ones(2.0), "end": ones()}, {"start": ones(), "end": ones()}, {}),
    "no end": ({"losses": LOSSES[:3]}, {}, {"dies": True}),
    "no norm": ({"norms": [1.0, 1, 1, 2]}, {"norms": [1.0, 1, 1, 1]}, {}),
    "another start": (
        {"start": ones(), "losses": [4.0, 3.0, 2.0, 0.5]},
        {"start": ones()},
        {"start": ones(2.0)},
    ),
}


@pytest.mark.parametrize("case", SILENT)
def test_a_repeat_that_lacks_the_differing_quantity_proves_no_noise(case: str) -> None:
    losses: dict[str, Any] = {"losses": LOSSES}
    candidate, baseline, repeat = (losses | each for each in SILENT[case])
    result = judge(write("a", **baseline), write("b", **candidate), write("a2", **repeat))
    assert result.judgement.status.value == "INCONCLUSIVE", result.judgement
    assert result.judgement.reason in {"too_few_processes", "baseline_not_repeatable"}
    speaking = judge("a", "b", "a2", write("a3", **baseline))  # a repeat that shows it decides
    assert speaking.judgement.status.value == "FAIL", speaking.judgement


def noisy(kind: str, **more: Any) -> list[str]:
    drawn = np.random.default_rng(len(kind) + ord(kind[0]))
    return [write(f"{kind}{run}", list(LOSSES + 0.01 * drawn.random(4)), **more) for run in range(5)]


def test_norms_that_are_non_finite_only_in_the_candidate_fail() -> None:
    drawn = np.random.default_rng(3)
    runs = [
        [write(f"{kind}{run}", list(LOSSES + 0.01 * drawn.random(4)), norms) for run in range(5)]
        for kind, norms in (("a", [1.0, 1.0, 1.0, 1.0]), ("b", [1.0, math.nan, math.nan, math.nan]))
    ]
    (baseline, *repeats), (candidate, *again) = runs
    assert said(judge(baseline, candidate, *repeats, again=again)) == ("FAIL", "non_finite")


def test_a_norm_that_overflows_in_both_arms_is_not_compared_and_is_named() -> None:
    state: dict[str, Any] = {"start": ones(0.0), "end": ones()}
    (baseline, *repeats), (candidate, *again) = (noisy(kind, norms=[math.inf, 1, 1, 1], **state) for kind in "ab")
    result = judge(baseline, candidate, *repeats, again=again)
    assert said(result) == ("PASS", "held"), result.judgement
    assert "without grad_norm" in result.judgement.message
    assert "0 gradients" not in result.judgement.message


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_non_finite_norm_does_not_count_as_rounding(value: float) -> None:
    baseline, repeat = (write(name, LOSSES, [1.0, 1, 1, 1]) for name in ("a", "a2"))
    result = judge(baseline, write("b", LOSSES, [1.0, value, 1, 1]), repeat)
    assert said(result) == ("FAIL", "differs")


def test_repeats_with_different_starts_are_not_used_as_noise() -> None:
    state: dict[str, Any] = {"end": ones()}
    baseline, *repeats = [write(f"a{n}", list(LOSSES + np.array(n)), start=ones(float(n)), **state) for n in range(5)]
    candidate, *again = [write(f"b{n}", [4.0, 3, 2, 1.5], start=ones(0.0), **state) for n in range(5)]
    result = judge(baseline, candidate, *repeats, again=again)
    assert said(result) == ("INCONCLUSIVE", "baseline_not_repeatable")


def test_an_optimizer_missing_in_one_recording_is_not_controlled() -> None:
    state: dict[str, Any] = {"losses": LOSSES, "start": ones(), "end": ones(2.0)}
    baseline, repeat = (write(name, **state, learning_rate=0.1) for name in ("a", "a2"))
    result = judge(baseline, write("b", **state), repeat)
    assert said(result) == ("PASS", "held"), result.judgement
    assert any(each.startswith("optimizer: ") for each in result.not_controlled)
    neither = judge("b", write("c", **state))
    assert {"optimizer", "grad_norm"} <= {each.partition(":")[0] for each in neither.not_controlled}


def counts(value: int, weight: float = 1.0) -> dict[str, Tensor]:
    return {"weight": torch.full((4,), weight), "routed": torch.tensor([value, 2])}


def test_integers_that_differ_among_baselines_are_noise() -> None:
    start = counts(0, 0.0)
    baseline, repeat = (write(f"a{n}", [4.0 + n], start=start, end=counts(n)) for n in range(2))
    candidate = write("b", [4.5], start=start, end=counts(7))
    assert said(judge(baseline, candidate, repeat)) == ("INCONCLUSIVE", "too_few_processes")
    equal = write("a3", [4.1], start=start, end=counts(0))
    assert said(judge(baseline, candidate, equal)) == ("FAIL", "end_differs")


def test_a_non_finite_end_state_fails_even_if_the_baseline_is_noisy() -> None:
    baseline, repeat = (write(f"a{n}", [4.0 + n], start=ones(0.0), end=ones(1.0 + n)) for n in range(2))
    candidate = write("b", [4.5], start=ones(0.0), end={"weight": torch.tensor([1.0, math.nan, 1.0, 1.0])})
    assert said(judge(baseline, candidate, repeat)) == ("FAIL", "end_differs")


def test_the_candidate_is_not_blamed_for_losses_of_the_baseline() -> None:
    bad = [4.0, math.nan, math.inf, 1.0]
    baseline, repeat, equal = (write(name, bad) for name in ("a", "a2", "b"))
    assert said(judge(baseline, equal, repeat)) == ("PASS", "held")
    finite = write("c", LOSSES)
    assert said(judge(baseline, finite, repeat)) == ("FAIL", "differs")
    assert said(judge(finite, baseline)) == ("FAIL", "non_finite")


def test_repeats_beyond_the_maximum_of_the_noise_rule_are_left_out() -> None:
    state: dict[str, Any] = {"start": ones(0.0), "end": ones()}
    drawn = np.random.default_rng(0)
    (baseline, *repeats), (candidate, *again) = (
        [write(f"{kind}{n}", list(LOSSES + 0.01 * drawn.random(4)), **state) for n in range(9)] for kind in "ab"
    )
    result = judge(baseline, candidate, *repeats, again=again)
    assert result.judgement.denominators["runs_per_arm"] == 8
    assert "8 runs of" in result.judgement.message


def test_rounding_that_grows_in_repeatable_runs_is_not_a_failure() -> None:
    """A fused kernel rounds differently, and Adam amplifies the difference, but all repeats of either loop are equal in
    bits.
    """
    start, rounding = ones(0.0), float(np.nextafter(np.float32(3), np.float32(4)))
    (baseline, *repeats), (candidate, *again) = (
        [write(f"{kind}{run}", losses, start=start, end=ones(end)) for run in range(5)]
        for kind, losses, end in (("a", LOSSES, 1.0), ("b", [4.0, rounding, 2.5, 1.5], 1.1))
    )
    few, many = judge(baseline, candidate, repeats[0]), judge(baseline, candidate, *repeats, again=again)
    assert said(few) == said(many) == ("INCONCLUSIVE", "no_noise")
    assert "give" not in few.judgement.message
    lost = write("c", LOSSES, [1, 1, 1, 1]), write("c2", LOSSES, [1, 1, 1, 1])
    broken = write("d", [4.0, rounding, 2.5, 1.5], [1, 1, math.nan, 1])
    assert said(judge(lost[0], broken, lost[1])) == ("FAIL", "non_finite")


def test_an_interrupted_repeat_does_not_change_that_the_runs_are_equal_in_bits() -> None:
    baseline, candidate = (write(name, LOSSES, start=ones(), end=ones(2.0)) for name in ("a", "b"))
    repeat = write("a2", LOSSES[:2], start=ones(), dies=True)
    assert said(judge(baseline, candidate, repeat)) == ("PASS", "held")
    assert "0 steps" not in judge(baseline, candidate, write("a3", [], dies=True)).judgement.message
    short = judge(write("c", LOSSES[:1], dies=True), candidate)
    assert short.judgement.message.startswith("1 step is equal in bits")


def test_runs_without_a_common_step_are_judged() -> None:
    (baseline, *repeats), (candidate, *again) = noisy("a"), [write(f"b{n}", []) for n in range(5)]
    assert said(judge(baseline, candidate, *repeats, again=again)) == ("FAIL", "unequal_lengths")
    dead = [write(f"c{n}", [], start=ones(n), dies=True) for n in range(2)]
    assert said(judge(dead[0], dead[1], write("c2", [], start=ones(3), dies=True)))[0] == "INCONCLUSIVE"


def test_one_recording_given_under_two_paths_is_refused() -> None:
    write("a", LOSSES)
    with pytest.raises(UsageError, match="each recording must be named only once"):
        compared(read_recording(Path("a")), read_recording(Path("a").absolute()))


def test_a_learning_rate_that_follows_noisy_losses_is_undecided() -> None:
    """A plateau of the loss lowers the learning rate in one run of the candidate and in no repeat of the baseline."""
    weights = {"w": torch.zeros(1)}
    noisy = [[1.0 + noise, 0.9 + noise, 0.8] for noise in (0.0, 1e-4, 2e-4, 3e-4)]
    for name, losses in zip(("a", "a2", "a3"), noisy, strict=False):
        write(name, losses, start=weights, learning_rate=0.1)
    write("b", noisy[3], start=weights, learning_rate=0.1, rates=[0.1, 0.1, 0.05])
    assert judge("a", "b", "a2", "a3").judgement.status is Status.INCONCLUSIVE


def test_a_learning_rate_that_differs_before_any_loss_fails() -> None:
    weights = {"w": torch.zeros(1)}
    for name in ("a", "a2"):
        write(name, [1.0, 0.9, 0.8], start=weights, learning_rate=0.1)
    write("b", [1.0, 0.9, 0.7], start=weights, learning_rate=0.1, rates=[0.1, 0.05, 0.05])
    assert judge("a", "b", "a2").judgement.reason == "differs"


def test_a_shorter_recording_closed_by_its_process_is_not_an_equal_run() -> None:
    for name in ("a", "a2"):
        write(name, [1.0, 0.9, 0.8])
    write("b", [1.0, 0.9], leaves=True)
    result = judge("a", "b", "a2")
    assert result.judgement.reason == "end_state_unrecorded"
    assert "call `close`" in result.judgement.message
    write("c", [1.0, 0.9])
    assert judge("a", "c", "a2").judgement.reason == "unequal_lengths"


def test_a_recording_closed_by_its_process_lists_its_ending_as_not_controlled() -> None:
    write("a", [1.0, 0.9], leaves=True)
    write("b", [1.0, 0.9], leaves=True)
    result = judge("a", "b")
    assert result.judgement.status is Status.PASS
    assert any(each.startswith("ending: ") for each in result.not_controlled)
