"""Cases of ends within a bound: movements of the candidate, and of a control that began a rounding away."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

from evidence_builders import TRAJECTORY, arm, graphed, paired, trajectory_run, twice, untrained, verdict_of
from judge_cases import Case
from judge_cases_training import WITHIN

from harness.evidence.arm_records import MovedApart
from harness.evidence.run_evidence import ArmEvidence
from harness.judge.verdict import Verdict

MOVED = 2.0
SIZE = 10.0
TENSORS = [*(f"parameters p{index}" for index in range(4)), "buffers mean"]
ENDS: dict[str, Any] = {"ends": {"control": "nudged", "at_most": 0.01}}


def moved(*, by: float = 0.0, of: str = "ungraphed", **changes: tuple[float, float, float]) -> MovedApart:
    """Each tensor this far apart from another arm's movement of 2, but for `changes` by the tensor's last name."""
    tensors = {name: changes.get(name.split()[1], (by, MOVED, SIZE)) for name in TENSORS}
    return MovedApart(arm=of, tensors=tensors, uncompared=[])


def ending(execution: ArmEvidence, apart: MovedApart | None) -> ArmEvidence:
    assert execution.end is not None
    end = execution.end.model_copy(update={"moved_apart": None if apart is None else [apart]})
    return dataclasses.replace(execution, end=end)


def near(
    ours: MovedApart | None = None,
    control: MovedApart | None = None,
    *,
    candidate: dict[str, Any] | None = None,
    nudged: dict[str, Any] | None = None,
) -> Verdict:
    """The verdict where a hundredth of the way is allowed between the ends; the control moves a millionth of it."""
    mine = ending(graphed(end="near", **(candidate or {})), ours or moved(by=0.001))
    other = ending(arm("nudged", start="a rounding away", **(nudged or {})), control or moved(by=2e-6))
    run = paired(*twice("ungraphed"), mine, untrained(), other)
    return verdict_of(TRAJECTORY | WITHIN | ENDS, run)


def lost(tensor: str, named: bool = False) -> MovedApart:
    """Without a tensor, which may be named as one that nobody could compare."""
    found = moved(by=0.001)
    tensors = {name: each for name, each in found.tensors.items() if name != tensor}
    return found.model_copy(update={"tensors": tensors, "uncompared": [tensor] if named else []})


def unrecorded(whose: str) -> Verdict:
    mine = ending(graphed(end="near"), None if whose == "candidate" else moved(by=0.001))
    other = ending(arm("nudged", start="a rounding away"), None if whose == "control" else moved(by=2e-6))
    return verdict_of(TRAJECTORY | WITHIN | ENDS, paired(*twice("ungraphed"), mine, untrained(), other))


OTHER_BUFFER = {"start_state": {"buffers": {"mean": "other"}}}
NOISY = moved(by=2e-6, p0=(0.02, MOVED, SIZE))  # p0 follows rounding 10,000 times as far as the others
COARSE = moved(by=1.6e-5, p0=(1.5, MOVED, SIZE))  # the candidate rounds 8 times as much as the control was nudged
TOO_COARSE = moved(by=1.6e-5, p0=(1.7, MOVED, SIZE))
WRONG_ALL_OVER = moved(by=1e-3, p0=(2.1, MOVED, SIZE))  # every parameter is moved 500 times as far as by the nudge
TENTH = (0.2, MOVED, SIZE)
NEAR_ENDS = [
    Case("every tensor moved alike", "held", near),
    Case("a buffer moved otherwise", "ends_apart", partial(near, moved(by=0.001, mean=TENTH))),
    Case("two tensors moved otherwise", "ends_apart", partial(near, moved(by=0.001, mean=TENTH, p1=(2, MOVED, SIZE)))),
    Case("moved as far as rounding moves it", "held", partial(near, moved(p0=TENTH), moved(p0=(0.02, MOVED, SIZE)))),
    Case("moved further than rounding", "ends_apart", partial(near, moved(p0=TENTH), moved(p0=(0.019, MOVED, SIZE)))),
    Case("moved as far as this arm's rounding moves it", "held", partial(near, COARSE, NOISY)),
    Case(
        "moved further than this arm's rounding",
        "ends_apart",
        partial(near, TOO_COARSE, NOISY),
    ),
    Case("what moves every parameter much further than rounding", "ends_apart", partial(near, WRONG_ALL_OVER, NOISY)),
    Case("every parameter moved otherwise", "ends_apart", partial(near, moved(by=0.5), NOISY)),
    Case("moved within a millionth of the tensor", "held", partial(near, moved(p0=(1e-5, 1e-5, SIZE)))),
    Case("moved by two millionths", "ends_apart", partial(near, moved(p0=(2e-5, 1e-5, SIZE)))),
    Case("moved where the baseline moves nothing", "ends_apart", partial(near, moved(p0=(0.5, 0.0, SIZE)))),
    Case("moved by neither", "held", partial(near, moved(p0=(0.0, 0.0, SIZE)))),
    Case("moved to NaN", "ends_apart", partial(near, moved(p0=(math.nan, MOVED, SIZE)))),
    Case("a control that ends NaN", "ends_apart", partial(near, moved(p0=TENTH), moved(p0=(math.nan, MOVED, SIZE)))),
    Case("a control of fewer tensors", "evidence_inconsistent", partial(near, control=lost("buffers mean"))),
    Case(
        "rounding that moves every parameter",
        "ends_undecided",
        partial(near, control=moved(by=0.2)),
    ),
    Case(
        "rounding that moves all but one parameter",
        "held",
        partial(near, control=moved(by=0.2, p2=(0.19, MOVED, SIZE))),
    ),
    Case("an integer that nobody compared", "held", partial(near, lost("buffers mean", named=True))),
    Case("a tensor that is in neither list", "evidence_inconsistent", partial(near, lost("buffers mean"))),
    Case("movements of the candidate unrecorded", "evidence_missing", partial(unrecorded, "candidate")),
    Case("movements of the control unrecorded", "evidence_missing", partial(unrecorded, "control")),
    Case("movements against another arm", "evidence_missing", partial(near, moved(of="untrained"))),
    Case(
        "no parameter compared",
        "evidence_missing",
        partial(near, MovedApart(arm="ungraphed", tensors={}, uncompared=TENSORS)),
    ),
    Case(
        "no control",
        "evidence_missing",
        lambda: verdict_of(TRAJECTORY | WITHIN | ENDS, trajectory_run(ending(graphed(end="near"), moved()))),
    ),
    Case(
        "a control with other buffers",
        "unequal_start",
        partial(near, nudged=OTHER_BUFFER),
    ),
    Case("a control with other frozen parameters", "unequal_start", partial(near, nudged={"frozen": "other"})),
    Case("a control on other batches", "unequal_batches", partial(near, nudged={"batches": ["b"] * 10})),
]
