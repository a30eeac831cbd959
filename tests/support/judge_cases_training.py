"""Cases of trajectory_match and repeatability: evidence that passes, with one thing changed."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import numpy as np
from evidence_builders import (
    BATCHES,
    LOSSES,
    STEPS,
    TRAJECTORY,
    again,
    arm,
    counted,
    cuda_graph,
    drew,
    graphed,
    paired,
    traced,
    trajectory_run,
    unrecorded,
    untrained,
    verdict_of,
)
from judge_cases import Case

from harness.evidence.arm_records import Clip
from harness.evidence.base import Obstacle
from harness.evidence.run_evidence import ArmEvidence, Death
from harness.judging.verdict import Verdict


def changed(step: int, value: float) -> np.ndarray[Any, Any]:
    """Return the losses with that of one step replaced."""
    losses = LOSSES.copy()
    losses[step] = value
    return losses


def nudged(step: int) -> np.ndarray[Any, Any]:
    """Return the losses with that of one step moved to the next double."""
    return changed(step, float(np.nextafter(LOSSES[step], 9.0)))


def trajectory(*args: Any, claim: dict[str, Any] | None = None, steps: int = STEPS, **executions: Any) -> Verdict:
    """Return the verdict on `TRAJECTORY` with changes, for `trajectory_run` with changes."""
    return verdict_of(TRAJECTORY | (claim or {}), trajectory_run(*args, **executions), steps=steps)


PRECISIONS: dict[str, Any] = {
    "equality": "within",
    "precisions": {"candidate": "bfloat16", "baseline": "float32"},
}


def in_two_precisions(ours: str | None = "bfloat16", theirs: str | None = "float32", **changes: Any) -> Verdict:
    """Return the verdict on arms that declare these data types and whose frozen tensors have other bits."""
    stated = [{} if dtype is None else {"dtype": dtype} for dtype in (ours, theirs)]
    run = trajectory_run(
        graphed(**{"facts": stated[0], "frozen": "half", **changes}),
        arm("ungraphed", facts=stated[1]),
        repetition=arm("ungraphed", facts=stated[1], replica=1),
    )
    return verdict_of(TRAJECTORY | PRECISIONS, run)


DTYPES: dict[str, Any] = {
    "equality": "within",
    "parameter_dtypes": {"candidate": "bfloat16", "baseline": "float32"},
}


def of_two_dtypes(theirs: dict[str, Any] | None = None, **changes: Any) -> Verdict:
    """Return the verdict on arms whose parameters have two data types: other bits, but equal values when rounded."""
    full: dict[str, Any] = {"rounded": "values", **(theirs or {})}
    ours = {"start": "half", "frozen": "half", "dtypes": ["bfloat16"], "rounded": "values", **changes}
    run = trajectory_run(
        graphed(**ours),
        arm("ungraphed", **full),
        control=untrained(start="half", end="half"),
        repetition=arm("ungraphed", replica=1, **full),
    )
    return verdict_of(TRAJECTORY | DTYPES, run)


def dead(cause: str) -> Verdict:
    death = Death(cause=cause, detail="a detail", phase="graphed.0: steps", stack="")
    return verdict_of(TRAJECTORY, paired(death=death))


def unfinished(execution: ArmEvidence) -> ArmEvidence:
    return dataclasses.replace(execution, end=None)


def short_column(execution: ArmEvidence) -> ArmEvidence:
    return dataclasses.replace(execution, series=dataclasses.replace(execution.series, batch_digest=BATCHES[:3]))


EXECUTIONS = (graphed, partial(arm, "ungraphed"), untrained, partial(arm, "ungraphed", replica=1))


def nothing_ran() -> Verdict:
    return trajectory(*(execution(losses=[]) for execution in EXECUTIONS))


WITHIN = {"equality": "within"}
NORMS = np.linspace(4.0, 0.0, STEPS)  # its last one is 0, of which no part is allowed


def of_norms(ours: Any = NORMS, again: Any = NORMS, metric: str = "norm", **claim: Any) -> Verdict:
    """Return the verdict on the candidate's metric `norm`; again: that of the baseline's repetition."""
    run = trajectory_run(
        graphed(metrics={"norm": ours}),
        arm("ungraphed", metrics={"norm": NORMS, "rate": NORMS}),
        repetition=arm("ungraphed", metrics={"norm": again}, replica=1),
    )
    return verdict_of(TRAJECTORY | {"metric": metric} | claim, run)


def other(step: int, value: float) -> Any:
    """Return the norms with that of one step replaced."""
    norms = NORMS.copy()
    norms[step] = value
    return norms


TIGHT: dict[str, Any] = {"max_abs_difference": 1e-3}
WIDE: dict[str, Any] = {"max_abs_difference": 1.0}


def constant_norms(steps: int) -> Verdict:
    made: dict[str, Any] = {"losses": LOSSES[:steps], "metrics": {"norm": np.ones(steps)}}
    run = trajectory_run(graphed(**made), arm("ungraphed", **made))
    return verdict_of(TRAJECTORY | {"metric": "norm", "guards": {"steps": steps}}, run, steps=steps)


def relative(ours: Any = LOSSES, bound: float = 0.01, **claim: Any) -> Verdict:
    """Return the verdict on losses within a relative bound and no other bound."""
    claim = {"equality": "within", "max_abs_difference": None, "max_relative_difference": bound, **claim}
    return trajectory(graphed(ours), claim=claim)


FLOOR = {"control": "untrained", "moved": 1e-3, "standard_errors": 5}


def floored(moved: float | None, losses: Any = LOSSES, **changes: Any) -> Verdict:
    """Return the verdict on a claim with a floor for arms that moved so far; the control's losses are LOSSES or 0."""
    executions = [execution(losses=losses) for execution in EXECUTIONS]
    executions[2] = untrained(**{"losses": LOSSES[: len(losses)] * bool(np.any(losses)), **changes})
    ended = [each.end.model_copy(update={"moved": moved}) for each in executions if each.end is not None]
    arms = (dataclasses.replace(each, end=end) for each, end in zip(executions, ended, strict=True))
    return trajectory(*arms, claim={"guards": {"steps": len(losses), "floor": FLOOR}}, steps=len(losses))


BARELY_LESS = LOSSES - 1e-6  # below the control's on every batch
CLEARLY_LESS = LOSSES - np.linspace(0.0, 20.0, STEPS)


def near_zero(apart: float, terms: float | None) -> Verdict:
    """Return the verdict if the baseline's losses are 0 from step 4 on, and the candidate's `apart`.

    terms: the size of the terms of which the losses are sums.
    """
    zero = np.where(np.arange(STEPS) < 4, LOSSES, 0.0)
    baseline = arm("ungraphed", zero)
    assert baseline.end is not None
    baseline = dataclasses.replace(baseline, end=baseline.end.model_copy(update={"loss_terms": terms}))
    claim = {"equality": "within", "max_abs_difference": None, "max_relative_difference": 0.01}
    ours = graphed(np.where(np.arange(STEPS) < 4, LOSSES, apart * np.linspace(1.0, 0.5, STEPS)))
    return trajectory(ours, baseline, repetition=again(baseline), claim=claim)


def ended(execution: ArmEvidence, *, optimizer_bytes: dict[str, int] | None = None, **changes: Any) -> ArmEvidence:
    """Return the execution with changed facts of its end."""
    assert execution.end is not None
    assert execution.end.state is not None
    state = execution.end.state.model_copy(update={"optimizer_bytes": optimizer_bytes})
    return dataclasses.replace(execution, end=execution.end.model_copy(update={"state": state, **changes}))


def with_clips(ours: bool | None, theirs: bool | None, *, acted: bool = False) -> Verdict:
    """Return the verdict on equal arms that were seen to clip their gradients, or not to."""
    mine, plain = (Clip(seen=each, acted=acted and bool(each), operator="aten::clamp") for each in (ours, theirs))
    return trajectory(ended(graphed(), clip=mine), ended(arm("ungraphed"), clip=plain))


def switched(ours: str | None, theirs: str | None = "form", candidate: ArmEvidence | None = None) -> Verdict:
    """Return the verdict on arms that must have different steps, by the digests of their operators."""
    plain = ended(arm("ungraphed"), step_form=theirs)
    return trajectory(ended(candidate or graphed(), step_form=ours), plain, claim={"switched_on": True})


def unequally_set(form: str, off: float = 0.0) -> Verdict:
    """Return the verdict on two arms with other settings; form, off: of the candidate's step and losses."""
    ours = ended(arm("synchronizing", LOSSES + off), step_form=form)
    claim = WITHIN | {"candidate": "synchronizing"}
    return trajectory(ours, ended(arm("ungraphed"), step_form="form"), claim=claim)


def in_fewer_bits(ours: str = "uint8", theirs: str = "float32") -> Verdict:
    """Return the verdict on unequal arms whose optimizer states have these data types."""
    full: dict[str, Any] = {"dtypes": ["float32"]}
    candidate = ended(graphed(changed(4, 9.0), **full), optimizer_bytes={ours: 64})
    return trajectory(candidate, ended(arm("ungraphed", **full), optimizer_bytes={theirs: 64}), claim=WITHIN)


def following(ours: list[float], theirs: list[float]) -> Verdict:
    """Return the verdict on these losses of the candidate and the control, both of which are noisy."""
    effect = {"control": "untrained", "last": 2, "at_least": 0.2}
    claim = {"guards": {"steps": len(ours), "training_effect": effect}}
    return trajectory(graphed(ours), arm("ungraphed", ours), untrained(losses=theirs), claim=claim, steps=len(ours))


EFFECT_HERE = {
    "control": "untrained",
    "last": 2,
    "at_least": {"otherwise": 0.2, "cases": [{"workload": "w", "value": 3.0}]},
}
GUARDS_HERE = {"steps": STEPS, "training_effect": EFFECT_HERE}
TRAJECTORY_CASES = [
    Case("equal in bits", "held", trajectory),
    Case("equal at the final step", "held", lambda: trajectory(claim={"compare": "final"})),
    Case("within the bound", "held", lambda: trajectory(graphed(changed(4, LOSSES[4] + 0.05)), claim=WITHIN)),
    Case("one bit", "differs", lambda: trajectory(graphed(nudged(4)))),
    Case(
        "one bit, and the baseline has other bits each time",
        "baseline_not_repeatable",
        lambda: trajectory(graphed(nudged(4)), repetition=arm("ungraphed", nudged(6), replica=1)),
    ),
    Case(
        "the baseline reads other batches when it runs again",
        "baseline_not_repeatable",
        lambda: trajectory(repetition=arm("ungraphed", batches=[*BATCHES[:9], "drawn"], replica=1)),
    ),
    Case(
        "the baseline starts otherwise when it runs again",
        "baseline_not_repeatable",
        lambda: trajectory(repetition=arm("ungraphed", start="drawn", replica=1)),
    ),
    Case("a clip without effect that the candidate lacks", "clip_unseen", lambda: with_clips(False, True)),
    Case("a clip without effect that the baseline lacks", "clip_unseen", lambda: with_clips(True, False)),
    Case("a clip that may be hidden", "held", lambda: with_clips(None, True)),
    Case("both clip", "held", lambda: with_clips(True, True)),
    Case("neither clips", "held", lambda: with_clips(False, False)),
    Case("a clip that acted, and equal numbers", "held", lambda: with_clips(False, True, acted=True)),
    Case("unequal settings, one step", "held", lambda: unequally_set("form")),
    Case("unequal settings, unequal steps", "held", lambda: unequally_set("other")),
    Case("unequal settings, one step, other losses", "held", lambda: unequally_set("form", 0.05)),
    Case("a switch that does nothing", "optimization_off", lambda: switched("form")),
    Case("a switch of which nothing was seen", "optimization_off", lambda: switched(None)),
    Case("a switch that runs other operators", "held", lambda: switched("other")),
    Case("the candidate's optimizer has fewer bits", "other_precision", in_fewer_bits),
    Case("the optimizer has the parameters' bits", "exceeds_tolerance", lambda: in_fewer_bits("float32", "float32")),
    Case("both optimizers have fewer bits", "exceeds_tolerance", lambda: in_fewer_bits("bfloat16", "bfloat16")),
    Case("signed zero", "differs", lambda: trajectory(graphed(changed(4, -0.0)), arm("ungraphed", changed(4, 0.0)))),
    Case("beyond the bound", "exceeds_tolerance", lambda: trajectory(graphed(changed(4, 9.0)), claim=WITHIN)),
    Case(
        "one bit, and other random numbers",
        "other_random_numbers",
        lambda: trajectory(drew(graphed(nudged(4)), captured=[["aten.rand"]]), drew(arm("ungraphed"), "aten.randn")),
    ),
    Case("NaN in the candidate", "non_finite", lambda: trajectory(graphed(changed(4, math.nan)))),
    Case("infinity in the baseline", "non_finite", lambda: trajectory(baseline=arm("ungraphed", changed(4, math.inf)))),
    Case("NaN in the control", "non_finite", lambda: trajectory(control=untrained(losses=changed(9, math.nan)))),
    Case("another start", "unequal_start", lambda: trajectory(graphed(start="elsewhere"))),
    Case("other names", "unequal_start", lambda: trajectory(graphed(start="s", names=["a", "module.b"]))),
    Case("fewer names", "unequal_start", lambda: trajectory(graphed(start="s", names=["a"]))),
    Case("names unrecorded", "held", lambda: trajectory(graphed(names=None, inputs=None))),
    Case("no tokens", "unequal_tokens", lambda: trajectory(graphed(tokens=[32] * STEPS, inputs=["ids", "targets"]))),
    Case("only the inputs' names differ", "held", lambda: trajectory(graphed(inputs=["ids", "labels"]))),
    Case(
        "other inputs", "unequal_batches", lambda: trajectory(graphed(batches=["b"] * STEPS, inputs=["ids", "targets"]))
    ),
    Case(
        "control's names",
        "vacuous_training_effect",
        lambda: trajectory(control=untrained(start="s", end="s", names=["a"])),
    ),
    Case(
        "control's additional names",
        "vacuous_training_effect",
        lambda: trajectory(control=untrained(start="s", end="s", names=["a", "b", "c"])),
    ),
    Case(
        "control's inputs",
        "vacuous_training_effect",
        lambda: trajectory(control=untrained(batches=["b"] * STEPS, inputs=["tokens"])),
    ),
    Case("another frozen start", "unequal_start", lambda: trajectory(graphed(frozen="elsewhere"))),
    Case("fewer steps in one", "unequal_lengths", lambda: trajectory(graphed(LOSSES[:9]))),
    Case("another batch", "unequal_batches", lambda: trajectory(graphed(batches=["batch0", *BATCHES[:9]]))),
    Case("fewer tokens", "unequal_tokens", lambda: trajectory(graphed(tokens=128, batches=["half"] * STEPS))),
    Case("changed frozen tensors", "frozen_changed", lambda: trajectory(graphed(frozen_end="thawed"))),
    Case("no step at all", "vacuous_steps", nothing_ran),
    Case("too few steps", "vacuous_steps", lambda: trajectory(claim={"guards": {"steps": STEPS + 1}})),
    Case(
        "fewer steps than the effect's",
        "vacuous_steps",
        lambda: trajectory(
            claim={"guards": {"steps": 1, "training_effect": {"control": "untrained", "last": 11, "at_least": 0.1}}}
        ),
    ),
    Case("untrained candidate", "vacuous_parameters_unchanged", lambda: trajectory(graphed(end="start"))),
    Case("nothing trainable", "vacuous_parameters_unchanged", lambda: trajectory(graphed(tensors=0))),
    Case("skipped update", "vacuous_skipped_step", lambda: trajectory(graphed(skipped=1))),
    Case(
        "repeating batches",
        "vacuous_batches_repeat",
        lambda: trajectory(*(execution(batches=["b"] * STEPS) for execution in EXECUTIONS)),
    ),
    Case("idle clip", "vacuous_clip_inactive", lambda: trajectory(graphed(active=0))),
    Case("no norms", "capability_missing", lambda: trajectory(graphed(active=-1))),
    Case("no inputs", "capability_missing", lambda: trajectory(graphed(batches=[""] * STEPS))),
    Case("no parameters", "capability_missing", lambda: trajectory(graphed(start=""))),
    Case("moved by the floor", "held", lambda: floored(1e-3)),
    Case("moved by less", "trained_too_little", lambda: floored(9e-4)),
    Case("moved by less, with a loss that is a little lower", "trained_too_little", lambda: floored(1e-5, BARELY_LESS)),
    Case("moved by less, with a loss that is clearly lower", "held", lambda: floored(1e-5, CLEARLY_LESS)),
    Case("moved by less, with two steps", "trained_too_little", lambda: floored(1e-5, LOSSES[:2] - 9.0)),
    Case("moved by less, with three steps", "held", lambda: floored(1e-5, LOSSES[:3] - 9.0)),
    Case("moved from zeros, with a loss that is clearly lower", "held", lambda: floored(None, CLEARLY_LESS)),
    Case("a trained control of the floor", "trained_too_little", lambda: floored(1e-5, CLEARLY_LESS, end="end")),
    Case("a loss of 0, moved by the floor", "held", lambda: floored(1e-2, np.zeros(STEPS))),
    Case("a loss of 0, moved by less", "trained_too_little", lambda: floored(1e-5, np.zeros(STEPS))),
    Case("another constant loss", "vacuous_constant_loss", lambda: floored(1e-2, np.ones(STEPS))),
    Case("no training effect", "vacuous_training_effect", lambda: trajectory(control=untrained(losses=LOSSES))),
    Case(
        "less effect than this workload's", "vacuous_training_effect", lambda: trajectory(claim={"guards": GUARDS_HERE})
    ),
    Case("noise of three steps", "vacuous_training_effect", lambda: following([1.0, 2.5, 2.0], [1.0, 3.0, 2.5])),
    Case("noise of four steps", "held", lambda: following([1.0, 2.5, 2.0, 2.9], [1.0, 3.0, 2.5, 3.4])),
    Case("trained control", "vacuous_training_effect", lambda: trajectory(control=untrained(end="end"))),
    Case("control's start", "vacuous_training_effect", lambda: trajectory(control=untrained(start="s", end="s"))),
    Case("control's steps", "vacuous_training_effect", lambda: trajectory(control=untrained(losses=LOSSES[:9]))),
    Case("control's batches", "vacuous_training_effect", lambda: trajectory(control=untrained(batches=["b"] * STEPS))),
    Case("captured baseline", "vacuous_baseline_captured", lambda: trajectory(baseline=counted(arm("ungraphed"), 1))),
    Case("captured control", "vacuous_baseline_captured", lambda: trajectory(control=counted(untrained(), 1))),
    Case(
        "a baseline that was seen to capture",
        "vacuous_baseline_captured",
        lambda: trajectory(baseline=counted(arm("ungraphed"), 2, 1)),
    ),
    Case("a baseline whose captures failed", "held", lambda: trajectory(baseline=counted(arm("ungraphed"), 2, 2))),
    Case("never captured", "candidate_not_captured", lambda: trajectory(graphed(capture=cuda_graph(captured=False)))),
    Case("never replayed", "candidate_not_captured", lambda: trajectory(graphed(capture=cuda_graph(replays=0)))),
    Case(
        "traced", "mechanism_missing", lambda: trajectory(graphed(capture=traced()), claim={"mechanism": "cuda_graph"})
    ),
    Case(
        "never captured, so by nothing",
        "candidate_not_captured",
        lambda: trajectory(
            graphed(capture=cuda_graph(captured=False, mechanism=None)), claim={"mechanism": "cuda_graph"}
        ),
    ),
    Case(
        "captured by who knows what",
        "mechanism_missing",
        lambda: trajectory(graphed(capture=cuda_graph(mechanism=None)), claim={"mechanism": "cuda_graph"}),
    ),
    Case(
        "a recording of compiled code as it is written, next to another arm",
        "ran_as_written",
        lambda: trajectory(graphed(LOSSES + 0.2, capture=traced(as_written=["train.py:7"])), claim={"mechanism": None}),
    ),
    Case(
        "a recording of compiled code as it is written, with the bits of another arm",
        "ran_as_written",
        lambda: trajectory(graphed(capture=traced(as_written=["train.py:7"])), claim={"mechanism": None}),
    ),
    Case(
        "noisy baseline",
        "noise_above_tolerance",
        lambda: trajectory(repetition=arm("ungraphed", LOSSES + 0.2, replica=1)),
    ),
    Case("no candidate", "evidence_missing", lambda: verdict_of(TRAJECTORY, paired(arm("ungraphed")))),
    Case("no run", "evidence_missing", lambda: verdict_of(TRAJECTORY)),
    Case("no end", "evidence_missing", lambda: trajectory(unfinished(graphed()))),
    Case("no capture record", "evidence_missing", lambda: trajectory(unrecorded(graphed()))),
    Case("torn columns", "evidence_inconsistent", lambda: trajectory(short_column(graphed()))),
    Case("more rows than steps", "evidence_inconsistent", lambda: trajectory(graphed(steps_called=9))),
    Case("a step without a row", "evidence_inconsistent", lambda: trajectory(graphed(steps_called=11))),
    Case(
        "worker's obstacle",
        "not_available",
        lambda: verdict_of(TRAJECTORY, paired(obstacle=Obstacle(reason="not_available", message="no"))),
    ),
    *(
        Case(f"death by {cause}", f"worker_{cause}", lambda cause=cause: dead(cause))  # type: ignore[misc]
        for cause in (
            "signal",
            "exit_code",
            "wall_limit",
            "heartbeat",
            "incomplete",
            "garbage",
            "output_limit",
            "exception",
        )
    ),
    Case("equal in another metric", "held", of_norms),
    Case("another metric differs", "differs", lambda: of_norms(other(4, 9.0))),
    Case("another metric beyond its bound", "exceeds_tolerance", lambda: of_norms(other(4, 9.0), **WITHIN)),
    Case("NaN in another metric", "non_finite", lambda: of_norms(other(4, math.nan))),
    Case("NaN in another metric's repetition", "non_finite", lambda: of_norms(again=other(4, math.nan))),
    Case("a metric that never moves", "vacuous_constant_metric", lambda: constant_norms(STEPS)),
    Case("a metric that does not move in two steps", "vacuous_constant_metric", lambda: constant_norms(2)),
    Case("a metric of one step", "held", lambda: constant_norms(1)),
    Case("a metric that one system does not report", "capability_missing", lambda: of_norms(metric="rate")),
    Case(
        "beyond the bound, and the baseline from itself, too",
        "noise_above_tolerance",
        lambda: trajectory(
            graphed(changed(4, 9.0)), repetition=arm("ungraphed", changed(4, 9.0), replica=1), claim=WITHIN
        ),
    ),
    Case("a metric that is noisy", "noise_above_tolerance", lambda: of_norms(again=other(4, 9.0))),
    Case("torn metrics", "evidence_inconsistent", lambda: of_norms(NORMS[:3])),
    Case("within a part of the baseline's", "held", lambda: relative(LOSSES * 1.009)),
    Case("beyond a part of the baseline's", "exceeds_tolerance", lambda: relative(LOSSES * 1.02)),
    Case("within the part and beyond the number", "exceeds_tolerance", lambda: relative(LOSSES * 1.009, **TIGHT)),
    Case("within the number and beyond the part", "exceeds_tolerance", lambda: relative(LOSSES * 1.02, **WIDE)),
    Case(
        "furthest apart in one step, and relatively in another",
        "exceeds_tolerance",
        lambda: relative(LOSSES + np.array([0, 0, 0.2, 0, 0, 0, 0, 0, 0, 0.19])),
    ),
    Case(
        "a repetition beyond a part",
        "noise_above_tolerance",
        lambda: of_norms(again=NORMS * 1.25, **WITHIN, max_abs_difference=None, max_relative_difference=0.1),
    ),
    Case(
        "beyond the part, in noise",
        "exceeds_tolerance",
        lambda: of_norms(NORMS * 1.25, NORMS * 1.0625, **WITHIN, max_abs_difference=None, max_relative_difference=0.1),
    ),
    Case(
        "a part of 0 is nothing",
        "exceeds_tolerance",
        lambda: of_norms(other(9, 5e-324), **WITHIN, max_abs_difference=None, max_relative_difference=0.5),
    ),
    Case("0 but for rounding", "held", lambda: near_zero(9e-6, LOSSES[0] + 4)),
    Case("0 and more than rounding", "exceeds_tolerance", lambda: near_zero(2e-5, LOSSES[0] + 4)),
    Case("0, and its terms were not examined", "exceeds_tolerance", lambda: near_zero(1e-9, None)),
    Case("0 in both", "held", lambda: of_norms(**WITHIN, max_abs_difference=None, max_relative_difference=0.5)),
    Case("two precisions", "held", in_two_precisions),
    Case("parameters of two data types", "held", of_two_dtypes),
    Case("an unheeded data type", "vacuous_parameter_dtype", lambda: of_two_dtypes(dtypes=["float32"])),
    Case(
        "parameters of mixed data types",
        "vacuous_parameter_dtype",
        lambda: of_two_dtypes(dtypes=["bfloat16", "float32"]),
    ),
    Case("no parameters' data type", "vacuous_parameter_dtype", lambda: of_two_dtypes(dtypes=[])),
    Case("a baseline of another data type", "vacuous_parameter_dtype", lambda: of_two_dtypes({"dtypes": ["float64"]})),
    Case("another start once rounded", "unequal_start", lambda: of_two_dtypes(rounded="others")),
    Case("a start that was not rounded", "evidence_missing", lambda: of_two_dtypes(rounded=None)),
    Case("data types that were not recorded", "evidence_missing", lambda: of_two_dtypes(dtypes=None)),
    Case("frozen tensors that change next to two data types", "frozen_changed", lambda: of_two_dtypes(frozen_end="c")),
    Case("one precision where two are demanded", "vacuous_precision", lambda: in_two_precisions("float32")),
    Case("a baseline of another precision", "vacuous_precision", lambda: in_two_precisions(theirs="float64")),
    Case("a precision that is not stated", "vacuous_precision", lambda: in_two_precisions(None)),
    Case("another trainable start in two precisions", "unequal_start", lambda: in_two_precisions(start="elsewhere")),
    Case(
        "frozen tensors that change in two precisions",
        "frozen_changed",
        lambda: in_two_precisions(frozen_end="changed"),
    ),
    Case(
        "equal at first, with other ends",
        "held",
        lambda: trajectory(
            graphed(changed(9, 1.0), end="elsewhere"),
            claim={"compare": "first", "guards": {"steps": STEPS}},
        ),
    ),
    Case(
        "different at first",
        "differs",
        lambda: trajectory(graphed(changed(0, 1.0)), claim={"compare": "first", "guards": {"steps": STEPS}}),
    ),
]

REPEATED: dict[str, Any] = {
    "kind": "repeatability",
    "candidate": "ungraphed",
    "runs": 3,
    "equality": "bitwise",
    "max_abs_difference": 1e-5,
    "guards": {"steps": STEPS},
}


def repeated(last: ArmEvidence | None = None, **claim: Any) -> Verdict:
    """Return the verdict on three runs of `ungraphed`; last: replaces the third."""
    runs = [arm("ungraphed"), arm("ungraphed", replica=1), last or arm("ungraphed", replica=2)]
    return verdict_of(REPEATED | claim, paired(*runs))


def repeated_within_a_part(last: Any) -> Verdict:
    return repeated(arm("ungraphed", last), equality="within", max_abs_difference=None, max_relative_difference=0.01)


REPEATABILITY_CASES = [
    Case("three equal runs", "held", repeated),
    Case("drift within the bound", "held", lambda: repeated(arm("ungraphed", LOSSES + 1e-6), equality="within")),
    Case("a drifting bit", "differs", lambda: repeated(arm("ungraphed", nudged(7)))),
    Case("drift", "exceeds_tolerance", lambda: repeated(arm("ungraphed", LOSSES + 1e-3), equality="within")),
    Case("drift of a part", "held", lambda: repeated_within_a_part(LOSSES * 1.009)),
    Case("drift of a larger part", "exceeds_tolerance", lambda: repeated_within_a_part(LOSSES * 1.02)),
    Case("too few runs", "evidence_missing", lambda: repeated(runs=4)),
]
