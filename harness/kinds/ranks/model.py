"""Define the claims about ranks: processes that train one model together, each on its share of every batch."""

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
    """A claim that is judged once, from the evidence of all ranks together."""

    judged_at: ClassVar = "all ranks"

    def recorded_of(self) -> dict[str, dict[str, int | str]]:
        return {arm: {"watch_ranks": True} for arm in self.arms().values()}


class RanksAgree(OverRanks):
    """Ranks hold equal models: their parameters are equal in bits after every step, and each rank reads different rows.

    Parameters that are divided among ranks (DTensor) are gathered before the comparison. Each part of such a parameter
    exists in only one rank, so this claim cannot show that the rank updated it correctly. `ranks_match` can.
    """

    kind: Literal["ranks_agree"]
    """Judges the ranks of one arm against each other."""
    candidate: ArmName
    """The arm, which has several ranks."""
    steps: StepsCompared
    """Steps that must have been compared."""
    host_collectives_at_most: Annotated[Natural | None, Demand("collectives_outside_graph")] = None
    """Most collectives that the host may begin in a step; 0 in a captured arm means that all are inside the graph. The
    first two steps, in which DistributedDataParallel groups gradients, and steps that capture do not count."""
    graph_collectives_at_least: Annotated[Count | None, Demand("collectives_missing_in_graph")] = None
    """Fewest collectives in the captured graph, counted as NCCL kernels. Needs CUDA."""
    share_at_most: Annotated[Annotated[float, Field(gt=0, le=1)] | None, Demand("share_exceeded"), Nothing(1.0)] = None
    """Largest share of all elements of the parameters, and of the optimizer's tensors, that one rank may hold: 0.5 if
    two ranks divide a model equally. Required if no parameter is in every rank."""
    generators: Annotated[
        RandomNumbers | dict[str, RandomNumbers] | None, Demand("ranks_draw_alike", "ranks_draw_apart")
    ] = None
    """Whether ranks draw `separate` random numbers, as for masks of dropout, or `shared` ones, as for the choice of
    layers that a step skips. One word applies to every generator that the step draws from. A mapping such as
    `{torch.cpu: separate, depth: shared}` applies to generators by name. The verdict's figures list the names."""

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
    """Several ranks train like one process on their joined batches, within a bound. The bound allows for sums that are
    added in another order."""

    kind: Literal["ranks_match"]
    """Judges an arm of several ranks against one of a single rank."""
    candidate: ArmName
    """The arm with several ranks."""
    baseline: ArmName
    """The arm with one rank, which reads the ranks' rows as one batch."""
    steps: StepsCompared
    """Steps that must have been compared."""
    max_abs_difference: Annotated[Positive | None, Demand("exceeds_tolerance")] = None
    """Largest difference at any step between the mean of the ranks' losses and the baseline's loss."""
    max_relative_difference: Annotated[Positive | None, Demand("exceeds_tolerance")] = None
    """The same difference relative to the baseline's loss at that step. If both bounds are given, both must hold."""
    max_end_difference: Annotated[Positive | None, Demand("ranks_end_apart")] = None
    """Largest absolute difference of any element of any trainable parameter after the last step."""
    in_turn: Annotated[Name | None, NamesArm(), Demand("ranks_end_apart")] = None
    """An arm with one rank that takes the ranks' shares one after the other as micro-batches, and adds the same terms.
    The ranks' parameters must equal its parameters in bits after every step."""
    ends: Ends | None = None
    """How much the end states of the first rank and the baseline may differ, including tensors that no loss reads, such
    as averaged weights. Replaces `max_end_difference`. A control shows how much rounding alone changes the end."""

    def recorded_of(self) -> dict[str, dict[str, int | str]]:
        found = super().recorded_of()
        of_ends = {} if self.ends is None else self.ends.recorded_of(self.candidate, self.baseline)
        return {arm: fields | of_ends.get(arm, {}) for arm, fields in found.items()}

    @model_validator(mode="after")
    def _has_a_bound(self) -> RanksMatch:
        if self.max_abs_difference is None and self.max_relative_difference is None:
            refuse("give `max_abs_difference`, `max_relative_difference` or both", "kind")
        if self.max_end_difference is None and self.in_turn is None and self.ends is None:
            refuse(
                "give `max_end_difference`, `ends` or `in_turn`; `in_turn` may be combined with one of the others",
                "kind",
            )
        if self.max_end_difference is not None and self.ends is not None:
            refuse(
                "`ends` already bounds the difference of parameters at the end: leave `max_end_difference` out", "ends"
            )
        return self
