"""Judge `accumulation`: a step over k micro-batches equals a step on the whole batch, except for rounding.

The evidence contains the digest of each micro-batch and the numbers of updates that the optimizers counted. Gradients,
gradient norms before the clip, and losses are compared with those of an arm that processes the same batch at once. A
wrong step may add the gradients of micro-batches instead of averaging them. With a clip or with Adam, the wrong step
may make the updates of a correct step, but the norms before the clip show the fault.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, end_of, executed
from harness.judging.end_state import note_watched
from harness.judging.series import losses
from harness.judging.sheet import Sheet, number, settle, some
from harness.judging.verdict import Judgement
from harness.kinds.gradients.compared_gradients import Compared, compared_tensors, records_of, require_most_compared
from harness.kinds.gradients.gradient_match import (
    require_every_tensor,
    require_finite_gradients,
    require_gradients,
)
from harness.kinds.gradients.model import Accumulation


class Apart(NamedTuple):
    """The difference between the arms in one quantity of a step, relative to the baseline's value.

    The candidate processes a batch in micro-batches, the baseline the whole batch at once.
    """

    step: int
    quantity: str  # `loss`, `norms` or `gradients`; judged in this order, because a difference may explain later ones
    relative: float
    where: str


_ORDER = ("loss", "norms", "gradients")


def judge(part: Accumulation, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks, in order: a replayed capture, finite losses, equal starts and
    batches, finite gradients, micro-batches, updates, losses, norms, gradients, that training had an effect."""
    run = context.only_run("paired")
    candidate, baseline = executed(run, part.candidate), executed(run, part.baseline)
    named = {f"baseline {part.baseline}": baseline, f"candidate {part.candidate}": candidate}
    same_system = context.same_system(part.candidate, part.baseline)
    comparison, group = Comparison(part, context, sheet), Group(named, same_formats=same_system)
    comparison.captured(candidate, baseline)
    comparison.named_alike(group)
    records = records_of(part, candidate)
    compared = list(compared_tensors(part, records, baseline))
    sheet.count("steps", len(records))
    sheet.count("tensors", len({entry.tensor for entry in compared}))

    note_watched(named, sheet)
    comparison.begin(group)
    require_finite_gradients([*records, *(each for each in baseline.gradients if each.step in part.steps)], sheet)
    _require_micro_batches(part, candidate, sheet)
    _require_one_update(part, candidate, sheet)
    found = sorted(
        _apart(part, candidate, baseline, compared), key=lambda each: (each.step, _ORDER.index(each.quantity))
    )
    _require_one_batch(part, found, sheet)
    require_every_tensor(candidate, records, baseline)
    require_gradients(records)
    if not any(entry.differs for entry in compared):
        settle(
            reasons.VACUOUS_ONE_BATCH,
            f"all gradients of {part.candidate} and {part.baseline} are equal in bits, so both arms compute the batch "
            "in the same way, or nothing is rounded",
        )
    comparison.end(group)
    require_most_compared(compared, part.max_relative_difference)
    worst = max(each.relative for each in found)
    return comparison.held(
        f"in each of {len(candidate.series.loss)} steps, {part.candidate} read {part.micro_batches} different "
        "micro-batches and updated once; the gradients and losses differ from those of one batch by at most "
        f"{number(worst)} (relative)"
    )


def _require_micro_batches(part: Accumulation, candidate: ArmEvidence, sheet: Sheet) -> None:
    steps = len(candidate.series.loss)
    seen = {
        block.first_step + offset: digests
        for block in candidate.micro_batches
        for offset, digests in enumerate(block.digests)
    }
    # Also compare the number of records. `seen` contains a step only once, even if the step was recorded twice.
    recorded = sum(len(block.digests) for block in candidate.micro_batches)
    if sorted(seen) != list(range(steps)) or recorded != steps:
        settle(
            reasons.EVIDENCE_MISSING,
            f"micro-batches were recorded for {recorded} of {steps} steps of {part.candidate}",
        )
    sheet.count("micro_batches", sum(map(len, seen.values())))
    demanded = part.micro_batches
    odd = [step for step in range(steps) if len(seen[step]) != demanded]
    count = len(seen[odd[0]]) if odd else demanded
    if not sheet.meets("micro_batches", count, "exactly", demanded, "micro-batches", beside=True):
        sheet.figure("micro_batches", count, "micro-batches")
        sheet.figure("first_unequal_step", odd[0], "step")
        settle(
            reasons.MICRO_BATCH_COUNT,
            f"at step {odd[0]}, {part.candidate} read {count} micro-batches, but {demanded} are required "
            "(micro-batches are counted along the first dimension of the inputs)",
        )
    sheet.figure("micro_batches", part.micro_batches, "micro-batches")
    for step in range(steps):
        again = [place for place, digest in enumerate(seen[step]) if digest in seen[step][:place]]
        if again:
            sheet.figure("first_repeating_step", step, "step")
            settle(
                reasons.MICRO_BATCHES_REPEAT,
                f"at step {step}, {part.candidate} read one micro-batch {max(Counter(seen[step]).values())} times: "
                f"micro-batch {again[0]}, counted from 0, repeats an earlier one",
            )


def _require_one_update(part: Accumulation, candidate: ArmEvidence, sheet: Sheet) -> None:
    steps, updates = len(candidate.series.loss), end_of(candidate).updates
    if updates is None:
        settle(reasons.EVIDENCE_MISSING, f"the counters of updates of {part.candidate} were not recorded")
    if not updates:
        sheet.leave_open(
            reasons.UPDATES_UNCOUNTED,
            f"no optimizer of {part.candidate} counts its updates; add a tensor `updates` that counts them to the "
            "arm's state",
        )
        return
    # Use the largest number of updates. A tensor that has no gradient in some steps, such as the weight of an unused
    # expert, has fewer updates.
    made = max(updates)
    sheet.figure("updates", made, "updates")
    if not sheet.meets("updates", made, "exactly", steps, "updates", beside=True):
        each = made // steps if steps and made % steps == 0 else None
        sheet.figure("updates_in_a_step", each, "updates")
        settle(
            reasons.UPDATE_COUNT,
            f"the optimizers of {part.candidate} counted {made} updates in {steps} steps"
            + (f", {each} in each" if each is not None else ""),
        )


def _apart(
    part: Accumulation, candidate: ArmEvidence, baseline: ArmEvidence, compared: list[Compared]
) -> Iterator[Apart]:
    ours, theirs = losses(candidate), losses(baseline)
    for step in sorted(part.steps):
        if step >= len(ours):
            settle(
                reasons.EVIDENCE_MISSING,
                f"step {step} must be compared, but {part.candidate} made only {len(ours)} steps",
            )
        yield Apart(step, "loss", _relative(float(ours[step]), float(theirs[step])), "the mean loss")
    norms = {each.start.arm: _norms(each) for each in (candidate, baseline)}
    for step in sorted(part.steps):
        mine, other = (norms[arm].get(step, {}) for arm in (part.candidate, part.baseline))
        if mine.keys() != other.keys():
            settle(
                reasons.EVIDENCE_MISSING,
                f"at step {step}, only one arm has norms of {some(sorted(mine.keys() ^ other.keys()))}",
            )
        for group, before in mine.items():
            yield Apart(step, "norms", _relative(before, other[group]), f"the norm of {group}")
    for entry in compared:
        # Leave out gradients that would be zero without rounding, such as that of a bias before a normalization layer.
        if not (entry.rounded and entry.relative > part.max_relative_difference):
            yield Apart(entry.step, "gradients", entry.relative, f"the gradient of {entry.tensor}")


def _norms(execution: ArmEvidence) -> dict[int, dict[str, float]]:
    return {record.step: {group.group: group.before for group in record.groups} for record in execution.gradients}


def _relative(ours: float, theirs: float) -> float:
    apart = abs(ours - theirs)
    return apart / abs(theirs) if theirs else (math.inf if apart else 0.0)


def _require_one_batch(part: Accumulation, found: list[Apart], sheet: Sheet) -> None:
    largest = {
        f"{quantity}_relative_difference": max(values)
        for quantity in _ORDER
        if (values := [each.relative for each in found if each.quantity == quantity])
    }
    for name, value in largest.items():
        sheet.figure(name, value)
    bound = part.max_relative_difference
    if all(sheet.meets(name, value, "at most", bound) for name, value in largest.items()):
        return
    beyond = [each for each in found if not each.relative <= bound]
    first = beyond[0]
    sheet.figure("first_exceeding_step", first.step, "step")
    sheet.figure("first_exceeding_quantity", first.quantity)
    settle(
        reasons.DIFFERS_FROM_ONE_BATCH,
        f"at step {first.step}, {first.where} of {part.candidate} differs from that of one batch ({part.baseline}) by "
        f"{number(first.relative)} (relative), but {number(bound)} is allowed; the bound is exceeded by "
        f"{some([f'{each.where} at step {each.step}' for each in beyond])}",
    )
