"""Cases of the state at the start and the end of training, and of an effect that may be only noise of batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from evidence_builders import (
    TRAJECTORY,
    apart,
    arm,
    cuda_graph,
    graphed,
    paired,
    state,
    trajectory_run,
    twice,
    untrained,
    verdict_of,
)
from judge_cases import Case
from judge_cases_capture import captured, sampled, watched
from judge_cases_ends import NEAR_ENDS
from judge_cases_gradients import GRADIENTS_WITHIN, matched
from judge_cases_throughput import timed
from judge_cases_training import WITHIN, repeated, trajectory

from harness.evidence.arm_records import COMPARED, HostNumber, Loose, State
from harness.evidence.run_evidence import ArmEvidence
from harness.evidence.run_records import ArmFailed
from harness.judging.verdict import Verdict

INFINITE: dict[str, Any] = {"end_state": {"optimizer": {"p0.exp_avg": "m!"}}}
OTHER_MOMENTS: dict[str, Any] = {"end_state": {"optimizer": {"p0.exp_avg": "other"}}}
OTHER_BUFFER: dict[str, Any] = {"start_state": {"buffers": {"mean": "other"}}}
MASK: dict[str, Any] = {
    "start_state": {"buffers": {"mean": "b", "mask": "i!"}},
    "end_state": {"buffers": {"mean": "b", "mask": "i!"}},
}
LOG: dict[str, Any] = {"start_state": {"tensors": {"log": "n!"}}, "end_state": {"tensors": {"log": "m!"}}}
LOST_LOG: dict[str, Any] = {"start_state": {"tensors": {"log": "n"}}, "end_state": {"tensors": {"log": "m!"}}}
RUINED: dict[str, Any] = {"start_state": {"buffers": {"mean": "n!"}}, "end_state": {"buffers": {"mean": "m!"}}}
NOT_YET: dict[str, Any] = {"start_state": {"optimizer": {}}}
OWN_COPY: dict[str, Any] = {
    state: {"buffers": {"mean": "b"}, "tensors": {"master": "m"}} for state in ("start_state", "end_state")
}
ITSELF: dict[str, Any] = {"facts": {"layers": 3, "captures_itself": True}}  # its step made the capture
LATE: dict[str, Any] = {"end_state": {"tensors": {"late": "t"}}}
EARLY: dict[str, Any] = {"start_state": {"tensors": {"late": "s"}}}
ELSEWHERE_LATE: dict[str, Any] = {"end_state": {"tensors": {"elsewhere": "t"}}}
OTHERWISE_LATE: dict[str, Any] = {"end_state": {"tensors": {"late": "other"}}}
NO_BUFFER: dict[str, Any] = {"start_state": {"buffers": {}}}
NO_GENERATOR: dict[str, Any] = {"end_state": {"generators": {}}}


def plain(**changes: Any) -> dict[str, Any]:
    """Return a baseline and its repetition, with changes."""
    return dict(zip(("baseline", "repetition"), twice("ungraphed", **changes), strict=True))


def in_all(**changes: Any) -> Verdict:
    """Return the verdict if every arm starts and ends with these changes."""
    arms = graphed(**changes), arm("ungraphed", **changes), untrained(**changes)
    return verdict_of(TRAJECTORY, trajectory_run(*arms, arm("ungraphed", replica=1, **changes)))


def named_alike() -> Verdict:
    """Return the verdict if a capture and the baseline use the name `late` for different tensors, which differ."""

    def seen(buffer: str, loose: str) -> dict[str, Any]:
        end = {"buffers": {"late": buffer}, "tensors": {loose: "t"}}
        return {"start_state": {"buffers": {"late": "s"}}, "end_state": end}

    frozen = seen("s", "late") | {"end_state": {"buffers": {"late": "s"}}}
    return trajectory(
        graphed(**seen("one", "elsewhere"), **ITSELF), **plain(**seen("other", "late")), control=untrained(**frozen)
    )


def late_without_numbers(spoiled: list[str] | None) -> Verdict:
    """Return the verdict if all arms end with a new tensor that has equal bits and is not finite."""
    late: dict[str, Any] = {"end_state": {"tensors": {"late": "n!"}}}
    executions = graphed(**late), arm("ungraphed", **late), untrained(**late), arm("ungraphed", replica=1, **late)
    return verdict_of(TRAJECTORY, trajectory_run(*(changed_end(each, spoiled=spoiled) for each in executions)))


def made(execution: ArmEvidence, roles: dict[str, Any], *, replays: int = 0, **unread: str) -> ArmEvidence:
    """Return the execution with roles of loose tensors, and digests of those that nothing reads."""
    return changed_end(execution, loose=Loose(roles=roles, unread=unread), replays=replays)


def loose(ours: dict[str, str], theirs: dict[str, str], *, replays: int = 0) -> Verdict:
    """Return the verdict on arms with loose tensors (name: role and digest); control and repetition are as theirs."""

    def ended(tensors: dict[str, str], made_by: Callable[..., ArmEvidence], *given: str, **more: Any) -> ArmEvidence:
        roles, digests = ({name: each.split()[part] for name, each in tensors.items()} for part in (0, 1))
        unread = {name: digest for name, digest in digests.items() if roles[name] not in COMPARED}
        compared = {name: digest for name, digest in digests.items() if name not in unread}
        execution = made_by(*given, end_state={"tensors": compared}, **more)
        return made(execution, roles, replays=replays if made_by is graphed else 0, **unread)

    executions = ended(ours, graphed), ended(theirs, arm, "ungraphed"), ended(theirs, untrained)
    return verdict_of(TRAJECTORY, trajectory_run(*executions, ended(theirs, arm, "ungraphed", replica=1)))


def unfollowed() -> Verdict:
    """Return the verdict if the ledger failed in the candidate."""
    execution = changed_end(graphed(), loose=Loose(roles=None, unread={}, failure="RuntimeError: no storage"))
    return trajectory(execution)


def old(execution: ArmEvidence) -> ArmEvidence:
    """Return the execution without states, as older recorders wrote it."""
    assert execution.end is not None
    return dataclasses.replace(
        execution,
        start=execution.start.model_copy(update={"state": None}),
        end=execution.end.model_copy(update={"state": None, "differences": None}),
    )


def changed_end(execution: ArmEvidence, **changes: Any) -> ArmEvidence:
    assert execution.end is not None
    return dataclasses.replace(execution, end=execution.end.model_copy(update=changes))


def miscounted(execution: ArmEvidence) -> ArmEvidence:
    return changed_end(execution, state=State(digests=state("end").digests, tensors=8))


def fewer_parameters(execution: ArmEvidence) -> ArmEvidence:
    digests = {**state("end").digests, "parameters": {"p0": "end0"}}
    return changed_end(execution, state=State(digests=digests, tensors=4))


def end_cases(judged: Callable[..., Verdict]) -> list[Case]:
    """Return the cases that hold for every kind that trains. judged: takes changes of the candidate's execution."""
    return [Case("tensors at the end that were not counted", "evidence_inconsistent", lambda: judged(**NO_GENERATOR))]


def effect(ours: Any, theirs: Any, **claim: Any) -> Verdict:
    """Return the verdict on these losses of the trained arms and of the control."""
    control = {"control": "untrained", "last": 4, "at_least": 0.2}
    guards = {"steps": len(ours), "training_effect": control}
    run = paired(*twice("ungraphed", ours), graphed(ours), untrained(losses=theirs))
    return verdict_of(TRAJECTORY | {"guards": guards} | claim, run, steps=len(ours))


def after_a_failure() -> Verdict:
    failure = ArmFailed(arm="ungraphed", cause="exception", detail="no such file", phase="ungraphed.0: open", stack="")
    return verdict_of(TRAJECTORY, paired(failed={"ungraphed": failure}))


COUNTED: dict[str, Any] = {"end_state": {"buffers": {"mean": "b", "norm.num_batches_tracked": "twice"}}}
UNMEASURED: dict[str, Any] = {**COUNTED, "differences": ()}
ONCE: dict[str, Any] = {"end_state": {"buffers": {"mean": "b", "norm.num_batches_tracked": "once"}}}


def counted_twice(apart_by: float | None, ours: dict[str, Any] = COUNTED) -> Verdict:
    """Return the verdict of a claim within 0.01 if the candidate's buffer `mean` differs by `apart_by`, relatively."""
    found = apart().model_copy(update={"buffers": 1, "buffers_relative": apart_by, "buffer": "mean"})
    baselines = [arm("ungraphed", replica=replica, **ONCE) for replica in (0, 1)]
    run = trajectory_run(graphed(**{"differences": [found], **ours}), baselines[0], repetition=baselines[1])
    return verdict_of(TRAJECTORY | WITHIN | {"max_relative_difference": 0.01}, run)


COUNT = "optimizer group0.count"


def ended_at(ours: float, theirs: float, *unread: str, **claim: Any) -> Verdict:
    """Return the verdict on optimizers that end with these counts. unread: numbers that no replay changes."""

    def ended(execution: ArmEvidence, count: float) -> ArmEvidence:
        end = state("end", optimizer={"group0.count": str(count)})
        return changed_end(execution, state=end.model_copy(update={"numbers": {COUNT: count}}))

    capture = cuda_graph(host_numbers=[HostNumber(name=name, read=None) for name in unread])
    executions = ended(graphed(capture=capture), ours), ended(arm("ungraphed"), theirs)
    return trajectory(*executions, claim={"may_end_apart": {COUNT: "unread"}} | claim)


UNSEEN = {"x": "unseen a"}
LOOSE = [
    Case("a log that a replay does not append to", "held", lambda: loose({}, {"log": "log a"}, replays=10)),
    Case("a log that one arm alone keeps", "held", lambda: loose({}, {"log": "log a"})),
    Case("a log that the candidate alone keeps", "held", lambda: loose({"log": "log a"}, {})),
    Case("logs in a list", "held", lambda: loose({}, {f"losses.{each}": "log a" for each in range(12)})),
    Case("a sum of gradients that one arm alone keeps", "ends_uncompared", lambda: loose({}, {"sum": "mixed a"})),
    Case("a sum of gradients that no replay keeps", "held", lambda: loose({}, {"sum": "mixed a"}, replays=10)),
    Case("an unexplained tensor of one arm", "ends_uncompared", lambda: loose({}, {"x": "unseen a"}, replays=10)),
    Case("an unexplained tensor of other values", "ends_uncompared", lambda: loose({"x": "unseen b"}, UNSEEN)),
    Case("an unexplained tensor of equal values", "held", lambda: loose(UNSEEN, UNSEEN)),
    Case("a log of other values", "held", lambda: loose({"log": "log b"}, {"log": "log a"})),
    Case("what a step left, in one arm alone", "held", lambda: loose({}, {"out": "left a"})),
    Case("an average that one arm alone makes", "end_differs", lambda: loose({}, {"ema": "derived a"}, replays=10)),
    Case("an average of other values", "end_differs", lambda: loose({"ema": "derived b"}, {"ema": "derived a"})),
    Case("an average that is a log in one arm", "end_differs", lambda: loose({"ema": "log b"}, {"ema": "derived a"})),
    Case("state that one arm left as equal", "held", lambda: loose({"hidden": "left a"}, {"hidden": "state a"})),
    Case("state that the candidate alone makes", "end_differs", lambda: loose({"hidden": "state a"}, {})),
    Case("a table that one arm alone makes", "held", lambda: loose({"table": "table a"}, {})),
    Case("a table of other values", "end_differs", lambda: loose({"table": "table b"}, {"table": "table a"})),
    Case("a table that one arm changes", "end_differs", lambda: loose({"table": "state b"}, {"table": "table a"})),
    Case("a log without a digest", "evidence_inconsistent", lambda: trajectory(made(graphed(), {"log": "log"}))),
    Case("state without a digest", "evidence_inconsistent", lambda: trajectory(made(graphed(), {"h": "state"}))),
    Case("a digest without a role", "evidence_inconsistent", lambda: trajectory(made(graphed(), {}, log="a"))),
    Case("steps that could not be followed", "end_state_unrecorded", unfollowed),
]
NOISE = np.array([2.5, 3.6, 2.8, 3.9, 2.6, 3.2, 3.7, 2.9, 3.4, 3.1, 3.8, 2.7])
LEARNED = np.linspace(0.0, 0.6, 12)
TRAJECTORY_ENDS = [
    *LOOSE,
    *end_cases(lambda **changes: trajectory(graphed(**changes))),
    Case("ends infinite", "non_finite_end", lambda: trajectory(graphed(**INFINITE))),
    Case("the baseline ends infinite", "non_finite_end", lambda: trajectory(baseline=arm("ungraphed", **INFINITE))),
    Case(
        "a number that the step reads and no replay changes",
        "host_value_unexplained",
        lambda: trajectory(graphed(capture=cuda_graph(host_numbers=[HostNumber(name="n", read="compared at s.py:3")]))),
    ),
    Case(
        "a count that no replay changes and no contract excuses",
        "host_value_unexplained",
        lambda: ended_at(5.0, 6.0, "built.optimizer.group0.count", may_end_apart={}),
    ),
    Case(
        "an excused count that no replay changes",
        "held",
        lambda: ended_at(5.0, 6.0, f"built.{COUNT.replace(' ', '.')}"),
    ),
    Case(
        "two entries of `may_end_apart` that are not needed",
        "held",
        lambda: ended_at(5.0, 5.0, may_end_apart={COUNT: "unread", "optimizer group1.count": "unread"}),
    ),
    Case("an excused count that ends alike", "held", lambda: ended_at(5.0, 5.0)),
    Case("an excused count where a bound compares no counts", "held", lambda: ended_at(5.0, 6.0, **WITHIN)),
    Case("an excused count with a fraction in the candidate", "end_differs", lambda: ended_at(5.5, 6.0)),
    Case("an excused count with a fraction in the baseline", "end_differs", lambda: ended_at(5.0, 6.5)),
    Case("other moments at the end", "end_differs", lambda: trajectory(graphed(**OTHER_MOMENTS))),
    Case("other parameters at the end", "end_differs", lambda: trajectory(graphed(end="elsewhere"))),
    Case(
        "other parameters at an end that was not recorded whole",
        "end_differs",
        lambda: trajectory(old(graphed(end="elsewhere"))),
    ),
    Case(
        "a tensor that one arm alone ends with",
        "end_differs",
        lambda: trajectory(graphed(end_state={"tensors": {"a": "t"}})),
    ),
    Case("a buffer by the name of one that was renamed", "end_differs", named_alike),
    Case("a buffer of its own capture's", "held", lambda: trajectory(graphed(**LATE, **ITSELF))),
    Case(
        "what came late to both, of a capture of its own",
        "end_differs",
        lambda: trajectory(graphed(**OTHERWISE_LATE, **ITSELF), **plain(**LATE)),
    ),
    Case(
        "what came late to the plain arm alone",
        "end_differs",
        lambda: trajectory(graphed(**ITSELF), **plain(**LATE)),
    ),
    Case(
        "what came late to both, under another name in a capture of its own",
        "held",
        lambda: trajectory(graphed(**ELSEWHERE_LATE, **ITSELF), **plain(**LATE)),
    ),
    Case(
        "what came late to both, under another name in a capture of the harness's",
        "end_differs",
        lambda: trajectory(graphed(**ELSEWHERE_LATE), **plain(**LATE)),
    ),
    Case(
        "what the plain arm lost of what both began with",
        "end_differs",
        lambda: trajectory(graphed(**EARLY, **LATE, **ITSELF), **plain(**EARLY)),
    ),
    Case("another buffer at the start", "unequal_start", lambda: trajectory(graphed(**OTHER_BUFFER))),
    Case("a buffer that one arm alone starts with", "unequal_start", lambda: trajectory(graphed(**NO_BUFFER))),
    Case("a copy of its own that the candidate starts with", "unequal_start", lambda: trajectory(graphed(**OWN_COPY))),
    Case(
        "a copy of its own, within a bound",
        "held",
        lambda: trajectory(graphed(**OWN_COPY, differences=[apart()]), claim=WITHIN),
    ),
    Case(
        "a buffer that the candidate lacks, within a bound",
        "unequal_start",
        lambda: trajectory(graphed(**NO_BUFFER), claim=WITHIN),
    ),
    Case(
        "another buffer at the start, within a bound",
        "unequal_start",
        lambda: trajectory(graphed(**OTHER_BUFFER), claim=WITHIN),
    ),
    Case("moments that come with the first step", "held", lambda: trajectory(graphed(**NOT_YET))),
    Case("a mask of infinities", "held", lambda: in_all(**MASK)),
    Case("a mask of infinities that comes with the first step", "held", lambda: late_without_numbers([])),
    Case("a late tensor without numbers, in older evidence", "held", lambda: late_without_numbers(None)),
    Case(
        "a late tensor that becomes NaN, in both arms",
        "non_finite_end",
        lambda: late_without_numbers(["late"]),
    ),
    Case("a baseline that failed, so that the candidate was not executed", "worker_exception", after_a_failure),
    Case("a log that is not yet filled", "held", lambda: in_all(**LOG)),
    Case("a log that became infinite", "non_finite_end", lambda: in_all(**LOST_LOG)),
    Case("a statistic that stayed infinite", "non_finite_end", lambda: in_all(**RUINED)),
    Case("no recorded state", "end_state_unrecorded", lambda: trajectory(old(graphed()))),
    Case("no recorded state of the control", "end_state_unrecorded", lambda: trajectory(control=old(untrained()))),
    Case("the control ends infinite", "non_finite_end", lambda: trajectory(control=untrained(**INFINITE))),
    Case("the control's buffers", "vacuous_training_effect", lambda: trajectory(control=untrained(**OTHER_BUFFER))),
    Case(
        "no recorded state of the baseline", "end_state_unrecorded", lambda: trajectory(baseline=old(arm("ungraphed")))
    ),
    Case("more tensors than recorded", "evidence_inconsistent", lambda: trajectory(miscounted(graphed()))),
    Case("fewer parameters than trained", "evidence_inconsistent", lambda: trajectory(fewer_parameters(graphed()))),
    Case(
        "ends apart within a bound",
        "held",
        lambda: trajectory(graphed(end="near", differences=[apart(largest=0.5)]), claim=WITHIN),
    ),
    Case("batches counted twice and statistics alike", "held", lambda: counted_twice(0.01)),
    Case("batches counted twice, and statistics apart", "end_differs", lambda: counted_twice(0.011)),
    Case("batches counted twice, and statistics NaN", "end_differs", lambda: counted_twice(math.nan)),
    Case("batches counted twice, and no distance of statistics", "end_differs", lambda: counted_twice(None)),
    Case("batches counted twice, and no difference", "end_differs", lambda: counted_twice(0.0, UNMEASURED)),
    Case("statistics apart, and batches counted alike", "held", lambda: counted_twice(0.5, ONCE)),
    Case("no distance of the ends", "end_state_unrecorded", lambda: trajectory(graphed(differences=[]), claim=WITHIN)),
    Case(
        "a distance to another arm",
        "end_state_unrecorded",
        lambda: trajectory(graphed(differences=[apart("synchronizing")]), claim=WITHIN),
    ),
    Case(
        "a distance of nothing",
        "end_state_unrecorded",
        lambda: trajectory(graphed(differences=[apart(largest=None)]), claim=WITHIN),
    ),
    Case("a loss that never moves", "vacuous_constant_loss", lambda: effect(np.full(12, 2.5), NOISE)),
    Case(
        "a loss that no longer moves",
        "vacuous_constant_loss",
        lambda: effect(np.array([*NOISE[:8], 2.0, 2.0, 2.0, 2.0]), NOISE),
    ),
    Case(
        "the first loss, hardly moved",
        "vacuous_training_effect",
        lambda: effect(2.5 + 1e-6 * NOISE - 2.5e-6, NOISE, **WITHIN),
    ),
    Case(
        "the batches' losses in another order",
        "vacuous_training_effect",
        lambda: effect(np.array([2.5, *(NOISE[:0:-1] - 0.3)]), NOISE),
    ),
    Case("an effect that follows the batches", "held", lambda: effect(NOISE - LEARNED, NOISE)),
    Case("another beginning", "vacuous_control_differs", lambda: effect(NOISE - LEARNED - 1e-9, NOISE)),
    Case("another beginning within the bound", "held", lambda: effect(NOISE - LEARNED - 1e-9, NOISE, **WITHIN)),
    Case(
        "another beginning beyond the bound",
        "vacuous_control_differs",
        lambda: effect(NOISE - LEARNED - 0.5, NOISE, **WITHIN),
    ),
]


def again(**changes: Any) -> Verdict:
    return repeated(arm("ungraphed", replica=2, **changes))


REPEATABILITY_ENDS = [
    *end_cases(again),
    Case(
        "no distance of the ends",
        "end_state_unrecorded",
        lambda: repeated(arm("ungraphed", replica=2, differences=[]), equality="within"),
    ),
]


def gradients(**changes: Any) -> Verdict:
    return matched(execution=changes)


GRADIENT_ENDS = [
    *end_cases(gradients),
    Case(
        "other moments at the end within a bound",
        "held",
        lambda: matched(claim=GRADIENTS_WITHIN, execution=OTHER_MOMENTS),
    ),
    Case("a copy of its own, within a bound", "held", lambda: matched(claim=GRADIENTS_WITHIN, execution=OWN_COPY)),
    Case("a copy of its own that the candidate starts with", "unequal_start", lambda: gradients(**OWN_COPY)),
    Case(
        "a buffer that the candidate lacks, within a bound",
        "unequal_start",
        lambda: matched(claim=GRADIENTS_WITHIN, execution=NO_BUFFER),
    ),
]


def capturing(**changes: Any) -> Verdict:
    return captured(execution=changes)


def syncing(**changes: Any) -> Verdict:
    return watched(execution=changes)


CAPTURE_ENDS = end_cases(capturing)
SYNC_ENDS = end_cases(syncing)
MEMORY_ENDS = end_cases(partial(sampled, [100] * 8))


def timing(**changes: Any) -> Verdict:
    return timed(ours=graphed(np.linspace(3.0, 2.0, 8), **changes))


THROUGHPUT_ENDS = end_cases(timing)
ENDS: dict[str, list[Case]] = {
    "trajectory_match": TRAJECTORY_ENDS + NEAR_ENDS,
    "repeatability": REPEATABILITY_ENDS,
    "gradient_match": GRADIENT_ENDS,
    "capture": CAPTURE_ENDS,
    "host_syncs": SYNC_ENDS,
    "memory_steady": MEMORY_ENDS,
    "throughput_ratio": THROUGHPUT_ENDS,
}
