"""Judge `gradient_match`: the gradients of all trainable tensors agree at chosen steps, and clipped norms are bounded.

For each gradient, the evidence contains a digest, the largest absolute value, and the largest absolute difference from
the baseline's gradient. The relative difference is this difference divided by the largest absolute value of the
baseline's gradient. Some gradients would be zero without rounding, such as those of biases before BatchNorm and of the
biases of attention's keys. Therefore a relative difference may exceed its bound if the absolute difference is at most
`ROUNDING` times the step's largest gradient. If most tensors of a step need this exception, the claim is undecided.

A step may change gradients after the backward pass, for example by a clip. After a clip, gradients no longer show a
wrong scale. Changed gradients are therefore also compared as they were after the backward pass. Gradients that an
optimizer overwrote in either arm are compared only as they were after the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from harness.evidence.arm_records import Gradients, TensorReduction
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, end_of, executed
from harness.judging.controls import require_nudged_alone
from harness.judging.end_state import note_watched
from harness.judging.guards import require_active_clip
from harness.judging.series import ROUNDING
from harness.judging.sheet import Sheet, number, settle, some
from harness.judging.verdict import Judgement
from harness.kinds.gradients.compared_gradients import (
    Compared,
    beside_control,
    compared_tensors,
    norms_of,
    records_of,
    require_most_compared,
)
from harness.kinds.gradients.model import ClippedNorm, GradientMatch
from harness.numbers import counted, was

_WHY_NONE = (
    "the step may set gradients to None at its end; then call `zero_grad` at the beginning of a step, which "
    "keeps the gradients of the last step readable. Or the step frees each gradient in the backward pass, or "
    "differentiates a function, and so has no gradients to read; then take this claim out of the contract, "
    "because the claim about the losses compares the ends, too"
)


def judge(part: GradientMatch, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: a replayed capture, finite losses, equal
    starts, equal batches, finite gradients, the differences between gradients, the clipped norms, the guards."""
    run = context.only_run("paired")
    candidate = executed(run, part.candidate)
    named = {f"candidate {part.candidate}": candidate}
    comparison = Comparison(part, context, sheet)
    comparison.captured(candidate)
    baseline = candidate if part.baseline is None else executed(run, part.baseline)
    if part.baseline is not None:
        comparison.captured(baseline)
        named[f"baseline {part.baseline}"] = baseline
    same_system = part.baseline is None or context.same_system(part.candidate, part.baseline)
    group = Group(
        named,
        same_system=same_system,
        same_formats=same_system,
        more_in=f"candidate {part.candidate}" if part.equality == "within" else None,
        bits=part.equality == "bitwise",
    )
    comparison.named_alike(group)
    records, left_out = judged_records(part, candidate, baseline), ""
    if skipped := {record.step for record in records_of(part, candidate)} - {record.step for record in records}:
        sheet.figure("skipped_together", len(skipped), "steps")
        left_out = f"; both arms skip the update of {counted(len(skipped), 'other compared step')}"
    compared = list(compared_tensors(part, records, baseline)) if part.baseline is not None else []
    if part.baseline is not None and part.control is not None:
        compared = beside_control(part, compared, executed(run, part.control), baseline)
    _note(part, records, compared, sheet)
    if part.baseline is not None and (norms := norms_of(records, baseline)):
        first = next((entry.step for entry in compared if entry.made and entry.differs), min(norms))
        ours, theirs = norms.get(first, norms[min(norms)])
        sheet.figure("norm_before_clip", ours, "norm")
        sheet.figure("baseline_norm_before_clip", theirs, "norm")

    note_watched(named, sheet)
    comparison.begin(group)
    require_finite_gradients(records, sheet)
    if part.baseline is not None and part.control is not None:
        require_nudged_alone(executed(run, part.control), f"baseline {part.baseline}", baseline, sheet)
    if part.baseline is not None:
        _require_some_left(candidate, baseline)
    _require_agreement(part, compared, sheet, norms_of(records, baseline) if part.baseline is not None else {})
    if part.clipped_norm is not None:
        _require_same_groups(records)
        if part.baseline is not None and same_system:
            _require_groups_of(baseline, records)
        _require_clipped(part.clipped_norm, records, sheet, compared=bool(compared))
    if part.baseline is not None:
        require_every_tensor(candidate, records, baseline)
        require_gradients(records)
    _require_clips(part, named, records, sheet)
    comparison.end(group)
    _require_told_from_rounding(part, compared)
    excused = {(entry.step, entry.tensor) for entry in _as_control(part, compared)}
    others = [entry for entry in compared if (entry.step, entry.tensor) not in excused]
    require_most_compared(others, part.max_relative_difference if part.equality == "within" else None)
    unseen = "" if part.baseline is None else _unseen(part, records, baseline)
    return comparison.held(_sentence(part, records, compared) + left_out + unseen)


def judged_records(part: GradientMatch, candidate: ArmEvidence, baseline: ArmEvidence) -> list[Gradients]:
    """Return the candidate's gradients at the compared steps, without steps whose update both arms skipped."""
    records = records_of(part, candidate)
    skipped = _skipped_together(records, candidate, baseline) if part.baseline is not None else set()
    return [record for record in records if record.step not in skipped]


def _unseen(part: GradientMatch, records: list[Gradients], baseline: ArmEvidence) -> str:
    """Return a clause for a message. The clause names the arm whose gradients before a clip were not recorded. Return
    "" if these gradients are missing in neither arm or in both arms."""
    seen = {part.candidate: {record.step for record in records if record.made_norm is not None}}
    seen[part.baseline or ""] = {record.step for record in baseline.gradients if record.made_norm is not None}
    compared = {record.step for record in records}
    without = [arm for arm, steps in seen.items() if compared - steps]
    return f"; the gradients of {without[0]} before a clip were not recorded" if len(without) == 1 else ""


def _skipped_together(records: list[Gradients], *arms: ArmEvidence) -> set[int]:
    """Return the steps whose update both arms skipped because gradients overflowed under a dynamic loss scale.

    Three conditions must hold in each arm, otherwise the result is empty: its counters of updates confirm the skips, it
    made an update in most steps, and the gradients of the last compared step did not overflow. If an arm has no counter
    of updates, end the judgement with INCONCLUSIVE.
    """
    overflowed = {
        record.step
        for record in records
        if any(not math.isfinite(tensor.max_abs) for tensor in record.tensors)
        and any(not math.isfinite(tensor.baseline_max_abs or 0.0) for tensor in record.tensors)
    }
    if not overflowed or records[-1].step in overflowed:
        return set()
    for arm in arms:
        steps, updates = end_of(arm).steps_called, end_of(arm).updates
        if updates == []:
            settle(
                reasons.UPDATES_UNCOUNTED,
                f"gradients of both arms are not finite at step {min(overflowed)}, and no optimizer of {arm.start.arm} "
                "counts its updates, so nothing shows whether the arm skipped this update; add a tensor `updates` that "
                "counts them to the arm's state",
            )
        skipped = steps - max(updates or [steps])
        if skipped < len(overflowed) or 2 * skipped >= steps:
            return set()
    return overflowed


def _require_some_left(candidate: ArmEvidence, baseline: ArmEvidence) -> None:
    """End the judgement with NOT_RUN if no gradient can be read after the steps of an arm.

    A step of such an arm ends with `optimizer.zero_grad()`, frees each gradient after its parameter's update, or
    differentiates a function and never sets `.grad`. If all gradients are zero but every tensor was trained, the
    gradients also count as unreadable, because `zero_grad(set_to_none=False)` sets them to zero.
    """
    arms = (candidate, baseline)
    left = [tensor for arm in arms for record in arm.gradients for tensor in record.tensors]
    zeros = not any(max(_values(tensor)) for tensor in left)
    cleared = zeros and all(arm.start.trainable_names and _changed(arm) >= {*arm.start.trainable_names} for arm in arms)
    if baseline.gradients and cleared:
        settle(
            reasons.CAPABILITY_MISSING,
            f"no step of {candidate.start.arm} or {baseline.start.arm} leaves a gradient to read: both arms train, but "
            "every gradient is zero after the step, for example because of `zero_grad(set_to_none=False)` at the end "
            "of the step; call `zero_grad` at the beginning of a step, or take this claim out of the contract, because "
            "the claim about the losses compares the ends, too",
        )
    if baseline.gradients and not left:
        settle(
            reasons.CAPABILITY_MISSING,
            f"no step of {candidate.start.arm} or {baseline.start.arm} leaves a gradient to read: {_WHY_NONE}",
        )
    for arm, other in (arms, arms[::-1]):
        if _says_none(arm):
            settle(
                reasons.CAPABILITY_MISSING,
                f"no step of {arm.start.arm} leaves a gradient to read, but the steps of {other.start.arm} do: "
                f"{_WHY_NONE}",
            )


def _says_none(arm: ArmEvidence) -> bool:
    """Return True if no trainable tensor of the arm had a gradient at any recorded step."""
    trained = arm.start.trainable_tensors
    return trained > 0 and arm.gradients != [] and all(len(record.without) == trained for record in arm.gradients)


def _note(part: GradientMatch, records: list[Gradients], compared: list[Compared], sheet: Sheet) -> None:
    sheet.count("steps", len(records))
    if part.baseline is not None:
        sheet.count("tensors", len({entry.tensor for entry in compared}))
    if part.clipped_norm is not None:
        sheet.count("groups", sum(len(record.groups) for record in records))
    if compared:
        worst = max(compared, key=lambda entry: (math.isnan(entry.absolute), entry.absolute))
        sheet.figure("max_abs_difference", worst.absolute, "gradient")
        sheet.figure("max_abs_difference_tensor", worst.tensor)
        sheet.figure("max_abs_difference_step", worst.step, "step")
        sheet.figure("max_relative_difference", max(entry.relative for entry in compared))
        rounded = _rounded(part, compared)
        # Leave out the figure if it is 0, because older verdicts do not have this figure and must stay the same
        if rounded:
            sheet.figure("rounding_tensors", len(rounded), "tensors")
        sheet.figure("tensors_differing", len({entry.tensor for entry in compared if entry.differs}), "tensors")
    if compared and part.equality == "bitwise" and part.max_abs_difference is not None:
        bound = part.max_abs_difference
        sheet.figure("within_upstream_tolerance", all(entry.absolute <= bound for entry in compared))


def _rounded(part: GradientMatch, compared: list[Compared]) -> set[str]:
    """Return the names of tensors that exceed the relative bound, but whose difference may come from rounding alone."""
    bound = math.inf if part.equality == "bitwise" else (part.max_relative_difference or math.inf)
    return {entry.tensor for entry in compared if entry.rounded and entry.relative > bound}


def require_finite_gradients(records: list[Gradients], sheet: Sheet) -> None:
    """End the judgement with FAIL if a gradient or a norm is NaN or infinite."""
    for record in records:
        for tensor in record.tensors:
            values = _values(tensor)
            if not all(math.isfinite(value) for value in values):
                sheet.figure("first_non_finite_step", record.step, "step")
                sheet.figure("first_non_finite_tensor", tensor.name)
                settle(reasons.NON_FINITE, f"the gradient of {tensor.name} is not finite at step {record.step}")
        for group in record.groups:
            if not (math.isfinite(group.before) and math.isfinite(group.after)):
                sheet.figure("first_non_finite_step", record.step, "step")
                settle(
                    reasons.NON_FINITE,
                    f"at step {record.step}, the gradient norm of group {group.group} is {group.before} before and "
                    f"{group.after} after clipping",
                )


def _values(tensor: TensorReduction) -> list[float]:
    optional = (tensor.max_abs, tensor.max_abs_difference, tensor.baseline_max_abs)
    return [value for value in optional if value is not None]


def _require_agreement(
    part: GradientMatch, compared: list[Compared], sheet: Sheet, norms: Mapping[int, tuple[float, float]]
) -> None:
    sizes = _sizes(part, compared)
    if not compared or _meets_equality(part, compared, sizes, sheet):
        return
    absolute, relative = (math.inf if each is None else each for each in _bounds(part))
    if part.equality == "bitwise":
        found = [entry for entry in compared if entry.differs]
        reason, demand = reasons.DIFFERS, ""
    else:
        found = [
            entry
            for entry in compared
            if not _is_within(entry, absolute, relative) and not entry.absolute <= entry.room
        ]
        reason = reasons.EXCEEDS_TOLERANCE
        demand = f"gradients differ by up to {next(each for each in sizes if not each.value <= each.bound)}; "
    first = found[0]
    sheet.figure("first_differing_step", first.step, "step")
    sheet.figure("first_differing_tensor", first.tensor)
    tensors = sorted({entry.tensor for entry in found})
    how = f"differ{'s' if len(tensors) == 1 else ''} in bits" if not demand else was(len(tensors)) + " beyond the bound"
    relatively = demand and first.absolute <= absolute
    by = f"{number(first.relative)} (relative)" if relatively else number(first.absolute)
    unclipped = ""
    if first.made and first.step in norms:
        ours, theirs = norms[first.step]
        unclipped = (
            f"; before the clip, the norm of all gradients is {number(ours)} in {part.candidate} and "
            f"{number(theirs)} in {part.baseline}"
        )
    settle(
        reason,
        f"{demand}{counted(len(tensors), 'gradient')} of {len({entry.tensor for entry in compared})} {how}, first "
        f"{first.tensor} at step {first.step} by {by}{unclipped}: {some(tensors)}",
    )


class _Size(NamedTuple):
    """The largest difference to which one bound applies (`value`), the bound, and the tensor with this difference."""

    figure: str
    value: float
    bound: float
    worst: Compared | None

    def __str__(self) -> str:
        where = "" if self.worst is None else f" in {self.worst.tensor} at step {self.worst.step}"
        relative = self.figure == "max_relative_difference"
        share = " times the largest element of the baseline's tensor" if relative else ""
        return f"{number(self.value)}{share} ({number(self.bound)} is allowed){where}"


def _sizes(part: GradientMatch, compared: list[Compared]) -> list[_Size]:
    """Return, for each bound of the claim, the largest difference. Differences that rounding may cause are left out."""
    excused = {id(entry) for entry in _as_control(part, compared)}
    judged = [entry for entry in compared if id(entry) not in excused]
    bound, most = part.max_abs_difference, part.max_relative_difference
    sizes = []
    if bound is not None:
        worst = max(judged, key=lambda entry: entry.absolute, default=None)
        sizes.append(_Size("max_abs_difference", worst.absolute if worst else 0.0, bound, worst))
    if most is not None:
        measured = [entry for entry in judged if not (entry.rounded and entry.relative > most)]
        worst = max(measured, key=lambda entry: entry.relative, default=None)
        sizes.append(_Size("max_relative_difference", worst.relative if worst else 0.0, most, worst))
    return sizes


def _meets_equality(part: GradientMatch, compared: list[Compared], sizes: list[_Size], sheet: Sheet) -> bool:
    if part.equality == "bitwise":
        differing = len({each.tensor for each in compared if each.differs})
        tensors = len({each.tensor for each in compared})
        return sheet.meets("tensors_differing", differing, "none", noun="tensors differ", of=tensors)
    units = {"max_abs_difference": "gradient"}
    return all(
        sheet.meets(each.figure, each.value, "at most", each.bound, units.get(each.figure, "")) for each in sizes
    )


def _is_within(entry: Compared, absolute: float, relative: float) -> bool:
    return entry.absolute <= absolute and (entry.rounded or entry.relative <= relative)


def _as_control(part: GradientMatch, compared: list[Compared]) -> list[Compared]:
    """Return the entries that exceed a bound, but whose difference rounding may cause (it is at most `room`)."""
    absolute, relative = (math.inf if each is None else each for each in _bounds(part))
    return [entry for entry in compared if not _is_within(entry, absolute, relative) and entry.absolute <= entry.room]


def _bounds(part: GradientMatch) -> tuple[float | None, float | None]:
    return part.max_abs_difference, part.max_relative_difference


def _require_told_from_rounding(part: GradientMatch, compared: list[Compared]) -> None:
    """End the judgement with INCONCLUSIVE if there is a step at which rounding may change every gradient by as much as
    the gradient's size. At such a step even a gradient of zero would pass."""
    for step in dict.fromkeys(entry.step for entry in _as_control(part, compared)):
        if not any(entry.room < entry.size for entry in compared if entry.step == step):
            settle(
                reasons.GRADIENTS_UNDECIDED,
                f"at step {step}, the gradients of control {part.control}, which starts a rounding away from "
                f"{part.baseline}, are so far from the baseline's that a gradient of zero would not be noticed; "
                "compare earlier steps",
            )


def _require_same_groups(records: list[Gradients]) -> None:
    first = {group.group for group in records[0].groups}
    for record in records[1:]:
        other = first ^ {group.group for group in record.groups}
        if other:
            settle(
                reasons.EVIDENCE_MISSING,
                f"steps {records[0].step} and {record.step} report norms of different groups: {some(sorted(other))}",
            )


def _require_groups_of(baseline: ArmEvidence, records: list[Gradients]) -> None:
    """End the judgement with ERROR if the arms clipped different groups of tensors at a step. The norm of a missing
    group could not be compared with the threshold."""
    theirs = {record.step: {group.group for group in record.groups} for record in baseline.gradients if record.groups}
    for record in records:
        other = theirs.get(record.step, set()) ^ {group.group for group in record.groups}
        if record.step in theirs and other:
            settle(
                reasons.EVIDENCE_MISSING,
                f"at step {record.step}, only one of the arms {record.arm} and {baseline.start.arm} has norms of "
                f"{some(sorted(other))}",
            )


def _require_clipped(demand: ClippedNorm, records: list[Gradients], sheet: Sheet, *, compared: bool) -> None:
    norms = [(group.after, group.group, record.step) for record in records for group in record.groups]
    if not norms:
        return
    largest, group, step = max(norms)
    sheet.figure("largest_clipped_norm", largest, "norm")
    sheet.figure("clip_threshold", demand.at_most, "norm")
    allowed = demand.at_most * (1 + demand.relative_rounding)
    # The norm after a clip is about equal to the threshold, so rounding may make the norm slightly larger. Only if the
    # norm exceeds the threshold, use the bound that allows for rounding.
    bound = allowed if demand.at_most < largest <= allowed else demand.at_most
    if not sheet.meets("largest_clipped_norm", largest, "at most", bound, "norm", beside=compared):
        beyond = sum(norm > allowed for norm, _, _ in norms)
        settle(
            reasons.CLIPPED_NORM_EXCEEDED,
            f"after clipping, {beyond} of {len(norms)} norms exceed {number(demand.at_most)}; the largest is "
            f"{number(largest)}, of group {group} at step {step}",
        )


def _require_clips(part: GradientMatch, named: dict[str, ArmEvidence], records: list[Gradients], sheet: Sheet) -> None:
    for name, execution in named.items() if part.clip_active_steps is not None else ():
        require_active_clip(name, execution, part.clip_active_steps or 0, sheet)
    if part.clipped_norm is not None and part.clip_active_steps != 0:
        threshold = part.clipped_norm.at_most
        groups = [group for record in records for group in record.groups]
        clipped = sum(group.before > threshold for group in groups)
        if groups and not sheet.meets("clipped_norms", clipped, "at least", 1, "norms", beside=True):
            settle(
                reasons.VACUOUS_CLIP_INACTIVE,
                f"none of {len(groups)} norms exceeded {number(threshold)} before clipping, so the clip changed "
                "nothing",
            )


def require_gradients(records: list[Gradients]) -> None:
    """End the judgement with FAIL if all compared gradients are zero at all steps."""
    largest = max((max(_values(tensor)) for record in records for tensor in record.tensors), default=None)
    if largest == 0:
        settle(reasons.VACUOUS_GRADIENTS_ZERO, "every compared gradient is zero")


def require_every_tensor(candidate: ArmEvidence, records: list[Gradients], baseline: ArmEvidence) -> None:
    """End the judgement with FAIL if a trainable tensor had no gradient at a recorded step.

    A tensor may lack a gradient at a step if neither arm has one at this step and both train the tensor in other steps.
    The step then did not use the tensor, for example the weight of an expert to which no token was routed.
    """
    names, trainable = candidate.start.trainable_names, candidate.start.trainable_tensors
    theirs = {record.step: set(record.without) for record in baseline.gradients}
    trained = _changed(candidate) & _changed(baseline)
    for record in records:
        seen = {tensor.name for tensor in record.tensors}
        had = seen if names is None else seen & set(names)
        missing = set(names or ()) - seen
        unused = missing & trained & set(record.without) & theirs.get(record.step, set())
        if len(had) + len(unused) < trainable:
            without = f": none reached {some(sorted(missing - unused))}" if missing - unused else ""
            settle(
                reasons.TENSORS_MISSING,
                f"{len(had)} of {trainable} trainable tensors had a gradient at step {record.step}{without}",
            )


def _changed(execution: ArmEvidence) -> set[str]:
    """Return the names of the parameters that the training changed."""
    start, end = execution.start.state, end_of(execution).state
    if start is None or end is None:
        return set()
    before, after = (each.digests.get("parameters", {}) for each in (start, end))
    return {name for name, digest in before.items() if after.get(name, digest) != digest}


def _sentence(part: GradientMatch, records: list[Gradients], compared: list[Compared]) -> str:
    said = []
    if compared:
        tensors, steps = counted(len({entry.tensor for entry in compared}), "tensor"), counted(len(records), "step")
        if part.equality == "bitwise":
            said.append(f"the gradients of {tensors} are equal in bits to {part.baseline}'s at {steps}")
        else:
            far = ", and by at most ".join(map(str, _sizes(part, compared)))
            said.append(f"gradients differ by at most {far}; {tensors} were compared with {part.baseline}'s at {steps}")
        rounded = len(_rounded(part, compared))
        if rounded:
            said.append(
                f"{rounded} of these gradients differ by more than the relative bound, but by less than {ROUNDING:g} "
                "of the step's largest gradient, as rounding does"
            )
    if excused := {entry.tensor for entry in _as_control(part, compared)}:
        said.append(
            f"{len(excused)} of these gradients differ by more than the bound, but not by more than rounding causes in "
            f"the control {part.control}"
        )
    if part.clipped_norm is not None:
        groups = sum(len(record.groups) for record in records)
        said.append(f"all {groups} clipped norms are at most {number(part.clipped_norm.at_most)}")
    return ", and ".join(said)
