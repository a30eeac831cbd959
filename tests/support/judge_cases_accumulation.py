"""Cases of accumulation: evidence that passes, with one thing changed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from evidence_builders import LOSSES, STEPS, arm, cuda_graph, gradients, paired, reduction, verdict_of
from judge_cases import Case
from judge_cases_end_state import NO_GENERATOR
from judge_cases_training import changed

from harness.evidence.arm_records import GroupNorm, MicroBatches
from harness.evidence.run_evidence import ArmEvidence
from harness.judging.verdict import Verdict

ACCUMULATION: dict[str, Any] = {
    "kind": "accumulation",
    "candidate": "graphed",
    "baseline": "ungraphed",
    "micro_batches": 2,
    "steps": [0, 5],
    "max_relative_difference": 1e-3,
}
DIGESTS = [[f"first{step}", f"second{step}"] for step in range(STEPS)]
ROUNDED = reduction("b", digest="other", max_abs_difference=1e-4)


def norm(before: float, group: str = "layer0") -> list[GroupNorm]:
    return [GroupNorm(group=group, before=before, after=1.0)]


def micro_batches(digests: Sequence[Sequence[str]] = DIGESTS, first_step: int = 0) -> MicroBatches:
    return MicroBatches(arm="graphed", replica=0, first_step=first_step, digests=[list(each) for each in digests])


def one_batch(late: float = 4.0, name: str = "ungraphed", **changes: Any) -> ArmEvidence:
    """Return the arm that processes each batch at once; its gradients are in the candidate's records.

    late: the norm at step 5.
    """
    own = {"arm": name, "baseline": None, "groups": norm(4.0), "tensors": []}
    return arm(name, **{"gradients": [gradients(0, **own), gradients(5, **own | {"groups": norm(late)})], **changes})


def accumulated(
    *tensors: Any,
    losses: Any = LOSSES,
    groups: Any = None,
    read: Sequence[MicroBatches] | None = None,
    updates: list[int] | None = None,
    looked: bool = True,
    claim: dict[str, Any] | None = None,
    other: ArmEvidence | None = None,
    **changes: Any,
) -> Verdict:
    """Return the verdict on passing gradients at step 0, `tensors` at step 5, and what ten steps read and counted."""
    late: dict[str, Any] = {"tensors": list(tensors)} if tensors else {"tensors": [reduction("a"), ROUNDED]}
    late |= {} if groups is None else {"groups": groups}
    late |= {"baseline": (other or one_batch()).start.arm}
    records = [gradients(0, **late | {"tensors": [reduction("a"), ROUNDED], "groups": norm(4.0)}), gradients(5, **late)]
    ours = arm("graphed", losses, **{"capture": cuda_graph(), "gradients": records, **changes})
    assert ours.end is not None
    counted = [STEPS] if updates is None else updates
    ours = dataclasses.replace(
        ours,
        end=ours.end.model_copy(update={"updates": counted if looked else None}),
        micro_batches=[micro_batches()] if read is None else list(read),
    )
    return verdict_of(ACCUMULATION | {"baseline": late["baseline"]} | (claim or {}), paired(other or one_batch(), ours))


def unlike(absolute: float, **changes: Any) -> Any:
    """Return tensor `b`, different from that of the one-batch arm."""
    return reduction("b", **{"digest": "other", "max_abs_difference": absolute, **changes})


A, FIVE = reduction("a"), LOSSES[:5]
ACCUMULATION_CASES = [
    Case("within rounding", "held", accumulated),
    Case("a tensor without some gradients", "held", lambda: accumulated(updates=[7, STEPS])),
    Case(
        "micro-batches of two blocks",
        "held",
        lambda: accumulated(read=[micro_batches(DIGESTS[:4]), micro_batches(DIGESTS[4:], 4)]),
    ),
    Case("no norms", "held", lambda: accumulated(gradients=all_steps(groups=[]), other=one_batch(gradients=[]))),
    Case("three micro-batches", "micro_batch_count", lambda: accumulated(claim={"micro_batches": 3})),
    Case("none", "micro_batch_count", lambda: accumulated(read=[micro_batches([[]] * STEPS)])),
    Case(
        "one twice",
        "micro_batches_repeat",
        lambda: accumulated(read=[micro_batches([*DIGESTS[:3], ["same", "same"], *DIGESTS[4:]])]),
    ),
    Case("an update at each micro-batch", "update_count", lambda: accumulated(updates=[2 * STEPS])),
    Case("an update lost", "update_count", lambda: accumulated(updates=[STEPS - 1])),
    Case("updates that are not counted", "updates_uncounted", lambda: accumulated(updates=[])),
    Case(
        "updates that are not counted, and another gradient",
        "differs_from_one_batch",
        lambda: accumulated(A, unlike(0.1), updates=[]),
    ),
    Case("another gradient", "differs_from_one_batch", lambda: accumulated(A, unlike(0.1))),
    Case("zero but for rounding", "held", lambda: accumulated(A, unlike(4e-7, baseline_max_abs=1e-7))),
    Case(
        "zero but for rounding, in most tensors",
        "gradients_undecided",
        lambda: accumulated(
            tensors=3,
            names=["a", "b", "c"],
            gradients=all_steps(
                A, *(unlike(4e-7, baseline_max_abs=1e-7).model_copy(update={"name": name}) for name in "bc")
            ),
        ),
    ),
    Case("zero, and by more", "differs_from_one_batch", lambda: accumulated(A, unlike(6e-7, baseline_max_abs=1e-7))),
    Case("against zeros", "differs_from_one_batch", lambda: accumulated(A, unlike(0.1, baseline_max_abs=0.0))),
    Case("summed", "differs_from_one_batch", lambda: accumulated(groups=norm(8.0))),
    Case("a norm of 0 in both", "held", lambda: accumulated(groups=norm(0.0), other=one_batch(0.0))),
    Case("a norm against 0", "differs_from_one_batch", lambda: accumulated(other=one_batch(0.0))),
    Case("other frozen tensors", "unequal_start", lambda: accumulated(other=one_batch(frozen="other"))),
    Case(
        "other frozen tensors of another system",
        "held",
        lambda: accumulated(other=one_batch(name="other_system", frozen="other")),
    ),
    Case(
        "one batch not captured",
        "candidate_not_captured",
        lambda: accumulated(
            claim={"candidate": "ungraphed", "baseline": "graphed"}, capture=cuda_graph(captured=False, replays=0)
        ),
    ),
    Case("another loss", "differs_from_one_batch", lambda: accumulated(losses=changed(5, 2.4))),
    Case("one computation", "vacuous_one_batch", lambda: accumulated(gradients=all_steps(A, reduction("b")))),
    Case("NaN", "non_finite", lambda: accumulated(A, unlike(math.nan, max_abs=math.nan))),
    Case("NaN norm", "non_finite", lambda: accumulated(groups=norm(math.nan))),
    Case("a tensor without gradient", "tensors_missing", lambda: accumulated(ROUNDED)),
    Case(
        "all zero",
        "vacuous_gradients_zero",
        lambda: accumulated(gradients=all_steps(*(reduction(n, max_abs=0.0, baseline_max_abs=0.0) for n in "ab"))),
    ),
    Case("tensors at the end that were not counted", "evidence_inconsistent", lambda: accumulated(**NO_GENERATOR)),
    Case("another mechanism", "mechanism_missing", lambda: accumulated(claim={"mechanism": "traced"})),
    Case("a step missing", "evidence_missing", lambda: accumulated(claim={"steps": [0, 7]})),
    Case(
        "a compared step without a loss",
        "evidence_missing",
        lambda: accumulated(losses=FIVE, other=one_batch(losses=FIVE), read=[micro_batches(DIGESTS[:5])], updates=[5]),
    ),
    Case("micro-batches not recorded", "evidence_missing", lambda: accumulated(read=[])),
    Case("some not recorded", "evidence_missing", lambda: accumulated(read=[micro_batches(DIGESTS[:9])])),
    Case("updates not looked for", "evidence_missing", lambda: accumulated(looked=False)),
    Case("a group of its own", "evidence_missing", lambda: accumulated(groups=norm(4.0, "layer1"))),
    Case("norms of the candidate alone", "evidence_missing", lambda: accumulated(other=one_batch(gradients=[]))),
    Case("not compared", "evidence_missing", lambda: accumulated(A, unlike(0.0, max_abs_difference=None))),
    Case("no run", "evidence_missing", lambda: verdict_of(ACCUMULATION)),
    Case("one arm alone", "evidence_missing", lambda: verdict_of(ACCUMULATION, paired(one_batch()))),
]


def all_steps(*tensors: Any, groups: Any = None) -> list[Any]:
    """Return both gradient records with these tensors and groups."""
    kept = list(tensors) or [A, ROUNDED]
    return [gradients(step, tensors=kept, **({} if groups is None else {"groups": groups})) for step in (0, 5)]
