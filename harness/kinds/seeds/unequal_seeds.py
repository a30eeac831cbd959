"""Two seeds that change nothing are one seed: told by what a run began with and read, not by what came of it.

A sum that is added up in another order makes two runs of one seed differ in their last bit, so that their losses say
nothing of whether a seed reached them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.context import end_of
from harness.judging.series import first_unequal
from harness.judging.sheet import settle


def require_unequal_seeds(arm: str, by_seed: Mapping[int, ArmEvidence]) -> None:
    """Settle FAIL where an arm began from one start with two seeds, and read the same batches in the steps of both.

    Seeds may share the start by design (a checkpoint) or the batches (another initialization), but not both. What a
    generator that training draws from held at the start is a cause, too: dropout is.
    """
    for (first, one), (second, other) in combinations(by_seed.items(), 2):
        if _start(one) != _start(other) or not _one_draw(one, other):
            continue
        steps = min(len(one.series.loss), len(other.series.loss))
        if steps and first_unequal(one.series.batch_digest[:steps], other.series.batch_digest[:steps]) is None:
            settle(
                reasons.VACUOUS_SEEDS_ALIKE,
                f"arm {arm} begins with equal parameters and reads the same batches at all {steps} steps with seeds "
                f"{first} and {second}",
            )


def _start(execution: ArmEvidence) -> tuple[object, ...]:
    """What there is before the first step, but for generators: a seed may make a table of noise, too."""
    state = execution.start.state
    found = {} if state is None else {name: each for name, each in state.digests.items() if name != "generators"}
    return execution.start.trainable_digest, execution.start.frozen_digest, found


def _one_draw(one: ArmEvidence, other: ArmEvidence) -> bool:
    """Whether no generator that training drew from held something else with the other seed. One at rest is no cause."""
    ours, theirs = _drawn_from(one), _drawn_from(other)
    return all(ours.get(name, digest) == theirs.get(name, digest) for name, digest in (ours | theirs).items())


def _drawn_from(execution: ArmEvidence) -> dict[str, str]:
    """What the generators held that the steps moved; of a device's, which is there from its first use on, the end."""
    start, end = execution.start.state, end_of(execution).state
    if start is None or end is None:
        return {}
    began, ended = (each.digests.get("generators", {}) for each in (start, end))
    return {name: began.get(name, digest) for name, digest in ended.items() if began.get(name) != digest}
