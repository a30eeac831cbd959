"""Ugly values: what must hold for every pair of series, however they look. And what a million steps cost."""

import math

import numpy as np
import pytest
from calls_made import counted
from evidence_builders import TRAJECTORY, arm, blocks, graphed, paired, timed_run, twice, verdict_of, watched_all_along
from hypothesis import given
from hypothesis import strategies as st
from judge_cases_capture import sampled
from judge_cases_throughput import FASTER

from harness.judging.series import Bounds, difference
from harness.judging.verdict import Status, Verdict

UGLY = st.sampled_from([0.0, -0.0, 1.0, 2.0, math.nan, math.inf, -math.inf, 5e-324, 1.7e308, -1.7e308, 1 + 2**-52])
LOSS = UGLY | st.floats(width=32) | st.integers(-3, 3).map(float)
LOSSES = st.lists(LOSS, max_size=6)
PAIR = st.tuples(LOSSES, LOSSES) | LOSSES.map(lambda losses: (losses, list(losses)))
EQUALITY = st.sampled_from(["bitwise", "within"])
BARE = {"guards": {"steps": 1}, "max_abs_difference": 0.5}


def judged(ours: list[float], theirs: list[float], equality: str) -> Verdict:
    run = paired(*twice("ungraphed", theirs), graphed(ours))
    return verdict_of(TRAJECTORY | BARE | {"equality": equality}, run, steps=max(len(ours), 1))


def bits(losses: list[float]) -> bytes:
    return np.array(losses, dtype=np.float64).tobytes()


@given(pair=PAIR, equality=EQUALITY)
def test_a_trajectory_passes_exactly_when_losses_agree_are_finite_and_move(
    pair: tuple[list[float], list[float]], equality: str
) -> None:
    ours, theirs = pair
    verdict = judged(ours, theirs, equality)
    finite = all(math.isfinite(loss) for loss in ours + theirs)
    equal = bits(ours) == bits(theirs)
    close = len(ours) == len(theirs) and all(abs(a - b) <= 0.5 for a, b in zip(ours, theirs, strict=True))
    moves = all(len(losses) < 2 or len(set(losses)) > 1 for losses in pair)
    passes = len(ours) > 0 and finite and moves and (equal if equality == "bitwise" else close)
    assert verdict.status is (Status.PASS if passes else Status.FAIL), verdict.message


@given(pair=PAIR, equality=EQUALITY)
def test_a_non_finite_loss_is_always_named_non_finite(pair: tuple[list[float], list[float]], equality: str) -> None:
    ours, theirs = pair
    steps = [step for losses in pair for step, loss in enumerate(losses) if not math.isfinite(loss)]
    verdict = judged(ours, theirs, equality)
    assert (verdict.reason == "non_finite") is bool(steps)
    if steps:
        assert verdict.figures["first_non_finite_step"].value == min(steps)


@given(pair=PAIR, equality=EQUALITY)
def test_a_verdict_is_read_back_as_written_and_does_not_depend_on_the_time_of_judging(
    pair: tuple[list[float], list[float]], equality: str
) -> None:
    verdict = judged(*pair, equality)
    assert judged(*pair, equality).model_dump_json() == verdict.model_dump_json()
    again = Verdict.model_validate_json(verdict.model_dump_json())
    assert again.model_dump_json() == verdict.model_dump_json()


@given(pair=PAIR)
def test_the_first_differing_step_is_the_first_step_with_unequal_bits(pair: tuple[list[float], list[float]]) -> None:
    ours, theirs = pair
    found = difference(np.array(ours, dtype=np.float64), np.array(theirs, dtype=np.float64), "every", Bounds(0.5))
    expected = [step for step, (a, b) in enumerate(zip(ours, theirs, strict=False)) if bits([a]) != bits([b])]
    assert found.first_differing == (expected[0] if expected else None)
    assert found.differing == len(expected)


@given(st.lists(st.integers(0, 2**40), max_size=8))
def test_memory_that_never_exceeds_its_warm_up_passes_as_steady(sizes: list[int]) -> None:
    peak = max(sizes, default=0)
    verdict = sampled([peak, peak, *([peak] * len(sizes))])
    assert verdict.reason == ("held" if peak and sizes else "vacuous_steps" if not sizes else "vacuous_no_memory")


@pytest.mark.slow
@given(
    times=st.lists(st.lists(st.floats(1e-9, 0.125), min_size=8, max_size=8), min_size=8, max_size=8),
    load=st.floats(0, 2),
)
def test_any_timings_get_a_verdict_and_pass_only_when_every_process_is_faster(
    times: list[list[float]], load: float
) -> None:
    runs = []
    for index, each in enumerate(times):
        telemetry = watched_all_along(blocks(each[:4], each[4:], steps=2), host_load_per_core=load)
        runs.append(timed_run(index, each[:4], each[4:], telemetry=telemetry))
    verdict = verdict_of(FASTER, *runs, beside=[TRAJECTORY])
    assert verdict.reason in {"held", "too_slow", "undecided_ratio", "candidate_stalls", "limits_exceeded"}
    if verdict.status is Status.PASS:
        assert load <= 1
        assert all(np.median(each[4:]) / np.median(each[:4]) >= 1.1 * (1 - 1e-12) for each in times)


@pytest.mark.parametrize("equality", ["bitwise", "within"])
def test_a_million_steps_are_judged_without_a_call_for_each(equality: str) -> None:
    steps = 10**6
    losses = np.linspace(3.0, 2.0, steps)
    batches = [f"{index:016x}" for index in range(steps)]
    claim = TRAJECTORY | {
        "equality": equality,
        "guards": {"steps": steps, "distinct_batches": steps, "clip_active_steps": steps},
    }
    run = paired(
        arm("ungraphed", losses, batches=batches),
        arm("ungraphed", losses, batches=list(batches), replica=1),
        graphed(losses, batches=[f"{index:016x}" for index in range(steps)]),
    )
    verdict, calls = counted(lambda: verdict_of(claim, run, steps=steps))
    assert calls < steps / 10
    assert (verdict.reason, verdict.denominators["steps"]) == ("held", steps)
