"""Judge `step_accuracy`: against a reference in higher precision, the candidate's errors do not exceed a peer's.

Gradients are compared at the candidate's parameters and on its batches. Losses are compared between arms that train
independently. docs/step-accuracy.md gives the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from harness.evidence.read_run import distinct
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.evidence.run_records import StepErrors, TensorErrors
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context
from harness.judging.end_state import note_watched
from harness.judging.series import ROUNDING, Losses, losses
from harness.judging.sheet import Sheet, number, settle, some
from harness.judging.verdict import Judgement
from harness.kinds.seeds.unequal_seeds import executions_by_seed, require_steps_with_each, require_unequal_seeds
from harness.kinds.steps.model import StepAccuracy

# The following functions compute the errors of candidate and peer against the reference, and the ratio of these errors.


@dataclass(frozen=True)
class Errors:
    """The errors of candidate and peer, in the same unit. name: the name of the quantity or tensor.

    floor: the error of rounding to the data type alone. If the peer's error is smaller, the ratio uses the floor.
    """

    name: str
    candidate: float
    peer: float
    floor: float = 0.0

    @property
    def ratio(self) -> float:
        """Return candidate / max(peer, floor). If this divisor is 0, return 0 for a candidate without an error,
        otherwise infinity."""
        measure = max(self.peer, self.floor)
        if measure == 0:
            return 0.0 if self.candidate == 0 else math.inf
        return self.candidate / measure


def gradient_errors(records: Iterable[StepErrors], floor: float = 0.0) -> list[Errors]:
    """Return the errors of each trained tensor's gradient. An error is the root mean square, over seeds and steps, of
    |gradient - reference| / |reference| in L2 norms. Gradients that are zero in all arms are left out."""
    relative: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        for tensor in record.tensors:
            if not is_zero(tensor):
                pair = _relative(tensor.candidate_error, tensor), _relative(tensor.peer_error, tensor)
                relative.setdefault(tensor.name, []).append(pair)
    return [
        Errors(
            name,
            _root_mean_square([ours for ours, _ in pairs]),
            _root_mean_square([theirs for _, theirs in pairs]),
            floor,
        )
        for name, pairs in relative.items()
    ]


def is_zero(tensor: TensorErrors) -> bool:
    """Return True if the gradient is zero in all arms, as for LoRA's matrix A while B is zero."""
    return tensor.reference_norm == tensor.candidate_error == tensor.peer_error == 0


def _relative(error: float, tensor: TensorErrors) -> float:
    if tensor.reference_norm > 0:
        return error / tensor.reference_norm
    return math.inf if error > 0 else 0.0


def _root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in values) / len(values))


def loss_errors(name: str, series: Iterable[Sequence[Losses]]) -> Errors:
    """Return, for candidate and peer, the mean absolute difference from the reference's losses over the runs' steps.

    series: for each run, the losses [steps] of candidate, peer and reference. Raises ValueError if there is no step.
    """
    differences = [(np.abs(ours - exact), np.abs(theirs - exact), np.abs(exact)) for ours, theirs, exact in series]
    candidate, peer, size = (np.concatenate(arm) for arm in zip(*differences, strict=True))
    if not len(candidate):
        raise ValueError("the mean error is undefined, because `series` contains no loss")
    return Errors(name, float(candidate.mean()), float(peer.mean()), ROUNDING * float(size.mean()))


def median_ratio(errors: Sequence[Errors]) -> float:
    """Return the median of the error ratios (`Errors.ratio`) of all tensors, or NaN if there are no tensors."""
    return float(np.median([each.ratio for each in errors])) if errors else math.nan


HIGHER_PRECISION = ("float32", "float64")
# unit roundoff of each data type, relative to the value
UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
# The executions with one seed: name of an arm (candidate, peer or reference) -> the execution of this arm.
Executions = Mapping[str, ArmEvidence]


def judge(part: StepAccuracy, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: enough steps, finite losses, precisions,
    equal starts and batches, different seeds, gradient errors, loss errors, the guards, the candidate's end state."""
    run = context.only_run("step_accuracy")
    by_seed = executions_by_seed(run, part.arms().values(), part.seeds())
    comparison = Comparison(part, context, sheet)
    comparison.captured(*(executions[part.candidate] for executions in by_seed.values()))
    sheet.count("seeds", len(by_seed))
    steps = {seed: len(losses(by_seed[seed][part.candidate])) for seed in part.loss_seeds}
    require_steps_with_each(steps, part.loss_steps, sheet)
    records = _records(part, run, by_seed)
    for executions in by_seed.values():
        _require_precisions(part, executions)
    groups = [group for seed, executions in by_seed.items() for group in _groups(part, seed, executions)]
    for group in groups:
        comparison.begin(group)
    _require_finite(part, records, sheet)
    _require_alike(part, records, sheet)
    require_unequal_seeds(part.candidate, {seed: each[part.candidate] for seed, each in by_seed.items()})
    computes_in = str(next(iter(by_seed.values()))[part.candidate].start.facts.get("dtype"))
    gradients, of_losses = gradient_errors(records, UNITS.get(computes_in, 0.0)), _loss_errors(part, by_seed)
    _note(gradients, of_losses, records, sheet)
    note_watched({part.candidate: next(iter(by_seed.values()))[part.candidate]}, sheet)
    _require_gradients(part, gradients, sheet)
    if of_losses.peer == 0:
        settle(
            reasons.VACUOUS_PRECISION, f"the losses of {part.peer} have no error, so there is nothing to compare with"
        )
    if not sheet.meets("loss_ratio", of_losses.ratio, "at most", part.loss_ratio_at_most):
        sheet.figure("exceeded_bound", "loss_ratio_at_most")
        settle(
            reasons.EXCEEDS_TOLERANCE,
            f"over {len(part.loss_seeds)} seeds, the error of the losses is {number(of_losses.candidate)}, which is "
            f"{number(of_losses.ratio)} times that of {part.peer} ({number(of_losses.peer)}); the limit is "
            f"{number(part.loss_ratio_at_most)} times",
        )
    _require_distinct_batches(part, by_seed, sheet)
    for group in groups:
        comparison.end(group)
    worst = max(gradients, key=lambda each: each.ratio)
    return comparison.held(
        f"against {part.reference}, the errors of the gradients of {len(gradients)} tensors are "
        f"{number(median_ratio(gradients))} times those of {part.peer} at the median, and {number(worst.ratio)} times "
        f"at most, in {worst.name}, over {len(part.gradient_seeds)} seeds; the errors of the losses are "
        f"{number(of_losses.ratio)} times those of {part.peer}, over {len(part.loss_seeds)} seeds"
    )


# --- what was executed -------------------------------------------------------------------------------------------


def _groups(part: StepAccuracy, seed: int, executions: Executions) -> list[Group]:
    """Return the groups of executions that are checked together for one seed. If only gradients are compared with this
    seed, peer and reference do not train. In this case only the candidate is checked for a training effect."""
    named = {f"{arm} with seed {seed}": executions[arm] for arm in (part.candidate, part.peer, part.reference)}
    candidate, peer, reference = named
    roles = {peer: "peer", reference: "reference"}
    if seed in part.loss_seeds:
        return [Group(named, roles)]
    return [Group(named, roles, own={"comparable", "trained"}), Group({candidate: named[candidate]})]


def _records(part: StepAccuracy, run: RunEvidence, by_seed: Mapping[int, Executions]) -> list[StepErrors]:
    """Return the record of each compared seed and step. End the judgement with ERROR if a record or an arm is missing,
    and with FAIL if a trained tensor was not compared."""
    wanted = sorted(product(part.gradient_seeds, part.gradient_steps))
    by_place = {(record.seed, record.step): record for record in run.step_errors}
    missing = [f"seed {seed} step {step}" for seed, step in wanted if (seed, step) not in by_place]
    if missing:
        settle(reasons.EVIDENCE_MISSING, f"gradients were not compared at {some(missing)}")
    for seed, step in wanted:
        record = by_place[seed, step]
        for told in (record.parameters, record.batches, record.losses):
            if lacking := sorted(set(part.arms().values()) - set(told)):
                settle(reasons.EVIDENCE_MISSING, f"the record of {_place(record)} lacks arm {some(lacking)}")
        names = {tensor.name for tensor in record.tensors}
        start = by_seed[seed][part.candidate].start
        trained, known = start.trainable_tensors, start.trainable_names
        if known is not None:
            names &= set(known)  # do not count gradients of tensors that are not trainable
        if len(names) < trained or len(names) < len(record.tensors):
            settle(
                reasons.TENSORS_MISSING,
                f"at {_place(record)}, the gradients of {len(names)} of {trained} trainable tensors were compared",
            )
    return [by_place[place] for place in wanted]


def _place(record: StepErrors) -> str:
    return f"seed {record.seed} step {record.step}"


def _require_finite(part: StepAccuracy, records: list[StepErrors], sheet: Sheet) -> None:
    for record in records:
        for arm in part.arms().values():
            if not math.isfinite(record.losses[arm]):
                settle(reasons.NON_FINITE, f"the loss of {arm} is {record.losses[arm]} at {_place(record)}")
        for tensor in record.tensors:
            if not all(map(math.isfinite, (tensor.reference_norm, tensor.candidate_error, tensor.peer_error))):
                sheet.figure("first_non_finite_step", record.step, "step")
                sheet.figure("first_non_finite_tensor", tensor.name)
                settle(reasons.NON_FINITE, f"a gradient of {tensor.name} is not finite at {_place(record)}")


def _require_precisions(part: StepAccuracy, executions: Executions) -> None:
    """End the judgement with FAIL unless candidate and peer have the same precision, and the reference has a higher
    precision."""
    precisions = {arm: str(each.start.facts.get("dtype")) for arm, each in executions.items()}
    ours, theirs, finest = (precisions[arm] for arm in (part.candidate, part.peer, part.reference))
    if theirs != ours:
        settle(
            reasons.VACUOUS_PRECISION,
            f"{part.peer} computes in {theirs}, but {part.candidate} in {ours}, so their errors cannot be compared",
        )
    if finest not in HIGHER_PRECISION or finest == ours:
        settle(
            reasons.VACUOUS_PRECISION, f"{part.reference} computes in {finest}, which is not more precise than {ours}"
        )
    if executions[part.reference].start.facts.get("tf32") is not False:
        settle(reasons.VACUOUS_PRECISION, f"{part.reference} does not state that its products are not rounded to TF32")


def _require_alike(part: StepAccuracy, records: list[StepErrors], sheet: Sheet) -> None:
    """End the judgement with FAIL unless all arms have equal batches and parameters at every step at which gradients
    are compared."""
    others = (part.peer, part.reference)
    for record in records:
        for arm in others:
            if record.batches[arm] != record.batches[part.candidate]:
                sheet.figure("first_unequal_step", record.step, "step")
                settle(reasons.UNEQUAL_BATCHES, f"at {_place(record)}, {arm} and the candidate read different batches")
            if record.parameters[arm] != record.parameters[part.candidate]:
                settle(
                    reasons.UNEQUAL_START, f"at {_place(record)}, the parameters of {arm} differ from the candidate's"
                )


# --- errors -------------------------------------------------------------------------------------------------------


def _loss_errors(part: StepAccuracy, by_seed: Mapping[int, Executions]) -> Errors:
    arms = (part.candidate, part.peer, part.reference)
    return loss_errors("loss", ([losses(by_seed[seed][arm]) for arm in arms] for seed in part.loss_seeds))


def _note(gradients: list[Errors], of_losses: Errors, records: list[StepErrors], sheet: Sheet) -> None:
    sheet.count("tensors", len(gradients))
    sheet.count("gradients", sum(not is_zero(tensor) for record in records for tensor in record.tensors))
    if gradients:
        worst = max(gradients, key=lambda each: each.ratio)
        middle = sorted(gradients, key=lambda each: each.ratio)[len(gradients) // 2]
        sheet.figure("median_gradient_ratio", median_ratio(gradients))
        sheet.figure("gradient_error", middle.candidate, "of the gradient's norm")
        sheet.figure("peer_gradient_error", middle.peer, "of the gradient's norm")
        sheet.figure("largest_gradient_ratio", worst.ratio)
        sheet.figure("largest_gradient_ratio_tensor", worst.name)
    sheet.figure("loss_ratio", of_losses.ratio)
    sheet.figure("loss_error", of_losses.candidate, "loss")
    sheet.figure("peer_loss_error", of_losses.peer, "loss")


def _require_gradients(part: StepAccuracy, gradients: list[Errors], sheet: Sheet) -> None:
    if not gradients:
        settle(reasons.VACUOUS_GRADIENTS_ZERO, "every compared gradient is zero")
    if not any(each.peer for each in gradients):
        settle(
            reasons.VACUOUS_PRECISION,
            f"the gradients of {part.peer} have no error, so there is nothing to compare with",
        )
    median, at_most = median_ratio(gradients), part.median_gradient_ratio_at_most
    if not sheet.meets("median_gradient_ratio", median, "at most", at_most):
        sheet.figure("exceeded_bound", "median_gradient_ratio_at_most")
        settle(
            reasons.EXCEEDS_TOLERANCE,
            f"the error of the gradients is {number(median)} times that of {part.peer} at the median of "
            f"{len(gradients)} tensors; the limit is {number(at_most)} times",
        )
    bound = part.gradient_ratio_at_most
    beyond = sorted((each for each in gradients if not each.ratio <= bound), key=lambda each: -each.ratio)
    if not sheet.meets("largest_gradient_ratio", max(each.ratio for each in gradients), "at most", bound):
        sheet.figure("exceeded_bound", "gradient_ratio_at_most")
        settle(
            reasons.EXCEEDS_TOLERANCE,
            f"the errors of {len(beyond)} of {len(gradients)} gradients are more than {number(bound)} times those of "
            f"{part.peer}; the largest is that of {beyond[0].name}: {number(beyond[0].ratio)} times",
        )


# --- guards -------------------------------------------------------------------------------------------------------


def _require_distinct_batches(part: StepAccuracy, by_seed: Mapping[int, Executions], sheet: Sheet) -> None:
    """End the judgement with FAIL if the candidate reads the same batch twice in the run with one seed."""
    seen = {seed: executions[part.candidate].series.batch_digest for seed, executions in by_seed.items()}
    sheet.figure("distinct_batches", distinct([digest for batches in seen.values() for digest in batches]), "batches")
    for seed, batches in seen.items():
        if distinct(batches) < len(batches):
            settle(
                reasons.VACUOUS_BATCHES_REPEAT,
                f"{distinct(batches)} distinct batches were read in {len(batches)} steps with seed {seed}",
            )
