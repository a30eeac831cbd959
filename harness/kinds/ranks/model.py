"""Define judgements about ranks: processes that train one model together, each on its share of every batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from harness.contract.base import (
    ArmName,
    Count,
    Demand,
    Judged,
    Name,
    NamesArm,
    Natural,
    Nothing,
    Positive,
    Problem,
    StepsCompared,
    refuse,
)
from harness.contract.guards import Ends

RandomNumbers = Literal["shared", "separate"]


class OverRanks(Judged):
    """Judged from what all ranks saw, not rank by rank."""

    judged_at: ClassVar = "all ranks"

    def recorded_of(self) -> dict[str, dict[str, int | str]]:
        return {arm: {"watch_ranks": True} for arm in self.arms().values()}


class RanksAgree(OverRanks):
    """Ranks stay one model: every rank's parameters are equal in bits after every step, each on rows of its own.

    Of parameters that ranks share (DTensor) the parts are gathered first. A part has no second copy: that what one rank
    did to its own is right, only a comparison with other training can show (`ranks_match`).
    """

    kind: Literal["ranks_agree"]
    """Judges the ranks of one arm against each other."""
    candidate: ArmName
    """The arm; it has several ranks."""
    steps: StepsCompared
    """Steps that must have been compared."""
    host_collectives_at_most: Annotated[Natural | None, Demand("collectives_outside_graph")] = None
    """Collectives that the host may begin in a step behind the second, and behind the captures: of a captured arm 0
    says that all are inside the graph. In its first steps DistributedDataParallel groups gradients by its own."""
    graph_collectives_at_least: Annotated[Count | None, Demand("collectives_missing_in_graph")] = None
    """Collectives that the captured graph must hold: its NCCL kernels. Needs CUDA."""
    share_at_most: Annotated[Annotated[float, Field(gt=0, le=1)] | None, Demand("share_exceeded"), Nothing(1.0)] = None
    """Largest share of all elements of the parameters, and of the optimizer's tensors, that one rank may hold: 0.5 of a
    model that two ranks share equally. Must be said where no parameter is in every rank."""
    generators: Annotated[
        RandomNumbers | dict[str, RandomNumbers] | None, Demand("ranks_draw_alike", "ranks_draw_apart")
    ] = None
    """Which random numbers the ranks draw: `separate`, as masks of dropout should be, or `shared`, as the choice of
    layers that a step leaves out should be. One word is about every generator that the step reaches and draws from;
    `{torch.cpu: separate, depth: shared}` is about generators by name. Names are in the verdict's figures."""

    def contradictions(self) -> Iterator[Problem]:
        if self.graph_collectives_at_least is not None and self.mechanism == "traced":
            yield Problem(("mechanism",), "a traced replay has no graph with collectives", "`traced`", "remove it")

    def captures_candidate(self) -> bool:
        return super().captures_candidate() or self.graph_collectives_at_least is not None

    def asks_the_device_of_replays(self) -> bool:
        return self.graph_collectives_at_least is not None

    def candidate_capabilities(self) -> frozenset[str]:
        return frozenset({"capture"} if self.graph_collectives_at_least is not None else ())


class RanksMatch(OverRanks):
    """Ranks train as one process does on their batches joined, within a bound: sums are added in another order."""

    kind: Literal["ranks_match"]
    """Judges an arm of several ranks against one of a single rank."""
    candidate: ArmName
    """The arm with several ranks."""
    baseline: ArmName
    """The arm with one rank, which reads the ranks' rows as one batch."""
    steps: StepsCompared
    """Steps that must have been compared."""
    max_abs_difference: Annotated[Positive | None, Demand("exceeds_tolerance")] = None
    """Largest difference, at any step, between the mean of the ranks' losses and the baseline's loss."""
    max_relative_difference: Annotated[Positive | None, Demand("exceeds_tolerance")] = None
    """The same relative to the baseline's loss at that step. With `max_abs_difference` both bounds hold."""
    max_end_difference: Annotated[Positive | None, Demand("ranks_end_apart")] = None
    """Largest absolute difference of any element of any trainable parameter after the last step."""
    in_turn: Annotated[Name | None, NamesArm(), Demand("ranks_end_apart")] = None
    """An arm with one rank that takes the ranks' shares one after the other, as micro-batches, and adds up what they
    add up: its parameters are equal in bits to theirs after every step, and end as far from the baseline's."""
    ends: Ends | None = None
    """How far apart the first rank and the baseline may end in what no loss reads, too, as averaged weights: with a
    control, which says what rounding makes of it, instead of `max_end_difference`."""

    def recorded_of(self) -> dict[str, dict[str, int | str]]:
        found = super().recorded_of()
        of_ends = {} if self.ends is None else self.ends.recorded_of(self.candidate, self.baseline)
        return {arm: fields | of_ends.get(arm, {}) for arm, fields in found.items()}

    @model_validator(mode="after")
    def _has_a_bound(self) -> RanksMatch:
        if self.max_abs_difference is None and self.max_relative_difference is None:
            refuse("say `max_abs_difference`, `max_relative_difference` or both", "kind")
        if self.max_end_difference is None and self.in_turn is None and self.ends is None:
            refuse("say `max_end_difference` or `ends`, `in_turn`, or one of them beside it", "kind")
        if self.max_end_difference is not None and self.ends is not None:
            refuse("`ends` says how far parameters may end apart: leave `max_end_difference` out", "ends")
        return self
