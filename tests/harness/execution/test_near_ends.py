"""Ends within a bound, executed and judged: what no loss shows is told, and what rounding alone moves is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import near_ends_systems
import pytest
import stateful_systems
from claims_in_process import ARMS, CLAIM, contract_of, judged, judged_on
from stateful_systems import CORRECT, Stateful

from harness.judging.verdict import Status, Verdict

WITHIN: dict[str, Any] = CLAIM | {
    "equality": "within",
    "max_abs_difference": 1e-3,
    "ends": {"control": "nudged", "at_most": 0.01},
}
# What training ends with: of the systems that end elsewhere those whose parameters, buffers, averages or moments do.
# Generators are what a later step reads; a flag and a drift of a millionth are no movement.
TOLD = dict.fromkeys(
    ("DropsTheLastUpdate", "SecondHead", "LateTable", "WipesItsMoments", "ReplacesItsMoments"), "ends_apart"
) | {"ForgetsAStep": "end_differs", "LosesItsAverage": "ends_uncompared"}


NUDGED = ARMS | {"nudged": {"capture": "none"}}


def name_of(system: type) -> str:
    return f"{system.__module__}:{system.__name__}"


def verdict_of(system: type, directory: Path, fault: str | None = None, **claim: Any) -> Verdict:
    return judged(name_of(system), directory, WITHIN | claim, fault=fault, arms=NUDGED)


@pytest.mark.parametrize("system", CORRECT, ids=lambda system: system.__name__)
def test_a_correct_step_passes_in_bits_and_within_a_bound_on_end_states(system: type[Stateful], tmp_path: Path) -> None:
    found, in_bits = judged_on(contract_of(name_of(system), WITHIN, arms=NUDGED, beside=[CLAIM]), tmp_path)
    assert (found.status, found.reason) == (Status.PASS, "held"), found.message
    assert found.figures["end_distance"].value == 0
    assert (in_bits.status, in_bits.reason) == (Status.PASS, "held"), in_bits.message


@pytest.mark.parametrize("name", TOLD)
def test_losses_within_a_bound_do_not_hide_a_different_end_state(name: str, tmp_path: Path) -> None:
    found = verdict_of(getattr(stateful_systems, name), tmp_path)
    assert found.reason == TOLD[name], found.message


@pytest.mark.parametrize("system", near_ends_systems.WRONG, ids=lambda system: system.__name__)
def test_an_end_difference_that_no_loss_reads_is_reported_with_its_tensor_name(system: Any, tmp_path: Path) -> None:
    contract = contract_of(name_of(system), WITHIN, arms=NUDGED, beside=[WITHIN | {"ends": None}])
    found, without = judged_on(contract, tmp_path)
    assert without.reason == "held", "the losses show nothing of it"
    assert found.reason == "ends_apart", found.message
    assert found.figures["end_distance_tensor"].value == system.told


@pytest.mark.parametrize("system", near_ends_systems.ROUNDED, ids=lambda system: system.__name__)
def test_an_end_state_difference_as_small_as_rounding_passes(system: Any, tmp_path: Path) -> None:
    found = verdict_of(system, tmp_path)
    assert found.reason == "held", found.message
    assert found.figures["rounding_tensors"].value in (3, 4), (
        "the bias, both its moments, and the running mean that follows it"
    )
    assert "end_distance" in found.figures


@pytest.mark.parametrize("system", near_ends_systems.AVERAGED, ids=lambda system: system.__name__)
def test_an_average_by_a_different_formula_or_of_rounded_parameters_passes(system: Any, tmp_path: Path) -> None:
    found = verdict_of(system, tmp_path, max_abs_difference=0.1)
    assert found.reason == "held", found.message
    assert found.figures["unexplained_tensors"].value == 0


@pytest.mark.parametrize("system", near_ends_systems.UNEXPLAINED, ids=lambda system: system.__name__)
def test_an_average_that_moves_differently_within_the_bound_is_undecided(system: Any, tmp_path: Path) -> None:
    found = verdict_of(system, tmp_path)
    assert (found.status, found.reason) == (Status.INCONCLUSIVE, "ends_unexplained"), found.message
    assert "tensors built.more.average" in found.message


@pytest.mark.parametrize(
    ("system", "reason"),
    [(near_ends_systems.KeepsItFlat, "held"), (near_ends_systems.KeepsItFlatUnsaid, "unequal_start")],
)
def test_arms_with_different_layouts_are_compared_by_common_names(system: Any, reason: str, tmp_path: Path) -> None:
    found = verdict_of(system, tmp_path)
    assert found.reason == reason, found.message
    assert "built.more.average.0" in found.message


def test_training_in_which_rounding_decides_every_end_is_not_decided(tmp_path: Path) -> None:
    found = verdict_of(near_ends_systems.Chaotic, tmp_path, max_abs_difference=1e9)
    assert (found.status, found.reason) == (Status.INCONCLUSIVE, "ends_undecided"), found.message


def test_losses_beyond_a_relative_bound_by_rounding_are_undecided(tmp_path: Path) -> None:
    found = verdict_of(near_ends_systems.Chaotic, tmp_path, max_abs_difference=None, max_relative_difference=1e-6)
    assert (found.status, found.reason) == (Status.INCONCLUSIVE, "ends_undecided"), found.message


@pytest.mark.parametrize(("fault", "reason"), [("half_moved", "ends_apart"), ("dropped_last_update", "ends_apart")])
def test_near_end_faults_of_the_harness_are_found_in_any_system(fault: str, reason: str, tmp_path: Path) -> None:
    assert verdict_of(Stateful, tmp_path, fault=fault).reason == reason
