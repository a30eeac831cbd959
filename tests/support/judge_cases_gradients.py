"""Cases of gradient_match: evidence that passes, with one thing changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evidence_builders import STEPS, arm, gradients, graphed, paired, reduction, verdict_of
from judge_cases import Case

from harness.evidence.arm_records import Gradients, GroupNorm, TensorReduction
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.evidence.run_records import PartFailed
from harness.judging.verdict import Verdict

GRADIENTS: dict[str, Any] = {
    "kind": "gradient_match",
    "candidate": "graphed",
    "baseline": "ungraphed",
    "steps": [0, 5],
    "equality": "bitwise",
    "max_abs_difference": 1e-5,
    "clipped_norm": {"at_most": 1.0, "relative_rounding": 1e-6},
    "clip_active_steps": 9,
}
GRADIENTS_WITHIN = {"equality": "within", "max_abs_difference": 1e-3}


def gradient_run(execution: ArmEvidence) -> RunEvidence:
    return paired(arm("ungraphed"), arm("synchronizing"), execution)


def matched(
    *tensors: Any, groups: Any = None, claim: dict[str, Any] | None = None, execution: dict[str, Any] | None = None
) -> Verdict:
    """Return the verdict on passing gradients at step 0 and the given ones at step 5."""
    late: dict[str, Any] = {"tensors": list(tensors)} if tensors else {}
    late |= {"groups": groups} if groups is not None else {}
    records = [gradients(0), gradients(5, **late)]
    return verdict_of(GRADIENTS | (claim or {}), gradient_run(graphed(**{"gradients": records, **(execution or {})})))


def unlike(absolute: float, **changes: Any) -> Any:
    """Return tensor `b`, different from the baseline's."""
    return reduction("b", **{"digest": "other", "max_abs_difference": absolute, **changes})


def all_steps(*tensors: Any, groups: Any = None) -> dict[str, Any]:
    """Return both gradient records with these tensors and groups."""
    changes = {"tensors": list(tensors)} | ({} if groups is None else {"groups": groups})
    return {"gradients": [gradients(step, **changes) for step in (0, 5)]}


def skipping(
    steps: Sequence[int],
    updates: list[int] | None,
    *,
    alone: bool = False,
    theirs: list[int] | None = None,
    of: Sequence[int] = (0, 5),
) -> Verdict:
    """Return the verdict if gradients (alone: only the candidate's) are not finite at `steps`, with update counts."""
    left_out = [
        reduction(
            name, max_abs=math.inf, max_abs_difference=math.nan, **({} if alone else {"baseline_max_abs": math.nan})
        )
        for name in "ab"
    ]
    records = [gradients(step, **({"tensors": left_out} if step in steps else {})) for step in of]
    baseline, candidate = arm("ungraphed"), graphed(gradients=records)
    for each, counted in ((baseline, updates if theirs is None else theirs), (candidate, updates)):
        assert each.end is not None
        object.__setattr__(each, "end", each.end.model_copy(update={"updates": counted}))
    return verdict_of(GRADIENTS | {"steps": [*of]}, paired(baseline, arm("synchronizing"), candidate))


def norm(before: float, after: float) -> list[GroupNorm]:
    return [GroupNorm(group="layer0", before=before, after=after)]


BOTH = [gradients(step) for step in (0, 5)]
NONE_LEFT = [each.model_copy(update={"tensors": []}) for each in BOTH]


SAID_NONE = [each.model_copy(update={"without": ["a", "b"]}) for each in NONE_LEFT]


def none_left(baseline: ArmEvidence, candidate: Sequence[Gradients] = NONE_LEFT) -> Verdict:
    """Return the verdict on a candidate whose steps leave no gradient."""
    run = paired(baseline, arm("synchronizing"), graphed(gradients=candidate))
    return verdict_of(GRADIENTS | {"clipped_norm": None, "clip_active_steps": None}, run)


def cleared(a: str, b: str) -> Verdict:
    """Return the verdict if both arms' steps leave zero gradients, and their parameters end with these digests."""
    states: dict[str, Any] = {
        "start_state": {"parameters": {"a": "0", "b": "0"}},
        "end_state": {"parameters": {"a": a, "b": b}},
    }
    zeros = all_steps(*(reduction(name, max_abs=0.0, baseline_max_abs=0.0) for name in "ab"))
    return verdict_of(
        GRADIENTS, paired(arm("ungraphed", **zeros, **states), arm("synchronizing"), graphed(**zeros, **states))
    )


def routed(theirs: list[Any], end: str = "1", said: list[str] | None = None, other: str | None = None) -> Verdict:
    """Return the verdict if the candidate has no gradient of `b` in step 5, the baseline has `theirs`.

    end: of `b`. other: the end of `b` in the baseline, if it is another one.
    """
    without = [name for name in "ab" if name not in {each.name for each in theirs}] if said is None else said
    begun = {"parameters": {"a": "0", "b": "0"}}
    ours, reference = ({"parameters": {"a": "1", "b": each}} for each in (end, other or end))
    late = gradients(5, tensors=theirs, without=without)
    baseline = arm("ungraphed", gradients=[gradients(0), late], start_state=begun, end_state=reference)
    records = [gradients(0), gradients(5, tensors=[A], without=["b"])]
    candidate = graphed(gradients=records, start_state=begun, end_state=ours)
    return verdict_of(GRADIENTS, paired(baseline, arm("synchronizing"), candidate))


def unreached(largest: float, a: Any = None) -> Verdict:
    """Return the verdict if the baseline has no gradient of `b` in step 5, but the candidate one of this size."""
    b = reduction("b", max_abs=largest, max_abs_difference=None, baseline_digest=None, baseline_max_abs=None)
    baseline = arm("ungraphed", gradients=[gradients(0), gradients(5, tensors=[A], without=["b"])])
    candidate = graphed(gradients=[gradients(0), gradients(5, tensors=[b, a or A])])
    return verdict_of(GRADIENTS, paired(baseline, arm("synchronizing"), candidate))


def grouped(*theirs: str, ours: Sequence[str] = ("layer0",), baseline: str = "ungraphed") -> Verdict:
    """Return the verdict on norms of these groups, in both arms and at both steps."""

    def of(name: str, groups: Sequence[str]) -> list[Gradients]:
        norms = [GroupNorm(group=group, before=4.0, after=1.0) for group in groups]
        return [gradients(step, arm=name, baseline=baseline, groups=norms) for step in (0, 5)]

    arms = [arm(name, gradients=of(name, theirs)) for name in dict.fromkeys([baseline, "synchronizing"])]
    run = paired(*arms, graphed(gradients=of("graphed", ours)))
    return verdict_of(GRADIENTS | {"baseline": baseline}, run)


def made(left: Any, made: list[Any], claim: dict[str, Any] | None = None, written: Sequence[str] = ()) -> Verdict:
    """Return the verdict if steps leave `a` and `left` as gradients, changed since they were computed as `made`."""
    records = [
        gradients(0, made_norm=3.0),
        gradients(5, tensors=[A, left], made=made, made_norm=6.0, written=[*written]),
    ]
    norms = [gradients(step, arm="ungraphed", baseline=None, made_norm=3.0) for step in (0, 5)]
    run = paired(arm("ungraphed", gradients=norms), arm("synchronizing"), graphed(gradients=records))
    return verdict_of(GRADIENTS | (claim or {}), run)


def controlled(
    ours: Sequence[Any],
    theirs: Sequence[Any],
    *,
    at: int = 5,
    made: Sequence[Sequence[float] | None] = (None, None),
    without: Sequence[str] = (),
    claim: dict[str, Any] | None = None,
    **control: Any,
) -> Verdict:
    """Return the verdict if gradients at step `at` differ by `ours`, and a control's, one rounding away, by `theirs`.

    made: both differences before the clip. without: the tensors that have no gradient in the baseline.
    """

    def named(apart: Sequence[Any]) -> list[TensorReduction]:
        found = (each if isinstance(each, TensorReduction) else unlike(each) for each in apart)
        return [each.model_copy(update={"name": name}) for name, each in zip("abc", found, strict=False)]

    def late(apart: Sequence[Any], before: Sequence[float] | None, **of: Any) -> list[Gradients]:
        changed = {"tensors": named(apart)} | ({} if before is None else {"made": named(before)})
        return [gradients(step, **of, **(changed if step == at else {"tensors": SAME})) for step in (0, 5)]

    three: dict[str, Any] = {"tensors": 3, "names": ["a", "b", "c"]}
    left = [gradients(0), gradients(5, without=[*without])] if without else []
    baseline, candidate = arm("ungraphed", gradients=left, **three), graphed(gradients=late(ours, made[0]), **three)
    nudged = {"start": "a rounding away", "gradients": late(theirs, made[1], arm="nudged")}
    run = paired(baseline, arm("synchronizing", **three), candidate, arm("nudged", **nudged | three | control))
    return verdict_of(GRADIENTS | RELATIVELY | {"control": "nudged"} | (claim or {}), run)


def unrecorded_gradients() -> Verdict:
    failed = PartFailed(arm="graphed", replica=0, part="gradients", detail="ValueError: no", phase=None, stack="")
    return verdict_of(GRADIENTS, gradient_run(replace(graphed(), failed_parts={"gradients": failed})))


def seen_in_one() -> Verdict:
    """Return the verdict if gradients before the clip were seen in the baseline alone."""
    norms = [gradients(step, arm="ungraphed", baseline=None, made_norm=3.0) for step in (0, 5)]
    return verdict_of(
        GRADIENTS, paired(arm("ungraphed", gradients=norms), arm("synchronizing"), graphed(gradients=BOTH))
    )


SAME = [reduction(name) for name in "abc"]
A, B = reduction("a"), reduction("b")
UNREACHED = reduction("c", max_abs=0.0, max_abs_difference=None, baseline_digest=None, baseline_max_abs=None)
LARGE = {"max_abs": 4.0, "baseline_max_abs": 4.0}  # eight times what the clip leaves
RELATIVELY = {"equality": "within", "max_abs_difference": None, "max_relative_difference": 1e-3}
GRADIENT_CASES = [
    Case("equal in bits", "held", matched),
    Case("within the bound", "held", lambda: matched(A, unlike(5e-4), claim=GRADIENTS_WITHIN)),
    Case(
        "norms alone", "held", lambda: matched(claim={"baseline": None, "equality": None, "max_abs_difference": None})
    ),
    Case("recorded before tensors had names", "held", lambda: matched(execution={"names": None})),
    Case("other bits", "differs", lambda: matched(A, unlike(0.0))),
    Case("beyond the bound", "exceeds_tolerance", lambda: matched(A, unlike(2e-3), claim=GRADIENTS_WITHIN)),
    Case(
        "one beyond the bounds, and one at both bounds",
        "exceeds_tolerance",
        lambda: matched(
            reduction("a", digest="other", max_abs_difference=1e-3),
            unlike(2e-3),
            claim=GRADIENTS_WITHIN | {"max_relative_difference": 2e-3},
        ),
    ),
    Case(
        "beyond the relative bound",
        "exceeds_tolerance",
        lambda: matched(A, unlike(5e-4), claim=GRADIENTS_WITHIN | {"max_relative_difference": 1e-4}),
    ),
    Case(
        "first beyond the relative bound, and then beyond the other",
        "exceeds_tolerance",
        lambda: matched(
            A,
            unlike(5e-4),
            reduction("c", digest="other", max_abs_difference=2e-3),
            claim=GRADIENTS_WITHIN | {"max_relative_difference": 1e-4},
        ),
    ),
    Case(
        "against zeros",
        "exceeds_tolerance",
        lambda: matched(
            A, unlike(5e-4, baseline_max_abs=0.0), claim=GRADIENTS_WITHIN | {"max_relative_difference": 9.0}
        ),
    ),
    Case(
        "zero but for rounding",
        "held",
        lambda: matched(reduction("a", baseline_max_abs=1.0), unlike(9e-7, baseline_max_abs=8e-7), claim=RELATIVELY),
    ),
    Case(
        "one large gradient, and all others off",
        "gradients_undecided",
        lambda: matched(
            claim=RELATIVELY,
            execution={"tensors": 3, "names": ["a", "b", "c"]}
            | all_steps(
                reduction("a", max_abs=1e12, baseline_max_abs=1e12),
                unlike(0.5),
                unlike(0.5).model_copy(update={"name": "c"}),
            ),
        ),
    ),
    Case(
        "zero, and by more than rounding",
        "exceeds_tolerance",
        lambda: matched(reduction("a", baseline_max_abs=1.0), unlike(2e-6, baseline_max_abs=8e-7), claim=RELATIVELY),
    ),
    Case("other bits before the clip", "differs", lambda: made(B, [A, unlike(0.0)])),
    Case(
        "beyond the relative bound before the clip",
        "exceeds_tolerance",
        lambda: made(B, [A, unlike(1e-3)], RELATIVELY),
    ),
    Case(
        "within the bound as far as the clip lets it through",
        "held",
        lambda: made(B, [reduction("a", **LARGE), unlike(5e-3, **LARGE)], GRADIENTS_WITHIN),
    ),
    Case(
        "beyond the bound as far as the clip lets it through",
        "exceeds_tolerance",
        lambda: made(B, [reduction("a", **LARGE), unlike(9e-3, **LARGE)], GRADIENTS_WITHIN),
    ),
    Case("as far as rounding takes a control", "held", lambda: controlled([1e-3, 2e-4, 2e-4], [2e-4, 1e-4, 1e-4])),
    Case(
        "further than rounding takes a control",
        "exceeds_tolerance",
        lambda: controlled([5e-3, 2e-4, 2e-4], [2e-4, 1e-4, 1e-4]),
    ),
    Case(
        "further where rounding takes it nowhere",
        "exceeds_tolerance",
        lambda: controlled([1e-3, 2e-4, 2e-4], [0.0, 1e-4, 1e-4]),
    ),
    Case(
        "further in all tensors than a rounding takes a control",
        "exceeds_tolerance",
        lambda: controlled([0.1] * 3, [1e-6] * 3),
    ),
    Case("where rounding takes a control anywhere", "gradients_undecided", lambda: controlled([0.5] * 3, [0.1] * 3)),
    Case(
        "of a control that ran into NaN",
        "non_finite",
        lambda: controlled([0.0] * 3, [0.0] * 3, losses=[math.nan] * STEPS),
    ),
    Case(
        "in the first step further than rounding takes a control",
        "exceeds_tolerance",
        lambda: controlled([2e-3, 4e-4, 4e-4], [1e-4] * 3, at=0),
    ),
    Case(
        "as far as a control of one rounding takes five",
        "held",
        lambda: controlled([8e-4, 5e-6, 5e-6], [2e-5, 1e-6, 1e-6]),
    ),
    Case(
        "further than rounding under an absolute bound alone",
        "exceeds_tolerance",
        lambda: controlled([0.6, 0.08, 0.08], [0.01] * 3, claim=GRADIENTS_WITHIN | {"max_relative_difference": None}),
    ),
    Case(
        "as far as rounding takes a control before the clip",
        "held",
        lambda: controlled([0.0] * 3, [0.0] * 3, made=([1e-3, 2e-4, 2e-4], [2e-4, 1e-4, 1e-4])),
    ),
    Case(
        "before the clip as far as rounding takes a control after it",
        "held",
        lambda: controlled([0.0] * 3, [2e-4, 1e-4, 1e-4], made=([1e-3, 2e-4, 2e-4], None)),
    ),
    Case(
        "next to a control whose gradient is infinite",
        "exceeds_tolerance",
        lambda: controlled([1e-3, 2e-4, 2e-4], [math.inf, 1e-4, 1e-4]),
    ),
    Case(
        "a gradient of the control alone",
        "held",
        lambda: controlled([0.0, 0.0, UNREACHED], [0.0, 0.0, None], without=["c"]),
    ),
    Case("a control that was not compared", "evidence_missing", lambda: controlled([0.0] * 3, [0.0, 0.0, None])),
    Case("a control without the gradient of one tensor", "evidence_missing", lambda: controlled([0.0] * 3, [0.0] * 2)),
    Case(
        "a control whose step does not use one tensor",
        "held",
        lambda: controlled(
            [0.0] * 3,
            [0.0] * 3,
            gradients=[
                gradients(0, arm="nudged", tensors=SAME),
                gradients(5, arm="nudged", tensors=SAME[:2], without=["c"]),
            ],
        ),
    ),
    Case("a control without gradients", "evidence_missing", lambda: controlled([0.0] * 3, [0.0] * 3, gradients=[])),
    Case("not seen before the clip in one arm", "held", seen_in_one),
    Case("an optimizer wrote into it", "held", lambda: made(unlike(0.5), [A, B], written=["b"])),
    Case("an optimizer wrote into another", "differs", lambda: made(unlike(0.5), [A, B], written=["a"])),
    Case("NaN", "non_finite", lambda: matched(A, unlike(math.nan, max_abs=math.nan))),
    Case("NaN norm", "non_finite", lambda: matched(groups=norm(math.nan, math.nan))),
    Case("both leave out the first update", "held", lambda: skipping([0], [STEPS - 1])),
    Case("and count none", "updates_uncounted", lambda: skipping([0], [])),
    Case("without counters of updates", "non_finite", lambda: skipping([0], None)),
    Case("both update by what is not finite", "non_finite", lambda: skipping([0], [STEPS])),
    Case("one updates by it", "non_finite", lambda: skipping([0], [STEPS - 1], theirs=[STEPS])),
    Case("one leaves out an update", "non_finite", lambda: skipping([0], [STEPS - 1], alone=True)),
    Case("both leave out the last update", "non_finite", lambda: skipping([5], [STEPS - 1])),
    Case("both leave out an update between, and four of ten", "held", lambda: skipping([5], [STEPS - 4], of=(0, 5, 7))),
    Case("both leave out half of all", "non_finite", lambda: skipping([0], [STEPS // 2])),
    Case(
        "other names",
        "unequal_start",
        lambda: matched(
            A, reduction("module.b", max_abs_difference=None), execution={"start": "s", "names": ["a", "module.b"]}
        ),
    ),
    Case("norm above the threshold", "clipped_norm_exceeded", lambda: matched(groups=norm(4.0, 1.1))),
    Case(
        "a group missing at one step",
        "evidence_missing",
        lambda: matched(groups=[*norm(4.0, 1.0), GroupNorm(group="layer1", before=4.0, after=1.0)]),
    ),
    Case("no group at one step", "evidence_missing", lambda: matched(groups=[])),
    Case("the baseline's groups", "held", lambda: grouped("layer0")),
    Case("a group of the baseline's alone", "evidence_missing", lambda: grouped("layer0", "layer1")),
    Case("a group of the candidate's alone", "evidence_missing", lambda: grouped("layer0", ours=["layer0", "layer1"])),
    Case("groups of another system", "held", lambda: grouped("all", baseline="other_system")),
    Case("a tensor without gradient", "tensors_missing", lambda: matched(A)),
    Case(
        "a gradient of a frozen tensor next to a trained one without",
        "tensors_missing",
        lambda: matched(A, reduction("frozen")),
    ),
    Case("an expert without tokens in either", "held", lambda: routed([A])),
    Case("an expert without tokens in the candidate alone", "tensors_missing", lambda: routed([A, reduction("b")])),
    Case(
        "an expert without tokens of which the baseline says nothing", "tensors_missing", lambda: routed([A], said=[])
    ),
    Case("zeros where no gradient reached the baseline's", "held", lambda: unreached(0.0)),
    Case("a gradient where none reached the baseline's", "tensors_missing", lambda: unreached(0.25)),
    Case("other bits after such zeros", "differs", lambda: unreached(0.0, reduction("a", digest="other"))),
    Case("gradients that could not be recorded", "worker_exception", unrecorded_gradients),
    Case("a tensor that nothing trains", "tensors_missing", lambda: routed([A], end="0")),
    Case("a tensor that the candidate alone trains", "tensors_missing", lambda: routed([A], other="0")),
    Case("a tensor that the baseline alone trains", "tensors_missing", lambda: routed([A], "0", other="1")),
    Case("no gradient in the candidate alone", "tensors_missing", lambda: none_left(arm("ungraphed", gradients=BOTH))),
    Case(
        "no gradient in the candidate, which names them all",
        "capability_missing",
        lambda: none_left(arm("ungraphed", gradients=BOTH), SAID_NONE),
    ),
    Case(
        "no gradient in one of the candidate's steps",
        "tensors_missing",
        lambda: none_left(arm("ungraphed", gradients=BOTH), [BOTH[0], SAID_NONE[1]]),
    ),
    Case("no gradient in either", "capability_missing", lambda: none_left(arm("ungraphed", gradients=NONE_LEFT))),
    Case("no gradient, and none known of the baseline", "tensors_missing", lambda: none_left(arm("ungraphed"))),
    Case(
        "all zero",
        "vacuous_gradients_zero",
        lambda: matched(execution=all_steps(*(reduction(n, max_abs=0.0, baseline_max_abs=0.0) for n in "ab"))),
    ),
    Case("all cleared to zero by steps that train", "capability_missing", lambda: cleared("1", "1")),
    Case("all zero, and one tensor untrained", "vacuous_gradients_zero", lambda: cleared("1", "0")),
    Case(
        "nothing clipped",
        "vacuous_clip_inactive",
        lambda: matched(execution=all_steps(A, reduction("b"), groups=norm(0.5, 0.5))),
    ),
    Case("clip hardly active", "vacuous_clip_inactive", lambda: matched(execution={"active": [1] * 8 + [0] * 2})),
    Case("no groups", "vacuous_nothing_compared", lambda: matched(execution=all_steps(A, reduction("b"), groups=[]))),
    Case("a step missing", "evidence_missing", lambda: matched(claim={"steps": [0, 7]})),
    Case("not compared", "evidence_missing", lambda: matched(A, reduction("b", max_abs_difference=None))),
    Case(
        "compared with another",
        "evidence_missing",
        lambda: matched(claim={"baseline": "synchronizing"}, execution={"gradients": [gradients(0), gradients(5)]}),
    ),
    Case(
        "equal digests that differ", "evidence_inconsistent", lambda: matched(A, reduction("b", max_abs_difference=0.1))
    ),
]
