"""The end decides: small trainers, executed and judged, whose captured arm ends where the plain one does, or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import stateful_systems
from budget import slow_but
from claims_in_process import CLAIM, STEPS, contract_of, executed, judged, judged_on, verdict_on
from stateful_systems import ENDS_ELSEWHERE, Stateful

from harness.contract.schema import Arm, Workload
from harness.evidence.plan_records import PlannedArm, Run
from harness.judging.verdict import Status


def name_of(system: type[Stateful]) -> str:
    return f"stateful_systems:{system.__name__}"


# and those of `test_near_ends`, each of which is judged twice there
HOLD = (stateful_systems.UncommonTensors, stateful_systems.RightSecondHead)


@pytest.mark.parametrize("system", HOLD, ids=lambda system: system.__name__)
def test_a_captured_step_that_is_correct_passes_the_comparison_of_end_states(
    system: type[Stateful], tmp_path: Path
) -> None:
    verdict = verdict_on(name_of(system), tmp_path)
    assert (verdict.status, verdict.reason) == (Status.PASS, "held"), verdict.message


@pytest.mark.parametrize("system", slow_but([*ENDS_ELSEWHERE][::5], ENDS_ELSEWHERE), ids=lambda system: system.__name__)
def test_equal_losses_do_not_hide_a_different_end_state(system: type[Stateful], tmp_path: Path) -> None:
    verdict = verdict_on(name_of(system), tmp_path)
    assert verdict.reason == ENDS_ELSEWHERE[system], verdict.message
    assert verdict.figures["steps_differing"].value == 0


@pytest.mark.parametrize(
    ("system", "reason"),
    [(stateful_systems.CapturesItself, "held"), (stateful_systems.ForgetsItsLazyAverage, "end_differs")],
)
def test_state_created_in_the_first_step_of_a_self_made_capture_is_compared(
    system: type[Stateful], reason: str, tmp_path: Path
) -> None:
    verdict = verdict_on(name_of(system), tmp_path)
    assert verdict.reason == reason, verdict.message
    assert "average" in verdict.message or reason == "held"


CAPTURES: dict[str, Any] = {
    **{name: CLAIM[name] for name in ("id", "title", "why", "if_fails", "judged_on", "candidate")},
    "kind": "capture",
    "outside_share_at_most": 0.5,
}


@pytest.mark.parametrize(
    ("system", "same", "captured"),
    [
        (stateful_systems.SaysItReplays, "launches_unobserved", "launches_unobserved"),
        (stateful_systems.ReplaysADecoy, "candidate_not_captured", "launches_differ"),
        (stateful_systems.ReplaysWhileProfiled, "held", "work_outside_graphs"),
    ],
)
def test_a_capture_made_by_the_system_itself_counts_only_observed_replays(
    system: type[Stateful], same: str, captured: str, tmp_path: Path
) -> None:
    """The capture record is equal in all of these systems."""
    verdicts = judged_on(contract_of(name_of(system), CLAIM, beside=[CAPTURES]), tmp_path)
    assert [verdict.reason for verdict in verdicts] == [same, captured]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("nan_end_state", "non_finite_end"),
        ("dropped_last_update", "end_differs"),
        ("wiped_moments", "end_differs"),
        ("drawn_numbers", "end_differs"),
        ("constant_loss", "vacuous_constant_loss"),
    ],
)
def test_end_state_faults_of_the_harness_are_found_in_any_system(fault: str, reason: str, tmp_path: Path) -> None:
    assert verdict_on(name_of(Stateful), tmp_path, fault=fault).reason == reason


@pytest.mark.parametrize("seed", slow_but([0, 1], range(8)))
def test_loss_noise_between_batches_does_not_count_as_training(seed: int, tmp_path: Path) -> None:
    noisy = {"steps": STEPS, "training_effect": {"control": "untrained", "last": 4, "at_least": 1e-3}}
    verdict = verdict_on(name_of(Stateful), tmp_path, fault="flat_loss", seed=seed, guards=noisy)
    assert verdict.reason == "vacuous_training_effect", verdict.message


def test_capture_warm_ups_do_not_change_running_statistics(tmp_path: Path) -> None:
    batches = {}
    for capture in ("none", "step"):
        system = Stateful()
        with system.open(Workload(model="any", batch_size=4, seq_len=4, steps=5), Arm(capture=capture)) as run:
            for index in range(5):
                run.step(index)
            assert run.capture_record().captured is (capture == "step")  # type: ignore[attr-defined]
        batches[capture] = (
            int(system.built.model[1].num_batches_tracked),
            system.built.model[1].running_mean.tolist(),
        )
    assert batches["step"] == batches["none"]
    assert batches["step"][0] == 5


def test_counter_values_are_recorded_at_the_end_of_an_arm(tmp_path: Path) -> None:
    run = Run.model_validate(
        {
            "id": "r",
            "contract": "c",
            "probe": "paired",
            "workload_name": "w",
            "workload": Workload(model="any", batch_size=4, seq_len=4, steps=5),
            "arms": {"plain": PlannedArm(arm=Arm(), system=name_of(Stateful))},
        }
    )
    execution = executed(run, tmp_path / "run").arms["plain"][0]
    assert execution.end is not None
    assert execution.end.state is not None
    numbers = execution.end.state.numbers
    assert numbers is not None
    assert {name: value for name, value in numbers.items() if name.endswith("batches_tracked")} == {
        "buffers 1.num_batches_tracked": 5.0
    }


def test_the_trajectory_verdict_lists_the_kinds_of_watched_state(tmp_path: Path) -> None:
    verdict = verdict_on(name_of(stateful_systems.Averages), tmp_path)
    assert verdict.figures["watched"].value == "buffers, generators, optimizer, parameters, tensors"
    # 6 parameters, 3 buffers, 6 x 3 of AdamW's state, settings of its group, 6 averages, 3 generators
    assert verdict.denominators["state_tensors"] > 6 + 3 + 18 + 6 + 3


def test_a_trajectory_verdict_within_a_bound_states_the_distance_of_end_states(tmp_path: Path) -> None:
    verdict = verdict_on(name_of(stateful_systems.DropsTheLastUpdate), tmp_path, equality="within")
    assert verdict.reason == "held"
    distance = verdict.figures["end_max_abs_difference"].value
    assert isinstance(distance, float)
    assert 0.01 < distance < 1
    assert f"parameters differ by up to {distance:.3g} at the end" in verdict.message


def test_nothing_non_finite_passes_within_a_bound(tmp_path: Path) -> None:
    verdict = verdict_on(name_of(stateful_systems.EndsInNaN), tmp_path, equality="within")
    assert verdict.reason == "non_finite_end"


def test_repeated_runs_draw_the_same_numbers(tmp_path: Path) -> None:
    repeated = {"kind": "repeatability", "candidate": "captured", "baseline": None, "runs": 3}
    claim = {key: value for key, value in {**CLAIM, **repeated}.items() if value is not None}
    assert judged(name_of(stateful_systems.Drops), tmp_path, claim).reason == "held"


def test_a_lazily_created_average_prevents_capture_and_the_verdict_gives_the_remedy(tmp_path: Path) -> None:
    verdict = verdict_on(name_of(stateful_systems.LazyAverage), tmp_path)
    assert verdict.reason == "candidate_not_captured"
    assert "create the tensor when the trainer is built" in verdict.message


def test_two_timed_arms_draw_the_random_numbers_that_each_draws_by_itself(tmp_path: Path) -> None:
    arms = {"plain": Arm(), "captured": Arm(capture="step")}
    system = name_of(stateful_systems.Drops)
    run = Run.model_validate(
        {
            "id": "t",
            "contract": "c",
            "probe": "throughput",
            "workload_name": "w",
            "workload": Workload(model="any", batch_size=4, seq_len=4, steps=99),
            "arms": {name: PlannedArm(arm=arm, system=system) for name, arm in arms.items()},
            "settings": {"candidate": "captured", "baseline": "plain", "blocks": 4, "block_steps": 3},
        }
    )
    evidence = executed(run, tmp_path / "run")
    plain, captured = (evidence.arms[name][0] for name in arms)
    assert plain.series.loss.tolist() == captured.series.loss.tolist()
    assert plain.end is not None
    assert captured.end is not None
    assert plain.end.state == captured.end.state
