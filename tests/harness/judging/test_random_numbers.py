"""Arms that draw other random numbers are not accused of it; what draws equal ones is judged as ever."""

from __future__ import annotations

import pytest
from evidence_builders import LOSSES, arm, drew, graphed, timed_run
from judge_cases_throughput import STEADY, timed
from judge_cases_training import changed, nudged, trajectory

from harness.evidence.run_evidence import ArmEvidence
from harness.judging.verdict import Status
from harness.report.wording import reason_text

MASK, PLAIN, MASKED = "aten.rand of float32 8x4", "flash of float32 2x4x8", "efficient of float32 2x4x8"


def wrong() -> ArmEvidence:
    return graphed(nudged(4))


def test_a_different_random_operator_leaves_equality_undecided_and_is_named() -> None:
    plain = drew(arm("ungraphed"), MASK, PLAIN)
    verdict = trajectory(drew(wrong(), captured=[[MASK, MASKED]]), plain)
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, "other_random_numbers")
    assert verdict.figures["other_random_numbers"].value == (
        f"the operator number 2 that draws random numbers in a step is {MASKED} in arm graphed but {PLAIN} in arm "
        "ungraphed"
    )
    assert "fallback_random" in (reason_text(verdict.reason).remedy or "")


@pytest.mark.parametrize(
    "captured",
    [[[PLAIN, MASK]], [[MASK, "flash of float32 2x8x4"]]],
    ids=["order", "shape"],
)
def test_a_different_order_or_shape_of_random_draws_counts_as_a_difference(captured: list[list[str]]) -> None:
    verdict = trajectory(drew(wrong(), captured=captured), drew(arm("ungraphed"), MASK, PLAIN))
    assert verdict.reason == "other_random_numbers"


NO_EXCUSE = {
    "equal": drew(wrong(), captured=[[MASK, PLAIN]]),
    "two graphs a step": drew(wrong(), captured=[[MASK], [PLAIN]]),
    "a graph for each shape": drew(wrong(), captured=[["aten.rand of float32 3x4"], [MASK, PLAIN]]),
    "a part of the step outside its graph": drew(wrong(), PLAIN, captured=[[MASK]]),
    "traced, or not yet replayed in that step": drew(wrong(), MASK, PLAIN, captured=[[MASK, PLAIN]]),
    "nothing at all": drew(wrong(), generators={}),
    "from what no operator of torch draws": drew(wrong(), generators={"python": "aa", "numpy": "aa"}),
    "a mask that is gone": drew(wrong(), captured=[[MASK]]),
    "a mask that is drawn again": drew(wrong(), captured=[[MASK, PLAIN, PLAIN]]),
    "a number that shifts all others": drew(wrong(), captured=[["aten.rand", MASK, PLAIN]]),
    "another step": drew(wrong(), captured=[[MASK, MASKED]], step=2),
    "recorded before draws were": wrong(),
}


@pytest.mark.parametrize("candidate", NO_EXCUSE.values(), ids=NO_EXCUSE)
def test_a_difference_without_differing_random_numbers_is_a_failure(candidate: ArmEvidence) -> None:
    verdict = trajectory(candidate, drew(arm("ungraphed"), MASK, PLAIN))
    assert (verdict.status, verdict.reason) == (Status.FAIL, "differs")


def test_random_numbers_drawn_by_an_unseen_kernel_leave_equality_undecided() -> None:
    verdict = trajectory(drew(wrong()), drew(arm("ungraphed"), MASK, PLAIN))
    assert verdict.reason == "other_random_numbers"
    assert "draws random numbers from torch.cpu, but by no operator that the harness sees" in verdict.message


def test_arms_that_draw_without_operators_are_judged_by_their_losses() -> None:
    assert trajectory(drew(wrong()), drew(arm("ungraphed"))).reason == "differs"


def test_different_random_numbers_do_not_matter_if_the_losses_agree() -> None:
    plain = drew(arm("ungraphed"), MASK, PLAIN)
    assert trajectory(drew(graphed(LOSSES), captured=[[MASKED]]), plain).status is Status.PASS


def test_different_random_numbers_do_not_excuse_a_non_finite_loss() -> None:
    candidate = graphed(changed(4, float("nan")))
    verdict = trajectory(drew(candidate, captured=[[MASKED]]), drew(arm("ungraphed"), MASK, PLAIN))
    assert (verdict.status, verdict.reason) == (Status.FAIL, "non_finite")


@pytest.mark.parametrize(
    ("drawn", "answer"),
    [(MASKED, (Status.INCONCLUSIVE, "other_random_numbers")), (PLAIN, (Status.FAIL, "differs"))],
    ids=["other", "equal"],
)
def test_a_speed_is_reported_when_arms_draw_different_random_numbers(drawn: str, answer: tuple[Status, str]) -> None:
    plain = drew(arm("ungraphed"), PLAIN)
    runs = [
        timed_run(
            process,
            [0.01 * block for block in STEADY],
            [0.012 * block for block in STEADY],
            ours=drew(wrong(), captured=[[drawn]]),
            theirs=plain,
        )
        for process in range(8)
    ]
    verdict = timed(runs)
    assert (verdict.status, verdict.reason) == answer
    ratio = verdict.figures.get("mean_ratio")
    assert (ratio and ratio.value) == (pytest.approx(1.2, rel=0.01) if drawn == MASKED else None)
