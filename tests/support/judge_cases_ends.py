"""Cases of ends within a bound: movements of the candidate, and of a control that starts one rounding away."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import numpy as np
from evidence_builders import (
    LOSSES,
    STEPS,
    TRAJECTORY,
    arm,
    graphed,
    paired,
    trajectory_run,
    twice,
    untrained,
    verdict_of,
)
from judge_cases import Case
from judge_cases_training import WITHIN

from harness.evidence.arm_records import Loose, MovedApart
from harness.evidence.run_evidence import ArmEvidence
from harness.judging.verdict import Verdict

MOVED = 2.0
SIZE = 10.0
TENSORS = [*(f"parameters p{index}" for index in range(4)), "buffers mean"]
ENDS: dict[str, Any] = {"ends": {"control": "nudged", "at_most": 0.01}}


def moved(*, by: float = 0.0, of: str = "ungraphed", **changes: tuple[float, float, float]) -> MovedApart:
    """Return each tensor `by` apart from another arm's, which moved 2; changes: by the tensor's last name."""
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
    """Return the verdict if ends may differ by 0.01 of the movement; the control differs by a millionth of it."""
    mine = ending(graphed(end="near", **(candidate or {})), ours or moved(by=0.001))
    other = ending(arm("nudged", start="a rounding away", **(nudged or {})), control or moved(by=2e-6))
    run = paired(*twice("ungraphed"), mine, untrained(), other)
    return verdict_of(TRAJECTORY | WITHIN | ENDS, run)


def rounded(ours: float, control: float) -> Verdict:
    """Return the verdict on losses that differ by these amounts from step 5 on; a relative bound allows 0.0025."""
    late = np.where(np.arange(STEPS) < 5, 0.0, 1.0)
    mine = ending(graphed(LOSSES + ours * late, end="near"), moved(by=0.001))
    nudged = ending(arm("nudged", LOSSES + control * late, start="a rounding away"), moved(by=2e-6))
    bounds = {"max_abs_difference": None, "max_relative_difference": 1e-3}
    return verdict_of(TRAJECTORY | WITHIN | ENDS | bounds, paired(*twice("ungraphed"), mine, untrained(), nudged))


def lost(tensor: str, named: bool = False) -> MovedApart:
    """Return movements without a tensor; named: it is recorded as one that could not be compared."""
    found = moved(by=0.001)
    tensors = {name: each for name, each in found.tensors.items() if name != tensor}
    return found.model_copy(update={"tensors": tensors, "uncompared": [tensor] if named else []})


def of_form(form: str) -> Verdict:
    """Return the verdict if a buffer of this form differs at the end by more than rounding moves most parameters."""
    plain = twice("ungraphed")
    state = plain[0].start.state
    assert state is not None
    start = plain[0].start.model_copy(update={"state": state.model_copy(update={"forms": {"buffers mean": form}})})
    plain[0] = dataclasses.replace(plain[0], start=start)
    mine = ending(graphed(end="near"), moved(by=2e-6, mean=LATE))
    other = ending(arm("nudged", start="a rounding away"), moved(by=2e-6))
    return verdict_of(TRAJECTORY | WITHIN | ENDS, paired(*plain, mine, untrained(), other))


def unrecorded(whose: str) -> Verdict:
    mine = ending(graphed(end="near"), None if whose == "candidate" else moved(by=0.001))
    stateless = mine.end and mine.end.model_copy(update={"state": None})
    mine = dataclasses.replace(mine, end=stateless) if whose == "state" else mine
    other = ending(arm("nudged", start="a rounding away"), None if whose == "control" else moved(by=2e-6))
    return verdict_of(TRAJECTORY | WITHIN | ENDS, paired(*twice("ungraphed"), mine, untrained(), other))


INFINITE_AVERAGE = {"end_state": {"optimizer": {"average": "a!"}}}
OTHER_BUFFER = {"start_state": {"buffers": {"mean": "other"}}}
NOISY = moved(by=2e-6, p0=(0.02, MOVED, SIZE))  # p0 follows rounding 10,000 times as far as the others
COARSE = moved(by=1.6e-5, p0=(1.5, MOVED, SIZE))  # the candidate rounds 8 times as much as the control was nudged
TOO_COARSE = moved(by=1.6e-5, p0=(1.7, MOVED, SIZE))
WRONG_ALL_OVER = moved(by=1e-3, p0=(2.1, MOVED, SIZE))  # every parameter is moved 500 times as far as by the nudge
TENTH = (0.2, MOVED, SIZE)
LATE = (0.01, MOVED, SIZE)  # half of what the bound lets through
AVERAGE = ["tensors average.0"]


def missing(
    names: list[str],
    *,
    theirs: dict[str, Any] | None = None,
    mine: dict[str, Any] | None = None,
    still: list[str] | None = None,
    compared: dict[str, tuple[float, float, float]] | None = None,
    own: list[str] | None = None,
    roles: dict[str, Any] | None = None,
    our_roles: dict[str, Any] | None = None,
) -> Verdict:
    """Return the verdict if these tensors of the baseline were compared with none of the candidate's."""
    found = moved(by=0.001).model_copy(update={"missing": names, "uncompared": own or []})
    found = found.model_copy(update={"tensors": {**found.tensors, **(compared or {})}})
    control = moved(by=2e-6)
    rounded = dict.fromkeys(compared or {}, (2e-06, MOVED, SIZE))
    control = control.model_copy(update={"tensors": {**control.tensors, **rounded}})
    plain = twice("ungraphed", **(theirs or {}))
    assert plain[0].end is not None
    plain[0] = dataclasses.replace(plain[0], end=plain[0].end.model_copy(update={"still": still}))
    if roles is not None:
        plain[0] = dataclasses.replace(
            plain[0], end=plain[0].end.model_copy(update={"loose": Loose(roles=roles, unread={})})
        )
    mine_ended = ending(graphed(end="near", **(mine or {})), found)
    if our_roles is not None:
        assert mine_ended.end is not None
        ended = mine_ended.end.model_copy(
            update={"loose": Loose(roles=our_roles, unread=dict.fromkeys(our_roles, "f"))}
        )
        mine_ended = dataclasses.replace(mine_ended, end=ended)
    nudged = ending(arm("nudged", start="a rounding away"), control)
    return verdict_of(TRAJECTORY | WITHIN | ENDS, paired(*plain, mine_ended, untrained(), nudged))


EARLIER: dict[str, Any] = {
    "start_state": {"tensors": {"average.0": "a"}},
    "end_state": {"tensors": {"average.0": "b"}},
}


LOST: dict[str, Any] = {"start_state": EARLIER["start_state"], "end_state": {"tensors": {}}}


def ended_with(**tensors: str) -> dict[str, Any]:
    """Return loose tensors at the end, by last name."""
    return {"end_state": {"tensors": {name.replace("_", "."): digest for name, digest in tensors.items()}}}


def of_optimizers(*names: str) -> dict[str, Any]:
    return {"end_state": {"optimizer": dict.fromkeys(names, "m")}}


def counting(ours: float, theirs: float, digests: tuple[str, str] = ("o", "o")) -> Verdict:
    """Return the verdict on optimizers that counted these numbers of updates; digests: of a count held in Python."""
    executions = []
    for count, digest, each in zip(
        (ours, theirs),
        digests,
        (ending(graphed(end="near"), moved(by=0.001)), arm("ungraphed")),
        strict=True,
    ):
        assert each.end is not None
        assert each.end.state is not None
        counts = {"p0.step": digest, "p1.step": f"{count}"}
        counted = {**each.end.state.digests, "optimizer": {"p0.exp_avg": "m", **counts}}
        state = each.end.state.model_copy(
            update={
                "digests": counted,
                "tensors": sum(map(len, counted.values())),
                "numbers": {"optimizer p1.step": count},
            }
        )
        executions.append(dataclasses.replace(each, end=each.end.model_copy(update={"state": state})))
    mine, plain = executions
    again = dataclasses.replace(plain, start=plain.start.model_copy(update={"replica": 1}))
    nudged = ending(arm("nudged", start="a rounding away"), moved(by=2e-6))
    return verdict_of(TRAJECTORY | WITHIN | ENDS, paired(plain, again, mine, untrained(), nudged))


MOMENT = {"optimizer p0.exp_avg": (0.001, MOVED, SIZE)}
UNCOMPARED = [
    Case("an average that the baseline alone has", "ends_uncompared", partial(missing, AVERAGE)),
    Case(
        "what was lost at the end of what was there",
        "ends_uncompared",
        partial(missing, AVERAGE, theirs=EARLIER, mine=LOST),
    ),
    Case(
        "a table that the baseline alone has",
        "held",
        partial(missing, AVERAGE, theirs=ended_with(average_0="t"), still=["average.0"]),
    ),
    Case(
        "a table that the baseline alone made",
        "held",
        partial(missing, AVERAGE, theirs=ended_with(average_0="t"), roles={"average.0": "table"}),
    ),
    Case(
        "an average of its parameters that the baseline alone made",
        "end_differs",
        partial(missing, AVERAGE, theirs=ended_with(average_0="t"), roles={"average.0": "derived"}),
    ),
    Case(
        "an average that may go by another name",
        "ends_uncompared",
        partial(
            missing,
            AVERAGE,
            theirs=ended_with(average_0="t"),
            roles={"average.0": "derived"},
            our_roles={"flat": "log"},
        ),
    ),
    Case(
        "an average that both name by another name as well",
        "held",
        partial(
            missing,
            AVERAGE,
            theirs=ended_with(average_0="t", named="t"),
            mine=ended_with(named="near t"),
            compared={"tensors named": (0.001, MOVED, SIZE)},
        ),
    ),
    Case(
        "moments of another format",
        "held",
        partial(missing, ["optimizer 0.p.exp_avg (bfloat16)"], mine=of_optimizers("0.p.exp_avg"), compared=MOMENT),
    ),
    Case(
        "an average next to one that may have another name",
        "ends_uncompared",
        partial(
            missing, AVERAGE, theirs=ended_with(average_0="t"), roles={"average.0": "derived"}, own=["tensors flat"]
        ),
    ),
    Case("every tensor in both arms", "held", partial(missing, [])),
    Case(
        "moments of another optimizer",
        "held",
        partial(missing, ["optimizer p0.exp_avg"], mine=of_optimizers("p0.state1"), own=["tensors flat"]),
    ),
    Case(
        "slow weights that the candidate's optimizer does not keep",
        "ends_uncompared",
        partial(missing, ["optimizer p0.slow"], compared=MOMENT),
    ),
    Case("moments moved otherwise", "ends_apart", partial(missing, [], compared={"optimizer p0.slow": TENTH})),
    Case("as many updates", "held", partial(counting, 9, 9)),
    Case("an update too few", "end_differs", partial(counting, 8, 9)),
    Case("an update too few of those that Python counts", "end_differs", partial(counting, 9, 9, ("o", "p"))),
    Case(
        "ends equal in bits, where rounding moves every parameter",
        "held",
        partial(near, moved(by=0.0), moved(by=0.2)),
    ),
]
NEAR_ENDS = [
    *UNCOMPARED,
    Case("every tensor moved alike", "held", near),
    Case("a buffer moved otherwise", "ends_apart", partial(near, moved(by=0.001, mean=TENTH))),
    Case("two tensors moved otherwise", "ends_apart", partial(near, moved(by=0.001, mean=TENTH, p1=(2, MOVED, SIZE)))),
    Case("moved as far as rounding moves it", "held", partial(near, moved(p0=TENTH), moved(p0=(0.02, MOVED, SIZE)))),
    Case(
        "a control that diverged",
        "non_finite",
        partial(near, moved(p0=TENTH), moved(p0=(2.0, MOVED, SIZE)), nudged={"losses": [*LOSSES[:5], *[math.nan] * 5]}),
    ),
    Case(
        "a control that ended infinite",
        "non_finite_end",
        partial(near, moved(p0=TENTH), moved(p0=(math.inf, MOVED, SIZE)), nudged=INFINITE_AVERAGE),
    ),
    Case(
        "an infinite distance of the control",
        "ends_apart",
        partial(near, moved(p0=TENTH), moved(p0=(math.inf, MOVED, SIZE))),
    ),
    Case("within the bound, further than rounding", "ends_unexplained", partial(near, moved(by=2e-6, mean=LATE))),
    Case("a parameter further than rounding", "ends_unexplained", partial(near, moved(by=2e-6, p1=LATE))),
    Case("a token that took another expert, counted", "held", partial(of_form, "int64 [8]")),
    Case("a count of one number within the bound", "ends_unexplained", partial(of_form, "int64 []")),
    Case("numbers of floating point within the bound", "ends_unexplained", partial(of_form, "float32 [8]")),
    Case("ten times as far as most", "held", partial(near, moved(by=2e-6, mean=(1.9e-5, MOVED, SIZE)))),
    Case(
        "further than ten times as far",
        "ends_unexplained",
        partial(near, moved(by=2e-6, mean=(2.1e-5, MOVED, SIZE))),
    ),
    Case("as far as most, where the arm rounds coarsely", "held", partial(near, moved(by=0.001, mean=LATE))),
    Case(
        "as far as rounding takes this tensor's control",
        "held",
        partial(near, moved(by=2e-6, mean=LATE), moved(by=2e-6, mean=(0.001, MOVED, SIZE))),
    ),
    Case(
        "an infinite distance of the control explains nothing",
        "ends_unexplained",
        partial(near, moved(by=2e-6, mean=LATE), moved(by=2e-6, mean=(math.inf, MOVED, SIZE))),
    ),
    Case("within the bound, where the control moves nothing", "held", partial(near, moved(mean=LATE), moved(by=0.0))),
    Case("within the roundings of as many steps", "held", partial(near, moved(by=2e-6, mean=(5e-4, MOVED, 1e3)))),
    Case("beyond them", "ends_unexplained", partial(near, moved(by=2e-6, mean=(1.1e-3, MOVED, 1e3)))),
    Case("moved to another mask", "ends_apart", partial(near, moved(mean=(math.inf, math.inf, math.inf)))),
    Case("moved to one mask", "held", partial(near, moved(mean=(0.0, math.inf, math.inf)))),
    Case("moved differently next to a mask", "ends_apart", partial(near, moved(mean=(0.2, math.inf, math.inf)))),
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
    Case("a later tensor moved to NaN", "ends_apart", partial(near, moved(by=0.001, mean=(math.nan, MOVED, SIZE)))),
    Case("every tensor moved by rounding alone", "ends_undecided", partial(near, moved(by=0.2), moved(by=0.2))),
    Case("states of the candidate unrecorded", "end_state_unrecorded", partial(unrecorded, "state")),
    Case("a control that ends NaN", "ends_apart", partial(near, moved(p0=TENTH), moved(p0=(math.nan, MOVED, SIZE)))),
    Case("a control of fewer tensors", "evidence_inconsistent", partial(near, control=lost("buffers mean"))),
    Case(
        "rounding that moves every parameter",
        "ends_undecided",
        partial(near, control=moved(by=0.2)),
    ),
    Case("losses no further apart than rounding takes the control's", "held", partial(rounded, 0.02, 0.0021)),
    Case("losses further apart than that", "exceeds_tolerance", partial(rounded, 0.02, 0.0019)),
    Case("a control whose losses move as far as training", "ends_undecided", partial(rounded, -0.9, 0.1)),
    Case(
        "rounding that moves all but one parameter",
        "held",
        partial(near, control=moved(by=0.2, p2=(0.19, MOVED, SIZE))),
    ),
    Case("an integer that was not compared", "held", partial(near, lost("buffers mean", named=True))),
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
