"""Define the claims about ranks: `ranks_agree` and `ranks_match`. Ranks are processes that train one model together,
each on its share of every batch."""

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
    """A claim about several ranks. It has one verdict, from the evidence of all ranks together."""

    judged_at: ClassVar = "all ranks"

    def recorded_of(self) -> dict[str, dict[str, int | str]]:
        return {arm: {"watch_ranks": True} for arm in self.arms().values()}


class RanksAgree(OverRanks):
    """All ranks have the same model: parameters are equal in bits after every step. Each rank reads different rows.

    Parameters that are divided among ranks (DTensor) are gathered before the comparison. Each part of such a parameter
    exists in only one rank. This claim therefore cannot show that the rank updated the part correctly, but a claim of
    the kind `ranks_match` can.
    """

    kind: Literal["ranks_agree"]
    """Compares the ranks of one arm with each other."""
    candidate: ArmName
    """The arm under test. It has several ranks."""
    steps: StepsCompared
    """Number of steps that must have been compared."""
    host_collectives_at_most: Annotated[Natural | None, Demand("collectives_outside_graph")] = None
    """Largest number of collectives that the host may begin in a step. In a captured arm, 0 means that all collectives
    are inside the graph. Steps that capture do not count. The first two steps do not count either, because
    DistributedDataParallel groups gradients in them."""
    graph_collectives_at_least: Annotated[Count | None, Demand("collectives_missing_in_graph")] = None
    """Smallest number of collectives in the captured graph, counted as NCCL kernels. This needs CUDA."""
    share_at_most: Annotated[Annotated[float, Field(gt=0, le=1)] | None, Demand("share_exceeded"), Nothing(1.0)] = None
    """Largest share of all elements of the parameters, and of the optimizer's tensors, that one rank may hold. If two
    ranks divide a model equally, the share is 0.5. The field is required if every parameter is divided among ranks."""
    generators: Annotated[
        RandomNumbers | dict[str, RandomNumbers] | None, Demand("ranks_draw_alike", "ranks_draw_apart")
    ] = None
    """The random numbers that ranks must draw. `separate`: each rank draws different numbers, for example for masks of
    dropout. `shared`: all ranks draw the same numbers, for example to choose the layers that a step skips. A single
    word applies to every generator that the step draws from. A mapping such as `{torch.cpu: separate, depth: shared}`
    applies to generators by name. The figures of the verdict contain the names of the generators."""

    def contradictions(self) -> Iterator[Problem]:
        if self.graph_collectives_at_least is not None and self.mechanism == "traced":
            yield Problem(
                ("mechanism",),
                "`graph_collectives_at_least` needs a CUDA graph, because a traced replay has no graph",
                "`traced`",
                "remove `mechanism`",
            )

    def captures_candidate(self) -> bool:
        return super().captures_candidate() or self.graph_collectives_at_least is not None

    def asks_the_device_of_replays(self) -> bool:
        return self.graph_collectives_at_least is not None

    def candidate_capabilities(self) -> frozenset[str]:
        return frozenset({"capture"} if self.graph_collectives_at_least is not None else ())


class RanksMatch(OverRanks):
    """Several ranks train as one process does on their joined batches, within a bound. The bound must allow for
    rounding, because sums are added up in another order."""

    kind: Literal["ranks_match"]
    """Compares an arm with several ranks with an arm with one rank."""
    candidate: ArmName
    """The arm with several ranks."""
    baseline: ArmName
    """The arm with one rank. It reads the rows of all ranks as one batch."""
    steps: StepsCompared
    """Number of steps that must have been compared."""
    max_abs_difference: Annotated[Positive | None, Demand("exceeds_tolerance")] = None
    """Largest allowed difference at any step between the mean of the ranks' losses and the baseline's loss."""
    max_relative_difference: Annotated[Positive | None, Demand("exceeds_tolerance")] = None
    """Largest allowed difference between the mean of the ranks' losses and the baseline's loss, relative to the
    baseline's loss at the same step. If `max_abs_difference` is also given, both bounds must hold."""
    max_end_difference: Annotated[Positive | None, Demand("ranks_end_apart")] = None
    """Largest allowed absolute difference of any element of any trainable parameter after the last step."""
    in_turn: Annotated[Name | None, NamesArm(), Demand("ranks_end_apart")] = None
    """An arm with one rank. It processes the ranks' shares of a batch one after the other as micro-batches, and adds up
    the same terms as the ranks. The ranks' parameters must be equal to this arm's in every bit after every step."""
    ends: Ends | None = None
    """Bounds on the difference between the end states of the first rank and the baseline, also in tensors that no loss
    reads, such as averaged weights. A control shows the effect of rounding. Not allowed with `max_end_difference`."""

    def recorded_of(self) -> dict[str, dict[str, int | str]]:
        found = super().recorded_of()
        of_ends = {} if self.ends is None else self.ends.recorded_of(self.candidate, self.baseline)
        return {arm: fields | of_ends.get(arm, {}) for arm, fields in found.items()}

    @model_validator(mode="after")
    def _has_a_bound(self) -> RanksMatch:
        if self.max_abs_difference is None and self.max_relative_difference is None:
            refuse(
                "the claim has no bound on losses; give `max_abs_difference`, `max_relative_difference` or both", "kind"
            )
        if self.max_end_difference is None and self.in_turn is None and self.ends is None:
            refuse(
                "the claim does not check the end; give `max_end_difference`, `ends` or `in_turn`; `in_turn` may be "
                "combined with one of the others",
                "kind",
            )
        if self.max_end_difference is not None and self.ends is not None:
            refuse(
                "`ends` already bounds the difference of parameters at the end: leave `max_end_difference` out", "ends"
            )
        return self
