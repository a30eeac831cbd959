"""Check that compared executions start from equal state. Messages name each differing tensor, and what differs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.evidence.arm_records import FROZEN, State
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.end_state import LOOSE, Apart, differing
from harness.judging.sheet import settle, some, weight
from harness.numbers import told_apart

# Categories of state that may be missing at the start, because some arms create this state in their first step.
# Captured arms create it earlier.
_MAY_COME_LATER = ("optimizer",)


def require_equal_start(
    kind: str, name: str, execution: ArmEvidence, reference_name: str, reference: ArmEvidence
) -> None:
    """Raise FAIL if two executions start from different parameters. kind: `trainable`, `frozen`, or `rounded` for
    trainable parameters that are rounded before they are compared."""
    ours, theirs = (getattr(each.start, f"{kind}_digest") for each in (execution, reference))
    if ours is None or theirs is None:
        settle(
            reasons.EVIDENCE_MISSING,
            f"the digest of the rounded start of {name if ours is None else reference_name} is missing",
        )
    if ours == theirs:
        return
    tensors, others = execution.start.trainable_tensors, reference.start.trainable_tensors
    if apart := _parameters_apart(kind, execution, reference):
        words = f": {in_words(apart, name, execution, reference_name, reference)}"
    elif kind != FROZEN and tensors != others:
        words = f": {tensors} tensors in {name}, {others} in {reference_name}"
    else:
        # only one digest of the values of all these parameters was compared, so the message cannot name a tensor
        words = ": their values differ"
    settle(reasons.UNEQUAL_START, f"{name} and {reference_name} start from different {kind} parameters{words}")


def _parameters_apart(kind: str, execution: ArmEvidence, reference: ArmEvidence) -> list[Apart]:
    """Return the parameters of this kind that are known to differ. Parameters of kind `rounded` may have different data
    types."""
    ours, theirs = execution.start.state, reference.start.state
    if ours is None or theirs is None:
        return []
    if kind == FROZEN:
        mine, other = (_forms_of_frozen(each) for each in (ours, theirs))
        return differing(mine, other) if mine.tensors and other.tensors else []
    names = {*(execution.start.trainable_names or ()), *(reference.start.trainable_names or ())}
    found = (each for each in differing(ours, theirs) if each.category == "parameters")
    # without recorded names, all parameters are included
    apart = [each for each in found if not names or each.name in names]
    if kind == "trainable":
        return apart
    forms = ((each, _form(execution, each), _form(reference, each)) for each in apart)
    return [
        each
        for each, (mine, shape), (other, others) in forms
        if each.only_one_has_it or shape != others or (mine and mine == other)
    ]


def _forms_of_frozen(state: State) -> State:
    """Return a state that has, for each frozen parameter, a text with its data type and shape in place of a digest.

    The evidence has no digest of a single frozen parameter, but only one digest of the values of all frozen parameters.
    """
    found = {
        name.partition(" ")[2]: form for name, form in (state.forms or {}).items() if name.startswith(f"{FROZEN} ")
    }
    return State(digests={FROZEN: found}, tensors=len(found))


def require_equal_start_state(
    name: str, execution: ArmEvidence, reference_name: str, reference: ArmEvidence, more_in: str | None = None
) -> None:
    """Raise FAIL if two executions start from different buffers, generators or other state.

    The execution `more_in` may have additional tensors, such as copies that an optimization makes. The other execution
    may have additional tensors outside of modules and optimizers only if they are copies of tensors that both
    executions have.
    """
    apart = start_differences(execution, reference)
    if more_in in (name, reference_name):
        other = reference if more_in == name else execution
        apart = [
            each
            for each in apart
            if not each.only_one_has_it
            or (each.ours is not (more_in == name) and not _is_named_again(each, other.start.state, apart))
        ]
    if apart:
        settle(
            reasons.UNEQUAL_START,
            f"{name} and {reference_name} start from different state: "
            f"{in_words(apart, name, execution, reference_name, reference)}",
        )


def _is_named_again(entry: Apart, state: State | None, apart: list[Apart]) -> bool:
    """Return True if the tensor is a copy: it belongs to no module or optimizer, and `state` has another tensor of this
    kind with the same bits that is not in `apart` (does not differ between the executions)."""
    loose = {} if state is None or entry.category != LOOSE else state.digests[LOOSE]
    differing_names = {each.name for each in apart if each.category == entry.category}
    return any(loose[name] == loose.get(entry.name) for name in loose.keys() - differing_names)


def start_differences(execution: ArmEvidence, reference: ArmEvidence) -> list[Apart]:
    """Return the tensors that differ between the states at the start of two executions. Return [] if a state is
    missing; `Comparison.held` then reports the missing state."""
    ours, theirs = execution.start.state, reference.start.state
    if ours is None or theirs is None:
        return []
    return [entry for entry in differing(ours, theirs) if not (entry.only_one_has_it and _may_come_later(entry))]


def _may_come_later(entry: Apart) -> bool:
    """Return True if the tensor need not exist at the start. For example, a GPU's generator appears at its first
    use."""
    return entry.category in _MAY_COME_LATER or (
        entry.category == "generators" and entry.name.startswith("torch.cuda:")
    )


def in_words(
    apart: Sequence[Apart], name: str, execution: ArmEvidence, reference_name: str, reference: ArmEvidence
) -> str:
    """Return a text that lists the tensors that differ: in values, types or shapes, or because only one execution has
    the tensor."""
    alike: dict[str, list[str]] = {}
    for entry in sorted(apart, key=lambda each: weight(str(each))):
        if entry.only_one_has_it:
            how = f" (only in {name if entry.ours else reference_name})"
        else:
            pairs = [
                _numbers(execution, reference, entry),
                *zip(_form(execution, entry), _form(reference, entry), strict=True),
            ]
            seen = [(mine, other) for mine, other in pairs if mine and other and mine != other]
            mine, other = (" ".join(each) for each in zip(*seen, strict=True)) if seen else ("", "")
            how = f" ({mine} in {name}, {other} in {reference_name})" if seen else ""
        alike.setdefault(how, []).append(f"{entry.category} {entry.name}")
    return some([f"{some(names)}{how}" for how, names in alike.items()])


def _numbers(execution: ArmEvidence, reference: ArmEvidence, entry: Apart) -> tuple[str, str]:
    """Return the initial values of a tensor with one element in both executions, as texts. Return ("", "") if one of
    these values was not recorded."""
    states = (execution.start.state, reference.start.state)
    mine, other = (((state and state.numbers) or {}).get(f"{entry.category} {entry.name}") for state in states)
    return ("", "") if mine is None or other is None else told_apart(mine, other)


def _form(execution: ArmEvidence, entry: Apart) -> tuple[str, str]:
    """Return a tensor's data type and shape at the start, as texts. A text is "" if this fact was not recorded."""
    state, types = execution.start.state, execution.start.trainable_dtypes or []
    form = ((state and state.forms) or {}).get(f"{entry.category} {entry.name}")
    # Older versions did not record data types and shapes for each tensor.
    if form is None and entry.category == "parameters" and len(types) == 1:
        form = types[0]
    data_type, _, shape = (form or "").partition(" ")
    return data_type, shape
