"""Cases of resume and evaluation: evidence that passes, with one thing changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evidence_builders import LOSSES, STEPS, apart, arm, cuda_graph, state, unrecorded, verdict_of
from judge_cases import Case

from harness.evidence.arm_records import Evaluated, Loaded, Saved
from harness.evidence.base import Cause
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.evidence.run_records import ArmFailed
from harness.judging.verdict import Verdict

SAVE_AT = 4
RESUME: dict[str, Any] = {
    "kind": "resume",
    "candidate": "ungraphed",
    "save_at": SAVE_AT,
    "steps": STEPS - SAVE_AT,
    "equality": "bitwise",
    "max_abs_difference": 0.1,
}
EVALUATION: dict[str, Any] = {
    "kind": "evaluation",
    "candidate": "ungraphed",
    "every": 5,
    "evaluations": 2,
    "steps": STEPS,
}
BATCHES = [f"batch{index}" for index in range(STEPS)]
ANEW = {"optimizer": {"p0.exp_avg": "fresh"}}
IN_NAN = {"optimizer": {"p0.exp_avg": "m!"}}
LOST: dict[str, Any] = {"after": {"generators": {"torch.cpu": "x"}}, "end_state": {"generators": {"torch.cpu": "y"}}}


def saved(name: str = "ungraphed", *, record: Mapping[str, Any] | None = None, **changes: Any) -> ArmEvidence:
    """Return the first half of a training, saved after four steps."""
    given = {"arm": name, "replica": 0, "steps": SAVE_AT, "process": 11, "files": 2, "bytes": 640, **(record or {})}
    half = {"losses": LOSSES[:SAVE_AT], "batches": BATCHES[:SAVE_AT], "end": "half", "end_state": {}}
    return replace(arm(name, replica=0, **{**half, **changes}), saved=Saved(**given))


def loaded(
    name: str = "ungraphed",
    *,
    record: Mapping[str, Any] | None = None,
    after: Mapping[str, Mapping[str, str]] | None = None,
    **changes: Any,
) -> ArmEvidence:
    """Return the second half, in another process. after: state that the load left different from what was saved."""
    given = {
        "arm": name,
        "replica": 1,
        "process": 12,
        "steps_before": 0,
        "trainable_before": "start",
        "trainable_after": "half",
        "after": state("half", **(after or {})),
        **(record or {}),
    }
    half = {"losses": LOSSES[SAVE_AT:], "batches": BATCHES[SAVE_AT:]}
    return replace(arm(name, replica=1, **{**half, **changes}), loaded=Loaded(**given))


def resumed(
    first: ArmEvidence | None = None,
    second: ArmEvidence | None = None,
    other: ArmEvidence | None = None,
    *,
    claim: Mapping[str, Any] | None = None,
) -> Verdict:
    """Return the verdict if the given ones of the three executions replace the passing ones."""
    halves = [first or saved(), second or loaded()]
    name = halves[0].start.arm
    last = other or arm(name, replica=2, differences=[apart(replica=1)])
    arms = {name: halves}
    arms.setdefault(last.start.arm, []).append(last)
    return verdict_of(RESUME | dict(claim or {}), RunEvidence("run", "resume", arms))


SAVES = [SAVE_AT, 7]


def chained(
    first: ArmEvidence | None = None,
    middle: ArmEvidence | None = None,
    last: ArmEvidence | None = None,
    **claim: Any,
) -> Verdict:
    """Return the verdict if the given ones of the three parts replace the passing ones, saved after steps 4 and 7."""
    name = "ungraphed"
    parts = [
        first or saved(),
        middle or middle_part(),
        last or last_part(),
        arm(name, replica=3, differences=[apart(replica=2)]),
    ]
    return verdict_of(
        RESUME | {"save_at": SAVES, "steps": STEPS - 7} | claim, RunEvidence("run", "resume", {name: parts})
    )


def middle_part(*, record: Mapping[str, Any] | None = None, **changes: Any) -> ArmEvidence:
    """Return a part that loaded what was saved after four steps, and was saved after three more."""
    half = {"losses": LOSSES[SAVE_AT:7], "batches": BATCHES[SAVE_AT:7], "end": "later", "end_state": {}}
    given = {"arm": "ungraphed", "replica": 1, "steps": 7, "process": 12, "files": 2, "bytes": 640, "steps_after": 2}
    return replace(loaded(**{**half, **changes}), saved=Saved(**{**given, **(record or {})}))


def last_part(**changes: Any) -> ArmEvidence:
    """Return a part that loaded what was saved after seven steps."""
    record = {"replica": 2, "process": 13, "trainable_after": "later", **changes.pop("record", {})}
    part = {"losses": LOSSES[7:], "batches": BATCHES[7:], "after": {}, **changes}
    after = state("later", **part.pop("after"))
    return loaded(record={**record, "after": after}, **part)


def from_step(step: int, by: float = 0.25) -> dict[str, Any]:
    """Return the second half's losses, changed from a step on."""
    losses = LOSSES.copy()
    losses[step:] += by
    return {"losses": losses[SAVE_AT:]}


def captured(first: Any = None, second: Any = None, **claim: Any) -> Verdict:
    """Return the verdict on a captured arm, compared with the plain one."""
    return resumed(
        first or saved("graphed", capture=cuda_graph(replays=SAVE_AT)),
        second or loaded("graphed", capture=cuda_graph(replays=STEPS - SAVE_AT)),
        arm("ungraphed", differences=[apart("graphed", replica=1)]),
        claim={"candidate": "graphed", "baseline": "ungraphed", "mechanism": "cuda_graph", **claim},
    )


def failed_in(cause: Cause) -> Verdict:
    detail = "the process that was to save ended by SIGKILL"
    failure = ArmFailed(arm="ungraphed", cause=cause, detail=detail, phase="ungraphed.0: steps", stack="")
    return verdict_of(RESUME, RunEvidence("run", "resume", {}, failed={"ungraphed": failure}))


def scratched() -> ArmEvidence:
    """Return a half saved with a tensor that nothing names, such as a table or a temporary of a step."""
    return saved(end_state={"tensors": {"scratch": "s"}})


MEAN = {"buffers": {"mean": "x"}}
OTHER_SYSTEM = {"baseline": "other_system"}
WITHIN = {"equality": "within"}
RESUME_CASES = [
    Case("goes on", "held", resumed),
    Case("goes on captured", "held", captured),
    Case("within its bound", "held", lambda: resumed(second=loaded(**from_step(6, 0.05)), claim=WITHIN)),
    Case(
        "of another system",
        "held",
        lambda: resumed(
            other=arm("other_system", frozen="another format", differences=[apart(replica=1)]), claim=OTHER_SYSTEM
        ),
    ),
    Case("restored anew and equal", "held", lambda: resumed(second=loaded(after=ANEW | MEAN))),
    Case("differs after the load", "differs", lambda: resumed(second=loaded(**from_step(5)))),
    Case(
        "differs before the save", "differs", lambda: resumed(saved(losses=LOSSES[:SAVE_AT] + 0.25), loaded(after=ANEW))
    ),
    Case("moments were not restored", "not_restored", lambda: resumed(second=loaded(after=ANEW, **from_step(5)))),
    Case(
        "a category is gone",
        "not_restored",
        lambda: resumed(second=loaded(after={"optimizer": {}}, **from_step(5))),
    ),
    Case(
        "generators were not restored, and none was used",
        "not_restored",
        lambda: resumed(second=loaded(**LOST)),
    ),
    Case("ends apart and all was restored", "end_differs", lambda: resumed(second=loaded(end_state=MEAN))),
    Case("a loose tensor is another", "differs", lambda: resumed(scratched(), loaded(**from_step(5)))),
    Case("beyond its bound", "exceeds_tolerance", lambda: resumed(second=loaded(**from_step(5)), claim=WITHIN)),
    Case(
        "no distance of the ends",
        "end_state_unrecorded",
        lambda: resumed(other=arm("ungraphed", replica=2, differences=[]), claim=WITHIN),
    ),
    Case(
        "nothing loaded",
        "nothing_loaded",
        lambda: resumed(second=loaded(record={"trainable_after": "start"}, **from_step(4))),
    ),
    Case(
        "nothing to load",
        "vacuous_nothing_to_load",
        lambda: resumed(second=loaded(record={"trainable_before": "half"})),
    ),
    Case("no file", "vacuous_nothing_saved", lambda: resumed(saved(record={"files": 0}))),
    Case("no byte", "vacuous_nothing_saved", lambda: resumed(saved(record={"bytes": 0}))),
    Case("one process", "vacuous_one_process", lambda: resumed(second=loaded(record={"process": 11}))),
    Case("data begins anew", "unequal_batches", lambda: resumed(second=loaded(batches=BATCHES[: STEPS - SAVE_AT]))),
    Case("another start", "unequal_start", lambda: resumed(saved(start="elsewhere"))),
    Case("fewer steps", "vacuous_steps", lambda: resumed(claim={"steps": STEPS - SAVE_AT + 1})),
    Case("nothing trained before", "vacuous_parameters_unchanged", lambda: resumed(saved(end="start"))),
    Case("ends in NaN", "non_finite_end", lambda: resumed(second=loaded(end_state=IN_NAN))),
    Case(
        "never captured",
        "candidate_not_captured",
        lambda: captured(second=loaded("graphed", capture=cuda_graph(captured=False, replays=0, failure="a sync"))),
    ),
    Case(
        "no capture record of the first half",
        "evidence_missing",
        lambda: captured(first=unrecorded(saved("graphed", capture=cuda_graph()))),
    ),
    Case("no record of the save", "evidence_missing", lambda: resumed(replace(saved(), saved=None))),
    Case("no record of the load", "evidence_missing", lambda: resumed(second=replace(loaded(), loaded=None))),
    Case(
        "no uninterrupted one",
        "evidence_missing",
        lambda: verdict_of(RESUME, RunEvidence("run", "resume", {"ungraphed": [saved(), loaded()]})),
    ),
    Case("saved elsewhere", "evidence_inconsistent", lambda: resumed(saved(record={"steps": 5}))),
    Case("loaded elsewhere", "evidence_inconsistent", lambda: resumed(second=loaded(record={"steps_before": 2}))),
    Case("goes on twice", "held", chained),
    Case(
        "nothing was restored by the second load",
        "not_restored",
        lambda: chained(last=last_part(after=ANEW, losses=LOSSES[7:] + 0.25)),
    ),
    Case(
        "what the first load lost shows after the second",
        "not_restored",
        lambda: chained(middle=middle_part(after=ANEW), last=last_part(losses=LOSSES[7:] + 0.25)),
    ),
    Case(
        "differs before the second load, which lost something",
        "differs",
        lambda: chained(middle=middle_part(losses=LOSSES[SAVE_AT:7] + 0.25), last=last_part(after=ANEW)),
    ),
    Case(
        "data begins anew with the second load",
        "unequal_batches",
        lambda: chained(last=last_part(batches=BATCHES[: STEPS - 7])),
    ),
    Case("differs after two whole loads", "differs", lambda: chained(last=last_part(losses=LOSSES[7:] + 0.25))),
    Case("generators lost by the second load", "not_restored", lambda: chained(last=last_part(**LOST))),
    Case("saved in NaN the second time", "non_finite_end", lambda: chained(middle=middle_part(end_state=IN_NAN))),
    Case("saved once", "evidence_missing", lambda: chained(middle=replace(middle_part(), saved=None))),
    Case("loaded once", "evidence_missing", lambda: chained(last=replace(last_part(), loaded=None))),
    Case("saved too late", "evidence_inconsistent", lambda: chained(middle=middle_part(record={"steps": 8}))),
    Case(
        "loaded again after steps that the claim does not name",
        "evidence_inconsistent",
        lambda: chained(last=last_part(record={"steps_before": 2})),
    ),
    Case(
        "the last load after steps of its own",
        "held",
        lambda: chained(last=last_part(record={"steps_before": 2}), steps_before_load=2),
    ),
    Case("one process twice", "vacuous_one_process", lambda: chained(last=last_part(record={"process": 12}))),
    Case(
        "nothing saved the second time",
        "vacuous_nothing_saved",
        lambda: chained(middle=middle_part(record={"files": 0})),
    ),
    Case(
        "nothing loaded the second time",
        "nothing_loaded",
        lambda: chained(last=last_part(record={"trainable_after": "start"})),
    ),
    Case("the first process was killed", "worker_signal", lambda: failed_in("signal")),
    Case("the first process raised", "worker_exception", lambda: failed_in("exception")),
]  # fmt: skip


def evaluation(steps: int, **changes: Any) -> Evaluated:
    kinds = {"parameters": "p", "buffers": "b", "optimizer": "o", "generators": "g"}
    given = {
        "arm": "ungraphed",
        "replica": 1,
        "steps": steps,
        "values": {"loss": 3.0 - steps / 10},
        "before": kinds,
        "after": {**kinds, **changes.pop("left", {})},
        "changed": [],
        **changes,
    }
    return Evaluated(**given)


def evaluated(
    *evaluations: Evaluated,
    without: ArmEvidence | None = None,
    claim: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Verdict:
    """Return the verdict if the given evaluations, or one of two executions, replace the passing ones."""
    found = list(evaluations) or [evaluation(5), evaluation(10)]
    ours = replace(arm(**{"name": "ungraphed", "replica": 1, **changes}), evaluations=found)
    run = RunEvidence("run", "evaluation", {"ungraphed": [without or arm("ungraphed"), ours]})
    return verdict_of(EVALUATION | dict(claim or {}), run)


def beside_plain(*theirs: float | None, **plain_arm: Any) -> Verdict:
    """Return the verdict on five evaluations, compared with a plain arm's losses within a hundredth; None: no loss."""
    at = (2, 4, 6, 8, 10)
    ours = [evaluation(steps, values={"loss": 3.0 - steps / 10}) for steps in at]
    plain = [
        evaluation(steps, arm="synchronizing", replica=0, values={} if loss is None else {"loss": loss})
        for steps, loss in zip(at, theirs, strict=False)
    ]
    run = RunEvidence(
        "run",
        "evaluation",
        {
            "ungraphed": [arm("ungraphed"), replace(arm("ungraphed", replica=1), evaluations=ours)],
            "synchronizing": [replace(arm("synchronizing", **plain_arm), evaluations=plain)],
        },
    )
    claim = {"every": 2, "evaluations": 5, "plain": "synchronizing", "max_relative_difference": 0.01}
    return verdict_of(EVALUATION | claim, run)


def captured_evaluation(**changes: Any) -> Verdict:
    both = [arm("graphed", capture=cuda_graph()), arm("graphed", replica=1, capture=cuda_graph(**changes))]
    both[1] = replace(both[1], evaluations=[evaluation(5), evaluation(10)])
    run = RunEvidence("run", "evaluation", {"graphed": both})
    return verdict_of(EVALUATION | {"candidate": "graphed", "mechanism": "cuda_graph"}, run)


def differing() -> dict[str, Any]:
    losses = LOSSES.copy()
    losses[7:] += 0.25
    return {"losses": losses}


SAME = {"values": {"loss": 2.5}}
EVALUATION_CASES = [
    Case("leaves training alone", "held", evaluated),
    Case("leaves a captured training alone", "held", captured_evaluation),
    Case(
        "a number that stays next to one that moves",
        "held",
        lambda: evaluated(*(evaluation(at, values={"accuracy": 0.5, "loss": 1 / at}) for at in (5, 10))),
    ),
    Case(
        "trains",
        "evaluation_changed_state",
        lambda: evaluated(
            *(evaluation(at, left={"parameters": "x", "optimizer": "y"}) for at in (5, 10)), **differing()
        ),
    ),
    Case(
        "draws",
        "evaluation_changed_state",
        lambda: evaluated(evaluation(5), evaluation(10, left={"generators": "x"}, changed=["generators torch.cpu"])),
    ),
    Case("returns what a plain arm's returns", "held", lambda: beside_plain(2.8, 2.6, 2.4, 2.2, 2.0)),
    Case("fewer than half return something else", "held", lambda: beside_plain(2.8, 9, 2.41, 9, 2.01)),
    Case("most return something else", "evaluations_differ", lambda: beside_plain(2.8, 2.7, 2.3, 2.0, 2.0)),
    Case("a plain arm's are zero", "evaluations_differ", lambda: beside_plain(0, 0, 0, 2.2, 2.0)),
    Case("a plain arm's are NaN", "evaluations_differ", lambda: beside_plain(*[math.nan] * 5)),
    Case("a plain arm returns nothing", "evaluations_differ", lambda: beside_plain(*[None] * 5)),
    Case("a plain arm returns it once", "evaluations_differ", lambda: beside_plain(2.8, None, None, None, None)),
    Case("an evaluation of the plain arm is missing", "evidence_missing", lambda: beside_plain(2.8, 2.6, 2.4, 2.2)),
    Case("losses differ", "differs", lambda: evaluated(**differing())),
    Case(
        "an evaluation in NaN",
        "evaluation_not_finite",
        lambda: evaluated(evaluation(5), evaluation(10, values={"loss": math.nan})),
    ),
    Case("no number", "vacuous_evaluations", lambda: evaluated(evaluation(5, values={}), evaluation(10, values={}))),
    Case("the same number", "vacuous_evaluations", lambda: evaluated(evaluation(5, **SAME), evaluation(10, **SAME))),
    Case("fewer steps", "vacuous_steps", lambda: evaluated(without=arm("ungraphed", LOSSES[:4]))),
    Case("an evaluation is missing", "evidence_missing", lambda: evaluated(evaluation(5))),
    Case("after each step", "held", lambda: evaluated(*map(evaluation, range(1, 11)), claim={"every": 1})),
    Case("at another step", "evidence_missing", lambda: evaluated(evaluation(4), evaluation(10))),
    Case("torn state", "evidence_inconsistent", lambda: evaluated(evaluation(5, before={}, after={}), evaluation(10))),
]  # fmt: skip
