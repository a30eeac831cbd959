"""Cases of not_worse: evidence that passes, with one thing changed.

The candidate is `ungraphed`, the baseline `same_system`, the control `untrained`; each of five seeds has its losses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from evidence_builders import LOSSES, STEPS, arm, counted, untrained, verdict_of
from judge_cases import Case

from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging.verdict import Verdict

SEEDS = [0, 1, 2, 3, 4]
NOT_WORSE: dict[str, Any] = {
    "kind": "not_worse",
    "candidate": "ungraphed",
    "baseline": "same_system",
    "direction": "lower_is_better",
    "last": 2,
    "margin": 0.1,
    "seeds": SEEDS,
    "confidence": 0.95,
    "guards": {
        "steps": STEPS,
        "distinct_batches": STEPS,
        "clip_active_steps": STEPS - 1,
        "training_effect": {"control": "untrained", "last": 2, "at_least": 0.2},
    },
}
NOISE = {0: 0.0, 1: 0.02, 2: -0.02, 3: 0.01, 4: -0.01}  # by which the candidate's losses lie off, by seed
NORMS = np.linspace(4.0, 0.0, STEPS)


def of_seed(seed: int) -> Any:
    """Return the baseline's losses, which start equally and then differ by seed."""
    return LOSSES - 0.05 * seed * np.linspace(0.0, 1.0, STEPS)


def batches(seed: int) -> list[str]:
    """Return the digests of the batches, which differ by seed."""
    return [f"batch{seed}.{index}" for index in range(STEPS)]


def on_one_batch(worse: float = 0.0) -> list[ArmEvidence]:
    """Return executions of both arms' system in which every step of a seed reads the same batch."""
    repeated = {seed: {"batches": batches(seed)[:1] * STEPS} for seed in SEEDS}
    return executions("ungraphed" if worse else "same_system", repeated, worse)


def executions(
    name: str, by_seed: Mapping[int, Mapping[str, Any]] | None = None, worse: float = 0.0, **all_seeds: Any
) -> list[ArmEvidence]:
    """Return an arm's executions with all seeds. by_seed: changes for some seeds. Other arguments change all."""
    found = []
    for replica, seed in enumerate(SEEDS):
        off = NOISE[seed] + worse if name == "ungraphed" else 0.0
        losses = of_seed(seed) + off * (np.arange(STEPS) > 0)
        changes: dict[str, Any] = {
            "losses": losses,
            "batches": batches(seed),
            **all_seeds,
            **(by_seed or {}).get(seed, {}),
        }
        facts = {"seed": seed, **changes.pop("facts", {})}
        found.append(arm(name, replica=replica, facts=facts, **changes))
    return found


def controls(**changes: Any) -> list[ArmEvidence]:
    return [
        untrained(replica=replica, **{"facts": {"seed": seed}, "batches": batches(seed), **changes})
        for replica, seed in enumerate(SEEDS)
    ]


def seeds(
    candidate: list[ArmEvidence] | None = None,
    baseline: list[ArmEvidence] | None = None,
    control: list[ArmEvidence] | None = None,
    **claim: Any,
) -> Verdict:
    """Return the verdict on `NOT_WORSE` with changes, over executions with all seeds."""
    arms = {
        "same_system": baseline or executions("same_system"),
        "ungraphed": candidate or executions("ungraphed"),
        "untrained": control or controls(),
    }
    return verdict_of(NOT_WORSE | claim, RunEvidence("run", "seeds", arms))


def last_worse(**by: float) -> Verdict:
    """Return the verdict if the candidate's losses are worse by these amounts with these seeds, else by their noise."""
    changed = {
        int(seed[1:]): {"losses": of_seed(int(seed[1:])) + off * (np.arange(STEPS) > 0)} for seed, off in by.items()
    }
    return seeds(executions("ungraphed", changed))


def of_norms(ours: Any, direction: str = "higher_is_better", **claim: Any) -> Verdict:
    """Return the verdict on the metric `norm`, which is `NORMS` minus 0.01 times the seed in the baseline."""
    baseline = executions("same_system", {seed: {"metrics": {"norm": NORMS - 0.01 * seed}} for seed in SEEDS})
    candidate = executions("ungraphed", {seed: {"metrics": {"norm": ours - 0.01 * seed}} for seed in SEEDS})
    return seeds(candidate, baseline, metric="norm", direction=direction, **claim)


def in_two_precisions(ours: str = "bfloat16", theirs: str = "float32", **changes: Any) -> Verdict:
    """Return the verdict on arms that declare these data types and whose frozen tensors have other bits."""
    candidate = executions("ungraphed", frozen="half", facts={"dtype": ours}, **changes)
    baseline = executions("same_system", facts={"dtype": theirs})
    return seeds(candidate, baseline, precisions={"candidate": "bfloat16", "baseline": "float32"})


def changed(seed: int, step: int, value: float) -> dict[int, dict[str, Any]]:
    """Return losses of one seed with one value replaced."""
    losses = of_seed(seed).copy()
    losses[step] = value
    return {seed: {"losses": losses}}


def without_seed(generators: Mapping[int, tuple[str | None, str]] | None = None, **differing: Any) -> Verdict:
    """Return the verdict if seeds 1 and 2 have equal starts and batches, but different losses.

    generators: by seed, a generator's state at the start and at the end. differing: changes of the start with seed 2.
    """
    alike: dict[int, dict[str, Any]] = {seed: {"batches": batches(1)} for seed in (1, 2)}
    alike[2] |= differing
    for seed, (began, ended) in (generators or {}).items():
        at_start = {"torch.cpu": "g"} | ({} if began is None else {"torch.cuda:0": began})
        alike[seed]["start_state"] = {"generators": at_start}
        alike[seed]["end_state"] = {"generators": {"torch.cpu": "g", "torch.cuda:0": ended}}
    control = controls()
    for seed, each in alike.items():
        of_control = {**each, "facts": {"seed": seed}, "end": each.get("start", "start"), "end_state": {}}
        control[seed] = untrained(replica=seed, **of_control)
    return seeds(executions("ungraphed", alike), executions("same_system", alike), control)


def capturing(name: str) -> list[ArmEvidence]:
    """Return executions of an arm, declared uncaptured, in which the harness saw a capture begin with each seed."""
    return [counted(execution, 1) for execution in executions(name)]


ALIKE = {1: {"losses": of_seed(0)}}
SEED_CASES = [
    Case("no worse", "held", seeds),
    Case(
        "plain arms that capture of their own accord",
        "held",
        lambda: seeds(capturing("ungraphed"), capturing("same_system")),
    ),
    Case("better by far", "held", lambda: seeds(executions("ungraphed", worse=-0.5))),
    Case("worse by far", "worse", lambda: seeds(executions("ungraphed", worse=0.5))),
    Case("worse by far, on one batch", "vacuous_batches_repeat", lambda: seeds(on_one_batch(0.5), on_one_batch())),
    Case("worse by about the margin", "undecided_difference", lambda: seeds(executions("ungraphed", worse=0.1))),
    Case("worse by nearly the margin", "undecided_difference", lambda: seeds(executions("ungraphed", worse=0.085))),
    Case("one seed beyond the margin", "undecided_difference", lambda: last_worse(s4=0.11)),
    Case("worse within a part", "held", lambda: seeds(margin=None, relative_margin=0.05)),
    Case(
        "worse beyond a part",
        "worse",
        lambda: seeds(executions("ungraphed", worse=0.5), margin=None, relative_margin=0.05),
    ),
    Case("another metric, higher", "held", lambda: of_norms(NORMS + 0.5)),
    Case("another metric, lower", "worse", lambda: of_norms(NORMS - 0.5)),
    Case("another metric, lower is better", "held", lambda: of_norms(NORMS - 0.5, "lower_is_better")),
    Case("a part of 0 is nothing", "worse", lambda: of_norms(NORMS - 0.1, last=1, margin=None, relative_margin=0.9)),
    Case("a seed just at its part", "held", lambda: of_norms(NORMS, last=1, margin=None, relative_margin=0.9)),
    Case("a metric that is not reported", "capability_missing", lambda: seeds(metric="accuracy")),
    Case("a metric that never moves", "vacuous_constant_metric", lambda: of_norms(np.ones(STEPS))),
    Case("NaN in the metric", "non_finite", lambda: of_norms(np.where(NORMS > 3.9, math.nan, NORMS))),
    Case("another seed", "evidence_inconsistent", lambda: seeds(executions("ungraphed", {2: {"facts": {"seed": 7}}}))),
    Case("a seed that is missing", "evidence_missing", lambda: seeds(executions("ungraphed")[:4])),
    Case(
        "two seeds alike",
        "vacuous_seeds_alike",
        lambda: seeds(executions("ungraphed", ALIKE), executions("same_system", ALIKE)),
    ),
    Case("two seeds that change nothing", "vacuous_seeds_alike", without_seed),
    Case(
        "two seeds that change a generator at rest",
        "vacuous_seeds_alike",
        lambda: without_seed({1: ("g1", "g1"), 2: ("g2", "g2")}),
    ),
    Case("one start of a generator", "vacuous_seeds_alike", lambda: without_seed({1: ("g", "h1"), 2: ("g", "h2")})),
    Case(
        "one start of a generator used with one seed",
        "vacuous_seeds_alike",
        lambda: without_seed({1: ("g", "h"), 2: ("g", "g")}),
    ),
    Case(
        "one start of a generator used with the other seed",
        "vacuous_seeds_alike",
        lambda: without_seed({1: ("g", "g"), 2: ("g", "h")}),
    ),
    Case("one start, other draws", "held", lambda: without_seed({1: ("g1", "h1"), 2: ("g2", "h2")})),
    Case("one start, other draws to one end", "held", lambda: without_seed({1: ("g1", "h"), 2: ("g2", "h")})),
    Case("other draws, first seen at the end", "held", lambda: without_seed({1: (None, "h1"), 2: (None, "h2")})),
    Case("the same batches from another start", "held", lambda: without_seed(start="elsewhere")),
    Case("the same batches next to other frozen tensors", "held", lambda: without_seed(frozen="other")),
    Case(
        "the same batches next to other noise in a table",
        "held",
        lambda: without_seed(start_state={"tensors": {"noise": "n"}}, end_state={"tensors": {"noise": "n"}}),
    ),
    Case("too few steps", "vacuous_steps", lambda: seeds(guards=NOT_WORSE["guards"] | {"steps": STEPS + 1})),
    Case("fewer steps than are averaged", "vacuous_steps", lambda: seeds(last=STEPS + 1)),
    Case("two precisions", "held", in_two_precisions),
    Case("one precision where two are demanded", "vacuous_precision", lambda: in_two_precisions("float32")),
    Case("another precision of the baseline", "vacuous_precision", lambda: in_two_precisions(theirs="float64")),
    Case("too few seeds for the confidence", "too_few_seeds", lambda: seeds(confidence=0.99)),
    Case("no run", "evidence_missing", lambda: verdict_of(NOT_WORSE)),
]
