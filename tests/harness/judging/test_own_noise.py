"""Equality within the baseline's own noise, judged from evidence that a noisy trainer left, changed in one respect."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import noisy_trainers
import numpy as np
import pytest
from budget import slow_but
from claims_in_process import CLAIM as IN_BITS
from claims_in_process import Loaded, contract_of, executed, judged
from evidence_builders import arm
from planning import NO_GPU

from harness.contract.schema import Contract
from harness.drill.faults import expectation_for, is_killed
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.evidence.serving import SHARED, serves
from harness.judging.own_noise import (
    SHIFT,
    Features,
    Separation,
    features_of_series,
    features_of_sketches,
    require_timed_within_noise,
    require_unseparated,
    separation,
)
from harness.judging.registry import judge_unit
from harness.judging.sheet import Sheet
from harness.judging.verdict import Status, Verdict
from harness.planning.plan import plan
from harness.system.resolve import resolve
from harness.system.wrappers import HARNESS_FAULTS

STEPS = 8
COMMON = {name: value for name, value in IN_BITS.items() if name not in ("max_abs_difference", "guards")}
CLAIM: dict[str, Any] = {
    **COMMON,
    "candidate": "fused",
    "baseline": "plain",
    "equality": "noise",
    "guards": {"steps": STEPS, "distinct_batches": STEPS},
}
ARMS: dict[str, dict[str, Any]] = {
    "fused": {"capture": "none", "fused": True},
    "plain": {"capture": "none"},
    "untrained": {"capture": "none", "learning_rate": 0.0},
}
CONTROL = {"control": "untrained", "last": 2, "at_least": 1e-6}
Change = Callable[[ArmEvidence], ArmEvidence]


class Recorded:
    """A contract and the evidence of its paired run, as the runner wrote it."""

    def __init__(self, system: str, directory: Path, **claim: Any) -> None:
        contract = contract_of(f"noisy_trainers:{system}", CLAIM | claim, steps=STEPS, arms=ARMS)
        self.contract: Contract = contract
        planned = plan([Loaded(contract)], machine=NO_GPU, describe=lambda name: resolve(name).describe())
        [self.planned] = planned.runs
        numbers = io.BytesIO(np.random.default_rng(0).bytes(2**20))  # a generator's state would be compared
        with patch.object(noisy_trainers, "entropy", numbers.read):
            self.run: RunEvidence = executed(self.planned, directory)

    def verdict(self, change: Change = lambda each: each, arm: str = "fused") -> Verdict:
        """Judge the evidence with every run of one arm changed."""
        arms = {**self.run.arms, arm: [change(each) for each in self.run.arms[arm]]}
        return judge_unit(self.contract, self.contract.claims[0], "w", [replace(self.run, arms=arms)], None)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded("Noisy", tmp_path_factory.mktemp("noisy") / "run")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded("Quiet", tmp_path_factory.mktemp("quiet") / "run")


def loss_off(by: float, step: int = 3) -> Change:
    def change(each: ArmEvidence) -> ArmEvidence:
        losses = np.array(each.series.loss)
        losses[step] = np.float32(losses[step] * (1 + by))  # as the trainer's type has it
        return replace(each, series=replace(each.series, loss=losses))

    return change


def end_changed(**fields: Callable[[Any], Any]) -> Change:
    """Return a change of fields of the end."""

    def change(each: ArmEvidence) -> ArmEvidence:
        assert each.end is not None
        found = {name: value(getattr(each.end, name)) for name, value in fields.items()}
        return replace(each, end=each.end.model_copy(update=found))

    return change


def sketch_moved(name: str, share: float) -> Change:
    """Return a change that moves a tensor of the end by a share of its norm."""

    def moved(sketches: dict[str, Any]) -> dict[str, Any]:
        epsilon, norm, *sums = sketches[name]
        return {**sketches, name: (epsilon, norm, *(each + share * norm for each in sums))}

    return end_changed(sketches=moved)


def digest_changed(category: str, name: str, digest: str | None) -> Change:
    def changed(state: Any) -> Any:
        tensors = dict(state.digests[category])
        tensors.pop(name)
        tensors |= {} if digest is None else {name: digest}
        digests = {**state.digests, category: tensors}
        return state.model_copy(update={"digests": digests, "tensors": sum(map(len, digests.values()))})

    return end_changed(state=changed)


def without_a_gradient(each: ArmEvidence) -> ArmEvidence:
    first, *others = each.gradients
    return replace(each, gradients=[first.model_copy(update={"tensors": first.tensors[1:]}), *others])


def test_an_own_noise_claim_runs_both_arms_five_times_with_sketches(noisy: Recorded) -> None:
    plain = noisy.planned.arms["plain"]
    assert {name: (arm.replicas, arm.sketches) for name, arm in noisy.planned.arms.items()} == {
        "plain": (5, True),
        "fused": (5, True),
    }
    assert noisy.planned.gradient_steps == [0, 1, 2, STEPS - 1]
    assert noisy.planned.compared == [["fused", "plain"], ["fused"], ["plain"]]
    unsketched = noisy.planned.model_copy(update={"arms": {"plain": plain.model_copy(update={"sketches": False})}})
    assert serves(noisy.planned, unsketched, SHARED, {"plain": "plain"})
    assert not serves(unsketched, noisy.planned, SHARED, {"plain": "plain"})


def test_equal_noisy_arms_pass_and_the_message_states_which_distance_noise_would_have_hidden(noisy: Recorded) -> None:
    found = noisy.verdict()
    assert (found.status, found.reason) == (Status.PASS, "held"), found.message
    assert found.denominators["runs_per_arm"] == 5
    assert found.figures["gradients"].value == 4 * 6
    assert 0 < float(found.figures["hidden_end_distance"].value) < 1e-4  # type: ignore[arg-type]
    assert "the noise would hide ends that differ by" in found.message


@pytest.mark.parametrize(
    ("change", "furthest"),
    [
        (loss_off(1e-3), "loss of step 3"),
        (sketch_moved("tensors average.1", 1e-3), "end tensors average.1"),
        (sketch_moved("parameters 0.weight", -1e-3), "end parameters 0.weight"),
    ],
)
def test_a_difference_present_in_all_runs_is_beyond_noise(change: Change, furthest: str, noisy: Recorded) -> None:
    found = noisy.verdict(change)
    assert (found.status, found.reason) == (Status.FAIL, "beyond_noise"), found.message
    assert found.figures["most_beyond_noise"].value == furthest


@pytest.mark.parametrize(
    "change",
    [
        digest_changed("generators", "torch.cpu", "0123456789abcdef"),
        digest_changed("parameters", "0.bias", None),
        without_a_gradient,
    ],
    ids=["a generator", "a tensor that is missing", "a gradient that is missing"],
)
def test_values_that_noise_cannot_change_are_compared_in_bits(change: Change, noisy: Recorded) -> None:
    assert noisy.verdict(change).status in {Status.FAIL, Status.ERROR}
    assert noisy.verdict(change).reason in {"beyond_noise", "evidence_inconsistent"}


def test_an_integer_in_which_the_baseline_differs_from_itself_is_not_compared(noisy: Recorded) -> None:
    count = iter("abcdefghij")

    def other_count(each: ArmEvidence) -> ArmEvidence:
        return digest_changed("generators", "torch.cpu", next(count) * 16)(each)

    assert noisy.verdict(other_count, "plain").reason == "held"


def test_evidence_without_sketches_decides_nothing(noisy: Recorded) -> None:
    found = noisy.verdict(end_changed(sketches=lambda _: None))
    assert (found.status, found.reason) == (Status.ERROR, "evidence_missing"), found.message


def test_fewer_runs_than_planned_decide_nothing(noisy: Recorded) -> None:
    arms = {**noisy.run.arms, "fused": noisy.run.arms["fused"][:4]}
    claim = noisy.contract.claims[0]
    found = judge_unit(noisy.contract, claim, "w", [replace(noisy.run, arms=arms)], None)
    assert found.reason == "evidence_missing", found.message


def test_a_baseline_without_noise_excuses_no_difference(quiet: Recorded) -> None:
    assert quiet.verdict().reason == "held"
    rounding = quiet.verdict(loss_off(2.0**-23))
    assert (rounding.status, rounding.reason) == (Status.INCONCLUSIVE, "no_noise"), rounding.message
    assert quiet.verdict(loss_off(1e-3)).reason == "beyond_noise"


def test_a_claim_with_noise_as_large_as_the_training_is_undecided(tmp_path: Path) -> None:
    drowned = Recorded("Drowned", tmp_path / "run")
    found = drowned.verdict()
    assert (found.status, found.reason) == (Status.INCONCLUSIVE, "noise_hides"), found.message


HARNESS_OWN = (
    *("stale_batch", "dropped_last_update", "half_moved", "doubled_step", "unsteady_loss"),
    *("wiped_moments", "drawn_numbers", "nan_end_state"),
)


@pytest.mark.parametrize(
    "fault", slow_but(["still_average", "dropped_last_update", "noisier"], [*noisy_trainers.Noisy.faults, *HARNESS_OWN])
)
@pytest.mark.parametrize("system", slow_but(["Noisy"], ["Noisy", "Noisier"]))
def test_a_planted_fault_is_found_for_the_reason_that_the_drill_expects(
    system: str, fault: str, tmp_path: Path
) -> None:
    name = f"noisy_trainers:{system}"
    faults = {**HARNESS_FAULTS, **resolve(name).describe().faults}
    expected = expectation_for(contract_of(name, CLAIM, arms=ARMS).claims[0], faults[fault])
    found = judged(name, tmp_path, CLAIM, fault=fault, steps=STEPS, arms=ARMS)
    assert expected is not None
    assert is_killed(expected, found), found.message


def features(values: np.ndarray[Any, Any], columns: int = 1) -> Features:
    count = values.shape[1] // columns
    return Features([str(index) for index in range(count)], values, columns, np.full(count, 1e-150))


@pytest.mark.parametrize("columns", [1, 4])
def test_at_most_two_divisions_of_the_same_runs_are_judged_beyond_noise(columns: int) -> None:
    """Ten equal runs are divided into two arms in every way.

    The rate of false alarms must be low, although one run lies far off and one figure has two clusters.
    """
    values = np.random.default_rng(0).standard_t(2, (10, 24))
    values[3] *= 1e6
    values[[0, 2, 5, 6, 9], -1] += 1e9
    accused = 0
    for half in combinations(range(10), 5):
        rows = [*half, *(row for row in range(10) if row not in half)]
        accused += separation([features(values[rows], columns)]).beyond > 1
    assert accused <= 2, "the division and its mirror image"


@pytest.mark.parametrize("scattered", [[0, 1, 3], [2, 4, 5]])
def test_the_first_and_the_last_of_the_other_divisions_count(scattered: list[int]) -> None:
    values = np.linspace(0.0, 1e-3, 6)[:, np.newaxis]
    values[scattered, 0] = [-1.0, 1.0, 2.0]
    assert separation([features(values)]).others > 1


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("equal", [1, 3])
def test_runs_of_which_one_equals_the_baseline_are_not_beyond_noise(equal: int, seed: int) -> None:
    """If the two equal runs change places, the division is another one with the same distance."""
    numbers = np.random.default_rng(seed)
    values = np.repeat(numbers.random((1, 30)), 10, axis=0)
    values[equal:5] += numbers.normal(size=(5 - equal, 30))
    assert separation([features(values)]).beyond <= 1


def test_timed_losses_of_five_processes_are_compared_over_their_common_steps() -> None:
    """Processes of which one equals the baseline's may be exactly as far apart as another division."""
    losses = np.random.default_rng(4).normal(3.0, 1e-4, (10, STEPS))
    runs = [arm("ungraphed", each[: STEPS - index % 2]) for index, each in enumerate(losses)]
    require_timed_within_noise(runs[:5], runs[5:], "ours", "theirs")
    as_far = Separation(2.0, 2.0, "loss of step 0", is_noise=False)
    with patch("harness.judging.own_noise.separation", return_value=as_far):
        require_timed_within_noise(runs[:5], runs[5:], "ours", "theirs")


def test_the_least_spread_of_a_sketched_tensor_depends_on_its_own_size() -> None:
    sketches = {"a": (0.25, 1.0, 0.0, 0.0, 0.0, 0.0), "b": (0.25, 100.0, 0.0, 0.0, 0.0, 0.0)}
    [found] = features_of_sketches([sketches, sketches])
    assert found.floor.tolist() == [0.5, 50.0]


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_scaling_all_numbers_does_not_change_the_noise_decision(size: float) -> None:
    values = np.random.default_rng(3).normal(size=(10, 24))
    values[:5, 8] += 50
    values[:, 12] = 0.0
    found = separation([replace(features(values * size), floor=np.full(24, 1e-9 * size))])
    assert (found.feature, found.beyond > 1) == ("8", True)


def test_a_single_outlying_run_is_not_judged_beyond_noise() -> None:
    values = np.random.default_rng(1).normal(size=(10, 24))
    values[2] += 1e6
    assert separation([features(values)]).beyond <= 1


def test_more_scatter_of_the_candidate_counts_as_noise_but_a_shift_does_not() -> None:
    values = np.random.default_rng(2).normal(size=(10, 400))
    scattered, apart = values.copy(), values.copy()
    scattered[:5] *= 100
    apart[:5, :4] += 20
    assert separation([features(scattered, 4)]).is_noise
    found = separation([features(apart, 4)])
    assert (found.is_noise, found.feature) == (False, "0")
    assert found.beyond > 1


def test_the_noise_at_the_end_is_relative_to_the_movement_whatever_series_are_compared() -> None:
    draw, start = np.random.default_rng(0), (0.1, 0.0, 0.0, 0.0, 0.0, 0.0)
    series = [features_of_series(draw.normal(size=(10, 3)), name) for name in ("loss", "norm")]
    noise = draw.normal(0, 1e-3, 10)
    [ends] = features_of_sketches([{"end parameters a": (0.1, 2.0, 2 + each, 2.0, 2.0, 2.0)} for each in noise])
    seen = require_unseparated([*series, ends], {"parameters a": start}, "fused", Sheet())
    assert seen.hidden_way == pytest.approx(seen.separation.needed * SHIFT * ends.spread(5)[0] / 2, rel=1e-3)
    assert seen.seen_way
    unrecorded = require_unseparated(series, {}, "fused", Sheet())
    assert (unrecorded.hidden_way, unrecorded.seen_way) == (None, False)
