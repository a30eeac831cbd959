"""Cases of step_accuracy: evidence that passes, with one thing changed.

The candidate is `ungraphed`, the peer `other_system`, the reference `same_system`. Seeds 0 and 2 have losses, seeds 0
and 1 gradients of the tensors `a` and `b` at steps 1 and 9. All errors of the candidate are half of the peer's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evidence_builders import LOSSES, STEPS, arm, graphed, unrecorded, verdict_of
from judge_cases import Case

from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.evidence.run_records import StepErrors, TensorErrors
from harness.judging.verdict import Verdict

ACCURACY: dict[str, Any] = {
    "kind": "step_accuracy",
    "candidate": "ungraphed",
    "peer": "other_system",
    "reference": "same_system",
    "gradient_seeds": [0, 1],
    "gradient_steps": [1, 9],
    "median_gradient_ratio_at_most": 1.5,
    "gradient_ratio_at_most": 2.0,
    "loss_seeds": [0, 2],
    "loss_steps": STEPS,
    "loss_ratio_at_most": 1.25,
}
SEEDS = (0, 1, 2)
ARMS = {"ungraphed": ("bfloat16", 0.25), "other_system": ("bfloat16", 0.5), "same_system": ("float64", 0.0)}


def executions(
    name: str, of_seed: Mapping[int, Mapping[str, Any]] | None = None, **all_seeds: Any
) -> list[ArmEvidence]:
    """Return an arm's executions with all seeds. of_seed: changes for some seeds. Other arguments change all."""
    dtype, error = ARMS[name]
    found = []
    for replica, seed in enumerate(SEEDS):
        losses = LOSSES + error if seed != 1 or name == "ungraphed" else LOSSES[:0]
        changes: dict[str, Any] = {"facts": {}, "losses": losses, **all_seeds, **(of_seed or {}).get(seed, {})}
        changes.setdefault("batches", [f"batch{seed}.{index}" for index in range(len(changes["losses"]))])
        facts = {"seed": seed, "dtype": dtype, "tf32": False, **changes.pop("facts")}
        execution = arm(name, replica=replica, facts=facts, **changes)
        found.append(execution if name == "ungraphed" else without_state(execution))
    return found


def without_state(execution: ArmEvidence) -> ArmEvidence:
    """Return the execution without states, as peer and reference are recorded."""
    start = execution.start.model_copy(update={"state": None})
    end = execution.end and execution.end.model_copy(update={"state": None})
    return replace(execution, start=start, end=end)


def tensor(name: str, ours: float = 0.5, theirs: float = 1.0, norm: float = 8.0) -> TensorErrors:
    return TensorErrors(name=name, reference_norm=norm, candidate_error=ours, peer_error=theirs)


def step(seed: int, index: int, **changes: Any) -> StepErrors:
    """Return the errors of both tensors in a step, from equal parameters on equal batches."""
    return StepErrors(
        **{
            "seed": seed,
            "step": index,
            "parameters": dict.fromkeys(ARMS, "p"),
            "batches": dict.fromkeys(ARMS, "b"),
            "losses": dict.fromkeys(ARMS, 2.5),
            "tensors": [tensor("a"), tensor("b")],
            **changes,
        }
    )


def accurate(
    claim: dict[str, Any] | None = None, records: list[StepErrors] | None = None, **arms: dict[str, Any]
) -> Verdict:
    """Return the verdict on passing evidence, with these records of steps and these changes of arms."""
    steps = [step(0, 1), step(0, 9), step(1, 1), step(1, 9)] if records is None else records
    evidence = {name: executions(name, **arms.get(name, {})) for name in ARMS}
    return verdict_of(ACCURACY | (claim or {}), RunEvidence("run", "step_accuracy", evidence, step_errors=steps))


def every(**changes: Any) -> list[StepErrors]:
    """Return all four records with the same change."""
    return [step(seed, index, **changes) for seed in (0, 1) for index in (1, 9)]


def last(**changes: Any) -> list[StepErrors]:
    """Return the records with the last one changed."""
    return [*every()[:-1], step(1, 9, **changes)]


def of_arms(**changed: Any) -> dict[str, Any]:
    return {**dict.fromkeys(ARMS, "b"), **changed}


def only_losses(**changes: Any) -> dict[str, Any]:
    """Return a change of the two executions whose losses are compared."""
    return {"of_seed": {0: changes, 2: changes}}


def off(error: float) -> dict[str, Any]:
    """Return a change that moves an arm's losses by `error` from the reference's."""
    return only_losses(losses=LOSSES + error)


def of_seed(seed: int, **changes: Any) -> dict[str, Any]:
    """Return a change of an arm's execution with one seed."""
    return {"of_seed": {seed: changes}}


def both(ours: TensorErrors | None = None, theirs: TensorErrors | None = None) -> dict[str, Any]:
    """Return the tensors `a` and `b` of a record."""
    return {"tensors": [ours or tensor("a"), theirs or tensor("b")]}


def _shorter() -> dict[str, Any]:
    """Return changes that let all arms stop one step early with seed 2."""
    return {name: of_seed(2, losses=LOSSES[:-1] + error) for name, (_, error) in ARMS.items()}


def _one_batch() -> dict[str, Any]:
    """Return changes that let all arms read one batch repeatedly with seed 0."""
    return {name: of_seed(0, batches=["batch0"] * STEPS) for name in ARMS}


REFERENCE, PEER = "same_system", "other_system"
ACCURACY_CASES = [
    Case("errs half as much", "held", accurate),
    Case("errs as much", "held", lambda: accurate(records=every(tensors=[tensor("a", 1.0), tensor("b", 1.0)]))),
    Case("losses within rounding", "held", lambda: accurate(ungraphed=off(1e-6), other_system=off(1e-7))),
    Case(
        "no more than bfloat16 rounds",
        "held",
        lambda: accurate(records=every(**both(theirs=tensor("b", 0.03125, 1e-9)))),
    ),
    Case("a gradient of zeros", "held", lambda: accurate(records=last(**both(theirs=tensor("b", 0, 0, 0))))),
    Case("at the bound of the losses", "held", lambda: accurate(ungraphed=off(0.625))),
    Case(
        "at the bound of the median",
        "held",
        lambda: accurate(records=every(tensors=[tensor("a", 1.0), tensor("b", 2.0)])),
    ),
    Case(
        "beyond the median's bound",
        "exceeds_tolerance",
        lambda: accurate(records=every(tensors=[tensor("a", 1.125), tensor("b", 2.0)])),
    ),
    Case(
        "one tensor beyond",
        "exceeds_tolerance",
        lambda: accurate(records=every(tensors=[tensor("a", 0.25), tensor("b", 2.125)])),
    ),
    Case(
        "one tensor at one step",
        "exceeds_tolerance",
        lambda: accurate(
            records=last(tensors=[tensor("a", 0.25), tensor("b", 8.0)]), claim={"gradient_ratio_at_most": 4.0}
        ),
    ),
    Case(
        "an error where the peer has none",
        "exceeds_tolerance",
        lambda: accurate(records=every(**both(theirs=tensor("b", 0.125, 0.0)))),
    ),
    Case(
        "an error where the gradient is zero",
        "exceeds_tolerance",
        lambda: accurate(records=every(**both(theirs=tensor("b", 1e-9, 0.0, 0.0)))),
    ),
    Case("losses beyond", "exceeds_tolerance", lambda: accurate(ungraphed=off(-0.6875))),
    Case(
        "losses of one seed beyond",
        "exceeds_tolerance",
        lambda: accurate(ungraphed=of_seed(2, losses=LOSSES + 2.0)),
    ),
    Case("a peer without a loss error", "vacuous_precision", lambda: accurate(other_system=only_losses(losses=LOSSES))),
    Case(
        "a peer without an error of a gradient",
        "vacuous_precision",
        lambda: accurate(records=every(tensors=[tensor("a", 0.0, 0.0), tensor("b", 0.0, 0.0)])),
    ),
    Case(
        "all gradients zero",
        "vacuous_gradients_zero",
        lambda: accurate(records=every(tensors=[tensor("a", 0, 0, 0), tensor("b", 0, 0, 0)])),
    ),
    Case("fewer steps", "vacuous_steps", lambda: accurate(claim={"loss_steps": STEPS}, **_shorter())),
    Case("a NaN gradient", "non_finite", lambda: accurate(records=last(**both(theirs=tensor("b", math.nan))))),
    Case(
        "a NaN reference gradient",
        "non_finite",
        lambda: accurate(records=last(**both(theirs=tensor("b", norm=math.nan)))),
    ),
    Case(
        "a NaN loss at a point",
        "non_finite",
        lambda: accurate(records=last(losses=dict.fromkeys(ARMS, math.nan))),
    ),
    Case(
        "a frozen tensor instead of a trained one",
        "tensors_missing",
        lambda: accurate(records=every(**both(theirs=tensor("frozen")))),
    ),
    Case("a peer of more bits", "vacuous_precision", lambda: accurate(other_system={"facts": {"dtype": "float32"}})),
    Case("a reference of as few", "vacuous_precision", lambda: accurate(same_system={"facts": {"dtype": "bfloat16"}})),
    Case(
        "a candidate of the reference's bits",
        "vacuous_precision",
        lambda: accurate(ungraphed={"facts": {"dtype": "float64"}}, other_system={"facts": {"dtype": "float64"}}),
    ),
    Case(
        "a reference with TF32 with the last seed alone",
        "vacuous_precision",
        lambda: accurate(same_system=of_seed(2, facts={"tf32": True})),
    ),
    Case("a reference with TF32", "vacuous_precision", lambda: accurate(same_system={"facts": {"tf32": True}})),
    Case("another start", "unequal_start", lambda: accurate(other_system=of_seed(1, start="other"))),
    Case(
        "other parameters at a point",
        "unequal_start",
        lambda: accurate(records=last(parameters=of_arms(same_system="p2"))),
    ),
    Case(
        "another batch at a point",
        "unequal_batches",
        lambda: accurate(records=last(batches=of_arms(other_system="b2"))),
    ),
    Case(
        "two seeds that change nothing",
        "vacuous_seeds_alike",
        lambda: accurate(
            None, None, **dict.fromkeys(ARMS, of_seed(2, batches=[f"batch0.{index}" for index in range(STEPS)]))
        ),
    ),
    Case("a tensor missing", "tensors_missing", lambda: accurate(records=last(tensors=[tensor("a")]))),
    Case(
        "a tensor twice",
        "tensors_missing",
        lambda: accurate(records=last(tensors=[tensor("a"), tensor("a"), tensor("b")])),
    ),
    Case(
        "a moment ends NaN",
        "non_finite_end",
        lambda: accurate(ungraphed=of_seed(1, end_state={"optimizer": {"p0.exp_avg": "m!"}})),
    ),
    Case("one batch", "vacuous_batches_repeat", lambda: accurate(**_one_batch())),
    Case("another seed", "evidence_inconsistent", lambda: accurate(other_system=of_seed(1, facts={"seed": 7}))),
    Case("a step not compared", "evidence_missing", lambda: accurate(records=every()[:-1])),
    Case("an arm without digest", "evidence_missing", lambda: accurate(records=last(parameters={"ungraphed": "p"}))),
    Case("an arm without loss", "evidence_missing", lambda: accurate(records=last(losses={"ungraphed": 2.5}))),
    Case("no run", "evidence_missing", lambda: verdict_of(ACCURACY, RunEvidence("run", "paired", {}))),
    Case(
        "a captured candidate without its record",
        "evidence_missing",
        lambda: verdict_of(
            ACCURACY | {"candidate": "graphed"},
            RunEvidence(
                "run",
                "step_accuracy",
                {
                    "graphed": [unrecorded(graphed(replica=at, facts={"seed": seed})) for at, seed in enumerate(SEEDS)],
                    **{name: executions(name) for name in (PEER, REFERENCE)},
                },
            ),
        ),
    ),
]
